"""All of ``fm.math`` on any torch device: the rung that always works."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch

from fmcore.dispatch.caps import Caps
from fmcore.ops.math import DTYPES, OPS, MathOp
from fmcore_torch.math import elementwise, fourier, linalg, nn, reductions

__all__ = ["IMPLS", "register"]


def _contiguous(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Give outputs the layout that the ops promise: new and contiguous."""

    @wraps(fn)
    def call(*tensors: Any, **params: Any) -> Any:
        result = fn(*tensors, **params)
        if isinstance(result, torch.Tensor):
            return result.contiguous()
        return tuple(r.contiguous() for r in result)

    return call


IMPLS: Final[dict[str, Callable[..., Any]]] = {
    name: _contiguous(fn)
    for module in (elementwise, reductions, linalg, fourier, nn)
    for name, fn in module.IMPLS.items()
}


def caps(op: MathOp) -> Caps:
    """What the op's own table says: this rung refuses nothing that the op admits."""
    roles = {r: frozenset(n for n in DTYPES if op.support(n) is True) for r in op.main}
    return Caps(dtypes=roles, grad=bool(op.gradients))


def register(registrar: Any) -> None:
    """Register an implementation of every op."""
    for name, fn in IMPLS.items():
        op = OPS[name]
        registrar.impl(op.spec.name, name="compose", autograd="native" if op.gradients else "none", caps=caps(op))(fn)
    registrar.impl(
        "math.grouped_matmul",
        name="per_group",
        backward=linalg.grouped_matmul_backward,
        caps=Caps(dtypes=caps(OPS["grouped_matmul"]).dtypes, capture=False),
    )(linalg.grouped_matmul)
