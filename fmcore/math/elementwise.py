"""Arithmetic, exponentials, complex parts and selection, element by element."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.math._canon import Operand, array, binary, operands, run, unary
from fmcore.ops.math import OPS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "abs",
    "add",
    "angle",
    "conj",
    "divide",
    "exp",
    "imag",
    "log",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "real",
    "sigmoid",
    "sqrt",
    "subtract",
    "tanh",
    "where",
]


def add(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Sum of two arrays, or of an array and a number.

    >>> fm.math.add(torch.tensor([1, 127], dtype=torch.int8), 1)
    tensor([   2, -128], dtype=torch.int8)
    """
    return binary("add", x1, x2, backend)


def subtract(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Difference x1 - x2.

    >>> fm.math.subtract(torch.tensor([3.0]), 1)
    tensor([2.])
    """
    return binary("subtract", x1, x2, backend)


def multiply(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Product.

    >>> fm.math.multiply(torch.tensor([1j]), torch.tensor([1j]))
    tensor([-1.+0.j])
    """
    return binary("multiply", x1, x2, backend)


def divide(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Quotient x1 / x2 of floating-point arrays.

    A complex number over complex zero is its parts over zero: infinite or NaN, never finite.

    >>> fm.math.divide(torch.tensor([1.0, 0.0]), 0)
    tensor([inf, nan])
    """
    return binary("divide", x1, x2, backend)


def maximum(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """The larger of two values; NaN if either is NaN.

    Equal operands share the gradient evenly; of two zeros either sign may come.

    >>> fm.math.maximum(torch.tensor([1, 5]), 3)
    tensor([3, 5])
    """
    return binary("maximum", x1, x2, backend)


def minimum(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """The smaller of two values; NaN if either is NaN.

    Equal operands share the gradient evenly; of two zeros either sign may come.

    >>> fm.math.minimum(torch.tensor([1, 5]), 3)
    tensor([1, 3])
    """
    return binary("minimum", x1, x2, backend)


def negative(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Negation; the least integer maps to itself.

    >>> fm.math.negative(torch.tensor([1, -128], dtype=torch.int8))
    tensor([  -1, -128], dtype=torch.int8)
    """
    return unary("negative", x, backend)


def exp(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Exponential.

    >>> fm.math.exp(torch.tensor([0.0]))
    tensor([1.])
    """
    return unary("exp", x, backend)


def log(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Natural logarithm; for complex values the imaginary part lies in [-pi, pi], cut along the negative axis.

    >>> fm.math.log(torch.tensor([1.0, 0.0]))
    tensor([0., -inf])
    """
    return unary("log", x, backend)


def sqrt(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Square root; for complex values the one in the right half plane, cut along the negative axis.

    >>> fm.math.sqrt(torch.tensor([4.0]))
    tensor([2.])
    """
    return unary("sqrt", x, backend)


def tanh(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Hyperbolic tangent.

    >>> fm.math.tanh(torch.tensor([0.0]))
    tensor([0.])
    """
    return unary("tanh", x, backend)


def sigmoid(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Logistic function 1 / (1 + exp(-x)).

    >>> fm.math.sigmoid(torch.tensor([0.0]))
    tensor([0.5000])
    """
    return unary("sigmoid", x, backend)


def abs(x: Tensor, /, *, backend: str | None = None) -> Tensor:  # noqa: A001
    """Absolute value; of a complex array the modulus, in the real dtype.

    The least integer maps to itself.

    >>> fm.math.abs(torch.tensor([3 + 4j]))
    tensor([5.])
    """
    return unary("abs", x, backend)


def angle(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Argument atan2(imag, real) in [-pi, pi], in the real dtype.

    A real negative zero has the angle pi, as -0 + 0j has.

    >>> fm.math.angle(torch.tensor([-1.0, -0.0, 0.0]))
    tensor([3.1416, 3.1416, 0.0000])
    """
    return unary("angle", x, backend)


def conj(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Complex conjugate; real values are their own.

    >>> fm.math.conj(torch.tensor([1 + 2j]))
    tensor([1.-2.j])
    """
    return unary("conj", x, backend)


def real(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Real part, as a copy.

    >>> fm.math.real(torch.tensor([1 + 2j]))
    tensor([1.])
    """
    return unary("real", x, backend)


def imag(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Imaginary part, as a copy; zeros for a real array.

    >>> fm.math.imag(torch.tensor([1 + 2j]))
    tensor([2.])
    """
    return unary("imag", x, backend)


def where(condition: Tensor, x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """x1 where the bool condition holds, else x2; the three broadcast.

    >>> fm.math.where(torch.tensor([True, False]), torch.tensor([1, 2]), 0)
    tensor([1, 0])
    """
    condition = array("where", "condition", condition)
    return run(OPS["where"], (condition, *operands("where", x1, x2)), {}, backend)  # type: ignore[no-any-return]
