"""MoE on one host: the layout of any group, and dispatch and combine inside one process, by compiled row kernels.

One process holds every expert, so a dispatch selects the tokens that have one and a combine puts rows back at their
tokens. Rows move as bytes; sums are kept in float32 (float64 for float64), terms in ascending slot order, then the
biases, and one rounding. A weighted combine reads the expert rows once and writes the tokens once.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError
from fmcore.ops.moe.checks import combine_problem, dispatch_problem
from fmcore.ops.moe.types import Dispatched, Group, Handle, Layout, Payload, group_facts
from fmcore_cpu import _rows
from fmcore_cpu._native import address, kernels, threads

__all__ = ["combine", "dispatch", "layout"]

MaybeTensor: TypeAlias = "Tensor | None"
IMPL = "cpu/local"


def layout(topk_idx: Tensor, *, num_experts: int, group: Group | None) -> Layout:
    """Count where tokens go, in one pass over the indices; local, for any number of ranks.

    Args:
        topk_idx: int32 or int64 ``[T, K]``, -1 for a slot without an expert.
        num_experts: E, a multiple of the number of ranks.
        group: The process group, or None.

    Raises:
        InvalidInputError: An index is outside [-1, E) and this process is alone; otherwise ``dispatch`` raises it on
            every rank.
    """
    ranks = group_facts(group)[1]
    idx = topk_idx.contiguous()
    tokens, topk = idx.shape
    per_rank = torch.empty(ranks, dtype=torch.int32)
    per_expert = torch.empty(num_experts, dtype=torch.int32)
    in_rank = torch.empty(tokens, ranks, dtype=torch.bool)
    invalid = kernels().moe_layout(
        idx.dtype == torch.int64,
        address(idx),
        tokens,
        topk,
        num_experts,
        ranks,
        address(per_rank),
        address(per_expert),
        address(in_rank),
        threads(),
    )
    if invalid and ranks == 1:
        raise InvalidInputError(f"moe.layout: {_invalid(invalid, num_experts)}")
    return Layout(per_rank, per_expert, in_rank, num_experts, group, torch.tensor(invalid))


def dispatch(
    x: Tensor,
    scales: MaybeTensor,
    topk_idx: MaybeTensor,
    topk_weights: MaybeTensor,
    *,
    target: Layout | Handle,
    expert_alignment: int,
    num_worst_tokens: int,
    timeout: float,
) -> Dispatched:
    """Select the tokens that have an expert, in order; see :func:`fmcore.moe.dispatch`."""
    payload = [x] if scales is None else [x, scales]
    cached = isinstance(target, Handle)
    problem = dispatch_problem(
        payload,
        target.num_tokens,
        topk_idx,
        topk_weights,
        cached=cached,
        expert_alignment=expert_alignment,
        num_worst_tokens=num_worst_tokens,
    )
    if problem:
        raise InvalidInputError(f"moe.dispatch: {problem}")
    if isinstance(target, Handle):
        again = _rows.scatter(target.state, payload)
        return Dispatched(_pair(again), None, None, (), None, target)
    route = _route(target, num_worst_tokens)
    routing = [t for t in (topk_idx, topk_weights) if t is not None]
    sent = _rows.scatter(route, [*payload, *routing])
    idx, weights = _received(route, sent[len(payload) :], target.num_experts)
    tail = route.token_of_row < 0
    rows = int(tail.shape[0])
    handle = Handle(
        IMPL,
        target.group,
        0,
        1,
        target.num_experts,
        target.num_tokens,
        rows,
        torch.where(tail, -1, 0).to(torch.int32),
        route.token_of_row.to(torch.int32),
        idx,
        target.is_token_in_rank,
        None if num_worst_tokens else torch.full((1, 1), rows, dtype=torch.int32),
        timeout,
        route,
    )
    counts = target.num_tokens_per_expert
    aligned = tuple(-(-int(c) // expert_alignment) * expert_alignment for c in counts.tolist())
    return Dispatched(_pair(sent[: len(payload)]), idx, weights, () if num_worst_tokens else aligned, counts, handle)


def combine(
    y: Tensor,
    topk_weights: MaybeTensor,
    bias0: MaybeTensor,
    bias1: MaybeTensor,
    *,
    handle: Handle,
    weighted: bool,
) -> tuple[Tensor, MaybeTensor]:
    """Put rows back at their tokens, or sum them with weights over a token's slots; see :func:`fmcore.moe.combine`."""
    bias = [each for each in (bias0, bias1) if each is not None]
    problem = combine_problem(y, handle, topk_weights, bias, weighted=weighted)
    if problem:
        raise InvalidInputError(f"moe.combine: {problem}")
    route: _rows.Route = handle.state
    weights = None if topk_weights is None else _rows.gather_back(route, topk_weights)
    if weighted and topk_weights is not None and handle.topk_idx is not None:
        return _rows.weigh_back(route, y, topk_weights, handle.topk_idx, bias), weights
    return _rows.reduce_back(route, y, bias), weights


def _route(target: Layout, num_worst_tokens: int) -> _rows.Route:
    invalid = int(target.num_invalid)
    if invalid:
        raise InvalidInputError(f"moe.dispatch: rank 0: {_invalid(invalid, target.num_experts)}")
    present = target.is_token_in_rank[:, 0]
    token_of_row = present.nonzero()[:, 0]
    count = int(token_of_row.shape[0])
    if num_worst_tokens and count > num_worst_tokens:
        raise InvalidInputError(
            f"moe.dispatch: rank 0 would receive {count} rows, but its num_worst_tokens is {num_worst_tokens}; "
            "give at least the number of ranks times the most tokens of a rank"
        )
    row_of_token = torch.full((target.num_tokens,), -1, dtype=torch.int64)
    row_of_token[token_of_row] = torch.arange(count)
    if num_worst_tokens:
        token_of_row = torch.nn.functional.pad(token_of_row, (0, num_worst_tokens - count), value=-1)
    return _rows.Route(token_of_row, row_of_token)


def _received(route: _rows.Route, sent: list[Tensor], num_experts: int) -> tuple[MaybeTensor, MaybeTensor]:
    """Expert numbers and weights of the rows; -1 and 0 in the tail and where a slot has no expert."""
    if not sent:
        return None, None
    idx = sent[0]
    mine = (idx >= 0) & (idx < num_experts) & (route.token_of_row >= 0)[:, None]
    return torch.where(mine, idx, -1).to(idx.dtype), torch.where(mine, sent[1], 0.0) if len(sent) > 1 else None


def _pair(sent: list[Tensor]) -> Payload:
    return sent[0] if len(sent) == 1 else (sent[0], sent[1])


def _invalid(count: int, num_experts: int) -> str:
    return (
        f"topk_idx has {count} value(s) outside [-1, {num_experts}); "
        "give expert numbers, or -1 for a slot that has no expert"
    )
