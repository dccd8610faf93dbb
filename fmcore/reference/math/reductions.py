"""Oracle of the reductions, scans and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import torch

from fmcore.reference.math._wide import flatten_axes, fold, total, wide, wrap

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ORACLE", "logsumexp_rows"]


def _keep(y: Tensor, x: Tensor, axis: Sequence[int], *, keepdims: bool) -> Tensor:
    return y.reshape([1 if i in axis else n for i, n in enumerate(x.shape)]) if keepdims else y


def _lift(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Elements in the dtype of the result, widened."""
    if dtype.is_complex:
        return wide(x).to(torch.complex128)
    return wide(x).to(torch.float64) if dtype.is_floating_point else x.to(torch.int64)


def _fit(y: Tensor, dtype: torch.dtype) -> Tensor:
    return y if y.is_floating_point() or y.is_complex() else wrap(y, dtype)


def sum_(x: Tensor, *, axis: Sequence[int], dtype: torch.dtype, keepdims: bool) -> Tensor:
    """Sum over the axes."""
    return _keep(_fit(total(flatten_axes(_lift(x, dtype), axis)), dtype), x, axis, keepdims=keepdims)


def prod(x: Tensor, *, axis: Sequence[int], dtype: torch.dtype, keepdims: bool) -> Tensor:
    """Product over the axes."""
    rows = flatten_axes(_lift(x, dtype), axis)
    one = torch.ones((1, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    return _keep(_fit(fold(torch.cat((rows, one)), torch.mul), dtype), x, axis, keepdims=keepdims)


def mean(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> Tensor:
    """Sum divided by the number of terms."""
    rows = flatten_axes(wide(x), axis)
    return _keep(total(rows) / rows.shape[0] if rows.shape[0] else total(rows) * torch.nan, x, axis, keepdims=keepdims)


def _first_extreme(rows: Tensor, beats: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Value and index of the first extreme row; the first NaN wins over everything."""
    best, index = rows[0], torch.zeros(rows.shape[1:], dtype=torch.int64, device=rows.device)
    for j in range(1, rows.shape[0]):
        take = beats(rows[j], best) | (rows[j].isnan() & ~best.isnan())
        take &= ~best.isnan()
        best = torch.where(take, rows[j], best)
        index = torch.where(take, torch.full_like(index, j), index)
    return best, index


def _extreme(beats: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def op(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> Tensor:
        return _keep(_first_extreme(flatten_axes(wide(x), axis), beats)[0], x, axis, keepdims=keepdims)

    return op


def _arg(beats: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def op(x: Tensor, *, axis: int | None, keepdims: bool) -> Tensor:
        axes = tuple(range(x.ndim)) if axis is None else (axis,)
        return _keep(_first_extreme(flatten_axes(wide(x), axes), beats)[1], x, axes, keepdims=keepdims)

    return op


def any_(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> Tensor:
    """Some element differs from zero."""
    rows = flatten_axes(x != 0, axis)
    none = torch.zeros((1, *rows.shape[1:]), dtype=torch.bool, device=x.device)
    return _keep(fold(torch.cat((none, rows)), torch.logical_or), x, axis, keepdims=keepdims)


def all_(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> Tensor:
    """Every element differs from zero."""
    return ~any_(x == 0, axis=axis, keepdims=keepdims)


def logsumexp_rows(rows: Tensor) -> Tensor:
    """log(sum(exp(row))) over the first axis of float64 rows, shifted by the largest one."""
    if rows.shape[0] == 0:
        return torch.full(rows.shape[1:], -torch.inf, dtype=rows.dtype, device=rows.device)
    largest = fold(rows, torch.maximum)
    shift = torch.where(largest.isfinite(), largest, torch.zeros_like(largest))
    return shift + total((rows - shift).exp()).log()


def logsumexp(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> Tensor:
    """log(sum(exp(x)))."""
    return _keep(logsumexp_rows(flatten_axes(wide(x), axis)), x, axis, keepdims=keepdims)


def cumulative_sum(x: Tensor, *, axis: int, dtype: torch.dtype, include_initial: bool) -> Tensor:
    """Running sums along one axis, each as an exact-error sum of its prefix."""
    rows = _lift(x, dtype).movedim(axis, 0)
    sums = [total(rows[:end]) for end in range(0 if include_initial else 1, rows.shape[0] + 1)]
    stacked = torch.stack(sums) if sums else rows
    return _fit(stacked, dtype).movedim(0, axis)


def softmax(x: Tensor, *, axis: int) -> Tensor:
    """exp(x - logsumexp(x)); NaN where a row holds +inf or only -inf."""
    return _along(x, axis, exponent=True)


def log_softmax(x: Tensor, *, axis: int) -> Tensor:
    """Return x - logsumexp(x)."""
    return _along(x, axis, exponent=False)


def _along(x: Tensor, axis: int, *, exponent: bool) -> Tensor:
    if x.numel() == 0:
        return wide(x)
    rows = wide(x).movedim(axis, 0) if x.ndim else wide(x).reshape(1)
    largest = fold(rows, torch.maximum)
    shifted = rows - largest
    sums = total(shifted.exp())
    y = shifted.exp() / sums if exponent else shifted - sums.log()
    return y.movedim(0, axis) if x.ndim else y.reshape(())


ORACLE: Final[dict[str, Callable[..., Tensor]]] = {
    "sum": sum_,
    "prod": prod,
    "mean": mean,
    "max": _extreme(torch.gt),
    "min": _extreme(torch.lt),
    "any": any_,
    "all": all_,
    "argmax": _arg(torch.gt),
    "argmin": _arg(torch.lt),
    "logsumexp": logsumexp,
    "cumulative_sum": cumulative_sum,
    "softmax": softmax,
    "log_softmax": log_softmax,
}
