"""All of ``fm.math`` on any torch device: the rung that always works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, Final

import torch

from fmcore.dispatch.caps import Caps
from fmcore.ops.math import DTYPES, OPS, MathOp
from fmcore_torch.math import elementwise, fourier, linalg, nn, reductions

__all__ = ["IMPLS", "register"]


_autocasting = torch._C._is_any_autocast_enabled  # noqa: SLF001 (no public way to ask for every device type at once)


def _no_autocast(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _literal(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Give outputs the dtype and layout that the ops promise: autocast changes nothing, results are contiguous."""

    @wraps(fn)
    def call(*tensors: Any, **params: Any) -> Any:
        if _autocasting():
            with _no_autocast(tensors[0]):
                result = fn(*tensors, **params)
        else:
            result = fn(*tensors, **params)
        if isinstance(result, torch.Tensor):
            return result.contiguous()
        return tuple(r.contiguous() for r in result)

    return call


IMPLS: Final[dict[str, Callable[..., Any]]] = {
    name: _literal(fn) for module in (elementwise, reductions, linalg, fourier, nn) for name, fn in module.IMPLS.items()
}


def _literal_backward(grads: Any, inputs: Any, outputs: Any) -> Any:
    """Run the backward under whatever autocast the caller has left, in the dtypes of the forward."""
    with _no_autocast(inputs[0]):
        return linalg.grouped_matmul_backward(grads, inputs, outputs)


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
        backward=_literal_backward,
        caps=Caps(dtypes=caps(OPS["grouped_matmul"]).dtypes, capture=False),
    )(_literal(linalg.grouped_matmul))
