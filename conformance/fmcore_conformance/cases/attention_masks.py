"""The masks of the suite as raw bounds, with the literal rule that says which pairs they hide.

Twelve families that packed training uses, and degenerate ones. Built here from their definitions and not by
``fmcore.masks``, so that a wrong builder or a wrong canonical form is found as well.
"""

# ruff: noqa: ARG001 (every family is built by the same call)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Generator, Tensor

Columns = tuple["Tensor | None", bool]


@dataclass(frozen=True)
class MaskSpec:
    """A mask family.

    Attributes:
        name: Family name.
        build: From (s_q, s_k, heads, generator) to bounds [heads, s_k, n] (or None) and the causal flag.
        per_head: Whether the family differs between heads.
        masked_rows: Whether it always has rows that see nothing (for s_q = s_k above 100).
    """

    name: str
    build: Callable[[int, int, int, Generator], Columns]
    per_head: bool = False
    masked_rows: bool = False


@dataclass(frozen=True)
class RawMask:
    """Bounds ``startend`` [batch, heads, s_k, n] int32 or None, a causal flag, and the lengths that they are for."""

    startend: Tensor | None
    causal: bool
    s_q: int
    s_k: int

    def dense(self, rows: slice | None = None) -> Tensor:
        """Visible pairs, bool [batch, heads, rows, s_k], by the rule table of the format.

        ``n = 1``: hidden from row LTS on. ``n = 2``: causal, hidden in [LTS, LTE); otherwise hidden from LTS on and
        before UTE. ``n = 4``: hidden in [LTS, LTE) and in [UTS, UTE). Causal: hidden where j > i + s_k - s_q.
        """
        rows = rows or slice(0, self.s_q)
        i = torch.arange(self.s_q)[rows].view(1, 1, -1, 1)
        j = torch.arange(self.s_k).view(1, 1, 1, -1)
        hidden = torch.zeros(1, 1, i.shape[2], self.s_k, dtype=torch.bool)
        if self.causal:
            hidden = hidden | (j > i + (self.s_k - self.s_q))
        if self.startend is not None:
            c = self.startend.to(torch.int64).unsqueeze(2)
            n = c.shape[-1]
            if n == 1:
                hidden = hidden | (i >= c[..., 0])
            elif n == 2 and self.causal:
                hidden = hidden | ((i >= c[..., 0]) & (i < c[..., 1]))
            elif n == 2:
                hidden = hidden | (i >= c[..., 0]) | (i < c[..., 1])
            else:
                hidden = hidden | ((i >= c[..., 0]) & (i < c[..., 1])) | ((i >= c[..., 2]) & (i < c[..., 3]))
        return ~hidden

    def counts(self) -> Tensor:
        """Visible keys of every row, int64 [batch, heads, s_q], in chunks of rows: O(s_k) memory a row."""
        step = max(1, (1 << 22) // max(self.s_k, 1))
        parts = [self.dense(slice(at, min(at + step, self.s_q))).sum(-1) for at in range(0, self.s_q, step)]
        if not parts:
            heads = (1, 1) if self.startend is None else tuple(self.startend.shape[:2])
            return torch.zeros(*heads, 0, dtype=torch.int64)
        return torch.cat(parts, 2)

    def for_heads(self, dense: Tensor, h_q: int) -> Tensor:
        """``dense`` with its heads repeated to the query heads: query head h reads mask head h // (h_q // heads)."""
        return dense.repeat_interleave(h_q // dense.shape[1], 1)


def documents(s: int) -> tuple[list[int], list[int]]:
    """Starts and ends of a few documents of uneven lengths that cover ``s`` positions."""
    shares = (0.31, 0.07, 0.40)
    starts = [0]
    for share in shares:
        nxt = starts[-1] + max(1, int(share * s))
        if nxt < s:
            starts.append(nxt)
    return starts, [*starts[1:], s]


def _of_document(s: int, values: list[int]) -> Tensor:
    starts, ends = documents(s)
    out = torch.empty(s, dtype=torch.int64)
    for start, end, value in zip(starts, ends, values, strict=True):
        out[start:end] = value
    return out


def _stack(*columns: Tensor) -> Tensor:
    return torch.stack(columns, -1).unsqueeze(0)


def _full(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    return None, False


def _causal(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    return None, True


def _sliding(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    j = torch.arange(s_k)
    return _stack((j + max(1, s_q // 9)).clamp(max=s_q)), True


def _narrow(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    j = torch.arange(s_k)
    return _stack((j + 300).clamp(max=s_q)), True


def _causal_document(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    return _stack(_of_document(s_k, documents(s_k)[1])), True


def _document(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    starts, ends = documents(s_k)
    return _stack(_of_document(s_k, ends), _of_document(s_k, starts)), False


def _share_question(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    lower = torch.empty(s_k, dtype=torch.int64)
    for start, end in zip(*documents(s_k), strict=True):
        question = start + max(1, (end - start) // 3)
        middle = (question + end + 1) // 2
        lower[start:question], lower[question:middle], lower[middle:end] = end, middle, end
    return _stack(lower), True


def _global_sliding(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    j, width, glob = torch.arange(s_k), max(1, s_q // 8), min(16, s_q)
    lower_start, lower_end = (j + width + 1).clamp(max=s_q), torch.full_like(j, s_q)
    upper_start, upper_end = torch.full_like(j, glob), (j - width).clamp(min=0)
    near = j < glob + width + 1
    upper_start, upper_end = upper_start.masked_fill(near, 0), upper_end.masked_fill(near, 0)
    first = j < glob
    return _stack(*(c.masked_fill(first, 0) for c in (lower_start, lower_end, upper_start, upper_end))), False


def _causal_blockwise(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    starts, ends = documents(s_k)
    until = [starts[-1]] * (len(starts) - 1) + [s_q]
    return _stack(_of_document(s_k, ends), _of_document(s_k, until)), True


def _prefix_document(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    upper = torch.arange(s_k)
    for start, end in zip(*documents(s_k), strict=True):
        upper[start : start + max(1, (end - start) // 4)] = start
    return _stack(_of_document(s_k, documents(s_k)[1]), upper), False


def _prefix_causal(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    j = torch.arange(s_k)
    return _stack(torch.full_like(j, s_q), j.masked_fill(j < s_k // 2, 0)), False


def _qk_sparse(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    j = torch.arange(s_k)
    end = j.clone()
    start, stop = s_k // 3, (2 * s_k) // 3
    end[start:stop] = stop
    return _stack(j, end), True


def _random_eviction(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    out = torch.full((heads, s_k, 1), s_q + 1, dtype=torch.int64)
    for h in range(heads):
        for rank, j in enumerate(torch.randperm(max(s_k - 1, 1), generator=g)[: s_k // 2].tolist()):
            out[h, j, 0] = max(j + 1, s_q // 2 + rank % max(s_q // 2, 1))
    return out, True


def _random_bounds(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    return torch.randint(-3, s_q + 4, (heads, s_k, 4), generator=g), False


def _upper_only(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    j = torch.arange(s_k)
    return _stack(torch.full_like(j, s_q), (j * 5) % (s_q + 1)), False


def _interval(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    start = (torch.arange(s_k) * 7) % (s_q + 1)
    return _stack(start, (start + max(1, s_q // 5)).clamp(max=s_q)), True


def _all_masked(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    return _stack(torch.zeros(s_k, dtype=torch.int64), torch.zeros(s_k, dtype=torch.int64)), False


def _single_column(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    lower = torch.zeros(s_k, dtype=torch.int64)
    lower[s_k // 2] = s_q
    return _stack(lower, torch.zeros_like(lower)), False


def _swapped(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    j = torch.arange(s_k)
    # The first interval lies above the second here, and the second is empty on every third column.
    low = (j % max(s_q, 1)) // 2
    high = (low + s_q // 2).clamp(max=s_q)
    return _stack(low, low + s_q // 6, high, torch.where(j % 3 == 0, high, high + s_q // 7)), False


def _touching(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    mid = (torch.arange(s_k) * 3) % (s_q + 1)
    return _stack(mid, (mid + s_q // 6).clamp(max=s_q), (mid - s_q // 5).clamp(min=0), mid), False


def _beyond(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    j = torch.arange(s_k)
    return _stack(torch.where(j % 2 == 0, s_q + 1, s_q + 100), torch.where(j % 5 == 0, -7, 0)), False


def _masked_rows(s_q: int, s_k: int, heads: int, g: Generator) -> Columns:
    starts, ends = documents(s_k)
    # Document bounds accumulated with the next document's length, a defect of a published generator: its rows that see
    # nothing are the point.
    wrong = [0]
    for start, end in zip(starts[1:], ends[1:], strict=True):
        wrong.append(min(wrong[-1] + end - start, s_q))
    return _stack(_of_document(s_k, ends), _of_document(s_k, wrong)), False


FAMILIES: tuple[MaskSpec, ...] = (
    MaskSpec("full", _full),
    MaskSpec("causal", _causal),
    MaskSpec("sliding_window", _sliding),
    MaskSpec("causal_document", _causal_document),
    MaskSpec("document", _document),
    MaskSpec("share_question", _share_question),
    MaskSpec("global_sliding", _global_sliding),
    MaskSpec("causal_blockwise", _causal_blockwise),
    MaskSpec("prefix_lm_document", _prefix_document),
    MaskSpec("prefix_lm_causal", _prefix_causal),
    MaskSpec("qk_sparse", _qk_sparse),
    MaskSpec("random_eviction", _random_eviction, per_head=True),
)
"""The twelve families."""

DEGENERATE: tuple[MaskSpec, ...] = (
    MaskSpec("all_masked", _all_masked, masked_rows=True),
    MaskSpec("single_column", _single_column),
    MaskSpec("swapped_intervals", _swapped),
    MaskSpec("touching_intervals", _touching),
    MaskSpec("beyond_bounds", _beyond),
    MaskSpec("masked_rows", _masked_rows, masked_rows=True),
    MaskSpec("random_bounds", _random_bounds, per_head=True),
    MaskSpec("upper_only", _upper_only),
    MaskSpec("interval", _interval),
)
"""Edge cases of the format."""

BY_NAME = {spec.name: spec for spec in (*FAMILIES, *DEGENERATE, MaskSpec("narrow_window", _narrow))}


def make(name: str, *, s_q: int, s_k: int, g: Generator, batch: int = 1, heads: int = 1) -> RawMask:
    """Bounds of one family.

    Args:
        name: A name of ``BY_NAME``.
        s_q: Query rows.
        s_k: Key columns.
        g: Source of the random families; each batch item draws anew.
        batch: Batch size of the bounds; items differ where the family is random, and by a cyclic shift of the
            columns' bounds otherwise.
        heads: Mask heads, differing in the same way.
    """
    spec = BY_NAME[name]
    items = []
    causal = False
    for b in range(batch):
        columns, causal = spec.build(s_q, s_k, heads, g)
        if columns is None:
            return RawMask(None, causal, s_q, s_k)
        planes = columns if columns.shape[0] == heads else columns.expand(heads, -1, -1)
        items.append(
            torch.stack(
                [plane.roll(-11 * (b + 3 * h), 0) if not spec.per_head else plane for h, plane in enumerate(planes)]
            )
        )
    return RawMask(torch.stack(items).to(torch.int32), causal, s_q, s_k)
