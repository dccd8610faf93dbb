"""Backends made on the spot: a plugin from one function, and any backend again without its claims.

The second is the half of the audit that finds "passes but unclaimed": a backend's own kernels under another name, with
empty Caps, tried in the isolated child like every other case.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import fmcore
from fmcore.dispatch import hookimpl
from fmcore.dispatch.caps import Caps
from fmcore.dispatch.metadata import BackendMeta
from fmcore.dispatch.plugins import MANAGER, impls_of
from fmcore.dispatch.registry import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcore.dispatch.registrar import Registrar
    from fmcore.dispatch.registry import Impl

SUFFIX = "_unclaimed"


def register(name: str, register_impls: Callable[[Registrar], None]) -> None:
    """Register a backend made of one function, unless it is registered already.

    Args:
        name: Backend name. It stands last in the framework band: chosen only when it is named.
        register_impls: Called with the registrar; registers the implementations.

    Raises:
        RuntimeError: If the registrar refused one of them.
    """
    if name in REGISTRY.snapshot.backends:
        return

    @hookimpl
    def fmcore_register_impls(registrar: Registrar, spec_version: tuple[int, int]) -> None:  # noqa: ARG001 (pluggy passes by name)
        register_impls(registrar)

    plugin: Any = ModuleType(name)
    plugin.fmcore_metadata = (BackendMeta(name, vendor="any", band="framework"),)
    plugin.fmcore_register_impls = fmcore_register_impls
    fmcore.register_backend(plugin)
    broken = [b for b in REGISTRY.snapshot.broken if b.backend == name]
    if broken:
        raise RuntimeError(f"backend {name!r}: {broken[0].op} {broken[0].name} was refused: {broken[0].why}")


def register_again(registrar: Registrar, impl: Impl, caps: Caps | None = None, **changed: Any) -> None:
    """Register an implementation of another backend once more, with some of its parts replaced.

    Args:
        registrar: Where to.
        impl: The implementation to start from.
        caps: Its claims; None keeps those of ``impl``.
        **changed: ``fn``, ``backward`` or ``name``.
    """
    parts = {"fn": impl.fn, "backward": impl.backward, "name": impl.name, **changed}
    registrar.impl(
        impl.op,
        name=parts["name"],
        priority=impl.priority,
        backward=parts["backward"],
        autograd=impl.autograd,
        caps=caps or impl.caps,
    )(parts["fn"])


def shadow(backend: str) -> str:
    """Register ``backend`` again without claims.

    Returns:
        The name of the second registration.
    """
    MANAGER.load_all()
    name = backend + SUFFIX

    def register_impls(registrar: Registrar) -> None:
        for impl in impls_of(backend):
            # What an implementation cannot differentiate stays declared: the registrar insists on it.
            register_again(registrar, impl, caps=replace(Caps(), grad=impl.autograd != "none"))

    register(name, register_impls)
    return name
