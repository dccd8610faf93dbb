"""Declarations of the fused LLM ops: rms_norm, rotary, swiglu and the top-k gate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fmcore.errors import InvalidInputError
from fmcore.ops.math._op import Accuracy, MathOp, Meta, ParamSpec, pointwise
from fmcore.ops.math.dtypes import REAL
from fmcore.ops.math.elementwise import COMPLEX, FLOATING, NO_INTEGER
from fmcore.ops.math.shapes import broadcast

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OPS", "SCORES"]

SCORES = ("softmax", "sigmoid")
REAL_ONLY = {**NO_INTEGER, "complex": "defined for real activations; rotary_complex takes complex ones"}


def _last(tensors: tuple[Any, ...], _: Mapping[str, Any]) -> int:
    return max(1, int(tensors[0].shape[-1]))


def _rms_norm_meta(x: Tensor, weight: Tensor | None, *, eps: float) -> tuple[Meta, ...]:
    if x.ndim == 0:
        raise InvalidInputError("math.rms_norm: a 0-d array has no last axis to normalise")
    if weight is not None and tuple(weight.shape) != (x.shape[-1],):
        raise InvalidInputError(
            f"math.rms_norm: weight {tuple(weight.shape)} for x {tuple(x.shape)}; it must be ({x.shape[-1]},)"
        )
    if not (eps >= 0 and math.isfinite(eps)):
        raise InvalidInputError(f"math.rms_norm: eps={eps} must be finite and not negative")
    return ((tuple(x.shape), x.dtype),)


def _check_table(op: str, x: Tensor, role: str, table: Tensor, pairs: int) -> None:
    """Angles are [s, pairs] or [b, s, pairs] for x [b, s, h, d]."""
    b, s = x.shape[0], x.shape[1]
    if tuple(table.shape) not in ((s, pairs), (b, s, pairs), (1, s, pairs)):
        raise InvalidInputError(
            f"math.{op}: {role} {tuple(table.shape)} for x {tuple(x.shape)}; "
            f"it must be ({s}, pairs) or ({b}, {s}, pairs)"
        )


def _check_bshd(op: str, x: Tensor) -> None:
    if x.ndim != 4:
        raise InvalidInputError(f"math.{op}: x {tuple(x.shape)} must have four axes: batch, sequence, heads, head_dim")


def _rotary_meta(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> tuple[Meta, ...]:  # noqa: ARG001
    _check_bshd("rotary", x)
    pairs = cos.shape[-1] if cos.ndim else 0
    _check_table("rotary", x, "cos", cos, pairs)
    if cos.shape != sin.shape or cos.dtype != sin.dtype:
        raise InvalidInputError(
            f"math.rotary: cos {tuple(cos.shape)} {cos.dtype} and sin {tuple(sin.shape)} {sin.dtype} must be alike"
        )
    if 2 * pairs > x.shape[-1]:
        raise InvalidInputError(
            f"math.rotary: {pairs} pairs of angles turn {2 * pairs} features, but head_dim is {x.shape[-1]}"
        )
    return ((tuple(x.shape), x.dtype),)


def _rotary_complex_meta(x: Tensor, rotation: Tensor) -> tuple[Meta, ...]:
    _check_bshd("rotary_complex", x)
    width = x.shape[-1]
    if not x.is_complex() and width % 2:
        raise InvalidInputError(f"math.rotary_complex: head_dim {width} of a real x is odd; it holds (re, im) pairs")
    _check_table("rotary_complex", x, "rotation", rotation, width if x.is_complex() else width // 2)
    return ((tuple(x.shape), x.dtype),)


def _swiglu_meta(gate: Tensor, up: Tensor) -> tuple[Meta, ...]:
    return ((broadcast("swiglu", gate, up), gate.dtype),)


def _gate_meta(
    logits: Tensor,
    bias: Tensor | None,
    *,
    k: int,
    score: str,
    renormalize: bool,  # noqa: ARG001
    scale: float,  # noqa: ARG001
) -> tuple[Meta, ...]:
    if logits.ndim == 0:
        raise InvalidInputError("math.topk_gate: logits need a last axis, the experts")
    experts = logits.shape[-1]
    if not 1 <= k <= experts:
        raise InvalidInputError(f"math.topk_gate: k={k} of {experts} experts; it must lie in [1, {experts}]")
    if score not in SCORES:
        raise InvalidInputError(f"math.topk_gate: score={score!r} is not one of {', '.join(SCORES)}")
    if bias is not None and tuple(bias.shape) != (experts,):
        raise InvalidInputError(f"math.topk_gate: bias {tuple(bias.shape)} must be ({experts},), one per expert")
    shape = (*logits.shape[:-1], k)
    return ((shape, torch.float64 if logits.dtype == torch.float64 else torch.float32), (shape, torch.int64))


def _width(tensors: tuple[Any, ...], _: Mapping[str, Any]) -> dict[str, Any]:
    x = tensors[0]
    return {"width": x.shape[-1] if x.ndim else 1, "contiguous": x.is_contiguous()}


_WIDTH: dict[str, Any] = {"features": _width, "feature_names": ("width", "contiguous")}


OPS = (
    MathOp(
        name="rms_norm",
        kind="nn",
        summary="x / sqrt(mean(x**2) + eps) over the last axis, times weight; one rounding at the end.",
        domain=REAL,
        refusals=REAL_ONLY,
        accuracy=Accuracy("contraction", 4, _last),
        meta=_rms_norm_meta,
        roles=("x", "weight"),
        side={"weight": None},
        optional=frozenset({"weight"}),
        params=(ParamSpec("eps", "float", default=1e-6),),
        gradients=frozenset({"x", "weight"}),
        **_WIDTH,
    ),
    MathOp(
        name="rotary",
        kind="nn",
        summary="Rotary position embedding of the first 2 * pairs features, halves or interleaved.",
        domain=REAL,
        refusals=REAL_ONLY,
        accuracy=Accuracy("contraction", 4, lambda tensors, params: 2),  # noqa: ARG005
        meta=_rotary_meta,
        roles=("x", "cos", "sin"),
        side={"cos": None, "sin": None},
        params=(ParamSpec("interleaved", "bool", default=False),),
        gradients=frozenset({"x", "cos", "sin"}),
        features=lambda tensors, params: {
            **_width(tensors, params),
            "interleaved": params["interleaved"],
            "partial": 2 * tensors[1].shape[-1] != tensors[0].shape[-1],
        },
        feature_names=("width", "contiguous", "interleaved", "partial"),
    ),
    MathOp(
        name="rotary_complex",
        kind="nn",
        summary="Rotary position embedding as a product with unit complex numbers.",
        domain=FLOATING,
        refusals=NO_INTEGER,
        accuracy=Accuracy("contraction", 4, lambda tensors, params: 2),  # noqa: ARG005
        meta=_rotary_complex_meta,
        roles=("x", "rotation"),
        side={"rotation": COMPLEX},
        gradients=frozenset({"x", "rotation"}),
        **_WIDTH,
    ),
    MathOp(
        name="swiglu",
        kind="nn",
        summary="silu(gate) * up; one rounding at the end.",
        domain=REAL,
        refusals=REAL_ONLY,
        accuracy=pointwise(8),
        meta=_swiglu_meta,
        roles=("gate", "up"),
        gradients=frozenset({"gate", "up"}),
        **_WIDTH,
    ),
    MathOp(
        name="topk_gate",
        kind="nn",
        summary="Weights and indices of the k best experts; ties go to the lower index.",
        domain=REAL,
        refusals=REAL_ONLY,
        accuracy=Accuracy("contraction", 4, _last),
        meta=_gate_meta,
        roles=("logits", "bias"),
        side={"bias": None},
        optional=frozenset({"bias"}),
        params=(
            ParamSpec("k", "int"),
            ParamSpec("score", "str", default="softmax"),
            ParamSpec("renormalize", "bool", default=True),
            ParamSpec("scale", "float", default=1.0),
        ),
        outputs=2,
        gradients=frozenset({"logits"}),
        features=lambda tensors, params: {
            "experts": tensors[0].shape[-1],
            "k": params["k"],
            "score": params["score"],
            "biased": tensors[1] is not None,
        },
        feature_names=("experts", "k", "score", "biased"),
    ),
)
