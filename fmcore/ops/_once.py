"""Gradients that can be taken once: differentiating them again raises, where torch would drop the term in silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fmcore.errors import UnsupportedError


class _Sealed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: str, grad: torch.Tensor, *sources: Any) -> torch.Tensor:  # noqa: ARG004 (the sources tie it to the graph)
        ctx.op = op
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise UnsupportedError(
            f"{ctx.op}: second derivatives were asked for, and its kernels have first ones only; "
            "drop create_graph=True, or take finite differences of the first ones"
        )


def sealed(op: str, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
    """Return the gradients, tied to what they came from if somebody means to differentiate them again."""
    if not torch.is_grad_enabled():
        return list(grads)
    return [None if grad is None else _Sealed.apply(op, grad, *sources) for grad in grads]  # type: ignore[no-untyped-call]
