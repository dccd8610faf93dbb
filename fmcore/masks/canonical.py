"""The one way from the mask format, or from nothing but ``causal``, to a :class:`fmcore.masks.Mask`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmcore.errors import InvalidInputError
from fmcore.masks._canonical import (
    causal_bounds,
    check_block_mask,
    check_indices,
    check_length,
    leading_of,
    planes_from_indices,
    visible_planes,
)
from fmcore.masks.mask import Mask

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["canonicalize"]


def canonicalize(
    startend_row_indices: Tensor | None,
    *,
    s_q: int,
    s_k: int,
    causal: bool,
    block_mask: Tensor | None = None,
    kind: str = "custom",
) -> Mask:
    """The canonical mask of ``startend_row_indices``: clipped, sorted, merged, with causal made explicit.

    Args:
        startend_row_indices: int32 ``[batch, heads, s_k, n]`` of query rows, start inclusive, end exclusive; n = 1
            or 2 with ``causal`` (LTS; LTS, LTE), 2 or 4 without (LTS, UTE; LTS, LTE, UTS, UTE). None hides nothing.
        s_q: Query rows.
        s_k: Key columns.
        causal: Also hide pair (i, j) iff j > i + s_k - s_q.
        block_mask: int32 ``[batch, heads, ceil(s_q / 128), ceil(s_k / 128)]``; 0 hides a 128 x 128 block.
        kind: Tag of the mask; ignored when ``startend_row_indices`` is None.

    Raises:
        InvalidInputError: Wrong dtype, rank, shape or n.

    Example:
        >>> import torch
        >>> lts = torch.tensor([2, 2, 4, 4], dtype=torch.int32).view(1, 1, 4, 1)
        >>> canonicalize(lts, s_q=4, s_k=4, causal=True).dense().int()[0, 0].tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    """
    if not isinstance(causal, bool):
        raise InvalidInputError(f"causal must be a bool, got {causal!r}.")
    if startend_row_indices is None:
        return plain(s_q, s_k, causal=causal, block_mask=block_mask)
    indices = check_indices(startend_row_indices, s_q=s_q, s_k=s_k, causal=causal)
    mode, planes = planes_from_indices(indices, s_q=s_q, s_k=s_k, causal=causal)
    return Mask(planes, s_q=s_q, mode=mode, kind=kind, block_mask=block_mask)


def plain(
    s_q: int, s_k: int, *, causal: bool, block_mask: Tensor | None = None, device: torch.device | None = None
) -> Mask:
    """The mask of no bounds at all: full or causal, on ``device`` or beside its block mask."""
    check_length("s_q", s_q)
    check_length("s_k", s_k)
    batch = heads = 1
    if block_mask is not None:
        batch, heads = leading_of(block_mask)
        block_mask = check_block_mask(block_mask, batch=batch, heads=heads, s_q=s_q, s_k=s_k)
        device = block_mask.device
    begin = causal_bounds(s_q, s_k, device) if causal else torch.zeros(s_k, dtype=torch.int32, device=device)
    planes = visible_planes(begin, torch.full_like(begin, s_q)).expand(batch, heads, 2, s_k)
    return Mask(planes, s_q=s_q, mode=1, kind="causal" if causal else "full", block_mask=block_mask)
