"""Oracle of the elementwise ops, one literal function per op."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from fmcore.reference.math._wide import numpy_op, round_to, wide, wrap

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ORACLE"]


def _arithmetic(fn: Callable[..., Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def op(x1: Tensor, x2: Tensor) -> Tensor:
        if x1.is_floating_point() or x1.is_complex():
            return numpy_op(fn, x1, x2)
        return wrap(numpy_op(fn, x1.to(torch.int64), x2.to(torch.int64)), x1.dtype)

    return op


def _via(fn: Callable[..., Any]) -> Callable[..., Tensor]:
    def op(*tensors: Tensor) -> Tensor:
        return numpy_op(fn, *tensors)

    return op


def negative(x: Tensor) -> Tensor:
    """-x."""
    return -wide(x) if x.is_floating_point() or x.is_complex() else wrap(-x.to(torch.int64), x.dtype)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), written so that neither side overflows."""
    return numpy_op(lambda v: np.where(v < 0, np.exp(v) / (1 + np.exp(v)), 1 / (1 + np.exp(-v))), x)


def absolute(x: Tensor) -> Tensor:
    """|x|; the modulus of a complex number does not overflow before it must."""
    if x.is_floating_point() or x.is_complex():
        return numpy_op(np.abs, x)
    return torch.where(x < 0, negative(x), x)


def angle(x: Tensor) -> Tensor:
    """atan2(imag, real)."""
    return numpy_op(lambda v: np.where(np.isnan(v.real), np.nan, np.arctan2(v.imag, v.real)), x)


def conj(x: Tensor) -> Tensor:
    """Real - i imag."""
    return torch.complex(wide(x).real, -wide(x).imag) if x.is_complex() else wide(x)


def real(x: Tensor) -> Tensor:
    """Real part."""
    return wide(x).real if x.is_complex() else wide(x)


def imag(x: Tensor) -> Tensor:
    """Imaginary part, zero for real values."""
    return wide(x).imag.clone() if x.is_complex() else torch.zeros_like(wide(x))


def where(condition: Tensor, x1: Tensor, x2: Tensor) -> Tensor:
    """x1 where the condition holds, else x2."""
    return numpy_op(np.where, condition, x1, x2)


def _shift(count: Tensor, width: int) -> Tensor:
    outside = (count < 0) | (count >= width)
    return torch.where(outside, torch.full_like(count, -1), count).to(torch.int64)


def left_shift(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 * 2**x2 modulo 2**width; 0 for a count outside [0, width)."""
    x1, x2 = (x1 + torch.zeros_like(x2), x2 + torch.zeros_like(x1))
    count = _shift(x2, 8 * x1.dtype.itemsize)
    powers = torch.tensor([1 << i if i < 63 else -(1 << 63) for i in range(64)], device=x1.device)
    shifted = wrap(x1.to(torch.int64) * powers[count.clamp(min=0)], x1.dtype)
    return torch.where(count < 0, torch.zeros_like(shifted), shifted)


def right_shift(x1: Tensor, x2: Tensor) -> Tensor:
    """Floor of x1 / 2**x2; 0 or -1 for a count outside [0, width)."""
    x1, x2 = (x1 + torch.zeros_like(x2), x2 + torch.zeros_like(x1))
    count = _shift(x2, 8 * x1.dtype.itemsize)
    result = x1.to(torch.int64)
    for step in range(8 * x1.dtype.itemsize):
        halved = torch.div(result, 2, rounding_mode="floor")
        result = torch.where((count > step) | (count < 0), halved, result)
    return result.to(x1.dtype)


def astype(x: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Cast with one rounding to nearest even; float to integer truncates; non-zero is True."""
    if dtype == torch.bool:
        return x != 0
    if dtype.is_floating_point or dtype.is_complex:
        if x.dtype == torch.int64 and dtype in (torch.float16, torch.bfloat16):
            x = torch.where(x.abs() >= 1 << 53, (x & ~0x7FF) | ((x & 0x7FF) != 0) << 10, x)  # sticky: exact in float64
        if x.dtype == torch.int64 and dtype in (torch.float32, torch.complex64):
            return x.to(torch.float32).to(dtype)  # through float64 it would round twice
        return round_to(x.to(torch.complex128 if x.is_complex() else torch.float64), dtype)
    if x.is_floating_point():
        return wide(x).trunc().to(torch.int64).to(dtype)
    return wrap(x, dtype)


ORACLE: Final[dict[str, Callable[..., Tensor]]] = {
    "add": _arithmetic(np.add),
    "subtract": _arithmetic(np.subtract),
    "multiply": _arithmetic(np.multiply),
    "divide": _arithmetic(np.divide),
    "maximum": _via(np.maximum),
    "minimum": _via(np.minimum),
    "negative": negative,
    "exp": _via(np.exp),
    "log": _via(np.log),
    "sqrt": _via(np.sqrt),
    "tanh": _via(np.tanh),
    "sigmoid": sigmoid,
    "abs": absolute,
    "angle": angle,
    "conj": conj,
    "real": real,
    "imag": imag,
    "where": where,
    "equal": _via(np.equal),
    "not_equal": _via(np.not_equal),
    "less": _via(np.less),
    "less_equal": _via(np.less_equal),
    "greater": _via(np.greater),
    "greater_equal": _via(np.greater_equal),
    "logical_and": _via(np.logical_and),
    "logical_or": _via(np.logical_or),
    "logical_xor": _via(np.logical_xor),
    "logical_not": _via(np.logical_not),
    "bitwise_and": _via(np.bitwise_and),
    "bitwise_or": _via(np.bitwise_or),
    "bitwise_xor": _via(np.bitwise_xor),
    "bitwise_invert": _via(np.invert),
    "bitwise_left_shift": left_shift,
    "bitwise_right_shift": right_shift,
    "astype": astype,
}
