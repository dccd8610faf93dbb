"""Which vendor made which torch device: a table filled from probes, never from the device type."""

from __future__ import annotations

from dataclasses import dataclass

from fmcore.dispatch.arch import Arch
from fmcore.dispatch.registry import Snapshot
from fmcore.errors import VendorConflictError


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What is known of one torch device."""

    device_type: str
    index: int
    vendor: str
    arch: Arch | None
    name: str
    claimed_by: tuple[str, ...]


def lookup(snapshot: Snapshot, device_type: str, index: int) -> DeviceInfo:
    """Return the vendor of a device.

    Raises:
        VendorConflictError: Probes of two vendors claim it; both are named with their evidence.
    """
    claims = [
        (backend, claim)
        for backend in snapshot.backends.values()
        if backend.state not in ("blocked", "broken")
        for claim in backend.claims
        if claim.device_type == device_type and claim.index == index
    ]
    vendors = sorted({claim.vendor for _, claim in claims})
    if len(vendors) > 1:
        seen = "; ".join(
            f"{backend.name} says {claim.vendor} ("
            + ", ".join(f"{item.probe}: {item.value}" for item in backend.evidence if item.verdict == "for")
            + ")"
            for backend, claim in claims
        )
        raise VendorConflictError(
            f"device {device_type}:{index} is claimed by several vendors, {' and '.join(vendors)}: {seen}. fmcore does "
            "not guess: set FMCORE_BLOCK to the backends that are wrong, FMCORE_PLUGINS to the right ones, or "
            "FMCORE_BACKEND to the one that is meant"
        )
    if not claims:
        vendor = "cpu" if device_type == "cpu" else "unknown"
        return DeviceInfo(device_type, index, vendor, None, "", ())
    arch = next((claim.arch for _, claim in claims if claim.arch is not None), None)
    name = next((claim.name for _, claim in claims if claim.name), "")
    return DeviceInfo(device_type, index, vendors[0], arch, name, tuple(backend.name for backend, _ in claims))
