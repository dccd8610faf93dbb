"""What the builders share: lengths of documents, and column vectors to a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError
from fmcore.masks._canonical import check_length
from fmcore.masks.canonical import canonicalize

if TYPE_CHECKING:
    from fmcore.masks.mask import Mask

Device: TypeAlias = "torch.device | str | None"
Lengths: TypeAlias = "Sequence[int] | Sequence[Sequence[int]]"


def from_columns(vectors: tuple[Tensor, ...], *, s_q: int, causal: bool, kind: str, device: Device = None) -> Mask:
    """A mask from column vectors ``[s_k]`` or ``[batch, s_k]`` in the order of the mask format."""
    check_length("s_q", s_q)
    indices = torch.stack([v.clamp(0, s_q) for v in vectors], dim=-1).to(torch.int32)
    indices = indices.view(-1 if indices.dim() == 3 else 1, 1, *indices.shape[-2:])
    if device is not None:
        indices = indices.to(device)
    return canonicalize(indices, s_q=s_q, s_k=indices.shape[2], causal=causal, kind=kind)


def bounds_of(lengths: Lengths, s: int | None = None) -> tuple[Tensor, Tensor]:
    """First row and end row of the document of every column: two int64 ``[batch, s]`` (0 and 0 on padding).

    Raises:
        InvalidInputError: A length is not an int >= 0, or a sequence is longer than ``s``.
    """
    table = table_of(lengths)
    totals = [sum(row) for row in table]
    size = max(totals) if s is None else s
    check_length("s", size)
    bounds = torch.zeros(2, len(table), size, dtype=torch.int64)
    for number, (row, total) in enumerate(zip(table, totals, strict=True)):
        if total > size:
            raise InvalidInputError(
                f"the documents of sequence {number} have {total} tokens together, but s={size}: {row}."
            )
        length = torch.tensor(row, dtype=torch.int64)
        end = length.cumsum(0)
        bounds[0, number, :total] = (end - length).repeat_interleave(length)
        bounds[1, number, :total] = end.repeat_interleave(length)
    return bounds[0], bounds[1]


def table_of(lengths: Any) -> list[list[int]]:
    """Lengths as one list per sequence of the batch.

    Raises:
        InvalidInputError: Empty, mixed, or with an entry that is not an int >= 0.
    """
    if isinstance(lengths, Tensor):
        lengths = lengths.tolist()
    if not is_list(lengths) or not lengths:
        raise InvalidInputError(f"lengths must be a non-empty list of ints, or a list of such lists, got {lengths!r}.")
    nested = [is_list(entry) for entry in lengths]
    if any(nested) and not all(nested):
        raise InvalidInputError(f"lengths mixes ints and lists: {lengths!r}; give a list of ints or a list of lists.")
    table = [list(row) for row in lengths] if all(nested) else [list(lengths)]
    for row in table:
        for entry in row:
            if not isinstance(entry, int) or isinstance(entry, bool) or entry < 0:
                raise InvalidInputError(f"a length must be an int >= 0, got {entry!r} in {lengths!r}.")
    return table


def is_list(value: object) -> bool:
    """A list or a tuple, not a string."""
    return isinstance(value, Sequence) and not isinstance(value, str)
