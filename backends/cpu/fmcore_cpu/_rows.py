"""Rows along a route, with gradients: scatter and gather back are adjoint, and each is the other's backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fmcore.ops.moe.checks import ACCUMULATE
from fmcore_cpu._native import DTYPES, address, kernels, threads

__all__ = ["Route", "gather_back", "reduce_back", "scatter", "weigh_back"]

_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """Where rows and tokens meet.

    Attributes:
        token_of_row: int64 ``[rows]``; -1 in the tail of worst-case mode.
        row_of_token: int64 ``[T]``; -1 for a token without an expert.
    """

    token_of_row: Tensor
    row_of_token: Tensor


def scatter(route: Route, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Rows of each tensor by ``token_of_row``; a tail row is zero. Differentiable where the dtype is."""
    return [_Gather.apply(t, route.token_of_row, route.row_of_token) for t in tensors]  # type: ignore[no-untyped-call]


def gather_back(route: Route, rows: Tensor) -> Tensor:
    """Rows at their tokens; zero at a token without one."""
    found: Tensor = _Gather.apply(rows, route.row_of_token, route.token_of_row)  # type: ignore[no-untyped-call]
    return found


def reduce_back(route: Route, rows: Tensor, bias: Sequence[Tensor]) -> Tensor:
    """``bias0 + bias1 + row`` at each token, rounded once."""
    back = gather_back(route, rows)
    if not bias:
        return back
    wide = ACCUMULATE[rows.dtype]
    total = bias[0].to(wide)
    for each in bias[1:]:
        total = total + each.to(wide)
    return (total + back.to(wide)).to(rows.dtype)


def weigh_back(route: Route, y: Tensor, weights: Tensor, topk_idx: Tensor, bias: Sequence[Tensor]) -> Tensor:
    """``bias0 + bias1 + sum_k w[n, k] * y[n, k]`` at the token of row n, over the slots that have an expert.

    Args:
        route: Where rows go.
        y: ``[rows, K, H]``, or ``[rows, H]`` where all slots share a row.
        weights: ``[rows, K]``.
        topk_idx: ``[rows, K]``; a slot below 0 counts neither in the sum nor in a gradient, whatever it holds.
        bias: Up to two ``[T, H]``.
    """
    if y.dtype not in DTYPES or y.dtype == torch.float64:  # complex rows and float64 weights: torch's own arithmetic
        return reduce_back(route, _weigh(y, weights, topk_idx), [b.to(ACCUMULATE[y.dtype]) for b in bias]).to(y.dtype)
    out: Tensor = _WeighBack.apply(route, topk_idx, y, weights.float(), *bias)  # type: ignore[no-untyped-call]
    return out


def _weigh(y: Tensor, weights: Tensor, topk_idx: Tensor) -> Tensor:
    """``sum_k w[n, k] * y[n, k]`` row by row in the accumulator's dtype, slots ascending."""
    wide = ACCUMULATE[y.dtype]
    scalar = torch.float64 if wide in (torch.float64, torch.complex128) else torch.float32
    total = torch.zeros((y.shape[0], y.shape[-1]), dtype=wide)
    for k in range(topk_idx.shape[1]):
        local = topk_idx[:, k : k + 1] >= 0
        row = torch.where(local, y if y.ndim == 2 else y[:, k], 0)  # select first: a foreign slot may hold NaN
        total = total + row.to(wide) * torch.where(local, weights[:, k : k + 1], 0).to(scalar)
    return total


def _bits(x: Tensor) -> Tensor:
    """``x`` as contiguous integers of the same width: rows move as bits, so that no NaN's payload is touched."""
    x = x.resolve_conj().resolve_neg().contiguous()
    return (torch.view_as_real(x) if x.dtype == torch.complex128 else x).view(_INTEGER[min(8, x.element_size())])


def _gather_rows(x: Tensor, index: Tensor) -> Tensor:
    source = _bits(x.detach())
    out = torch.empty((index.shape[0], *x.shape[1:]), dtype=x.dtype)
    width = source.element_size() * (source.numel() // source.shape[0] if source.shape[0] else 0)
    if source.shape[0] == 0:
        return out.zero_()
    kernels().gather_rows(index.shape[0], width, address(source), address(index), address(out), threads())
    return out


def _differentiable(x: Tensor) -> bool:
    return x.dtype.is_complex or (x.dtype.is_floating_point and x.element_size() > 1)


class _Gather(torch.autograd.Function):
    """``out[i] = x[index[i]]`` (zero where the index is -1); ``inverse`` is the index of the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.index, ctx.inverse = index, inverse
        out = _gather_rows(x, index.contiguous())
        if not _differentiable(out):
            ctx.mark_non_differentiable(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _Gather.apply(grad, ctx.inverse, ctx.index), None, None  # type: ignore[no-untyped-call]


class _WeighBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, route: Route, topk_idx: Tensor, y: Tensor, weights: Tensor, *bias: Tensor) -> Tensor:
        ctx.route, ctx.count = route, len(bias)
        ctx.save_for_backward(topk_idx, y, weights)
        topk, hidden = topk_idx.shape[1], y.shape[-1]
        row = route.row_of_token
        has = (row >= 0)[:, None]
        at = row.clamp(min=0)
        slot = torch.arange(topk) if y.ndim == 3 else torch.zeros(topk, dtype=torch.int64)
        index = at[:, None] * (topk if y.ndim == 3 else 1) + slot
        if y.shape[0]:
            index = torch.where(has & (topk_idx[at] >= 0), index, -1)
            scale = weights.detach()[at]
        else:
            index, scale = torch.full_like(index, -1), weights.new_zeros(row.shape[0], topk)
        source, scale = y.detach().contiguous(), scale.contiguous()
        biases = [b.detach().contiguous() for b in bias]
        out = torch.empty((row.shape[0], hidden), dtype=y.dtype)
        kernels().gather_sum(
            DTYPES[y.dtype],
            row.shape[0],
            hidden,
            topk,
            address(source),
            address(index),
            address(scale),
            address(biases[0]) if biases else 0,
            address(biases[1]) if len(biases) > 1 else 0,
            address(out),
            threads(),
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        topk_idx, y, weights = ctx.saved_tensors
        rows: Tensor = _Gather.apply(grad, ctx.route.token_of_row, ctx.route.row_of_token)  # type: ignore[no-untyped-call]
        rows = rows.float()
        local = topk_idx >= 0
        scale = torch.where(local, weights, 0.0)
        dy = dw = None
        if y.ndim == 3:
            if ctx.needs_input_grad[2]:
                dy = (scale.unsqueeze(-1) * rows.unsqueeze(1)).to(y.dtype)
            if ctx.needs_input_grad[3]:
                dw = torch.where(local.unsqueeze(-1), y, 0).float().mul(rows.unsqueeze(1)).sum(-1)
        else:
            if ctx.needs_input_grad[2]:
                dy = (scale.sum(1, keepdim=True) * rows).to(y.dtype)
            if ctx.needs_input_grad[3]:
                any_local = local.any(1, keepdim=True)
                dw = torch.where(any_local, y, 0).float().mul(rows).sum(-1, keepdim=True)
                dw = torch.where(local, dw, 0.0)
        return (None, None, dy, dw, *(grad for _ in range(ctx.count)))
