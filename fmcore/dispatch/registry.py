"""Ops, backends and implementations, copy-on-write: readers take no lock, a change swaps the snapshot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from fmcore.dispatch.metadata import BackendMeta
from fmcore.dispatch.probes import DeviceClaim, Evidence

if TYPE_CHECKING:
    from fmcore.dispatch.caps import Caps

State = Literal["possible", "available", "unavailable", "broken", "blocked"]


@dataclass(frozen=True, slots=True, eq=False)
class Impl:
    """One implementation of one op; forward and backward are one unit.

    Attributes:
        op: Name of the op.
        backend: Name of its backend.
        name: Name inside the backend.
        fn: The forward function.
        backward: The paired backward, or None.
        autograd: ``paired`` (backward given), ``native`` (a composition that torch differentiates) or ``none``.
        priority: Larger is preferred inside a band.
        band_rank: Position of the backend's band.
        caps: What it supports.
    """

    op: str
    backend: str
    name: str
    fn: Callable[..., Any]
    backward: Callable[..., Any] | None
    autograd: Literal["paired", "native", "none"]
    priority: int
    band_rank: int
    caps: Caps

    @property
    def id(self) -> str:
        """``backend/name``, unique for the op."""
        return f"{self.backend}/{self.name}"


@dataclass(frozen=True, slots=True)
class BrokenImpl:
    """An implementation whose registration failed; the backend's others stay."""

    op: str
    backend: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend and what is known of it.

    Attributes:
        meta: Its metadata.
        distribution: Name and version of the installed distribution, or where it was registered from.
        location: The plugin's file.
        state: ``possible`` before its plugin is loaded, then ``available``, ``unavailable``, ``broken`` or ``blocked``.
        reason: One sentence on the state.
        traceback: For ``broken``: the traceback.
        evidence: What the probes saw.
        claims: Devices of its vendor.
    """

    meta: BackendMeta
    distribution: str
    location: str
    state: State
    reason: str
    traceback: str = ""
    evidence: tuple[Evidence, ...] = ()
    claims: tuple[DeviceClaim, ...] = ()

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.meta.name


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a resolution sees: never changed, only replaced."""

    backends: Mapping[str, Backend] = field(default_factory=lambda: MappingProxyType({}))
    impls: Mapping[str, tuple[Impl, ...]] = field(default_factory=lambda: MappingProxyType({}))
    broken: tuple[BrokenImpl, ...] = ()

    def impl(self, op: str, impl_id: str) -> Impl | None:
        """Return the implementation of ``op`` called ``backend/name``, or None."""
        return next((impl for impl in self.impls.get(op, ()) if impl.id == impl_id), None)


class Registry:
    """The current snapshot and the lock that serialises changes."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.snapshot = Snapshot()
        self.listeners: list[Callable[[], None]] = []

    def put_backend(self, backend: Backend) -> None:
        """Add or replace a backend."""
        with self.lock:
            backends = {**self.snapshot.backends, backend.name: backend}
            self._swap(replace(self.snapshot, backends=MappingProxyType(backends)))

    def remove_backend(self, name: str) -> None:
        """Take a backend and its implementations out."""
        with self.lock:
            old = self.snapshot
            impls = {op: tuple(i for i in group if i.backend != name) for op, group in old.impls.items()}
            self._swap(
                Snapshot(
                    MappingProxyType({n: b for n, b in old.backends.items() if n != name}),
                    MappingProxyType(impls),
                    tuple(b for b in old.broken if b.backend != name),
                )
            )

    def add_impls(self, impls: list[Impl], broken: list[BrokenImpl]) -> None:
        """Add implementations in one swap, so that no reader sees half of a plugin."""
        with self.lock:
            old = self.snapshot
            merged = dict(old.impls)
            for impl in impls:
                merged[impl.op] = (*merged.get(impl.op, ()), impl)
            self._swap(replace(old, impls=MappingProxyType(merged), broken=(*old.broken, *broken)))

    def _swap(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        for listener in self.listeners:
            listener()


REGISTRY = Registry()
