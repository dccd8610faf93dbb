# ruff: noqa: ARG005 -- every case is made from the same two arguments
"""Bounds that break kernels: raw ``startend_row_indices`` at the edge of the format, for tests and conformance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError
from fmcore.masks._canonical import check_length
from fmcore.masks._columns import HOST, placed
from fmcore.masks.canonical import canonicalize

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcore.masks._columns import Device
    from fmcore.masks.mask import Mask

__all__ = ["DEGENERATE_MASKS", "RawBounds", "degenerate", "degenerate_bounds"]


@dataclass(frozen=True, slots=True)
class RawBounds:
    """``startend_row_indices`` ``[1, 1, s_k, n]`` as a caller would give them, with the causal flag and what is odd."""

    startend_row_indices: Tensor
    causal: bool
    note: str


def degenerate_bounds(name: str, s_q: int, s_k: int | None = None, *, device: Device = None) -> RawBounds:
    """The raw bounds of one of :data:`DEGENERATE_MASKS`.

    Raises:
        InvalidInputError: Unknown name.
    """
    entry = _CASES.get(name)
    if entry is None:
        raise InvalidInputError(f"no degenerate mask {name!r}; there are {', '.join(_CASES)}.")
    causal, make, note = entry
    s_k = s_q if s_k is None else s_k
    check_length("s_q", s_q)
    check_length("s_k", s_k)
    column = torch.arange(s_k, dtype=torch.int64, device=HOST)
    vectors = [torch.as_tensor(v, device=HOST).expand_as(column) for v in make(column, s_q)]
    indices = torch.stack(vectors, dim=-1).to(torch.int32).view(1, 1, column.numel(), len(vectors))
    return RawBounds(placed(indices, device), causal, note)


def degenerate(name: str, s_q: int, s_k: int | None = None, *, device: Device = None) -> Mask:
    """The canonical mask of one of :data:`DEGENERATE_MASKS`; its kind is ``name``."""
    raw = degenerate_bounds(name, s_q, s_k, device=device)
    indices = raw.startend_row_indices
    return canonicalize(indices, s_q=s_q, s_k=indices.shape[2], causal=raw.causal, kind=name)


_CASES: dict[str, tuple[bool, Callable[[Tensor, int], tuple[Tensor | int, ...]], str]] = {
    "all_masked_causal": (True, lambda j, s: (0,), "LTS = 0 hides every row"),
    "all_masked_two": (False, lambda j, s: (s, s), "UTE = s_q hides every row"),
    "all_masked_by_both": (False, lambda j, s: (s // 2, s, 0, s // 2), "two touching intervals cover all rows"),
    "nothing_masked": (False, lambda j, s: (s, 0), "both intervals empty"),
    "one_column": (False, lambda j, s: (torch.where(j == j.numel() // 2, s, 0), 0), "only the middle column is seen"),
    "one_row": (False, lambda j, s: (s // 2 + 1, s // 2), "only the middle row sees anything"),
    "swapped": (False, lambda j, s: (0, s // 3, s // 2, s), "the lower interval is given first as LTS..LTE"),
    "reversed": (False, lambda j, s: (s, s // 2, s // 3, 0), "start > end: both intervals are empty"),
    "touching": (
        False,
        lambda j, s: (s // 2, 3 * s // 4, s // 4, s // 2),
        "the upper interval ends where the lower begins",
    ),
    "overlapping": (False, lambda j, s: (s // 3, s, s // 4, s // 2), "the intervals overlap"),
    "nested": (False, lambda j, s: (s // 3, s // 2, 0, s - 1), "one interval inside the other"),
    "negative": (True, lambda j, s: (-7, j - 3), "negative rows count as 0"),
    "negative_four": (False, lambda j, s: (s - 1, s + 9, -s, 1), "below 0 and above s_q in one column"),
    "beyond": (True, lambda j, s: (s + 1,), "s_q + 1 means never"),
    "beyond_four": (False, lambda j, s: (s // 2, s + 1, s + 1, s + 2), "an interval wholly behind the last row"),
    "diagonal": (True, lambda j, s: (j, j + 1), "each row's own key is hidden, so the first row sees nothing"),
    "empty_everywhere": (True, lambda j, s: (j, j), "start = end hides nothing beyond causal"),
    "stripes": (False, lambda j, s: (torch.where(j % 2 == 0, 0, s), 0), "every other column is never seen"),
    "halves": (
        False,
        lambda j, s: (torch.where(j % 2 == 0, s // 2, s), torch.where(j % 2 == 0, 0, s // 2)),
        "even columns are hidden below the middle row, odd ones above it",
    ),
}

DEGENERATE_MASKS: tuple[str, ...] = tuple(_CASES)
