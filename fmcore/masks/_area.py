"""Visible pairs of a mask, counted exactly in O(s_k)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fmcore.masks._canonical import BLOCK, hidden_intervals

if TYPE_CHECKING:
    from fmcore.masks.mask import Mask


def visible_pairs(mask: Mask) -> Tensor:
    """Visible (row, column) pairs of every batch and mask head: int64 ``[batch, heads]``, on the mask's device."""
    us, ue, ls, le = (bound.long() for bound in hidden_intervals(mask.mode, mask.planes, mask.s_q))
    if mask.block_mask is None:
        return (mask.s_q - (ue - us) - (le - ls)).sum(-1)
    kept = _kept_rows_before(mask.block_mask, mask.s_q)
    whole = torch.full_like(us, mask.s_q)
    return (kept(whole) - (kept(ue) - kept(us)) - (kept(le) - kept(ls))).sum(-1)


def exact_area(mask: Mask) -> float:
    """Share of the pairs that are visible; 0 for a mask without pairs."""
    pairs = mask.batch * mask.heads * mask.s_q * mask.s_k
    return int(visible_pairs(mask).sum()) / pairs if pairs else 0.0


class _kept_rows_before:  # noqa: N801 -- a closure with two tables
    """Rows below r that the block mask keeps, for r per column ``[batch, heads, s_k]``."""

    def __init__(self, block_mask: Tensor, s_q: int) -> None:
        keep = block_mask.long()
        rows = torch.arange(keep.shape[-2], device=keep.device) * BLOCK
        size = (s_q - rows).clamp(max=BLOCK).unsqueeze(-1)
        zero = keep.new_zeros(*keep.shape[:2], 1, keep.shape[-1])
        self.before = torch.cat((zero, (keep * size).cumsum(-2)), dim=-2)
        self.keep = torch.cat((keep, zero), dim=-2)

    def __call__(self, row: Tensor) -> Tensor:
        block = torch.div(row, BLOCK, rounding_mode="floor")
        column = torch.arange(row.shape[-1], device=row.device) // BLOCK
        b = torch.arange(row.shape[0], device=row.device).view(-1, 1, 1)
        h = torch.arange(row.shape[1], device=row.device).view(-1, 1)
        return self.before[b, h, block, column] + self.keep[b, h, block, column] * (row - block * BLOCK)
