"""Reductions, scans and softmax as compositions of torch ops; halves accumulate in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import torch

from fmcore_torch.math._half import accumulator

if TYPE_CHECKING:
    from torch import Tensor


def sum_(x: Tensor, *, axis: Sequence[int], dtype: torch.dtype, keepdims: bool) -> Tensor:
    """Sum. An empty axis list means "no axis", which torch.sum would read as "all"."""
    if not axis:
        return x.to(dtype, copy=True)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.sum(x, dim=list(axis), keepdim=keepdims, dtype=torch.int64).to(dtype)
    return torch.sum(x, dim=list(axis), keepdim=keepdims, dtype=accumulator(dtype)).to(dtype)


def prod(x: Tensor, *, axis: Sequence[int], dtype: torch.dtype, keepdims: bool) -> Tensor:
    """Product, one axis after another."""
    integer = not (dtype.is_floating_point or dtype.is_complex)
    y = x.to(torch.int64 if integer else accumulator(dtype))
    for a in sorted(axis, reverse=True):
        y = torch.prod(y, dim=a, keepdim=keepdims)
    return y.to(dtype, copy=not axis)


def mean(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> Tensor:
    """Mean in the accumulator's dtype."""
    if not axis:
        return x.clone()
    return torch.mean(x, dim=list(axis), keepdim=keepdims, dtype=accumulator(x.dtype)).to(x.dtype)


def max_(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> Tensor:
    """Largest; ties share the gradient evenly."""
    return torch.amax(x, dim=list(axis), keepdim=keepdims) if axis else x.clone()


def min_(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> Tensor:
    """Smallest; ties share the gradient evenly."""
    return torch.amin(x, dim=list(axis), keepdim=keepdims) if axis else x.clone()


def any_(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> Tensor:
    """Some element is non-zero."""
    truth = x != 0
    return torch.any(truth, dim=list(axis), keepdim=keepdims) if axis else truth


def all_(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> Tensor:
    """Every element is non-zero."""
    truth = x != 0
    return torch.all(truth, dim=list(axis), keepdim=keepdims) if axis else truth


def _arg(largest: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def op(x: Tensor, *, axis: int | None, keepdims: bool) -> Tensor:
        return _first_where_extreme(x, largest, axis, keepdims=keepdims)

    return op


def _first_where_extreme(x: Tensor, extreme: Callable[..., Tensor], axis: int | None, *, keepdims: bool) -> Tensor:
    """First index that holds the extreme. torch.argmax promises the first one, but not on every device."""
    x = x.detach()
    rows = x.reshape(-1) if axis is None else x.movedim(axis, -1)
    if rows.ndim == 0:
        rows = rows.reshape(1)
    best = extreme(rows, dim=-1, keepdim=True)
    hit = (rows == best) | (rows != rows)  # noqa: PLR0124 (NaN is not equal to itself)
    index = torch.arange(rows.shape[-1], device=x.device).expand(rows.shape)
    found = torch.where(hit, index, rows.shape[-1]).amin(dim=-1)
    if not keepdims:
        return found.reshape(()) if axis is None or x.ndim == 0 else found
    return found.reshape((1,) * x.ndim) if axis is None or x.ndim == 0 else found.unsqueeze(axis)


def logsumexp(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> Tensor:
    """log(sum(exp(x)))."""
    if not axis:
        return x.clone()
    y = torch.logsumexp(x.to(accumulator(x.dtype)), dim=list(axis), keepdim=keepdims)
    return y.to(x.dtype)


def cumulative_sum(x: Tensor, *, axis: int, dtype: torch.dtype, include_initial: bool) -> Tensor:
    """Running sum."""
    integer = not (dtype.is_floating_point or dtype.is_complex)
    if not integer and x.device.type != "cpu" and torch.are_deterministic_algorithms_enabled():
        y = doubling_scan(x.to(accumulator(dtype)), axis)
    else:
        y = torch.cumsum(x, dim=axis, dtype=torch.int64 if integer else accumulator(dtype))
    if include_initial:
        shape = list(x.shape)
        shape[axis] = 1
        y = torch.cat((y.new_zeros(shape), y), dim=axis)
    return y.to(dtype)


def doubling_scan(x: Tensor, axis: int) -> Tensor:
    """Running sum by log2(n) shifted additions, in one fixed order; torch.cumsum promises no order on accelerators.

    Source: Hillis and Steele, "Data parallel algorithms", 1986.
    """
    size, step = x.shape[axis], 1
    while step < size:
        x = torch.cat(
            (x.narrow(axis, 0, step), x.narrow(axis, step, size - step) + x.narrow(axis, 0, size - step)), axis
        )
        step *= 2
    return x


def softmax(x: Tensor, *, axis: int) -> Tensor:
    """Softmax in the accumulator's dtype."""
    return torch.softmax(x, dim=axis, dtype=accumulator(x.dtype)).to(x.dtype)


def log_softmax(x: Tensor, *, axis: int) -> Tensor:
    """Logarithm of softmax in the accumulator's dtype."""
    return torch.log_softmax(x, dim=axis, dtype=accumulator(x.dtype)).to(x.dtype)


IMPLS: Final[dict[str, Callable[..., Tensor]]] = {
    "sum": sum_,
    "prod": prod,
    "mean": mean,
    "max": max_,
    "min": min_,
    "any": any_,
    "all": all_,
    "argmax": _arg(torch.amax),
    "argmin": _arg(torch.amin),
    "logsumexp": logsumexp,
    "cumulative_sum": cumulative_sum,
    "softmax": softmax,
    "log_softmax": log_softmax,
}
