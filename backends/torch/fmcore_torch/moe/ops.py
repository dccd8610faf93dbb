"""The implementations that are registered: ``local`` for one process and ``collective`` for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import torch

from fmcore.errors import InvalidInputError
from fmcore.ops.moe.checks import ACCUMULATE, combine_problem, dispatch_problem
from fmcore.ops.moe.types import Dispatched, Handle, Layout
from fmcore_torch.moe.autograd import Route, reduce, scatter
from fmcore_torch.moe.collective import CollectiveRoute
from fmcore_torch.moe.local import local_route
from fmcore_torch.moe.routing import aligned, count_values, invalid_indices, localise
from fmcore_torch.moe.wire import Link, all_to_all, dtype_code, exchange_headers, facts_of

MaybeTensor = Union[torch.Tensor, None]  # noqa: UP007 (an alias is evaluated)


def dispatch_local(
    x: torch.Tensor,
    scales: MaybeTensor,
    topk_idx: MaybeTensor,
    topk_weights: MaybeTensor,
    *,
    target: Layout | Handle,
    expert_alignment: int,
    num_worst_tokens: int,
    timeout: float,
) -> Dispatched:
    """Dispatch inside one process."""
    payload = [x] if scales is None else [x, scales]
    problem = _problem(payload, topk_idx, topk_weights, target, expert_alignment, num_worst_tokens)
    if isinstance(target, Handle):
        return _cached(payload, target, problem)
    if problem:
        raise InvalidInputError(f"moe.dispatch: {problem}")
    if x.device.type == "cpu":
        _agree([[num_worst_tokens, int(target.num_invalid), int(target.num_tokens_per_rank[0])]], target.num_experts)
    route = local_route(target.is_token_in_rank, num_worst_tokens)
    src_token = route.token_of_row.to(torch.int32)
    src_rank = torch.where(src_token < 0, src_token, 0)
    prefix = torch.full((1, 1), src_token.shape[0], dtype=torch.int32) if num_worst_tokens == 0 else None
    sent = scatter(route, [*payload, *(t for t in (topk_idx, topk_weights) if t is not None)])
    idx, weights = _routing(sent[len(payload) :], src_rank, 0, target.num_experts)
    handle = Handle(
        "torch/local", target.group, 0, 1, target.num_experts, target.num_tokens, int(src_rank.shape[0]), src_rank,
        src_token, idx, target.is_token_in_rank, prefix, timeout, route,
    )  # fmt: skip
    counts = () if num_worst_tokens else aligned(target.num_tokens_per_expert, expert_alignment)
    return Dispatched(_payload(sent, payload), idx, weights, counts, target.num_tokens_per_expert, handle)


def dispatch_collective(
    x: torch.Tensor,
    scales: MaybeTensor,
    topk_idx: MaybeTensor,
    topk_weights: MaybeTensor,
    *,
    target: Layout | Handle,
    expert_alignment: int,
    num_worst_tokens: int,
    timeout: float,
) -> Dispatched:
    """Dispatch over ``torch.distributed``: one exchange of headers and counts, then the rows."""
    payload = [x] if scales is None else [x, scales]
    problem = _problem(payload, topk_idx, topk_weights, target, expert_alignment, num_worst_tokens)
    if isinstance(target, Handle):
        return _cached(payload, target, problem)
    link = Link(target.group, int(target.group.rank()), target.num_ranks, timeout, x.device)
    counts = _exchange_counts(link, target, payload, topk_idx, topk_weights, num_worst_tokens, problem)
    received = tuple(row[link.rank] for row in counts)
    num_rows = num_worst_tokens or sum(received)
    send_token = target.is_token_in_rank.t().nonzero()[:, 1]
    route = CollectiveRoute(
        link, target.num_tokens, num_rows, target.num_experts, send_token, tuple(counts[link.rank]), received
    )
    token = torch.arange(target.num_tokens, dtype=torch.int32, device=x.device)[:, None]
    meta = token if topk_idx is None else torch.cat((token.to(topk_idx.dtype), topk_idx), 1)
    sent = scatter(route, [*payload, meta, *([] if topk_weights is None else [topk_weights])])
    meta, *given = sent[len(payload) :]
    src_rank = _source_ranks(route)
    src_token = torch.where(src_rank < 0, src_rank, meta[:, 0].to(torch.int32))
    routing = () if topk_idx is None else (meta[:, 1:], *given)
    idx, weights = _routing(routing, src_rank, link.rank, target.num_experts // link.size)
    per_expert = _expert_counts(link, target) if idx is None else count_values(idx, target.num_experts // link.size)
    prefix = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    handle = Handle(
        "torch/collective", target.group, link.rank, link.size, target.num_experts, target.num_tokens, num_rows,
        src_rank, src_token, idx, target.is_token_in_rank, prefix, timeout, route,
    )  # fmt: skip
    host_counts = () if num_worst_tokens else aligned(per_expert, expert_alignment)
    return Dispatched(_payload(sent, payload), idx, weights, host_counts, per_expert, handle)


def combine(
    y: torch.Tensor,
    topk_weights: MaybeTensor,
    bias0: MaybeTensor,
    bias1: MaybeTensor,
    *,
    handle: Handle,
    weighted: bool,
) -> tuple[torch.Tensor, MaybeTensor]:
    """Sum rows back along the handle, in one process or many."""
    bias = [each for each in (bias0, bias1) if each is not None]
    problem = combine_problem(y, handle, topk_weights, bias, weighted=weighted)
    rows = y
    if weighted and not problem:
        rows = weigh(y, topk_weights, handle.topk_idx)
    tensors = [rows] if topk_weights is None else [rows, topk_weights]
    dtypes = [y.dtype, *(t.dtype for t in tensors[1:])]
    route: Route = handle.state
    sums = reduce(route, tensors, dtypes, bias, problem)
    return sums[0], None if topk_weights is None else sums[1]


def weigh(y: torch.Tensor, topk_weights: MaybeTensor, topk_idx: MaybeTensor) -> torch.Tensor:
    """Return ``sum_k w[n, k] * y[n, k]`` over local slots, k ascending, in the accumulator's dtype, [N, H]."""
    if topk_weights is None or topk_idx is None:
        raise InvalidInputError("a weighted combine needs topk_weights and a handle that has topk_idx")
    wide = ACCUMULATE[y.dtype]
    scalar = torch.float64 if wide in (torch.float64, torch.complex128) else torch.float32
    total = torch.zeros((y.shape[0], y.shape[-1]), dtype=wide, device=y.device)
    for k in range(topk_idx.shape[1]):
        local = topk_idx[:, k : k + 1] >= 0
        # Select before multiplying: a foreign slot may hold NaN, which must reach neither the sum nor a gradient.
        row = torch.where(local, y if y.ndim == 2 else y[:, k], 0)
        weight = torch.where(local, topk_weights[:, k : k + 1], 0)
        total = total + row.to(wide) * weight.to(scalar)
    return total


def _problem(
    payload: Sequence[torch.Tensor],
    topk_idx: MaybeTensor,
    topk_weights: MaybeTensor,
    target: Layout | Handle,
    expert_alignment: int,
    num_worst_tokens: int,
) -> str:
    if isinstance(target, Layout) and target.problem:
        return target.problem
    return dispatch_problem(
        payload,
        target.num_tokens,
        topk_idx,
        topk_weights,
        cached=isinstance(target, Handle),
        expert_alignment=expert_alignment,
        num_worst_tokens=num_worst_tokens,
    )


def _payload(
    sent: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    return sent[0] if len(given) == 1 else (sent[0], sent[1])


def _cached(payload: Sequence[torch.Tensor], handle: Handle, problem: str) -> Dispatched:
    route: Route = handle.state
    return Dispatched(_payload(scatter(route, payload, problem), payload), None, None, (), None, handle)


def _exchange_counts(
    link: Link,
    layout: Layout,
    payload: Sequence[torch.Tensor],
    topk_idx: MaybeTensor,
    topk_weights: MaybeTensor,
    num_worst_tokens: int,
    problem: str,
) -> list[list[int]]:
    """Return ``counts[source][destination]``, or raise on every rank what any rank complains of."""
    if problem:
        exchange_headers(link, (), (), problem, "dispatch")()
    codes = [dtype_code(None if t is None else t.dtype) for t in (topk_idx, topk_weights)]
    facts = facts_of(0, layout.num_experts, -1 if topk_idx is None else topk_idx.shape[-1], payload, codes)
    counts = (layout.num_invalid, layout.is_token_in_rank.sum(0))
    rows = exchange_headers(link, [*facts, num_worst_tokens], counts, "", "dispatch")()
    return _agree([row[len(facts) : len(facts) + 2 + link.size] for row in rows], layout.num_experts)


def _agree(rows: Sequence[Sequence[int]], num_experts: int) -> list[list[int]]:
    """Judge ``(worst case, invalid indices, *counts)`` of all ranks, alike on every rank; return the counts."""
    for rank, (_, invalid, *_) in enumerate(rows):
        if invalid:
            raise InvalidInputError(f"moe.dispatch: rank {rank}: {invalid_indices(invalid, num_experts)}")
    counts = [list(row[2:]) for row in rows]
    for rank, (worst, *_) in enumerate(rows):
        received = sum(row[rank] for row in counts)
        if worst and received > worst:
            raise InvalidInputError(
                f"moe.dispatch: rank {rank} would receive {received} rows, but its num_worst_tokens is {worst}; "
                "give at least the number of ranks times the most tokens of a rank"
            )
    return counts


def _source_ranks(route: CollectiveRoute) -> torch.Tensor:
    """Return int32 [num_rows]: the rank of each received row, -1 in the tail."""
    device, received = route.send_token.device, route.num_received
    source = torch.full((route.num_rows,), -1, dtype=torch.int32, device=device)
    ranks = torch.arange(len(route.recv_counts), dtype=torch.int32, device=device)
    source[:received] = ranks.repeat_interleave(torch.tensor(route.recv_counts, device=device), output_size=received)
    return source


def _expert_counts(link: Link, layout: Layout) -> torch.Tensor:
    """Exchange counts per expert, where no indices travel that could be counted."""
    local = layout.num_experts // link.size
    given = layout.num_tokens_per_expert.contiguous()
    out = torch.empty_like(given)
    splits = [local] * link.size
    all_to_all(link, out, given, splits, splits, "dispatch").wait()
    return out.view(link.size, local).sum(0, dtype=torch.int32)


def _routing(
    given: Sequence[torch.Tensor], src_rank: torch.Tensor, rank: int, num_local: int
) -> tuple[MaybeTensor, MaybeTensor]:
    """Return local expert numbers and weights of the received rows."""
    if not given:
        return None, None
    idx, weights = localise(given[0], given[1] if len(given) > 1 else None, rank, num_local)
    return idx.masked_fill(src_rank[:, None] < 0, -1), weights
