"""Builders of masks with structure inside the documents: prefixes, shared questions, blocks, eviction."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError
from fmcore.masks._canonical import check_int, check_length
from fmcore.masks._columns import HOST, Device, Lengths, bounds_of, from_columns, is_list, pairs_of, placed, table_of
from fmcore.masks.canonical import canonicalize
from fmcore.masks.mask import Mask

__all__ = [
    "causal_blockwise",
    "prefix_lm_causal",
    "prefix_lm_document",
    "qk_sparse",
    "random_eviction",
    "share_question",
]


def share_question(documents: Sequence[Sequence[int]], *, s: int | None = None, device: Device = None) -> Mask:
    """Answers see their question and themselves, causally, but not each other.

    Args:
        documents: One list ``[question, answer, answer, ...]`` of lengths per document.
        s: Rows and columns; by default what the documents need. The rest is padding.
        device: Where the mask shall lie.

    Example:
        >>> share_question([[1, 1, 1]]).dense().int()[0, 0].tolist()
        [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    if not is_list(documents) or not all(is_list(entry) and entry for entry in documents):
        raise InvalidInputError(
            f"documents must be a list of [question, answer, ...] lists with at least a question, got {documents!r}."
        )
    table = table_of(documents)
    parts = [part for row in table for part in row]
    _, part_end = bounds_of([parts], s)
    _, end = bounds_of([[sum(row) for row in table]], s)
    firsts = accumulate((sum(row) for row in table), initial=0)
    for first, row in zip(firsts, table, strict=False):
        part_end[0, first : first + row[0]] = end[0, first : first + row[0]]
    return from_columns((part_end,), s_q=end.shape[-1], causal=True, kind="share_question", device=device)


def causal_blockwise(lengths: Lengths, *, device: Device = None) -> Mask:
    """Every document sees itself, causally, and the last document sees all of them.

    There is no padding: a last document that sees all, and rows behind it that see nothing, need a third interval.

    Example:
        >>> causal_blockwise([1, 1, 1]).dense().int()[0, 0].tolist()
        [[1, 0, 0], [0, 1, 0], [1, 1, 1]]
    """
    table = table_of(lengths)
    totals = {sum(row) for row in table}
    if len(totals) > 1:
        raise InvalidInputError(f"the sequences of the batch must have the same total length, got {sorted(totals)}.")
    _, end = bounds_of(table)
    size = end.shape[-1]
    last = torch.tensor([size - (row[-1] if row else 0) for row in table], device=HOST).unsqueeze(-1)
    in_last = torch.arange(size, device=HOST) >= last
    stop = torch.where(in_last, size, last.expand_as(end))
    return from_columns((end, stop), s_q=size, causal=True, kind="causal_blockwise", device=device)


def prefix_lm_document(documents: Sequence[tuple[int, int]], *, s: int | None = None, device: Device = None) -> Mask:
    """Documents whose first tokens are seen by the whole document, the others causally.

    Args:
        documents: One pair (prefix length, document length) per document; the prefix is part of the document.
        s: Rows and columns; by default what the documents need. The rest is padding.
        device: Where the mask shall lie.

    Example:
        >>> prefix_lm_document([(2, 3)]).dense().int()[0, 0].tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    documents = pairs_of("documents", "(prefix, length) with 0 <= prefix <= length", documents)
    start, end = bounds_of([[length for _, length in documents]], s)
    first = torch.arange(end.shape[-1], device=HOST).expand_as(end).clone()
    firsts = accumulate((length for _, length in documents), initial=0)
    for at, (prefix, _) in zip(firsts, documents, strict=False):
        first[0, at : at + prefix] = start[0, at : at + prefix]
    return from_columns((end, first), s_q=end.shape[-1], causal=False, kind="prefix_lm_document", device=device)


def prefix_lm_causal(s_q: int, s_k: int | None = None, *, prefix: int, device: Device = None) -> Mask:
    """Every row sees the first ``prefix`` columns; the others are seen causally (aligned at the bottom right)."""
    s_k = s_q if s_k is None else s_k
    check_length("s_q", s_q)
    check_length("s_k", s_k)
    prefix = check_int("prefix", prefix, 0, s_k)
    column = torch.arange(s_k, dtype=torch.int64, device=HOST)
    first = (column - (s_k - s_q)).masked_fill(column < prefix, 0)
    last = torch.full_like(column, s_q)
    return from_columns((last, first), s_q=s_q, causal=False, kind="prefix_lm_causal", device=device)


def qk_sparse(s: int, *, ranges: Sequence[tuple[int, int]], device: Device = None) -> Mask:
    """Causal, and the columns of a range are hidden from all rows of the range, their own included.

    Args:
        s: Rows and columns.
        ranges: Disjoint pairs (start, end) of token positions.
        device: Where the mask shall lie.
    """
    check_length("s", s)
    column = torch.arange(s, dtype=torch.int64, device=HOST)
    stop = column.clone()
    behind = 0
    for start, end in sorted(pairs_of("ranges", "(start, end) with 0 <= start <= end", ranges)):
        if not behind <= start <= end <= s:
            raise InvalidInputError(f"ranges must be disjoint (start, end) pairs within [0, s={s}], got {ranges!r}.")
        stop[start:end] = behind = end
    return from_columns((column, stop), s_q=s, causal=True, kind="qk_sparse", device=device)


def random_eviction(
    s: int, *, heads: int = 1, batch: int = 1, kept: int | None = None, seed: int = 0, device: Device = None
) -> Mask:
    """Causal, with a cache of ``kept`` keys: from row ``kept`` on every row evicts one random earlier key for good.

    Args:
        s: Rows and columns.
        heads: Mask heads; every one evicts other keys.
        batch: Sequences; every one evicts other keys.
        kept: Size of the cache, s // 2 by default.
        seed: Of the choice.
        device: Where the mask shall lie.
    """
    check_length("s", s)
    batch, heads = check_int("batch", batch, 1), check_int("heads", heads, 1)
    kept = max(1, s // 2) if kept is None else check_int("kept", kept, 1, max(1, s))
    generator = random.Random(seed)  # noqa: S311 -- a choice of keys, not a secret
    rows = [_evictions(s, kept, generator) for _ in range(batch * heads)]
    lts = torch.stack(rows).view(batch, heads, s, 1)
    return canonicalize(placed(lts, device), s_q=s, s_k=s, causal=True, kind="random_eviction")


def _evictions(s: int, kept: int, generator: random.Random) -> Tensor:
    """First row that no longer sees each column: row kept + k evicts one of the chosen keys that lie before it."""
    last_row = torch.full((s,), s, dtype=torch.int32, device=HOST)
    chosen = deque(sorted(generator.sample(range(max(0, s - 1)), max(0, s - kept))))
    waiting: list[tuple[float, int]] = []
    rows: list[int] = []
    columns: list[int] = []
    # Sorted, the k-th choice is below kept + k, so there is always a candidate.
    for row in range(kept, s):
        while chosen and chosen[0] < row:
            heapq.heappush(waiting, (generator.random(), chosen.popleft()))
        columns.append(heapq.heappop(waiting)[1])
        rows.append(row)
    last_row[torch.tensor(columns, dtype=torch.int64, device=HOST)] = torch.tensor(rows, dtype=torch.int32, device=HOST)
    return last_row
