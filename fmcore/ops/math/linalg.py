"""Declarations of the products of matrices: matmul and grouped_matmul."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fmcore.errors import InvalidInputError
from fmcore.ops.math._op import Accuracy, MathOp, Meta
from fmcore.ops.math.dtypes import NUMERIC
from fmcore.ops.math.shapes import broadcast_shapes

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OPS"]

NO_BOOL = {"bool": "a product of bools is either a count or an any(); cast to int32 or float32, then compare"}


def _matmul_meta(x1: Tensor, x2: Tensor) -> tuple[Meta, ...]:
    asked = f"math.matmul: {tuple(x1.shape)} @ {tuple(x2.shape)}"
    if x1.ndim == 0 or x2.ndim == 0:
        raise InvalidInputError(f"{asked}: a 0-d array is no matrix; use multiply")
    inner = x2.shape[-2] if x2.ndim > 1 else x2.shape[0]
    if x1.shape[-1] != inner:
        raise InvalidInputError(f"{asked}: the inner sizes {x1.shape[-1]} and {inner} differ")
    rows = (x1.shape[-2],) if x1.ndim > 1 else ()
    columns = (x2.shape[-1],) if x2.ndim > 1 else ()
    batch = broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    if batch is None:
        raise InvalidInputError(f"{asked}: the batch shapes do not broadcast")
    return (((*batch, *rows, *columns), x1.dtype),)


def _matmul_features(tensors: tuple[Any, ...], _: Mapping[str, Any]) -> dict[str, Any]:
    x1, x2 = tensors
    return {"ndim1": x1.ndim, "ndim2": x2.ndim, "contiguous": x1.is_contiguous() and x2.is_contiguous()}


def _grouped_meta(x: Tensor, w: Tensor, offsets: Tensor) -> tuple[Meta, ...]:
    asked = f"math.grouped_matmul: x {tuple(x.shape)}, w {tuple(w.shape)}, offsets {tuple(offsets.shape)}"
    if x.ndim != 2 or w.ndim != 3 or offsets.ndim != 1:
        raise InvalidInputError(f"{asked}; they must be [T, K], [G, K, N] and [G]")
    if x.shape[1] != w.shape[1]:
        raise InvalidInputError(f"{asked}: the inner sizes {x.shape[1]} and {w.shape[1]} differ")
    if offsets.shape[0] != w.shape[0]:
        raise InvalidInputError(f"{asked}: {offsets.shape[0]} ends for {w.shape[0]} groups; give one end per group")
    return (((x.shape[0], w.shape[2]), x.dtype),)


def _inner(tensors: tuple[Any, ...], _: Mapping[str, Any]) -> int:
    return max(1, int(tensors[0].shape[-1]))


PRODUCT = Accuracy("contraction", 4, _inner)
OPS = (
    MathOp(
        name="matmul",
        kind="linalg",
        summary="Matrix product; vectors and batches as in the array API; integers wrap.",
        domain=NUMERIC,
        refusals=NO_BOOL,
        accuracy=PRODUCT,
        meta=_matmul_meta,
        roles=("x1", "x2"),
        gradients=frozenset({"x1", "x2"}),
        features=_matmul_features,
        feature_names=("ndim1", "ndim2", "contiguous"),
    ),
    MathOp(
        name="grouped_matmul",
        kind="linalg",
        summary="Rows offsets[g-1]:offsets[g] of x times w[g]; rows past the last end give zeros.",
        domain=NUMERIC,
        refusals=NO_BOOL,
        accuracy=PRODUCT,
        meta=_grouped_meta,
        roles=("x", "w", "offsets"),
        side={"offsets": frozenset({torch.int32, torch.int64})},
        gradients=frozenset({"x", "w"}),
        features=lambda tensors, params: {"contiguous": all(t.is_contiguous() for t in tensors)},  # noqa: ARG005
        feature_names=("contiguous",),
    ),
)
