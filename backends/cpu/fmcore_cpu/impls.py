"""What the cpu backend registers, and what each implementation supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.dispatch.caps import Caps
from fmcore_cpu import attention

if TYPE_CHECKING:
    from fmcore.dispatch.registrar import Registrar

__all__ = ["ATTENTION", "register"]

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_CPU = frozenset({"cpu"})

ATTENTION = Caps(dtypes=_FLOATS, device_types=_CPU)
"""Every feature of the op: any head dims, groups, mask heads, block masks, soft caps, sinks, strides and sizes."""


def register(registrar: Registrar) -> None:
    """Register every implementation."""
    registrar.impl("flashmask_attention", name="tiles", caps=ATTENTION, backward=attention.backward)(attention.forward)
