"""What one call asks for, reduced to the facts that may decide who serves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fmcore.dispatch.arch import Arch

COMMON_FIELDS = (
    "device_type",
    "vendor",
    "arch",
    "dtypes",
    "needs_grad",
    "deterministic",
    "capturing",
    "compiling",
    "world_size",
)


@dataclass(frozen=True, slots=True)
class Request:
    """The facts of a call that implementations may depend on. Raw lengths are not among them.

    Attributes:
        op: Name of the op.
        device_type: torch's device type. It never selects a vendor by itself.
        vendor: Who made the device, from probes; ``"cpu"`` for host tensors, ``"unknown"`` where nobody claims it.
        arch: The chip generation, or None.
        dtypes: Dtype name by tensor argument; absent optional tensors are left out.
        needs_grad: A gradient will be asked for.
        deterministic: Bitwise reproducible results are demanded.
        capturing: A device graph is being captured.
        compiling: The call is being traced by ``torch.compile`` or ``torch.export``.
        world_size: Ranks that take part.
        features: The op's own fields, such as ``head_dim``.
    """

    op: str
    device_type: str
    vendor: str
    arch: Arch | None
    dtypes: Mapping[str, str]
    needs_grad: bool = False
    deterministic: bool = False
    capturing: bool = False
    compiling: bool = False
    world_size: int = 1
    features: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __getitem__(self, name: str) -> Any:
        """Return a common field or a feature by name."""
        if name in COMMON_FIELDS:
            return getattr(self, name)
        return self.features[name]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``--json`` and traces."""
        return {
            "op": self.op,
            "device_type": self.device_type,
            "vendor": self.vendor,
            "arch": str(self.arch) if self.arch else None,
            "dtypes": dict(self.dtypes),
            "needs_grad": self.needs_grad,
            "deterministic": self.deterministic,
            "capturing": self.capturing,
            "compiling": self.compiling,
            "world_size": self.world_size,
            "features": {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in self.features.items()},
        }
