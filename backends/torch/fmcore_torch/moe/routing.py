"""From expert indices to counts and maps, on any device and without reading anything on the host."""

from __future__ import annotations

import torch

from fmcore.errors import InvalidInputError
from fmcore.ops.moe.types import Group, Layout, group_facts


def count_values(values: torch.Tensor, num_values: int) -> torch.Tensor:
    """Count each of 0..num_values-1 in ``values``; others are ignored. Deterministic on every device."""
    order = values.reshape(-1).to(torch.int64).sort().values
    bounds = torch.searchsorted(order, torch.arange(num_values + 1, device=values.device))
    return bounds.diff().to(torch.int32)


def layout(topk_idx: torch.Tensor, *, num_experts: int, group: Group | None) -> Layout:
    """Count where tokens go; see :func:`fmcore.moe.layout`."""
    ranks = group_facts(group)[1]
    idx = topk_idx.to(torch.int64)
    outside = (idx < -1) | (idx >= num_experts)
    num_invalid = outside.sum()
    if ranks == 1 and idx.device.type == "cpu" and int(num_invalid):
        raise InvalidInputError(f"moe.layout: {invalid_indices(int(num_invalid), num_experts)}")
    idx = torch.where(outside, -1, idx)
    per_expert = count_values(idx, num_experts)
    rank_of = torch.where(idx < 0, -1, idx // (num_experts // ranks))
    in_rank = torch.zeros((idx.shape[0], ranks), dtype=torch.bool, device=idx.device)
    for rank in range(ranks):
        in_rank[:, rank] = (rank_of == rank).any(1)
    return Layout(in_rank.sum(0, dtype=torch.int32), per_expert, in_rank, num_experts, group, num_invalid)


def invalid_indices(count: int, num_experts: int) -> str:
    """Say that indices are out of range."""
    return (
        f"topk_idx has {count} value(s) outside [-1, {num_experts}); "
        "give expert numbers, or -1 for a slot that has no expert"
    )


def localise(
    topk_idx: torch.Tensor, topk_weights: torch.Tensor | None, rank: int, num_local: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Turn received global expert numbers into local ones, -1 for other ranks' slots, whose weights become 0."""
    lowest = rank * num_local
    mine = (topk_idx >= lowest) & (topk_idx < lowest + num_local)
    idx = torch.where(mine, topk_idx - lowest, -1).to(topk_idx.dtype)
    return idx, None if topk_weights is None else torch.where(mine, topk_weights, 0.0)


def aligned(counts: torch.Tensor, alignment: int) -> tuple[int, ...]:
    """Read counts on the host, each rounded up to ``alignment``."""
    return tuple(-(-int(c) // alignment) * alignment for c in counts.tolist())
