"""Do two masks of the same sizes hide the same pairs? By bounds alone, never through a dense matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fmcore.masks._canonical import BLOCK, hidden_intervals, hidden_planes

if TYPE_CHECKING:
    from fmcore.masks.mask import Mask


def same_visibility(one: Mask, other: Mask) -> bool:
    """Compare two masks of the same sizes on the same device; waits for it.

    O(s_k), or O(s_k * s_q / 128) if a block mask makes different bounds hide the same.
    """
    plain = one.block_mask is None and other.block_mask is None
    if torch.equal(_hidden(one), _hidden(other)) and (plain or _same(one.block_mask, other.block_mask)):
        return True
    return not plain and all(
        torch.equal(_hidden_in(one, block), _hidden_in(other, block)) for block in range(-(-one.s_q // BLOCK))
    )


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)


def _hidden(mask: Mask) -> Tensor:
    """The canonical hidden intervals, ``[4, batch, heads, s_k]``."""
    return torch.stack(hidden_intervals(mask.mode, mask.planes, mask.s_q))


def _hidden_in(mask: Mask, block: int) -> Tensor:
    """What one row of 128-blocks hides, block mask applied: canonical intervals counted from its first row."""
    first = block * BLOCK
    rows = min(BLOCK, mask.s_q - first)
    bounds = (_hidden(mask) - first).clamp(0, rows)
    if mask.block_mask is not None:
        dropped = (mask.block_mask[:, :, block] == 0).repeat_interleave(BLOCK, -1)[..., : mask.s_k]
        bounds.masked_fill_(dropped, 0)
        bounds[1].masked_fill_(dropped, rows)
    return hidden_planes(*bounds.unbind(0), s_q=rows)
