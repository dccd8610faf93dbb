"""Between dispatched rows and a grouped matrix product: rows by expert, and back to slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fmcore.errors import InvalidInputError
from fmcore.ops.moe.types import Dispatched

__all__ = ["Grouped", "from_experts", "to_experts"]


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Rows sorted by local expert, one per (row, local slot).

    Attributes:
        rows: [P, H].
        ends: int64 [Le]; expert e has rows ``ends[e - 1]:ends[e]``, as ``fm.math.grouped_matmul`` takes them.
        pair: int64 [P]; ``row * K + slot`` of each.
        shape: ``(N, K)``.
    """

    rows: torch.Tensor
    ends: torch.Tensor
    pair: torch.Tensor
    shape: tuple[int, int]


def to_experts(sent: Dispatched) -> Grouped:
    """Sort dispatched rows by local expert; inside an expert they keep their order. Differentiable in the rows.

    Raises:
        InvalidInputError: The dispatch had no ``topk_idx`` or its payload is a pair.

    >>> import torch, fmcore as fm
    >>> idx = torch.tensor([[1, 0], [1, -1]])
    >>> sent = fm.moe.dispatch(torch.tensor([[1.0], [2.0]]), fm.moe.layout(idx, 2), idx)
    >>> grouped = to_experts(sent)
    >>> grouped.rows.flatten().tolist(), grouped.ends.tolist()
    ([1.0, 1.0, 2.0], [1, 3])
    """
    if sent.topk_idx is None or isinstance(sent.x, tuple):
        raise InvalidInputError("to_experts needs a dispatch of one tensor that was given topk_idx")
    rows, topk = sent.topk_idx.shape
    expert = sent.topk_idx.reshape(-1).to(torch.int64)
    local = sent.handle.num_experts // sent.handle.num_ranks
    order = torch.where(expert < 0, local, expert).sort(stable=True)
    ends = torch.searchsorted(order.values, torch.arange(1, local + 1, device=expert.device))
    pair = order.indices[: int(ends[-1])]
    return Grouped(sent.x.index_select(0, pair // max(topk, 1)), ends, pair, (rows, topk))


def from_experts(y: torch.Tensor, grouped: Grouped) -> torch.Tensor:
    """Put experts' rows [P, H] back at their slots: [N, K, H] for a weighted combine, zero in foreign slots."""
    if y.shape[:1] != grouped.pair.shape:
        raise InvalidInputError(f"y has shape {tuple(y.shape)}, want {grouped.pair.shape[0]} rows, as to_experts gave")
    rows, topk = grouped.shape
    slots = y.new_zeros((rows * topk, y.shape[-1])).index_copy(0, grouped.pair, y)
    return slots.view(rows, topk, y.shape[-1])
