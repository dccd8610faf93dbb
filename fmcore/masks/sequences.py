"""Converters from the ways to say packed sequences: cu_seqlens, document ids, jagged nested tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError
from fmcore.masks._canonical import check_length, hidden_planes
from fmcore.masks._columns import HOST, from_columns
from fmcore.masks.converters import simplify
from fmcore.masks.mask import Mask

__all__ = ["from_cu_seqlens", "from_document_ids", "from_nested"]


def from_cu_seqlens(
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    causal: bool,
    s_q: int | None = None,
    s_k: int | None = None,
) -> Mask:
    """The mask that makes one packed sequence act like variable-length attention.

    Rows ``[cu_q[d], cu_q[d+1])`` see columns ``[cu_k[d], cu_k[d+1])``; with ``causal`` each document is aligned at its
    own bottom right, as in FlashAttention's varlen interface. Rows and columns behind the last document are padding.

    Args:
        cu_seqlens_q: Integer ``[documents + 1]``, rising from 0.
        cu_seqlens_k: The same for keys; by default that of the queries.
        causal: Hide later keys of the document.
        s_q: Query rows; by default the last entry, which waits for a device.
        s_k: Key columns; likewise.

    Raises:
        InvalidInputError: Wrong dtype, rank or length, or (looked at on the CPU only) not rising from 0, or longer than
            ``s_q`` or ``s_k``.
    """
    cu_q, s_q = _cumulative("q", cu_seqlens_q, s_q)
    if cu_seqlens_k is None:
        cu_k, s_k = cu_q, s_q if s_k is None else _checked("q", cu_q, "s_k", s_k)
    else:
        cu_k, s_k = _cumulative("k", cu_seqlens_k, s_k)
    if cu_q.shape != cu_k.shape:
        raise InvalidInputError(
            f"cu_seqlens_q has {cu_q.shape[0]} entries and cu_seqlens_k {cu_k.shape[0]}; "
            "both need one per document plus one."
        )
    column = torch.arange(s_k, device=cu_k.device)
    number = torch.searchsorted(cu_k[1:].contiguous(), column, right=True)
    padding = number == cu_k.shape[0] - 1
    number = number.masked_fill(padding, 0)
    first, end = cu_q[number], cu_q[number + 1] if cu_q.shape[0] > 1 else cu_q[number]
    if causal:
        offset = (cu_k[number + 1] - cu_k[number]) - (end - first) if cu_k.shape[0] > 1 else number
        first += (column - cu_k[number] - offset).clamp(min=0)
    kind = "causal_document" if causal else "document"
    end = end.masked_fill(padding, 0)
    return from_columns((end, first), s_q=s_q, causal=False, kind=kind, device=cu_k.device)


def _cumulative(name: str, cu_seqlens: object, size: int | None) -> tuple[Tensor, int]:
    if (
        not isinstance(cu_seqlens, Tensor)
        or cu_seqlens.dim() != 1
        or not cu_seqlens.numel()
        or cu_seqlens.dtype not in (torch.int32, torch.int64)
    ):
        found = (
            f"{cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
            if isinstance(cu_seqlens, Tensor)
            else type(cu_seqlens).__name__
        )
        raise InvalidInputError(f"cu_seqlens_{name} must be int32 or int64 [documents + 1], got {found}.")
    cu = cu_seqlens.long()
    return cu, _checked(name, cu, f"s_{name}", int(cu[-1]) if size is None else size)


def _checked(name: str, cu: Tensor, of: str, total: int) -> int:
    """``total``, if the documents of ``cu`` fit in it."""
    check_length(of, total)
    if cu.device.type == "cpu" and (int(cu[0]) != 0 or bool((cu.diff() < 0).any()) or int(cu[-1]) > total):
        raise InvalidInputError(
            f"cu_seqlens_{name} must rise from 0 to at most {of}={total}, got {cu.tolist()[:8]}"
            f"{' ...' if cu.numel() > 8 else ''}."
        )
    return total


def from_nested(query: Tensor, key: Tensor | None = None, *, causal: bool) -> Mask:
    """The mask for the packed values of jagged nested tensors, ``query.values()`` against ``key.values()``.

    Args:
        query: Nested tensor of layout ``torch.jagged``, ragged in dimension 1.
        key: The same for keys; by default ``query``.
        causal: Hide later keys of the document.

    Raises:
        InvalidInputError: Not a jagged nested tensor, or one with holes (made by ``torch.nested.narrow``).
    """
    sides = []
    for name, nested in (("query", query), ("key", query if key is None else key)):
        if not isinstance(nested, Tensor) or not nested.is_nested or nested.layout != torch.jagged:
            raise InvalidInputError(f"{name} must be a nested tensor of layout torch.jagged, got {_described(nested)}.")
        jagged: Any = nested  # torch's stubs give Tensor no offsets
        if jagged.lengths() is not None:
            raise InvalidInputError(f"{name} has holes between its sequences; make it contiguous first.")
        if jagged._ragged_idx != 1:  # noqa: SLF001 -- torch has no public name for it
            raise InvalidInputError(
                f"{name} is ragged in dimension {jagged._ragged_idx}, of shape {tuple(jagged.shape)}; "  # noqa: SLF001
                "transpose it so that the sequences lie in dimension 1."
            )
        sides.append((jagged.offsets(), jagged.values().shape[0]))
    (cu_q, s_q), (cu_k, s_k) = sides
    return from_cu_seqlens(cu_q, cu_k, causal=causal, s_q=s_q, s_k=s_k)


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return (
            f"a nested tensor of layout {value.layout}" if value.is_nested else f"a plain tensor {tuple(value.shape)}"
        )
    return type(value).__name__


def from_document_ids(ids: Tensor, *, causal: bool) -> Mask:
    """Tokens see the tokens with the same id.

    An id may return later in the sequence as long as no column needs a third hidden interval. Looks at the ids, so it
    waits for a device.

    Args:
        ids: Integer ``[s]`` or ``[batch, s]``; negative ids are padding, which sees nothing and is not seen.
        causal: Hide later tokens.

    Raises:
        InvalidInputError: Wrong dtype or rank, or a column needs a third interval; the message names the first one.
    """
    if not isinstance(ids, Tensor) or ids.dim() not in (1, 2) or ids.is_floating_point() or ids.dtype == torch.bool:
        found = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise InvalidInputError(f"document ids must be an integer tensor [s] or [batch, s], got {found}.")
    table = ids.detach().cpu().long()
    table = table if table.dim() == 2 else table[None]
    s = table.shape[1]
    bounds = torch.stack([_hidden_of_ids(row, number, causal=causal) for number, row in enumerate(table)])
    planes = hidden_planes(*bounds.unbind(1), s_q=s).unsqueeze(1)
    kind = "causal_document" if causal else "document"
    return simplify(Mask(planes.contiguous(), s_q=s, mode=2, kind=kind)).to(ids.device)


def _hidden_of_ids(ids: Tensor, sequence: int, *, causal: bool) -> Tensor:
    """Two hidden intervals per column, int64 ``[4, s]``, from the runs of equal ids."""
    s = ids.numel()
    values, counts = torch.unique_consecutive(ids, return_counts=True)
    ends = counts.cumsum(0)
    real = values[values >= 0]
    if real.unique().numel() == real.numel():  # no id returns, the usual case: no need to go run by run
        end, length = (runs.repeat_interleave(counts, output_size=s) for runs in (ends, counts))
        above = torch.arange(s, device=HOST) if causal else end - length
        zero, last = torch.zeros_like(end), torch.full_like(end, s)
        return torch.stack((zero, torch.where(ids < 0, s, above), torch.where(ids < 0, s, end), last))
    stops = ends.tolist()
    runs = list(zip(values.tolist(), [0, *stops[:-1]], stops, strict=True)) if s else []
    of_id: dict[int, list[tuple[int, int]]] = {}
    for value, start, stop in runs:
        of_id.setdefault(value, []).append((start, stop))
    bounds = torch.zeros(4, s, dtype=torch.int64, device=HOST)
    for value, start, stop in runs:
        span = slice(start, stop)
        if value < 0:
            bounds[1, span] = s
            continue
        seen = [run for run in of_id[value] if run[0] >= start] if causal else of_id[value]
        edges = [0, *(edge for run in seen for edge in run), s]
        gaps = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
        if causal:  # the rows above the run join the rows above the diagonal, which column 0 alone lacks
            gaps = gaps[start > 0 :]
            bounds[1, span] = torch.arange(start, stop, device=HOST)
        room = 1 if causal and stop > 1 else 2
        if len(gaps) > room:
            column = 1 if causal and start == 0 and len(gaps) == 2 else start
            raise InvalidInputError(
                f"column {column} (sequence {sequence}, document id {value}) needs "
                f"{len(gaps) + (column > 0 and causal)} hidden intervals of rows, because the id "
                "returns after other documents; a mask has at most two per column. Sort the tokens by document."
            )
        for slot, (a, b) in zip((2, 0)[:room], gaps, strict=False):
            bounds[slot, span], bounds[slot + 1, span] = a, b
    return bounds
