"""The framework rung of attention: FlashMask by tiles in torch's own matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.dispatch.caps import Caps
from fmcore_torch.attention.counting import count_tiles
from fmcore_torch.attention.tiles import backward, forward

if TYPE_CHECKING:
    from fmcore.dispatch.registrar import Registrar

__all__ = ["CAPS", "backward", "count_tiles", "forward", "register"]

CAPS = Caps(dtypes={"float16", "bfloat16", "float32", "float64"}, capture=False)
"""Every feature of the op on every device; the walk over tiles is read on the host, so a graph cannot be captured."""


def register(registrar: Registrar) -> None:
    """Register the implementation ``tiles``."""
    registrar.impl("flashmask_attention", name="tiles", caps=CAPS, backward=backward)(forward)
