"""Dispatch and combine are adjoint: the backward of each is the other, along the same route."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Route(Protocol):
    """Where the rows of one dispatch went. Immutable; rows can be moved along it any number of times.

    ``problem`` is this rank's complaint, which every rank then raises; None says that no rank can have one.
    """

    def scatter(self, tensors: Sequence[torch.Tensor], problem: str | None) -> list[torch.Tensor]:
        """Send rows [T, ...] to the ranks that they are routed to; returns [num_rows, ...] of each tensor."""
        ...

    def reduce(
        self,
        tensors: Sequence[torch.Tensor],
        dtypes: Sequence[torch.dtype],
        bias: Sequence[torch.Tensor],
        problem: str | None,
    ) -> list[torch.Tensor]:
        """Sum rows [num_rows, ...] back into [T, ...] of ``dtypes``; ``bias`` belongs to the first tensor."""
        ...


def differentiable(x: torch.Tensor) -> bool:
    """Whether a gradient can flow through a tensor of this dtype; 8-bit floats are payload, not numbers."""
    return x.dtype.is_complex or (x.dtype.is_floating_point and x.element_size() > 1)


def scatter(route: Route, tensors: Sequence[torch.Tensor], problem: str | None = None) -> tuple[torch.Tensor, ...]:
    """Scatter, with gradients where they are asked for."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return tuple(_Scatter.apply(route, problem, *tensors))  # type: ignore[no-untyped-call]
    return tuple(route.scatter(tensors, problem))


def reduce(
    route: Route,
    tensors: Sequence[torch.Tensor],
    dtypes: Sequence[torch.dtype],
    bias: Sequence[torch.Tensor] = (),
    problem: str | None = None,
) -> tuple[torch.Tensor, ...]:
    """Reduce, with gradients where they are asked for."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *bias)):
        return tuple(_Reduce.apply(route, problem, tuple(dtypes), len(tensors), *tensors, *bias))  # type: ignore[no-untyped-call]
    return tuple(route.reduce(tensors, dtypes, bias, problem))


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, route: Route, problem: str | None, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = route.scatter(tensors, problem)
        ctx.route = route
        ctx.mark_non_differentiable(*(row for row in rows if not differentiable(row)))
        return tuple(rows)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        # Which inputs need gradients is the same on every rank, so the ranks meet in the same collectives.
        wanted = [n for n, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        out: list[Any] = [None] * len(grads)
        if wanted:
            sums = reduce(ctx.route, [grads[n] for n in wanted], [grads[n].dtype for n in wanted])
            for n, total in zip(wanted, sums, strict=True):
                out[n] = total
        return (None, None, *out)


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, route: Route, problem: str | None, dtypes: tuple[torch.dtype, ...], count: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.route, ctx.count = route, count
        ctx.row_dtypes = [t.dtype for t in tensors[:count]]
        sums = route.reduce(tensors[:count], dtypes, tensors[count:], problem)
        ctx.mark_non_differentiable(*(total for total in sums if not differentiable(total)))
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[4:]
        out: list[Any] = [grads[0] if n >= ctx.count and needed[n] else None for n in range(len(needed))]
        wanted = [n for n in range(ctx.count) if needed[n]]
        if wanted:
            for n, row in zip(wanted, scatter(ctx.route, [grads[n] for n in wanted]), strict=True):
                out[n] = row.to(ctx.row_dtypes[n])
        return (None, None, None, None, *out)
