"""Builders: the usual masks from a few numbers. All of them return a :class:`fmcore.masks.Mask`.

Lengths are documents in order along the sequence. A flat list is one sequence shared by the whole batch
(``[3000, 1200, 3992]``); a list of lists gives every sequence of the batch its own documents. Where the documents end before
``s`` the rest is padding: its rows see nothing and its columns are seen by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError
from fmcore.masks._canonical import check_length
from fmcore.masks.mask import Mask, canonicalize

Device = torch.device | str | None
Lengths = Sequence[int] | Sequence[Sequence[int]]


def full(s_q: int, s_k: int | None = None, *, device: Device = None) -> Mask:
    """Every row sees every column."""
    return _plain(s_q, s_k, causal=False, device=device)


def causal(s_q: int, s_k: int | None = None, *, device: Device = None) -> Mask:
    """Row i sees columns up to i + s_k - s_q (aligned at the bottom right)."""
    return _plain(s_q, s_k, causal=True, device=device)


def _plain(s_q: int, s_k: int | None, *, causal: bool, device: Device) -> Mask:
    mask = canonicalize(None, s_q=s_q, s_k=s_q if s_k is None else s_k, causal=causal)
    return mask if device is None else mask.to(device)


def sliding_window(
    s_q: int, s_k: int | None = None, *, window: int, causal: bool = True, device: Device = None
) -> Mask:
    """Row i sees ``window`` keys: its own (at i + s_k - s_q) and the window - 1 before it; without causal as many after it.

    This counts keys. The ``window_size`` argument of attention, like Paddle's, counts the keys *besides* the row's own:
    ``window_size=w`` is ``sliding_window(window=w + 1)``, see :func:`fmcore.masks.from_window`.
    """
    if not isinstance(window, int) or window < 1:
        raise InvalidInputError(f"window must be an int >= 1 (keys that a row sees, its own included), got {window!r}.")
    s_k = s_q if s_k is None else s_k
    check_length("s_q", s_q)
    check_length("s_k", s_k)
    own = torch.arange(s_k, dtype=torch.int64, device=device) - (s_k - s_q)
    before = own if causal else own - (window - 1)
    return _columns((own + window, before), s_q=s_q, causal=False, kind="sliding_window")


def document(lengths: Lengths, *, s: int | None = None, device: Device = None) -> Mask:
    """Every document sees itself, in both directions: block-diagonal."""
    start, end = document_bounds(lengths, s)
    return _columns((end, start), s_q=start.shape[-1], causal=False, kind="document", device=device)


def causal_document(lengths: Lengths, *, s: int | None = None, device: Device = None) -> Mask:
    """Every document sees itself, causally: packed sequences.

    Example:
        >>> causal_document([1, 2]).dense().int()[0, 0].tolist()
        [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    """
    _, end = document_bounds(lengths, s)
    return _columns((end,), s_q=end.shape[-1], causal=True, kind="causal_document", device=device)


def document_bounds(lengths: Lengths, s: int | None = None) -> tuple[Tensor, Tensor]:
    """First row and end row of the document of every column: two int64 tensors ``[batch, s]`` (0 and 0 on padding)."""
    table = batch_of(lengths)
    totals = [sum(row) for row in table]
    size = max(totals) if s is None else s
    check_length("s", size)
    bounds = torch.zeros(2, len(table), size, dtype=torch.int64)
    for number, (row, total) in enumerate(zip(table, totals, strict=True)):
        if total > size:
            raise InvalidInputError(f"documents of sequence {number} have {total} tokens together, but s={size}.")
        length = torch.tensor(row, dtype=torch.int64)
        end = length.cumsum(0)
        bounds[0, number, :total] = (end - length).repeat_interleave(length)
        bounds[1, number, :total] = end.repeat_interleave(length)
    return bounds[0], bounds[1]


def batch_of(lengths: Any) -> list[list[int]]:
    """Lengths as one list per sequence of the batch.

    Raises:
        InvalidInputError: Empty, mixed, or with an entry that is not an int >= 0.
    """
    if isinstance(lengths, Tensor):
        lengths = lengths.tolist()
    if not isinstance(lengths, Sequence) or isinstance(lengths, str) or not lengths:
        raise InvalidInputError(f"lengths must be a non-empty list of ints, or a list of such lists, got {lengths!r}.")
    nested = [isinstance(entry, Sequence) and not isinstance(entry, str) for entry in lengths]
    if any(nested) and not all(nested):
        raise InvalidInputError(f"lengths mixes ints and lists: {lengths!r}; give a list of ints or a list of lists.")
    table = [list(row) for row in lengths] if all(nested) else [list(lengths)]
    for row in table:
        for entry in row:
            if not isinstance(entry, int) or isinstance(entry, bool) or entry < 0:
                raise InvalidInputError(f"a document's length must be an int >= 0, got {entry!r} in {lengths!r}.")
    return table


def _columns(vectors: tuple[Tensor, ...], *, s_q: int, causal: bool, kind: str, device: Device = None) -> Mask:
    """A mask from column vectors ``[s_k]`` or ``[batch, s_k]`` in the order of the mask format."""
    indices = torch.stack([v.clamp(0, s_q) for v in vectors], dim=-1).to(torch.int32)
    indices = indices.view(-1, 1, *indices.shape[-2:]).to(device or indices.device)
    return canonicalize(indices, s_q=s_q, s_k=indices.shape[2], causal=causal, kind=kind)
