"""Converters: other ways to say a mask, into a :class:`fmcore.masks.Mask` and back. Exact, or an error."""

from __future__ import annotations

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError
from fmcore.masks._canonical import (
    causal_bounds,
    check_block_mask,
    check_length,
    hidden_intervals,
    hidden_planes,
    leading_of,
)
from fmcore.masks._columns import HOST, Device, from_columns, sides_of
from fmcore.masks.mask import Mask

__all__ = ["from_dense", "from_window", "simplify", "to_startend_row_indices", "with_block_mask"]


def from_window(
    window_size: int | tuple[int, int], s_q: int, s_k: int | None = None, *, causal: bool, device: Device = None
) -> Mask:
    """The mask of attention's ``window_size`` argument.

    A number w, or a pair (left, right), counts the keys *besides* the row's own, as Paddle's argument does: with
    ``causal`` row i sees keys [i - w, i], so w + 1 of them (:func:`fmcore.masks.sliding_window` counts all keys, w + 1
    there). -1 is no limit. The row's own key is at i + s_k - s_q; ``causal`` makes the right side 0.

    Example:
        >>> from_window(1, 3, causal=True).dense().int()[0, 0].tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    s_k = s_q if s_k is None else s_k
    check_length("s_q", s_q)
    check_length("s_k", s_k)
    left, right = (min(side, s_q + s_k) for side in sides_of(window_size, least=-1))
    right = 0 if causal else right
    own = torch.arange(s_k, dtype=torch.int64, device=HOST) - (s_k - s_q)
    end = torch.full_like(own, s_q) if left == -1 else own + left + 1
    first = torch.zeros_like(own) if right == -1 else own - right
    return from_columns((end, first), s_q=s_q, causal=False, kind="sliding_window", device=device)


def from_dense(visible: Tensor) -> Mask:
    """The mask of a bool matrix, True where visible.

    Args:
        visible: Bool ``[s_q, s_k]`` or ``[batch, heads, s_q, s_k]``.

    Raises:
        InvalidInputError: Not bool, another rank, or a column hides more than two intervals of rows; the message names
            the first such column.
    """
    if not isinstance(visible, Tensor) or visible.dtype != torch.bool:
        found = visible.dtype if isinstance(visible, Tensor) else type(visible).__name__
        raise InvalidInputError(f"a dense mask must be a bool tensor, True where visible, got {found}.")
    if visible.dim() not in (2, 4):
        raise InvalidInputError(
            f"a dense mask must be [s_q, s_k] or [batch, heads, s_q, s_k], got shape {tuple(visible.shape)}."
        )
    matrix = visible if visible.dim() == 4 else visible[None, None]
    return simplify(Mask(runs_of(matrix), s_q=matrix.shape[-2], mode=2))


def runs_of(visible: Tensor, first_column: int = 0) -> Tensor:
    """Canonical mode 2 planes ``[batch, heads, 4, columns]`` of bool ``[batch, heads, s_q, columns]``.

    ``first_column`` is what the error message calls column 0.
    """
    batch, heads, s_q, columns = visible.shape
    if not s_q:
        return torch.zeros(batch, heads, 4, columns, dtype=torch.int32, device=visible.device)
    hidden = ~visible
    edge = hidden.new_zeros(batch, heads, 1, columns)
    begins = hidden & ~torch.cat((edge, hidden[:, :, :-1]), dim=2)
    ends = hidden & ~torch.cat((hidden[:, :, 1:], edge), dim=2)
    count = begins.sum(2, dtype=torch.int32)
    if bool((count > 2).any()):
        b, h, j = (count > 2).nonzero()[0].tolist()
        starts = begins[b, h, :, j].nonzero().flatten()[:3].tolist()
        raise InvalidInputError(
            f"column {first_column + j} (batch {b}, head {h}) hides {int(count[b, h, j])} separate intervals of rows, "
            f"the first three at rows {starts}; a mask has at most two per column. "
            "Use a block_mask for blocks of 128 x 128, or a backend that takes dense masks."
        )
    first_begin, last_begin = _first(begins), s_q - 1 - _first(begins.flip(2))
    first_end, last_end = _first(ends) + 1, s_q - _first(ends.flip(2))
    first_end = first_end.masked_fill(count < 1, 0).clamp(max=s_q)
    last_end = last_end.masked_fill(count < 2, 0)
    return hidden_planes(first_begin, first_end, last_begin, last_end, s_q=s_q)


def _first(flags: Tensor) -> Tensor:
    """Row of the first True of every column (0 where there is none)."""
    return flags.to(torch.uint8).argmax(2)


def simplify(mask: Mask) -> Mask:
    """The same mask in mode 1 (one visible interval per column) where its bounds allow, which kernels run faster.

    Looks at the bounds, so it waits for the device; masks of mode 1 come back as they are.
    """
    if mask.mode == 1:
        return mask
    us, ue, ls, le = mask.planes.unbind(2)
    if not bool(((us == 0) & (le == mask.s_q)).all()):
        return mask
    some = ue < ls
    planes = torch.stack((ue * some, ls * some), dim=2)
    return Mask(planes, s_q=mask.s_q, mode=1, kind=mask.kind, block_mask=mask.block_mask)


def to_startend_row_indices(mask: Mask, *, causal: bool = False) -> Tensor:
    """The bounds in the mask format, int32 ``[batch, heads, s_k, n]``; the block mask, if any, is not in it.

    Args:
        mask: The mask.
        causal: False gives n = 2 (mode 1: LTS, UTE) or n = 4 (mode 2: LTS, LTE, UTS, UTE), to be used without causal.
            True gives n = 1 (LTS) if that is enough, else n = 2 (LTS, LTE), to be used with causal; this looks at
            the bounds, so it waits for the device.

    Raises:
        InvalidInputError: With ``causal``, a column is seen above the diagonal, or hides an interval that the two
            causal forms cannot say; the message names the first such column.
    """
    if not causal:
        if mask.mode == 1:
            begin, end = mask.planes.unbind(2)
            return torch.stack((end, begin), dim=-1)
        us, ue, ls, le = mask.planes.unbind(2)
        return torch.stack((ls, le, us, ue), dim=-1)
    us, ue, ls, le = hidden_intervals(mask.mode, mask.planes, mask.s_q)
    diagonal = causal_bounds(mask.s_q, mask.s_k, mask.device).expand_as(us)
    # Above the diagonal all is hidden: the upper interval has to reach it. What it hides below is one interval, so then
    # the lower one must be empty or the upper one end on the diagonal.
    upper_is_causal = (us == 0) & (ue == diagonal)
    upper_reaches = (us == 0) & (ue > diagonal)
    low_only = (diagonal == 0) & (ue == us)
    extends = upper_reaches & (ls == mask.s_q)
    bad = ~(upper_is_causal | low_only | extends)
    if bool(bad.any()):
        b, h, j = bad.nonzero()[0].tolist()
        raise InvalidInputError(
            f"column {j} (batch {b}, head {h}) cannot be said with causal=True: it hides rows "
            f"[{int(us[b, h, j])}, {int(ue[b, h, j])}) and [{int(ls[b, h, j])}, {int(le[b, h, j])}), "
            f"while causal alone hides [0, {int(diagonal[b, h, j])}); use causal=False."
        )
    lts = torch.where(extends & ~upper_is_causal, diagonal, ls)
    lte = torch.where(extends & ~upper_is_causal, ue, le)
    open_ended = (lte == mask.s_q) | (lts >= lte)
    if bool(open_ended.all()):
        return torch.where(lts >= lte, mask.s_q, lts).to(torch.int32).unsqueeze(-1)
    return torch.stack((lts, lte), dim=-1).to(torch.int32)


def with_block_mask(mask: Mask, block_mask: Tensor) -> Mask:
    """The same bounds with a block mask: int32 ``[batch, heads, ceil(s_q / 128), ceil(s_k / 128)]``, 0 hides a block.

    Batch and heads of the two may differ where one of them is 1.
    """
    batch, heads = (
        mine if theirs == 1 else theirs
        for mine, theirs in zip((mask.batch, mask.heads), leading_of(block_mask), strict=True)
    )
    planes = mask.planes
    if mask.batch in (1, batch) and mask.heads in (1, heads):
        planes = planes.expand(batch, heads, *planes.shape[2:])
    keep = check_block_mask(block_mask, batch=planes.shape[0], heads=planes.shape[1], s_q=mask.s_q, s_k=mask.s_k)
    if mask.block_mask is not None:
        keep *= mask.block_mask
    return Mask(planes, s_q=mask.s_q, mode=mask.mode, kind=mask.kind, block_mask=keep)
