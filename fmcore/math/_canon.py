"""From what a program writes to the canonical form that implementations see: promotion, scalars, axes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from fmcore.errors import InvalidInputError
from fmcore.ops._call import call
from fmcore.ops.math import OPS
from fmcore.ops.math.dtypes import result_type, scalar_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fmcore.ops.math import MathOp

__all__ = ["array", "binary", "integer", "operands", "run", "unary"]

Operand = Any
"""A tensor, or a Python scalar beside a tensor."""


def array(op: str, role: str, value: object) -> Tensor:
    """Return the value if it is a tensor.

    Raises:
        InvalidInputError: It is something else.
    """
    if isinstance(value, torch.Tensor):
        return value
    raise InvalidInputError(f"math.{op}: {role} must be a torch.Tensor, got {type(value).__name__}")


def integer(op: str, name: str, value: object) -> int:
    """Return the value as an int.

    Raises:
        InvalidInputError: It is not an integer.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidInputError(f"math.{op}: {name}={value!r} is not an integer")
    return operator.index(value)  # type: ignore[arg-type]


def operands(op: str, x1: Operand, x2: Operand) -> tuple[Tensor, Tensor]:
    """Bring two operands to their common dtype; a Python scalar becomes a 0-d tensor beside the other.

    Raises:
        InvalidInputError: No operand is a tensor, or their kinds do not mix.
        UnsupportedError: A dtype is outside the matrix.
    """
    if isinstance(x1, torch.Tensor) and isinstance(x2, torch.Tensor):
        if x1.dtype == x2.dtype:
            return x1, x2
        common = result_type(op, x1.dtype, x2.dtype)
        return x1.to(common), x2.to(common)
    if isinstance(x1, torch.Tensor):
        return _beside(op, x1, x2)
    if isinstance(x2, torch.Tensor):
        second, first = _beside(op, x2, x1)
        return first, second
    raise InvalidInputError(
        f"math.{op}: at least one operand must be a torch.Tensor, got {type(x1).__name__} and {type(x2).__name__}"
    )


def _beside(op: str, x: Tensor, scalar: object) -> tuple[Tensor, Tensor]:
    if not isinstance(scalar, (bool, int, float, complex)):
        raise InvalidInputError(
            f"math.{op}: an operand must be a torch.Tensor or a Python number, got {type(scalar).__name__}"
        )
    common = scalar_dtype(op, scalar, x.dtype)
    return x.to(common), torch.full((), scalar, dtype=common, device=x.device)


def run(op: MathOp, tensors: tuple[Any, ...], params: Mapping[str, Any], backend: str | None) -> Any:
    """Dispatch a call in canonical form."""
    return call(op.spec, tensors, params, backend)


def unary(name: str, x: Tensor, backend: str | None) -> Tensor:
    """Dispatch an op of one tensor without parameters."""
    return call(OPS[name].spec, (x,), {}, backend)  # type: ignore[no-any-return]


def binary(name: str, x1: Operand, x2: Operand, backend: str | None) -> Tensor:
    """Dispatch an op of two operands without parameters."""
    return call(OPS[name].spec, operands(name, x1, x2), {}, backend)  # type: ignore[no-any-return]
