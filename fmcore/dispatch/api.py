"""What a program asks of the engine: which backend serves, which are there, why."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fmcore.dispatch import policy
from fmcore.dispatch.devices import DeviceInfo, lookup
from fmcore.dispatch.metadata import BANDS, BackendMeta
from fmcore.dispatch.plugins import MANAGER, impls_of
from fmcore.dispatch.probes import Evidence
from fmcore.dispatch.registry import REGISTRY, Backend
from fmcore.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from fmcore.dispatch.decision import Decision

log = logging.getLogger("fmcore")


@dataclass(frozen=True, slots=True)
class Choice:
    """What automatic selection chose for a device.

    Attributes:
        name: The backend.
        device: The torch device that the choice is for.
        vendor: Who made the device.
        arch: Its generation, in words, or an empty string.
        band: The backend's band.
        reason: One sentence.
        evidence: What the probes saw.
        deep: False while only the shallow probes of import have run.
    """

    name: str
    device: str
    vendor: str
    arch: str
    band: str
    reason: str
    evidence: tuple[Evidence, ...]
    deep: bool

    def __str__(self) -> str:
        seen = "; ".join(f"{item.probe}: {item.value}" for item in self.evidence if item.verdict == "for")
        arch = f", {self.arch}" if self.arch else ""
        where = f"{self.device} ({self.vendor}{arch}; {self.band} band)"
        return f"{self.name} on {where}: {self.reason} [{seen or 'no device needed'}]"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name, "device": self.device, "vendor": self.vendor, "arch": self.arch, "band": self.band,
            "reason": self.reason, "evidence": [item.to_json() for item in self.evidence], "deep": self.deep,
        }  # fmt: skip


def select_shallow() -> Choice | None:
    """Choose at import: by metadata and shallow signs alone, no plugin imported, no device touched."""
    MANAGER.discover()
    likely = [b for b in REGISTRY.snapshot.backends.values() if b.state == "possible"]
    if not likely:
        return None
    accelerated = [b for b in likely if b.meta.vendor not in ("cpu", "any")]
    pool = accelerated or [b for b in likely if b.meta.vendor == "cpu"] or likely
    chosen = min(pool, key=lambda b: (b.meta.band_rank, b.name))
    device = "accelerator" if accelerated else "cpu"
    return Choice(
        chosen.name, device, chosen.meta.vendor, "", chosen.meta.band, chosen.reason, chosen.evidence, deep=False
    )


_announced: list[str] = []


def backend(device: Any = None) -> Choice:
    """Return what automatic selection chose for a device, with the evidence.

    Args:
        device: A torch device, its name, or None for the accelerator with the lowest index, or the host
            where no accelerator is claimed by any backend.

    Returns:
        The highest-ranked available backend that has implementations and serves that device's vendor.
        Single ops may still be served by another one; ``explain`` tells for a call.

    Raises:
        VendorConflictError: Two vendors claim the device.
        UnsupportedError: No backend is available at all.

    Example:
        >>> import fmcore as fm
        >>> fm.backend("cpu").vendor
        'cpu'
    """
    early = select_shallow()
    MANAGER.load_all()
    info = _device(device)
    usable = [
        b
        for b in REGISTRY.snapshot.backends.values()
        if b.state == "available" and impls_of(b.name) and b.name not in policy.current().block
    ]
    pool = [b for b in usable if _serves(b, info)]
    if not pool:
        states = "; ".join(f"{b.name}: {b.state}, {b.reason}" for b in REGISTRY.snapshot.backends.values())
        raise UnsupportedError(
            f"no backend is available for {info.device_type}:{info.index}: {states or 'no plugin is installed'}"
        )
    rule = next((r for r in policy.current().rules if r.ops == ("*",)), None)
    preferred = rule.backends if rule else ()
    chosen = min(
        pool,
        key=lambda b: (preferred.index(b.name) if b.name in preferred else len(preferred), b.meta.band_rank, b.name),
    )
    if early is not None and early.name != chosen.name and device is None and early.name not in _announced:
        _announced.append(early.name)
        found = REGISTRY.snapshot.backends[early.name]
        log.warning(
            "import chose %s by its shallow signs; a closer look chose %s (%s: %s)",
            early.name,
            chosen.name,
            early.name,
            found.reason,
        )
    where = info.device_type if info.device_type == "cpu" else f"{info.device_type}:{info.index}"
    arch = str(info.arch) if info.arch else ""
    return Choice(chosen.name, where, info.vendor, arch, chosen.meta.band, chosen.reason, chosen.evidence, deep=True)


def _serves(backend: Backend, info: DeviceInfo) -> bool:
    """Whether some implementation of the backend accepts this device; what else a call asks is not judged here."""
    for impl in impls_of(backend.name):
        caps = impl.caps
        if caps.device_types is not None and info.device_type not in caps.device_types:
            continue
        if caps.vendors is not None and info.vendor not in caps.vendors:
            continue
        if caps.arch is None or info.arch in caps.arch:
            return True
    return False


def _device(device: Any) -> DeviceInfo:
    snapshot = REGISTRY.snapshot
    if device is None:
        claims = sorted(
            (claim.device_type, claim.index)
            for b in snapshot.backends.values()
            if b.state not in ("blocked", "broken")
            for claim in b.claims
            if claim.device_type != "cpu"
        )
        return lookup(snapshot, *claims[0]) if claims else lookup(snapshot, "cpu", 0)
    text = str(device)
    kind, _, index = text.partition(":")
    if not kind or (index and not index.isdigit()):
        raise InvalidInputError(f"device {device!r} is not understood; write 'cuda:0' or 'cpu'")
    return lookup(snapshot, kind, int(index or 0))


def backends() -> tuple[Backend, ...]:
    """Return every backend with its state, reason and evidence, in order of band and name. Loads the likely ones."""
    MANAGER.load_all()
    found = [*REGISTRY.snapshot.backends.values(), *MANAGER.failures.values()]
    return tuple(sorted(found, key=lambda b: (BANDS.index(b.meta.band), b.name)))


def register_backend(plugin: Any, metadata: Sequence[BackendMeta] | BackendMeta | None = None) -> tuple[Backend, ...]:
    """Register a plugin by hand: the same path that installed plugins take.

    Args:
        plugin: A module or an object with hook implementations.
        metadata: Its backends; by default its attribute ``fmcore_metadata``, else the ``fmcore_backend.toml`` of
            the package that the module is.

    Returns:
        The backends with their states; a plugin that raises is ``broken``, with its traceback.

    Raises:
        PluginError: A name is taken, or there is no metadata.
    """
    metas = (metadata,) if isinstance(metadata, BackendMeta) else metadata
    return MANAGER.register(plugin, metas)


def unregister_backend(name: str) -> None:
    """Take the plugin that brought backend ``name`` out again, with all its backends.

    Raises:
        PluginError: There is no such backend.
    """
    MANAGER.unregister(name)


def explain(op: str, *args: Any, **kwargs: Any) -> Decision:
    """Return who would serve a call and why not the others. Nothing is run.

    Args:
        op: Name of the op, such as ``"flashmask_attention"`` or ``"math.rms_norm"``.
        *args: The call's own arguments, as the public function takes them.
        **kwargs: Likewise.

    Raises:
        InvalidInputError: There is no such op, or the arguments break its contract.

    Example:
        >>> import torch, fmcore as fm
        >>> print(fm.explain("math.add", torch.ones(2), torch.ones(2)).impl.op)
        math.add
    """
    from fmcore.ops import _explain

    return _explain.explain(op, args, kwargs)
