"""The oracle's arithmetic: exact integers, float64 and complex128 through NumPy, compensated sums, exact rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["flatten_axes", "fold", "numpy_op", "round_to", "total", "wide", "wrap"]

_FORMAT = {torch.float16: (11, -14, 65504.0), torch.bfloat16: (8, -126, 3.3895313892515355e38)}
"""Significand bits, least normal exponent and largest value of the half dtypes."""


def wide(x: Tensor) -> Tensor:
    """Floating-point values in float64 or complex128; bool and integers as they are."""
    if x.is_complex():
        return x.to(torch.complex128).resolve_conj()
    return x.to(torch.float64) if x.is_floating_point() else x


def wrap(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers modulo 2**width, two's complement."""
    if dtype == torch.int64:
        return x.to(torch.int64)
    width = 8 * dtype.itemsize
    half = 1 << (width - 1)
    return (((x.to(torch.int64) + half) & ((1 << width) - 1)) - half).to(dtype)


def numpy_op(fn: Callable[..., Any], *tensors: Tensor) -> Tensor:
    """Apply a NumPy function to tensors; floating-point ones widened, warnings off."""
    device = tensors[0].device
    with np.errstate(all="ignore"):
        result = fn(*(wide(t).detach().cpu().resolve_neg().numpy() for t in tensors))
    return torch.from_numpy(np.array(result)).to(device)


def flatten_axes(x: Tensor, axes: Iterable[int]) -> Tensor:
    """Move the reduced axes, flattened to one, to the front: [terms, *rest]."""
    axes = tuple(axes)
    rest = [i for i in range(x.ndim) if i not in axes]
    moved = x.permute((*axes, *rest))
    terms = 1
    for size in moved.shape[: len(axes)]:
        terms *= size
    return moved.reshape(terms, *moved.shape[len(axes) :])


def fold(x: Tensor, op: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Combine the rows of a non-empty [terms, *rest] pairwise with an associative ``op`` that keeps their order."""
    while x.shape[0] > 1:
        even = x.shape[0] // 2 * 2
        x = torch.cat((op(x[0:even:2], x[1:even:2]), x[even:]))
    return x[0]


def total(x: Tensor) -> Tensor:
    """Sum of the rows of [terms, *rest]; floating-point sums carry the exact rounding error of each addition.

    The error terms are those of Knuth's two-sum; where anything is not finite the plain sum stands.
    """
    if x.shape[0] == 0:
        return torch.zeros(x.shape[1:], dtype=x.dtype, device=x.device)
    if not (x.is_floating_point() or x.is_complex()):
        return fold(x, torch.add)
    if x.is_complex():
        return torch.complex(total(x.real), total(x.imag))
    error = torch.zeros(x.shape[1:], dtype=x.dtype, device=x.device)
    rows = x
    while rows.shape[0] > 1:
        even = rows.shape[0] // 2 * 2
        a, b = rows[0:even:2], rows[1:even:2]
        s = a + b
        bb = s - a
        error = error + ((a - (s - bb)) + (b - bb)).sum(0)
        rows = torch.cat((s, rows[even:]))
    plain = rows[0]
    return torch.where(error.isfinite() & plain.isfinite(), plain + error, plain)


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """One rounding, to nearest even, of a float64 or complex128 result to its declared dtype."""
    if dtype not in _FORMAT:
        return x.to(dtype)
    bits, least, largest = _FORMAT[dtype]
    value = x.detach().to(torch.float64).cpu().numpy()
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(value)
        quantum = np.exp2(np.maximum(exponent - bits, least - bits + 1).astype(np.float64))
        rounded = np.where(np.isfinite(value), np.rint(value / quantum) * quantum, value)
        rounded = np.where(np.abs(rounded) > largest, np.copysign(np.inf, value), rounded)
    return torch.from_numpy(np.asarray(np.where(np.isnan(value), np.nan, rounded))).to(dtype).to(x.device)
