"""Declarations of the elementwise ops: arithmetic, comparison, logic, bits, complex parts and casts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from fmcore.errors import UnsupportedError
from fmcore.ops.math._op import EXACT, Accuracy, MathOp, Meta, ParamSpec, pointwise
from fmcore.ops.math.dtypes import INTEGER, KIND, NUMERIC, REAL, TORCH, dtype_name, real_of
from fmcore.ops.math.shapes import broadcast, same_shape

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OPS", "cast_refusal"]

BOOL = frozenset({torch.bool})
ALL = frozenset(TORCH.values())
COMPLEX = frozenset(d for d in ALL if d.is_complex)
FLOATING = REAL | COMPLEX

NO_BOOL = {"bool": "the array API defines arithmetic for numbers only; use logical_or, logical_xor or astype"}
NO_INTEGER = {
    "bool": "defined for floating-point dtypes; cast to one, as no default is assumed",
    "integer": "defined for floating-point dtypes; cast to one, as no default is assumed",
}
NO_ORDER = {
    "bool": "the array API orders numbers only; use logical ops or cast to int8",
    "complex": "complex numbers have no order; compare real, imag or abs",
}
BOOL_ONLY = dict.fromkeys(
    ("integer", "real", "complex"), "defined for bool; compare with zero first, for instance not_equal(x, 0)"
)
BITS_ONLY = dict.fromkeys(("real", "complex"), "bit patterns of floating-point values are not exposed")

Rule = Callable[[torch.dtype], torch.dtype]


def _same(dtype: torch.dtype) -> torch.dtype:
    return dtype


def _bool(_: torch.dtype) -> torch.dtype:
    return torch.bool


def _unary(
    name: str,
    kind: str,
    domain: frozenset[torch.dtype],
    refusals: Mapping[str, str],
    accuracy: Accuracy,
    summary: str,
    *,
    rule: Rule = _same,
    grad: bool = True,
) -> MathOp:
    def meta(x: Tensor) -> tuple[Meta, ...]:
        return ((tuple(x.shape), rule(x.dtype)),)

    return MathOp(
        name=name,
        kind=kind,
        summary=summary,
        domain=domain,
        refusals=refusals,
        accuracy=accuracy,
        meta=meta,
        gradients=frozenset({"x"}) if grad else frozenset(),
        features=_contiguous,
        feature_names=("contiguous",),
    )


def _binary(
    name: str,
    kind: str,
    domain: frozenset[torch.dtype],
    refusals: Mapping[str, str],
    accuracy: Accuracy,
    summary: str,
    *,
    rule: Rule = _same,
    grad: bool = False,
) -> MathOp:
    def meta(x1: Tensor, x2: Tensor) -> tuple[Meta, ...]:
        return ((broadcast(name, x1, x2), rule(x1.dtype)),)

    return MathOp(
        name=name,
        kind=kind,
        summary=summary,
        domain=domain,
        refusals=refusals,
        accuracy=accuracy,
        meta=meta,
        roles=("x1", "x2"),
        gradients=frozenset({"x1", "x2"}) if grad else frozenset(),
        features=_pair_features,
        feature_names=("contiguous", "same_shape"),
    )


def _contiguous(tensors: tuple[Any, ...], _: Mapping[str, Any]) -> dict[str, Any]:
    return {"contiguous": tensors[0].is_contiguous()}


def _pair_features(tensors: tuple[Any, ...], _: Mapping[str, Any]) -> dict[str, Any]:
    x1, x2 = tensors
    return {"contiguous": x1.is_contiguous() and x2.is_contiguous(), "same_shape": same_shape(x1.shape, x2.shape)}


def _where_features(tensors: tuple[Any, ...], _: Mapping[str, Any]) -> dict[str, Any]:
    shape = tensors[0].shape
    return {
        "contiguous": all(t.is_contiguous() for t in tensors),
        "same_shape": all(same_shape(t.shape, shape) for t in tensors),
    }


def _where_meta(condition: Tensor, x1: Tensor, x2: Tensor) -> tuple[Meta, ...]:
    return ((broadcast("where", condition, x1, x2), x1.dtype),)


def cast_refusal(source: torch.dtype, target: torch.dtype) -> str | None:
    """Why ``astype`` refuses a pair of dtypes, or None where it casts."""
    if target not in ALL:
        return f"{dtype_name(target)} is outside the matrix"
    if KIND[source] == "complex" and KIND[target] in ("integer", "real"):
        return "a complex value has no single real one; take real, imag or abs"
    return None


def _astype_meta(x: Tensor, *, dtype: torch.dtype) -> tuple[Meta, ...]:
    reason = cast_refusal(x.dtype, dtype)
    if reason is not None:
        raise UnsupportedError(f"math.astype: {dtype_name(x.dtype)} to {dtype_name(dtype)} is refused: {reason}")
    return ((tuple(x.shape), dtype),)


_EL = "elementwise"
OPS = (
    _binary("add", _EL, NUMERIC, NO_BOOL, pointwise(0.5), "Sum; integers wrap.", grad=True),
    _binary("subtract", _EL, NUMERIC, NO_BOOL, pointwise(0.5), "Difference; integers wrap.", grad=True),
    _binary("multiply", _EL, NUMERIC, NO_BOOL, pointwise(0.5), "Product; integers wrap.", grad=True),
    _binary("divide", _EL, FLOATING, NO_INTEGER, pointwise(2.5), "Quotient.", grad=True),
    _binary("maximum", _EL, INTEGER | REAL, NO_ORDER, EXACT, "The larger one; NaN wins.", grad=True),
    _binary("minimum", _EL, INTEGER | REAL, NO_ORDER, EXACT, "The smaller one; NaN wins.", grad=True),
    _unary("negative", _EL, NUMERIC, NO_BOOL, EXACT, "Negation; the least integer maps to itself."),
    _unary("exp", _EL, FLOATING, NO_INTEGER, pointwise(3), "Exponential."),
    _unary("log", _EL, FLOATING, NO_INTEGER, pointwise(3), "Natural logarithm; complex cut (-inf, 0]."),
    _unary("sqrt", _EL, FLOATING, NO_INTEGER, pointwise(3), "Square root; complex cut (-inf, 0)."),
    _unary("tanh", _EL, FLOATING, NO_INTEGER, pointwise(5), "Hyperbolic tangent."),
    _unary(
        "sigmoid",
        _EL,
        REAL,
        {**NO_INTEGER, "complex": "a gate is real; the complex form has poles and no agreed overflow rule"},
        pointwise(5),
        "Logistic function 1 / (1 + exp(-x)).",
    ),
    _unary("abs", _EL, NUMERIC, NO_BOOL, pointwise(4), "Modulus; the least integer maps to itself.", rule=real_of),
    _unary("angle", _EL, FLOATING, NO_INTEGER, pointwise(6), "Argument in [-pi, pi].", rule=real_of),
    _unary("conj", _EL, NUMERIC, NO_BOOL, EXACT, "Complex conjugate; a real value is its own."),
    _unary("real", _EL, NUMERIC, NO_BOOL, EXACT, "Real part.", rule=real_of),
    _unary("imag", _EL, NUMERIC, NO_BOOL, EXACT, "Imaginary part; zero for a real value.", rule=real_of),
    MathOp(
        name="where",
        kind=_EL,
        summary="x1 where the condition holds, else x2.",
        domain=ALL,
        refusals={},
        accuracy=EXACT,
        meta=_where_meta,
        roles=("condition", "x1", "x2"),
        side={"condition": BOOL},
        gradients=frozenset({"x1", "x2"}),
        features=_where_features,
        feature_names=("contiguous", "same_shape"),
    ),
    _binary("equal", "comparison", ALL, {}, EXACT, "x1 == x2; NaN equals nothing.", rule=_bool),
    _binary("not_equal", "comparison", ALL, {}, EXACT, "x1 != x2; NaN differs from all.", rule=_bool),
    _binary("less", "comparison", INTEGER | REAL, NO_ORDER, EXACT, "x1 < x2.", rule=_bool),
    _binary("less_equal", "comparison", INTEGER | REAL, NO_ORDER, EXACT, "x1 <= x2.", rule=_bool),
    _binary("greater", "comparison", INTEGER | REAL, NO_ORDER, EXACT, "x1 > x2.", rule=_bool),
    _binary("greater_equal", "comparison", INTEGER | REAL, NO_ORDER, EXACT, "x1 >= x2.", rule=_bool),
    _binary("logical_and", "logical", BOOL, BOOL_ONLY, EXACT, "Both."),
    _binary("logical_or", "logical", BOOL, BOOL_ONLY, EXACT, "Either."),
    _binary("logical_xor", "logical", BOOL, BOOL_ONLY, EXACT, "Exactly one."),
    _unary("logical_not", "logical", BOOL, BOOL_ONLY, EXACT, "Not.", grad=False),
    _binary("bitwise_and", "bitwise", BOOL | INTEGER, BITS_ONLY, EXACT, "Bits set in both."),
    _binary("bitwise_or", "bitwise", BOOL | INTEGER, BITS_ONLY, EXACT, "Bits set in either."),
    _binary("bitwise_xor", "bitwise", BOOL | INTEGER, BITS_ONLY, EXACT, "Bits set in exactly one."),
    _unary("bitwise_invert", "bitwise", BOOL | INTEGER, BITS_ONLY, EXACT, "Bits flipped.", grad=False),
    _binary(
        "bitwise_left_shift",
        "bitwise",
        INTEGER,
        {**BITS_ONLY, "bool": "a bool has one bit; there is nowhere to shift it"},
        EXACT,
        "x1 * 2**x2 wrapped; zero for a count outside [0, width).",
    ),
    _binary(
        "bitwise_right_shift",
        "bitwise",
        INTEGER,
        {**BITS_ONLY, "bool": "a bool has one bit; there is nowhere to shift it"},
        EXACT,
        "Floor of x1 / 2**x2; the sign (0 or -1) for a count outside [0, width).",
    ),
    MathOp(
        name="astype",
        kind="cast",
        summary="Cast; complex to real is refused, halves round to nearest even.",
        domain=ALL,
        refusals={},
        accuracy=EXACT,
        meta=_astype_meta,
        params=(ParamSpec("dtype", "ScalarType"),),
        gradients=frozenset({"x"}),
        features=lambda tensors, params: {**_contiguous(tensors, params), "target": dtype_name(params["dtype"])},
        feature_names=("contiguous", "target"),
    ),
)
