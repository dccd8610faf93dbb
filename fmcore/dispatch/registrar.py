"""What ``fmcore_register_impls`` receives: it judges each implementation by itself and never raises for one."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from fmcore.dispatch.caps import Caps
from fmcore.dispatch.metadata import BackendMeta
from fmcore.dispatch.registry import BrokenImpl, Impl
from fmcore.errors import PluginError

Function = TypeVar("Function", bound=Callable[..., Any])


class Registrar:
    """Collects the implementations of one plugin.

    Args:
        backends: Metadata of the plugin's backends that are available here, by name.
        known: Names of all the backends that the plugin declares.
        features: Feature names by op, from the ops' declarations.
    """

    def __init__(
        self, backends: Mapping[str, BackendMeta], known: tuple[str, ...], features: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._backends = backends
        self._known = known
        self._features = features
        self.impls: list[Impl] = []
        self.broken: list[BrokenImpl] = []

    def serves(self, backend: str) -> bool:
        """Whether the plugin's backend is available here; a plugin with several asks before it imports kernels."""
        return backend in self._backends

    def impl(
        self,
        op: str,
        *,
        name: str,
        caps: Caps,
        priority: int = 0,
        backend: str | None = None,
        backward: Callable[..., Any] | None = None,
        autograd: Literal["paired", "native", "none"] | None = None,
    ) -> Callable[[Function], Function]:
        """Register the decorated function as an implementation.

        Args:
            op: Name of the op, such as ``"flashmask_attention"`` or ``"math.rms_norm"``.
            name: Name of this implementation inside the backend.
            caps: What it supports.
            priority: Larger is preferred inside the backend's band.
            backend: Which of the plugin's backends; may be left out where it has one.
            backward: The paired backward.
            autograd: ``paired`` when a backward is given, else ``none``; say ``native`` for a composition that
                torch itself differentiates.

        Returns:
            A decorator that returns the function unchanged. A registration that is wrong is recorded as broken
            and shown by ``fmcore doctor``; it does not raise, so the plugin's other implementations stay.
        """

        def decorate(fn: Function) -> Function:
            target = backend or (self._known[0] if len(self._known) == 1 else "")
            if target in self._known and target not in self._backends:
                return fn
            try:
                self.impls.append(self._judge(op, name, caps, priority, target, backward, autograd, fn))
            except (PluginError, ValueError, TypeError):
                self.broken.append(BrokenImpl(op, target or "?", name, traceback.format_exc(limit=2)))
            return fn

        return decorate

    def _judge(
        self,
        op: str,
        name: str,
        caps: Caps,
        priority: int,
        backend: str,
        backward: Callable[..., Any] | None,
        autograd: Literal["paired", "native", "none"] | None,
        fn: Callable[..., Any],
    ) -> Impl:
        if backend not in self._backends:
            raise PluginError(
                f"impl {name!r} of {op} names backend {backend!r}; the plugin declares {sorted(self._known)}"
            )
        if op not in self._features:
            raise PluginError(
                f"impl {name!r} is of op {op!r}, which this fmcore does not have; it has {sorted(self._features)}"
            )
        if not isinstance(caps, Caps):
            raise PluginError(f"impl {name!r} of {op}: caps is {type(caps).__name__}, want fmcore.dispatch.caps.Caps")
        if not callable(fn) or (backward is not None and not callable(backward)):
            raise PluginError(f"impl {name!r} of {op}: forward and backward must be callable")
        if autograd == "paired" and backward is None:
            raise PluginError(f"impl {name!r} of {op} says autograd='paired' but gives no backward")
        if any(other.op == op and other.backend == backend and other.name == name for other in self.impls):
            raise PluginError(f"impl {name!r} of {op} is registered twice by backend {backend!r}")
        caps.check_against(self._features[op])
        kind: Literal["paired", "native", "none"] = autograd or ("paired" if backward is not None else "none")
        if kind == "none" and caps.grad:
            raise PluginError(
                f"impl {name!r} of {op} has no backward, but its Caps claim gradients; "
                "give backward=, say autograd='native', or Caps(grad=False)"
            )
        return Impl(op, backend, name, fn, backward, kind, priority, self._backends[backend].band_rank, caps)
