"""Comparison, logic and bits, element by element."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.math._canon import Operand, binary, unary

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
]


def equal(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Whether x1 == x2; NaN equals nothing.

    >>> fm.math.equal(torch.tensor([1, 2]), 2)
    tensor([False,  True])
    """
    return binary("equal", x1, x2, backend)


def not_equal(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Whether x1 != x2; NaN differs from everything.

    >>> fm.math.not_equal(torch.tensor([1, 2]), 2)
    tensor([ True, False])
    """
    return binary("not_equal", x1, x2, backend)


def less(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Whether x1 < x2; False beside NaN.

    >>> fm.math.less(torch.tensor([1, 2]), 2)
    tensor([ True, False])
    """
    return binary("less", x1, x2, backend)


def less_equal(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Whether x1 <= x2; False beside NaN.

    >>> fm.math.less_equal(torch.tensor([1, 3]), 2)
    tensor([ True, False])
    """
    return binary("less_equal", x1, x2, backend)


def greater(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Whether x1 > x2; False beside NaN.

    >>> fm.math.greater(torch.tensor([2, 3]), 2)
    tensor([False,  True])
    """
    return binary("greater", x1, x2, backend)


def greater_equal(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Whether x1 >= x2; False beside NaN.

    >>> fm.math.greater_equal(torch.tensor([1, 2]), 2)
    tensor([False,  True])
    """
    return binary("greater_equal", x1, x2, backend)


def logical_and(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Both.

    >>> fm.math.logical_and(torch.tensor([True, False]), True)
    tensor([ True, False])
    """
    return binary("logical_and", x1, x2, backend)


def logical_or(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Either.

    >>> fm.math.logical_or(torch.tensor([True, False]), False)
    tensor([ True, False])
    """
    return binary("logical_or", x1, x2, backend)


def logical_xor(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Exactly one.

    >>> fm.math.logical_xor(torch.tensor([True, False]), True)
    tensor([False,  True])
    """
    return binary("logical_xor", x1, x2, backend)


def logical_not(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Not.

    >>> fm.math.logical_not(torch.tensor([True, False]))
    tensor([False,  True])
    """
    return unary("logical_not", x, backend)


def bitwise_and(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Bits that are set in both.

    >>> fm.math.bitwise_and(torch.tensor([6]), 3)
    tensor([2])
    """
    return binary("bitwise_and", x1, x2, backend)


def bitwise_or(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Bits that are set in either.

    >>> fm.math.bitwise_or(torch.tensor([6]), 3)
    tensor([7])
    """
    return binary("bitwise_or", x1, x2, backend)


def bitwise_xor(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """Bits that are set in exactly one.

    >>> fm.math.bitwise_xor(torch.tensor([6]), 3)
    tensor([5])
    """
    return binary("bitwise_xor", x1, x2, backend)


def bitwise_invert(x: Tensor, /, *, backend: str | None = None) -> Tensor:
    """All bits flipped.

    >>> fm.math.bitwise_invert(torch.tensor([0, 5]))
    tensor([-1, -6])
    """
    return unary("bitwise_invert", x, backend)


def bitwise_left_shift(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """x1 shifted left by x2 bits; bits pushed out are lost.

    A count outside [0, width), a negative one too, gives 0.

    >>> fm.math.bitwise_left_shift(torch.tensor([1, 1]), torch.tensor([3, 64]))
    tensor([8, 0])
    """
    return binary("bitwise_left_shift", x1, x2, backend)


def bitwise_right_shift(x1: Operand, x2: Operand, /, *, backend: str | None = None) -> Tensor:
    """x1 shifted right by x2 bits, the sign kept.

    A count outside [0, width), a negative one too, gives the sign: 0 or -1.

    >>> fm.math.bitwise_right_shift(torch.tensor([9, -9]), torch.tensor([2, 64]))
    tensor([ 2, -1])
    """
    return binary("bitwise_right_shift", x1, x2, backend)
