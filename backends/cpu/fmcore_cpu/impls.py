"""What the cpu backend registers, and what each implementation supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.dispatch.caps import Caps, Range
from fmcore_cpu import attention, moe

if TYPE_CHECKING:
    from fmcore.dispatch.registrar import Registrar

__all__ = ["ATTENTION", "COMBINE", "DISPATCH", "LAYOUT", "register"]

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_CPU = frozenset({"cpu"})

ATTENTION = Caps(dtypes=_FLOATS, device_types=_CPU)
"""Every feature of the op: any head dims, groups, mask heads, block masks, soft caps, sinks, strides and sizes."""

_INDICES = frozenset({"int32", "int64"})
_SUMS = _FLOATS | {"complex64", "complex128", "int32", "int64"}

LAYOUT = Caps(dtypes=_INDICES, device_types=_CPU, grad=False)
DISPATCH = Caps(
    dtypes={"topk_idx": _INDICES, "topk_weights": _FLOATS}, device_types=_CPU, world_size=Range(1, 1), compiles=False
)
COMBINE = Caps(dtypes={"topk_weights": _FLOATS, "*": _SUMS}, device_types=_CPU, world_size=Range(1, 1), compiles=False)


def register(registrar: Registrar) -> None:
    """Register every implementation."""
    registrar.impl("flashmask_attention", name="tiles", caps=ATTENTION, backward=attention.backward)(attention.forward)
    registrar.impl("moe.layout", name="layout", caps=LAYOUT)(moe.layout)
    registrar.impl("moe.dispatch", name="local", autograd="native", caps=DISPATCH)(moe.dispatch)
    registrar.impl("moe.combine", name="local", autograd="native", caps=COMBINE)(moe.combine)
