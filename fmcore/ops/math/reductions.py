"""Declarations of the reductions, scans and normalised exponentials along axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fmcore.errors import InvalidInputError, UnsupportedError
from fmcore.ops.math._op import EXACT, Accuracy, MathOp, Meta, ParamSpec
from fmcore.ops.math.dtypes import DTYPES, INTEGER, KIND, NAMES, REAL, dtype_name
from fmcore.ops.math.elementwise import ALL, FLOATING, NO_INTEGER
from fmcore.ops.math.shapes import check_nonempty, reduced, replaced

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OPS", "sum_dtype"]

AXES = ParamSpec("axis", "int[]")
AXIS = ParamSpec("axis", "int")
KEEPDIMS = ParamSpec("keepdims", "bool", default=False)
DTYPE = ParamSpec("dtype", "ScalarType")

NO_EXTREMUM = {
    "bool": "the array API orders numbers only; use any for max and all for min",
    "complex": "complex numbers have no order; reduce real, imag or abs",
}
NO_MEAN = {
    "bool": "the mean of bools needs a dtype; cast to one, for instance float32",
    "integer": "the mean of integers needs a dtype; cast to one, for instance float32",
}
REAL_ONLY = {**NO_INTEGER, "complex": "the logarithm of a complex sum has no single branch"}
SOFTMAX_ONLY = {**NO_INTEGER, "complex": "a probability is real"}


def sum_dtype(op: str, dtype: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """Dtype of a sum, product or cumulative sum.

    Bool and integers give int64 unless a dtype is asked, floating-point dtypes their own. Elements are
    cast before they are combined, so a cast that loses the kind (float to integer, complex to real) is refused.

    Raises:
        UnsupportedError: The asked dtype is bool, outside the matrix or of a lower kind.
    """
    order = ("bool", "integer", "real", "complex")
    if asked is None:
        return torch.int64 if KIND.get(dtype) in ("bool", "integer") else dtype
    if asked not in NAMES or asked == torch.bool:
        raise UnsupportedError(f"math.{op}: dtype={dtype_name(asked)} is not one of {', '.join(DTYPES[1:])}")
    if dtype in KIND and order.index(KIND[asked]) < order.index(KIND[dtype]):
        raise UnsupportedError(
            f"math.{op}: dtype={dtype_name(asked)} would cut {dtype_name(dtype)} elements before they are combined; "
            "cast the result instead"
        )
    return asked


def _terms(tensors: tuple[Any, ...], params: Mapping[str, Any]) -> int:
    axes = params["axis"]
    shape = tensors[0].shape
    if isinstance(axes, int):
        return max(1, int(shape[axes]))
    return max(1, math.prod(int(shape[a]) for a in axes))


def _features(tensors: tuple[Any, ...], params: Mapping[str, Any]) -> dict[str, Any]:
    axis = params["axis"]
    axes = () if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    last = tensors[0].ndim - 1
    return {
        "contiguous": tensors[0].is_contiguous(),
        "last_axis_only": axes == (last,),
        "all_axes": axis is None or len(axes) == tensors[0].ndim,
    }


_FEATURES: dict[str, Any] = {"features": _features, "feature_names": ("contiguous", "last_axis_only", "all_axes")}


def _summing(name: str, accuracy: Accuracy, summary: str) -> MathOp:
    def meta(x: Tensor, *, axis: Sequence[int], dtype: torch.dtype, keepdims: bool) -> tuple[Meta, ...]:
        return ((reduced(x.shape, axis, keepdims=keepdims), sum_dtype(name, x.dtype, dtype)),)

    return MathOp(
        name=name,
        kind="reduction",
        summary=summary,
        domain=ALL,
        refusals={},
        accuracy=accuracy,
        meta=meta,
        params=(AXES, DTYPE, KEEPDIMS),
        gradients=frozenset({"x"}),
        **_FEATURES,
    )


def _reducing(
    name: str,
    domain: frozenset[torch.dtype],
    refusals: Mapping[str, str],
    accuracy: Accuracy,
    summary: str,
    *,
    result: torch.dtype | None = None,
    identity: bool = True,
) -> MathOp:
    def meta(x: Tensor, *, axis: Sequence[int], keepdims: bool) -> tuple[Meta, ...]:
        if not identity:
            check_nonempty(name, x.shape, axis)
        return ((reduced(x.shape, axis, keepdims=keepdims), result or x.dtype),)

    return MathOp(
        name=name,
        kind="reduction",
        summary=summary,
        domain=domain,
        refusals=refusals,
        accuracy=accuracy,
        meta=meta,
        params=(AXES, KEEPDIMS),
        gradients=frozenset() if result else frozenset({"x"}),
        **_FEATURES,
    )


def _arg(name: str, summary: str) -> MathOp:
    def meta(x: Tensor, *, axis: int | None, keepdims: bool) -> tuple[Meta, ...]:
        axes = tuple(range(x.ndim)) if axis is None else (axis,)
        check_nonempty(name, x.shape, axes)
        return ((reduced(x.shape, axes, keepdims=keepdims), torch.int64),)

    return MathOp(
        name=name,
        kind="reduction",
        summary=summary,
        domain=INTEGER | REAL,
        refusals=NO_EXTREMUM,
        accuracy=EXACT,
        meta=meta,
        params=(ParamSpec("axis", "int?", default=None), KEEPDIMS),
        **_FEATURES,
    )


def _cumulative_meta(x: Tensor, *, axis: int, dtype: torch.dtype, include_initial: bool) -> tuple[Meta, ...]:
    if x.ndim == 0:
        raise InvalidInputError("math.cumulative_sum: a 0-d array has no axis to scan; reshape it to (1,)")
    size = x.shape[axis] + 1 if include_initial else x.shape[axis]
    return ((replaced(x.shape, axis, size), sum_dtype("cumulative_sum", x.dtype, dtype)),)


def _along(name: str, summary: str) -> MathOp:
    def meta(x: Tensor, *, axis: int) -> tuple[Meta, ...]:  # noqa: ARG001
        return ((tuple(x.shape), x.dtype),)

    return MathOp(
        name=name,
        kind="nn",
        summary=summary,
        domain=REAL,
        refusals=SOFTMAX_ONLY,
        accuracy=Accuracy("contraction", 4, _terms),
        meta=meta,
        params=(AXIS,),
        gradients=frozenset({"x"}),
        **_FEATURES,
    )


SUM = Accuracy("contraction", 4, _terms)
_fold = _reducing
OPS = (
    _summing("sum", SUM, "Sum; 0 of nothing; bools count."),
    _summing("prod", SUM, "Product; 1 of nothing; integers wrap."),
    _fold("mean", FLOATING, NO_MEAN, SUM, "Arithmetic mean; NaN of nothing."),
    _fold("max", INTEGER | REAL, NO_EXTREMUM, EXACT, "Largest element; NaN wins.", identity=False),
    _fold("min", INTEGER | REAL, NO_EXTREMUM, EXACT, "Smallest element; NaN wins.", identity=False),
    _fold("any", ALL, {}, EXACT, "Some element is non-zero; False of nothing.", result=torch.bool),
    _fold("all", ALL, {}, EXACT, "Every element is non-zero; True of nothing.", result=torch.bool),
    _arg("argmax", "Index of the first largest element; the first NaN wins."),
    _arg("argmin", "Index of the first smallest element; the first NaN wins."),
    _fold("logsumexp", REAL, REAL_ONLY, SUM, "log(sum(exp(x))) without overflow; -inf of nothing."),
    MathOp(
        name="cumulative_sum",
        kind="reduction",
        summary="Running sum along one axis, optionally from 0.",
        domain=ALL,
        refusals={},
        accuracy=SUM,
        meta=_cumulative_meta,
        params=(AXIS, DTYPE, ParamSpec("include_initial", "bool", default=False)),
        gradients=frozenset({"x"}),
        **_FEATURES,
    ),
    _along("softmax", "exp(x - max) / sum along an axis; NaN where a whole row is -inf."),
    _along("log_softmax", "x - logsumexp(x) along an axis."),
)
