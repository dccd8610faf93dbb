"""From what a program writes to the canonical form that implementations see: promotion, scalars, axes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import torch

from fmcore.errors import InvalidInputError
from fmcore.ops._call import call
from fmcore.ops.math import OPS
from fmcore.ops.math.dtypes import result_type, scalar_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fmcore.ops.math import MathOp

__all__ = ["array", "binary", "canonical", "integer", "number", "operands", "run", "unary"]

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
    return operator.index(value)


def number(op: str, name: str, value: object) -> float:
    """Return the value as a float.

    Raises:
        InvalidInputError: It is no real number.
    """
    if isinstance(value, bool) or not isinstance(value, (SupportsFloat, SupportsIndex)):
        raise InvalidInputError(f"math.{op}: {name}={value!r} is not a number")
    return float(value)


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


class _Capture:
    """Stands where a backend's name stands, and keeps the call instead of dispatching it."""

    def __init__(self) -> None:
        self.call: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


def canonical(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return tensors and parameters of a public call in canonical form; nothing is dispatched.

    >>> canonical("softmax", (torch.ones(2, 3),), {"axis": -1})[1]
    {'axis': 1}

    Raises:
        InvalidInputError: The arguments break the op's contract.
        UnsupportedError: The op refuses a dtype.
    """
    import fmcore.math

    capture = _Capture()
    try:
        getattr(fmcore.math, OPS[name].name)(*args, **kwargs, backend=capture)
    except TypeError as error:
        raise InvalidInputError(f"math.{name}: {error}") from error
    tensors, params = capture.call
    OPS[name].spec.validate(*tensors, **params)
    return tensors, params


def run(op: MathOp, tensors: tuple[Any, ...], params: dict[str, Any], backend: Any) -> Any:
    """Dispatch a call in canonical form."""
    if type(backend) is _Capture:
        backend.call = (tensors, params)
        return None
    return call(op.spec, tensors, params, backend)


def unary(name: str, x: Tensor, backend: str | None) -> Tensor:
    """Dispatch an op of one tensor without parameters."""
    return run(OPS[name], (x,), {}, backend)  # type: ignore[no-any-return]


def binary(name: str, x1: Operand, x2: Operand, backend: str | None) -> Tensor:
    """Dispatch an op of two operands without parameters."""
    return run(OPS[name], operands(name, x1, x2), {}, backend)  # type: ignore[no-any-return]
