"""From the rows of the mask format to canonical planes.

The format (``startend_row_indices``, FlashMask, arXiv 2410.01359) says per key column which query rows are hidden:

=======  ==  ====================  ===========================================================
causal   n   last dimension        row i is hidden from column j iff
=======  ==  ====================  ===========================================================
True     1   LTS                   i >= LTS, or j > i + s_k - s_q
True     2   LTS, LTE              LTS <= i < LTE, or j > i + s_k - s_q
False    2   LTS, UTE              i >= LTS, or i < UTE
False    4   LTS, LTE, UTS, UTE    LTS <= i < LTE, or UTS <= i < UTE
=======  ==  ====================  ===========================================================

Every function here is plain tensor arithmetic: nothing waits for a device, so all of it can be captured in a graph.
"""

from __future__ import annotations

from typing import SupportsIndex

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError

BLOCK = 128
"""Rows and columns of one entry of a ``block_mask``."""

COLUMNS = {
    (True, 1): "LTS",
    (True, 2): "LTS, LTE",
    (False, 2): "LTS, UTE",
    (False, 4): "LTS, LTE, UTS, UTE",
}


def causal_bounds(s_q: int, s_k: int, device: torch.device | str | None = None) -> Tensor:
    """First row that sees each column of a bottom-right causal mask: int32 ``[s_k]`` in [0, s_q]."""
    column = torch.arange(s_k, dtype=torch.int32, device=device)
    return (column - (s_k - s_q)).clamp_(0, s_q)


def check_indices(indices: object, *, s_q: int, s_k: int, causal: bool) -> Tensor:
    """Validate ``startend_row_indices`` and hand it back as a tensor.

    Raises:
        InvalidInputError: Not an int32 tensor ``[batch, heads, s_k, n]`` with an ``n`` that ``causal`` allows.
    """
    check_length("s_q", s_q)
    check_length("s_k", s_k)
    if not isinstance(indices, Tensor):
        raise InvalidInputError(
            f"startend_row_indices must be a torch tensor, got {type(indices).__name__}; "
            "for lists of lengths use the builders of fmcore.masks."
        )
    shape = tuple(indices.shape)
    if indices.dtype != torch.int32:
        raise InvalidInputError(
            f"startend_row_indices must be int32, got {indices.dtype} with shape {shape}; use .to(torch.int32)."
        )
    if indices.dim() != 4:
        raise InvalidInputError(
            f"startend_row_indices must have 4 dimensions [batch, heads, s_k, n], got {indices.dim()}: {shape}."
        )
    if shape[2] != s_k:
        raise InvalidInputError(
            f"startend_row_indices has {shape[2]} columns (shape {shape}) but there are s_k={s_k} keys; "
            "dimension 2 must be s_k."
        )
    if (causal, shape[3]) not in COLUMNS:
        allowed = " or ".join(f"{n} ({names})" for (c, n), names in COLUMNS.items() if c == causal)
        raise InvalidInputError(
            f"startend_row_indices has n={shape[3]} in its last dimension (shape {shape}); "
            f"with causal={causal} it must be {allowed}."
        )
    if shape[0] < 1 or shape[1] < 1:
        raise InvalidInputError(
            f"startend_row_indices needs at least one batch and one head, got shape {shape}; "
            "use 1 to share a mask between all of them."
        )
    return indices


def check_length(name: str, value: object) -> None:
    """Raise unless ``value`` is an int >= 0 that fits int32; while tracing it may be a symbolic one."""
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool) or not 0 <= value < 2**31 - 1:
        raise InvalidInputError(f"{name} must be an int in [0, 2^31-1), got {value!r}.")


def check_int(name: str, value: object, least: int = 0, most: int | None = None) -> int:
    """``value`` as an int if it is a whole number (numpy's, too) from ``least`` to ``most``.

    Raises:
        InvalidInputError: It is not.
    """
    if type(value) is int:  # the protocol below costs microseconds, and lengths may be many
        number = value
    elif isinstance(value, SupportsIndex) and not isinstance(value, (bool, Tensor)):
        number = value.__index__()
    else:
        raise InvalidInputError(f"{name} must be an int, got {value!r}.")
    if number < least or (most is not None and number > most):
        wanted = f">= {least}" if most is None else f"in [{least}, {most}]"
        raise InvalidInputError(f"{name} must be an int {wanted}, got {value!r}.")
    return number


def check_block_mask(block_mask: object, *, batch: int, heads: int, s_q: int, s_k: int) -> Tensor:
    """Validate a ``block_mask``, hand it back as contiguous int32 ``[batch, heads, ceil(s_q/128), ceil(s_k/128)]``."""
    want = (batch, heads, -(-s_q // BLOCK), -(-s_k // BLOCK))
    if not isinstance(block_mask, Tensor):
        raise InvalidInputError(f"block_mask must be an int32 tensor {want}, got {type(block_mask).__name__}.")
    if block_mask.dtype not in (torch.int32, torch.bool):
        raise InvalidInputError(
            f"block_mask must be int32 (1 keeps a 128 x 128 block, 0 drops it), got {block_mask.dtype}."
        )
    shape = tuple(block_mask.shape)
    if len(shape) != 4 or shape[2:] != want[2:] or shape[0] not in (1, batch) or shape[1] not in (1, heads):
        raise InvalidInputError(
            f"block_mask has shape {shape}; for batch={batch}, heads={heads}, s_q={s_q}, s_k={s_k} it must be {want}: "
            "one entry for every 128 x 128 block (batch and heads may be 1)."
        )
    return (block_mask != 0).to(torch.int32).expand(want).contiguous()


def leading_of(block_mask: object) -> tuple[int, int]:
    """Batch and heads of what may be a ``block_mask``; 1 and 1 of what is none, for the check to refuse."""
    if isinstance(block_mask, Tensor) and block_mask.dim() == 4:
        return block_mask.shape[0], block_mask.shape[1]
    return 1, 1


def planes_from_indices(indices: Tensor, *, s_q: int, s_k: int, causal: bool) -> tuple[int, Tensor]:
    """Mode and canonical planes of a validated ``startend_row_indices``.

    Returns:
        Mode 1 with planes ``[batch, heads, 2, s_k]`` (n = 1, or n = 2 without causal), else mode 2 with four planes.
    """
    lts, *rest = indices.clamp(0, s_q).unbind(-1)
    if causal:
        begin = causal_bounds(s_q, s_k, indices.device).expand_as(lts)
        if not rest:
            return 1, visible_planes(begin, lts)
        zero = torch.zeros_like(lts)
        return 2, hidden_planes(zero, begin, lts, rest[0], s_q=s_q)
    if len(rest) == 1:
        return 1, visible_planes(rest[0], lts)
    return 2, hidden_planes(lts, rest[0], rest[1], rest[2], s_q=s_q)


def visible_planes(begin: Tensor, end: Tensor) -> Tensor:
    """Mode 1: rows ``[begin, end)`` see the column; a column that nobody sees becomes (0, 0)."""
    some = begin < end
    return torch.stack((begin * some, end * some), dim=-2).to(torch.int32)


def hidden_planes(start_a: Tensor, end_a: Tensor, start_b: Tensor, end_b: Tensor, *, s_q: int) -> Tensor:
    """Mode 2: two hidden intervals in any order, overlapping or empty, become the one canonical quadruple.

    Empty intervals hide nothing; overlapping or touching ones merge; the upper one comes first. A lone interval is the
    upper one if it begins at row 0, else the lower one; an empty upper is (0, 0), an empty lower (s_q, s_q).
    """
    # An empty interval goes behind everything, so that after the sort a lone interval is the first of the two.
    a_empty, b_empty = start_a >= end_a, start_b >= end_b
    start_a, end_a = start_a.masked_fill(a_empty, s_q), end_a.masked_fill(a_empty, s_q)
    start_b, end_b = start_b.masked_fill(b_empty, s_q), end_b.masked_fill(b_empty, s_q)
    swap = start_b < start_a
    us, ls = torch.where(swap, start_b, start_a), torch.where(swap, start_a, start_b)
    ue, le = torch.where(swap, end_b, end_a), torch.where(swap, end_a, end_b)
    touch = ue >= ls
    ue = torch.where(touch, torch.maximum(ue, le), ue)
    ls, le = ls.masked_fill(touch, s_q), le.masked_fill(touch, s_q)
    lone = (ls == s_q) & (us > 0)  # a lone interval that does not begin at row 0 is the lower one
    ls, le = torch.where(lone, us, ls), torch.where(lone, ue, le)
    return torch.stack((us.masked_fill(lone, 0), ue.masked_fill(lone, 0), ls, le), dim=-2).to(torch.int32)


def hidden_intervals(mode: int, planes: Tensor, s_q: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The canonical hidden intervals (us, ue, ls, le) of planes of either mode, each ``[batch, heads, s_k]``."""
    if mode == 2:
        us, ue, ls, le = planes.unbind(-2)
        return us, ue, ls, le
    begin, end = planes.unbind(-2)
    # A column that nobody sees is (0, 0): one interval from row 0, hence the upper one.
    none = end == 0
    return (
        torch.zeros_like(begin),
        begin.masked_fill(none, s_q),
        end.masked_fill(none, s_q),
        torch.full_like(end, s_q),
    )
