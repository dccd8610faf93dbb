"""Casts, reductions, scans and softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmcore.errors import InvalidInputError
from fmcore.math._canon import array, run
from fmcore.ops.math import OPS
from fmcore.ops.math.reductions import sum_dtype
from fmcore.ops.math.shapes import normalize_axes, normalize_axis

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "astype",
    "cumulative_sum",
    "log_softmax",
    "logsumexp",
    "max",
    "mean",
    "min",
    "prod",
    "softmax",
    "sum",
]

Axes = int | tuple[int, ...] | None


def _dtype(op: str, dtype: object) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    raise InvalidInputError(f"math.{op}: dtype={dtype!r} is not a torch.dtype")


def astype(x: Tensor, dtype: torch.dtype, /, *, copy: bool = True, backend: str | None = None) -> Tensor:
    """Cast to another dtype.

    Rounding is to nearest even, once; floats truncate to integers (NaN and values out of range give an
    unspecified integer); integers wrap; non-zero and NaN are True.

    Args:
        x: Any shape.
        dtype: The dtype wanted.
        copy: False returns ``x`` itself where it has the dtype already.
        backend: Strict choice of a backend.

    Raises:
        UnsupportedError: A complex array to an integer or real dtype: take real, imag or abs.

    >>> fm.math.astype(torch.tensor([0.0, -2.7]), torch.int32)
    tensor([ 0, -2], dtype=torch.int32)
    """
    x, dtype = array("astype", "x", x), _dtype("astype", dtype)
    if not copy and x.dtype == dtype:
        return x
    return run(OPS["astype"], (x,), {"dtype": dtype}, backend)  # type: ignore[no-any-return]


def _fold(name: str, x: Tensor, axis: Axes, keepdims: bool, backend: str | None) -> Tensor:  # noqa: FBT001
    x = array(name, "x", x)
    params = {"axis": normalize_axes(name, axis, x.ndim), "keepdims": bool(keepdims)}
    return run(OPS[name], (x,), params, backend)  # type: ignore[no-any-return]


def _total(name: str, x: Tensor, axis: Axes, dtype: torch.dtype | None, keepdims: bool, backend: str | None) -> Tensor:  # noqa: FBT001
    x = array(name, "x", x)
    axes = normalize_axes(name, axis, x.ndim)
    result = sum_dtype(name, x.dtype, None if dtype is None else _dtype(name, dtype))
    return run(OPS[name], (x,), {"axis": axes, "dtype": result, "keepdims": bool(keepdims)}, backend)  # type: ignore[no-any-return]


def sum(  # noqa: A001
    x: Tensor,
    /,
    *,
    axis: Axes = None,
    dtype: torch.dtype | None = None,
    keepdims: bool = False,
    backend: str | None = None,
) -> Tensor:
    """Sum over axes; 0 of nothing.

    Args:
        x: Any shape; bools count.
        axis: An axis, several, or None for all; ``()`` reduces nothing.
        dtype: Dtype of elements and result; by default int64 for bool and integers, else the array's own.
            Half precision accumulates in float32.
        keepdims: Keep reduced axes with size one.
        backend: Strict choice of a backend.

    Raises:
        InvalidInputError: An axis is out of range or named twice.
        UnsupportedError: ``dtype`` is of a lower kind than the array's.

    >>> fm.math.sum(torch.tensor([True, True, False]))
    tensor(2)
    """
    return _total("sum", x, axis, dtype, keepdims, backend)


def prod(
    x: Tensor,
    /,
    *,
    axis: Axes = None,
    dtype: torch.dtype | None = None,
    keepdims: bool = False,
    backend: str | None = None,
) -> Tensor:
    """Product over axes; 1 of nothing. Arguments and errors as for ``sum``.

    >>> fm.math.prod(torch.tensor([2, 3], dtype=torch.int8))
    tensor(6)
    """
    return _total("prod", x, axis, dtype, keepdims, backend)


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, backend: str | None = None) -> Tensor:
    """Arithmetic mean of a floating-point array over axes; NaN of nothing.

    >>> fm.math.mean(torch.tensor([1.0, 3.0]))
    tensor(2.)
    """
    return _fold("mean", x, axis, keepdims, backend)


def max(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, backend: str | None = None) -> Tensor:  # noqa: A001
    """Largest element over axes; NaN if there is one. Equal elements share the gradient evenly.

    Raises:
        InvalidInputError: A reduced axis is empty.

    >>> fm.math.max(torch.tensor([[1, 7], [5, 3]]), axis=0)
    tensor([5, 7])
    """
    return _fold("max", x, axis, keepdims, backend)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, backend: str | None = None) -> Tensor:  # noqa: A001
    """Smallest element over axes; NaN if there is one. Errors and gradient as for ``max``.

    >>> fm.math.min(torch.tensor([[1, 7], [5, 3]]), axis=-1)
    tensor([1, 3])
    """
    return _fold("min", x, axis, keepdims, backend)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, backend: str | None = None) -> Tensor:  # noqa: A001
    """Whether some element is non-zero; False of nothing. NaN is non-zero.

    >>> fm.math.any(torch.tensor([0, 2]))
    tensor(True)
    """
    return _fold("any", x, axis, keepdims, backend)


def all(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, backend: str | None = None) -> Tensor:  # noqa: A001
    """Whether every element is non-zero; True of nothing.

    >>> fm.math.all(torch.tensor([0, 2]))
    tensor(False)
    """
    return _fold("all", x, axis, keepdims, backend)


def _arg(name: str, x: Tensor, axis: int | None, keepdims: bool, backend: str | None) -> Tensor:  # noqa: FBT001
    x = array(name, "x", x)
    params = {"axis": None if axis is None else normalize_axis(name, axis, x.ndim), "keepdims": bool(keepdims)}
    return run(OPS[name], (x,), params, backend)  # type: ignore[no-any-return]


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False, backend: str | None = None) -> Tensor:
    """int64 index of the first largest element along an axis, or of the flattened array; the first NaN wins.

    Raises:
        InvalidInputError: The axis is empty or out of range.

    >>> fm.math.argmax(torch.tensor([1.0, 4.0, 4.0]))
    tensor(1)
    """
    return _arg("argmax", x, axis, keepdims, backend)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False, backend: str | None = None) -> Tensor:
    """int64 index of the first smallest element; otherwise as ``argmax``.

    >>> fm.math.argmin(torch.tensor([[2, 1], [0, 5]]), axis=1)
    tensor([1, 0])
    """
    return _arg("argmin", x, axis, keepdims, backend)


def logsumexp(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, backend: str | None = None) -> Tensor:
    """log(sum(exp(x))) over axes without overflow; -inf of nothing.

    >>> fm.math.logsumexp(torch.tensor([200.0, -torch.inf]))
    tensor(200.)
    """
    return _fold("logsumexp", x, axis, keepdims, backend)


def cumulative_sum(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: torch.dtype | None = None,
    include_initial: bool = False,
    backend: str | None = None,
) -> Tensor:
    """Running sum along an axis.

    Args:
        x: At least one axis.
        axis: The axis; may be left out where there is only one.
        dtype: As for ``sum``.
        include_initial: Start with 0: the axis grows by one.
        backend: Strict choice of a backend.

    Raises:
        InvalidInputError: The axis is out of range, or missing where the array has several.

    >>> fm.math.cumulative_sum(torch.tensor([3, 4]), include_initial=True)
    tensor([0, 3, 7])
    """
    x = array("cumulative_sum", "x", x)
    if axis is None and x.ndim != 1:
        raise InvalidInputError(f"math.cumulative_sum: an array of shape {tuple(x.shape)} needs an axis; name one")
    params = {
        "axis": 0 if axis is None else normalize_axis("cumulative_sum", axis, x.ndim),
        "dtype": sum_dtype("cumulative_sum", x.dtype, None if dtype is None else _dtype("cumulative_sum", dtype)),
        "include_initial": bool(include_initial),
    }
    return run(OPS["cumulative_sum"], (x,), params, backend)  # type: ignore[no-any-return]


def softmax(x: Tensor, /, *, axis: int = -1, backend: str | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis, without overflow; NaN where a whole row is -inf.

    >>> fm.math.softmax(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """
    x = array("softmax", "x", x)
    return run(OPS["softmax"], (x,), {"axis": normalize_axis("softmax", axis, x.ndim)}, backend)  # type: ignore[no-any-return]


def log_softmax(x: Tensor, /, *, axis: int = -1, backend: str | None = None) -> Tensor:
    """Return x - logsumexp(x) along an axis.

    >>> fm.math.log_softmax(torch.tensor([0.0, 0.0]))
    tensor([-0.6931, -0.6931])
    """
    x = array("log_softmax", "x", x)
    return run(OPS["log_softmax"], (x,), {"axis": normalize_axis("log_softmax", axis, x.ndim)}, backend)  # type: ignore[no-any-return]
