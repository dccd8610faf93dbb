"""Elementwise ops as compositions of torch ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch

from fmcore_torch.math._half import HALF, to_half

if TYPE_CHECKING:
    from torch import Tensor


def _by_parts(fn: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Work on the parts: torch multiplies a complex operand by alpha = 1 + 0j, which turns inf into NaN."""

    def op(x1: Tensor, x2: Tensor) -> Tensor:
        if not x1.is_complex():
            return fn(x1, x2)
        parts = (torch.view_as_real(x.resolve_conj()) for x in (x1, x2))
        return torch.view_as_complex(fn(*parts))

    return op


def angle(x: Tensor) -> Tensor:
    """atan2(imag, real); unlike torch.angle it sees the sign of a real zero."""
    if x.is_complex():
        return torch.angle(x)
    turned = torch.where(torch.signbit(x), torch.full_like(x, math.pi), torch.zeros_like(x))
    return torch.where(torch.isnan(x), x, turned)


def conj(x: Tensor) -> Tensor:
    """Conjugate, materialised."""
    return torch.conj_physical(x) if x.is_complex() else x.clone()


def real(x: Tensor) -> Tensor:
    """Real part, copied."""
    return torch.real(x).clone(memory_format=torch.contiguous_format) if x.is_complex() else x.clone()


def imag(x: Tensor) -> Tensor:
    """Imaginary part, copied; of a real value zero, with a zero gradient."""
    return (
        torch.imag(x).clone(memory_format=torch.contiguous_format)
        if x.is_complex()
        else torch.where(torch.ones_like(x, dtype=torch.bool), torch.zeros_like(x), x)
    )


def left_shift(x1: Tensor, x2: Tensor) -> Tensor:
    """Zero for counts outside [0, width)."""
    width = 8 * x1.dtype.itemsize
    inside = (x2 >= 0) & (x2 < width)
    return torch.where(inside, torch.bitwise_left_shift(x1, torch.where(inside, x2, 0)), 0)


def right_shift(x1: Tensor, x2: Tensor) -> Tensor:
    """The sign for counts outside [0, width)."""
    last = 8 * x1.dtype.itemsize - 1
    return torch.bitwise_right_shift(x1, torch.where((x2 < 0) | (x2 > last), last, x2))


def astype(x: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Cast, always a copy."""
    if dtype in HALF and (x.dtype == torch.float64 or x.dtype in (torch.int32, torch.int64)):
        return to_half(x, dtype)
    return x.to(dtype, copy=True)


IMPLS: Final[dict[str, Callable[..., Tensor]]] = {
    "add": _by_parts(torch.add),
    "subtract": _by_parts(torch.sub),
    "multiply": torch.mul,
    "divide": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "negative": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "angle": angle,
    "conj": conj,
    "real": real,
    "imag": imag,
    "where": torch.where,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "less": torch.lt,
    "less_equal": torch.le,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "logical_not": torch.logical_not,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "bitwise_invert": torch.bitwise_not,
    "bitwise_left_shift": left_shift,
    "bitwise_right_shift": right_shift,
    "astype": astype,
}
