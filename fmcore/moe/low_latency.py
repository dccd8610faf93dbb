"""The low-latency layout over any implementation: rows by local expert in a fixed three-dimensional tensor.

Built on dispatch and combine: rows are sent once per rank in worst-case mode, then placed by expert. Every shape is
known beforehand, so on a device nothing is read on the host beyond what the implementation below reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fmcore.errors import InvalidInputError
from fmcore.moe.api import combine, dispatch, layout
from fmcore.ops.moe.types import Dispatched, Group, Handle

__all__ = ["ExpertRows", "dequantise_fp8", "expert_combine", "expert_dispatch", "quantise_fp8"]

BLOCK = 128
"""Elements that share a scale."""
_E4M3_MAX = 448.0
_SMALLEST_AMAX = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRows:
    """Rows by local expert. Row ``x[e, i]`` is valid for ``i < counts[e]``; by source rank, then source token.

    Attributes:
        x: [Le, C, H] with C = ranks * max_tokens; zero beyond the valid rows.
        scales: [Le, C, S] with the rows' dimension contiguous, or None.
        counts: int32 [Le].
        src_token: int32 [Le, C], -1 beyond the valid rows.
        ranges: int64 [Le, R]; rows from rank r: first row ``>> 32`` and count ``& 0xffffffff``.
        place: int64 [rows, K]; row of ``x`` seen as [Le * C, H] that slot k of dispatched row n went to.
        topk_idx: [T, K], what was dispatched.
        handle: Of the dispatch below.
    """

    x: torch.Tensor
    scales: torch.Tensor | None
    counts: torch.Tensor
    src_token: torch.Tensor
    ranges: torch.Tensor
    place: torch.Tensor
    topk_idx: torch.Tensor
    handle: Handle


def quantise_fp8(x: torch.Tensor, *, power_of_two: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise [T, H] to e4m3 with one fp32 scale per 128 elements; H must be a multiple of 128.

    The scale is the block's largest magnitude (at least 1e-4) over 448, rounded up to a power of two if asked.
    """
    if x.shape[1] % BLOCK:
        raise InvalidInputError(f"fp8 needs H to be a multiple of {BLOCK}, got H = {x.shape[1]}; pass use_fp8=False")
    blocks = x.to(torch.float32).reshape(x.shape[0], x.shape[1] // BLOCK, BLOCK)
    scales = blocks.abs().amax(-1).clamp(min=_SMALLEST_AMAX) / _E4M3_MAX
    if power_of_two:
        scales = torch.exp2(torch.log2(scales).ceil())
    return (blocks / scales[..., None]).reshape(x.shape).to(torch.float8_e4m3fn), scales


def dequantise_fp8(q: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return ``q * scales`` in fp32, for [..., H] and scales [..., H / 128]."""
    blocks = q.to(torch.float32).view(*scales.shape, BLOCK)
    return (blocks * scales[..., None]).flatten(-2)


def expert_dispatch(
    x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    topk_idx: torch.Tensor,
    max_tokens: int,
    num_experts: int,
    *,
    group: Group | None,
    timeout: float,
    backend: str | None = None,
) -> ExpertRows:
    """Send rows and place them by expert.

    Args:
        x: [T, H], or ``(q, scales [T, S])``; T at most ``max_tokens``.
        topk_idx: [T, K]; a token's experts are distinct.
        max_tokens: The most tokens of any rank, the same on every rank.
        num_experts: E.
        group: The process group, or None.
        timeout: Seconds to wait for other ranks.
        backend: Strict choice of a backend.

    Raises:
        InvalidInputError: On every rank, if one has more than ``max_tokens`` tokens; and what ``dispatch`` raises.
    """
    routes = layout(topk_idx, num_experts, group=group, backend=backend)
    if routes.num_tokens > max_tokens:
        problem = f"{routes.num_tokens} tokens are more than num_max_dispatch_tokens_per_rank = {max_tokens}"
        if routes.num_ranks == 1:
            raise InvalidInputError(f"moe.dispatch: {problem}")
        routes = replace(routes, problem=problem)
    capacity = routes.num_ranks * max_tokens
    sent = dispatch(x, routes, topk_idx, num_worst_tokens=capacity, timeout=timeout, backend=backend)
    local = num_experts // routes.num_ranks
    place, counts, ranges = _places(sent, local, capacity)
    parts = sent.x if isinstance(sent.x, tuple) else (sent.x,)
    placed = [_by_expert(part, place, local, capacity) for part in parts]
    src_token = _by_expert(sent.handle.src_token[:, None] + 1, place, local, capacity)[..., 0] - 1
    scales = placed[1].transpose(1, 2).contiguous().transpose(1, 2) if len(placed) > 1 else None
    return ExpertRows(placed[0], scales, counts, src_token, ranges, place, topk_idx, sent.handle)


def expert_combine(
    y: torch.Tensor, rows: ExpertRows, topk_idx: torch.Tensor, topk_weights: torch.Tensor
) -> torch.Tensor:
    """Return ``sum_k topk_weights[t, k] * y[row of slot k of token t]``, [T, H] in y's dtype.

    Args:
        y: [Le, C, H].
        rows: What ``expert_dispatch`` returned.
        topk_idx: [T, K], the indices that were dispatched.
        topk_weights: [T, K], of the tokens of this rank; sent to the experts' ranks here.
    """
    if y.shape[:2] != rows.x.shape[:2]:
        raise InvalidInputError(
            f"x has shape {tuple(y.shape)}, want {tuple(rows.x.shape[:2])} and H, as it was dispatched"
        )
    if topk_idx is not rows.topk_idx and (
        topk_idx.shape != rows.topk_idx.shape
        or (topk_idx.device.type == "cpu" and not torch.equal(topk_idx, rows.topk_idx))
    ):
        raise InvalidInputError("topk_idx is not what was dispatched with this handle")
    weights = dispatch(topk_weights, rows.handle).x
    if isinstance(weights, tuple):
        raise InvalidInputError("topk_weights must be one tensor")
    flat = y.reshape(-1, y.shape[-1])
    slots = (
        flat[rows.place.clamp(max=max(flat.shape[0] - 1, 0))]
        if flat.shape[0]
        else flat.new_zeros((*rows.place.shape, y.shape[-1]))
    )
    back, _ = combine(slots, rows.handle, weights, weighted=True)
    return back


def _places(sent: Dispatched, local: int, capacity: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return where every slot goes (a spare row for foreign ones), counts per expert and ranges per source rank."""
    if sent.topk_idx is None:
        raise InvalidInputError("a dispatch without topk_idx cannot be placed by expert")
    expert = torch.where(sent.topk_idx < 0, local, sent.topk_idx).to(torch.int64)
    order = expert.reshape(-1).sort(stable=True)
    edges = torch.searchsorted(order.values, torch.arange(local + 2, device=expert.device))
    within = torch.arange(order.values.numel(), device=expert.device) - edges[order.values]
    target = torch.where(
        (order.values < local) & (within < capacity), order.values * capacity + within, local * capacity
    )
    place = target.index_select(0, order.indices.argsort()).view(expert.shape)
    counts = edges.diff()[:local].to(torch.int32)
    ranks = sent.handle.num_ranks
    pair = torch.where(expert < local, expert * ranks + sent.handle.src_rank[:, None], local * ranks).reshape(-1)
    per_pair = (
        torch.searchsorted(pair.sort().values, torch.arange(local * ranks + 1, device=pair.device))
        .diff()
        .view(local, ranks)
    )
    begin = per_pair.cumsum(1) - per_pair
    return place, counts, (begin << 32) | per_pair


def _by_expert(rows: torch.Tensor, place: torch.Tensor, local: int, capacity: int) -> torch.Tensor:
    """Copy rows [n, W] to [local, capacity, W]; every row as often as it has local slots."""
    eight_bit = rows.dtype.is_floating_point and rows.element_size() == 1
    source = rows.view(torch.uint8) if eight_bit else rows
    out = source.new_zeros((local * capacity + 1, source.shape[1]))
    copies = source[:, None, :].expand(-1, place.shape[1], -1).reshape(-1, source.shape[1])
    out[place.reshape(-1)] = copies
    out = out[:-1]
    return (out.view(rows.dtype) if eight_bit else out).view(local, capacity, rows.shape[1])
