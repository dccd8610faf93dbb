"""How far an answer may be from the float64 oracle. The suite owns these numbers; a backend may only be tighter.

Errors are measured row by row as relative L2 in units of ``u``, the unit round-off of the tested dtype, and as the
largest elementwise error over ``max(row rms, |ref|)``, which may be eight times as large. A row whose reference is
(nearly) zero by cancellation has no meaningful relative error: the backward bounds carry a floor per row, built from
the magnitudes that cancel. ``calibrate.py`` measures the honest low-precision recipes that the constants stand on.
"""

from __future__ import annotations

import math

UNIT: dict[str, float] = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
    "complex64": 2.0**-24,
    "complex128": 2.0**-53,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
"""Unit round-off of each inexact dtype."""

HALF = frozenset({"float16", "bfloat16"})

MAX_OVER_L2 = 8.0
"""The elementwise bound is this many times the L2 bound."""

ATTENTION_FORWARD = {"float16": 2.0, "bfloat16": 2.0, "float32": 64.0, "float64": 256.0}
"""Row-wise L2 of the output, in u (fp32 accumulation, one rounding)."""

SCORE_SHARE = 16.0
"""Scores carry a rounding error of the size of their terms in the accumulation dtype; the exponential turns it into a
relative one: the forward bound is widened by ``max(scale |q| . |k|) / 16`` of its u (fp32 for half inputs, where it
vanishes)."""

ATTENTION_BACKWARD = {"float16": 4.0, "bfloat16": 2.0, "float32": 256.0, "float64": 256.0}
"""Row-wise error of dq, dk and dv over (row norm + floor), in u: a power of two of at least twice what honest recipes
reach (docs/numerics.md). The floor takes dP and delta by the terms that they are sums of: by their values alone, rows
where they cancel would need a bound so wide that it let faults through elsewhere."""


def lse_bound(dtype: str, lse: float, max_terms: float) -> float:
    """Absolute bound on one lse: a floor, and what fp32 can represent of the scores that it sums.

    Args:
        dtype: Tested dtype of q and k.
        lse: Reference lse of the row.
        max_terms: Largest ``scale * |q| . |k|`` of the row: scores are rounded in proportion to their terms.
    """
    if dtype == "float64":
        return 1e-11 + 64 * UNIT["float64"] * (abs(lse) + max_terms)
    base = 1e-3 if dtype in HALF else 1e-5
    return base + 4 * UNIT["float32"] * (abs(lse) + max_terms)


def score_floor(dtype: str) -> float:
    """Factor of ``row norm * max(scale |q| . |k|)`` that is added to a forward row's size (see ``SCORE_SHARE``)."""
    accumulation = "float64" if dtype == "float64" else "float32"
    return UNIT[accumulation] / UNIT[dtype] / SCORE_SHARE


def reduction_units(dtype: str, length: int) -> float:
    """Row-wise L2 bound, in u, for a matmul or a reduction over ``length`` products (fp32 accumulation)."""
    root = math.sqrt(max(length, 1))
    if dtype in HALF:
        return 1.0 + 4.0 * root * UNIT["float32"] / UNIT[dtype]
    return 4.0 * root


def combine_units(dtype: str, experts: int) -> float:
    """Row-wise L2 bound, in u, for the MoE combine of ``experts`` contributions (fp32 accumulation)."""
    return 1.0 if dtype in HALF else 4.0 * math.sqrt(max(experts, 1))


#: A subnormal result of an inexact op may be flushed to zero in formats whose subnormals lie below 1e-37: accelerators
#: do so, and the sums that follow cannot tell. In float16 they carry data and must be right.
MAY_FLUSH = frozenset({"bfloat16", "float32", "float64"})

#: Pointwise bounds in units in the last place of the output for float32 and float64: the OpenCL full profile, and half
#: of the low-precision dtypes' step (one rounding of a nearly exact result) for them.
POINTWISE_ULP: dict[str, float] = {
    "add": 0.5,
    "subtract": 0.5,
    "multiply": 0.5,
    "negative": 0.0,
    "abs": 0.0,
    "conj": 0.0,
    "where": 0.0,
    "divide": 2.5,
    "sqrt": 3.0,
    "exp": 3.0,
    "log": 3.0,
    "sin": 4.0,
    "cos": 4.0,
    "tanh": 5.0,
    "sigmoid": 5.0,
    "silu": 6.0,
    "gelu": 6.0,
    "pow": 16.0,
    "angle": 6.0,
    "swiglu": 8.0,
}

COMPLEX_NORM_UNITS = 8.0
"""Norm-wise bound of complex pointwise functions, in u."""


def pointwise_ulp(op: str, dtype: str, *, from_complex: bool = False) -> float:
    """ULP bound for ``op``: 1 ulp of a half-precision output, the table for float32 and float64 (4 where not listed).

    A real result of complex arguments (``abs``) involves arithmetic where that of real ones does not.
    """
    if from_complex:
        return max(POINTWISE_ULP.get(op, 4.0), 4.0)
    if dtype in HALF:
        return 0.0 if POINTWISE_ULP.get(op) == 0.0 else 1.0
    return POINTWISE_ULP.get(op, 4.0)
