"""Declarations of the one-dimensional Fourier transforms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fmcore.errors import InvalidInputError
from fmcore.ops.math._op import Accuracy, MathOp, Meta, ParamSpec
from fmcore.ops.math.dtypes import COMPLEX_OF, real_of
from fmcore.ops.math.elementwise import COMPLEX, NO_INTEGER
from fmcore.ops.math.shapes import replaced

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NORMS", "OPS"]

NORMS = ("backward", "ortho", "forward")
FULL = frozenset({torch.float32, torch.float64})
NO_HALF = dict.fromkeys(
    ("float16", "bfloat16"), "there is no complex half precision to hold a spectrum; cast to float32"
)
COMPLEX_ONLY = {
    **NO_INTEGER,
    "real": "a half spectrum is complex; for a real one with zero imaginary part cast to complex64",
}
REAL_ONLY = {**NO_INTEGER, **NO_HALF, "complex": "rfft reads real signals; use fft"}


def _check(op: str, x: Tensor, n: int, norm: str) -> None:
    if x.ndim == 0:
        raise InvalidInputError(f"math.{op}: a 0-d array has no axis to transform; reshape it to (1,)")
    if n < 1:
        raise InvalidInputError(f"math.{op}: n={n} for shape {tuple(x.shape)}; a transform has at least one point")
    if norm not in NORMS:
        raise InvalidInputError(f"math.{op}: norm={norm!r} is not one of {', '.join(NORMS)}")


def _features(tensors: tuple[Any, ...], params: Mapping[str, Any]) -> dict[str, Any]:
    """Length up to 16, since libraries refuse short transforms; longer ones count as 17: the key stays small."""
    return {"short": min(params["n"], 17), "contiguous": tensors[0].is_contiguous()}


def _fft(name: str, domain: frozenset[torch.dtype], refusals: Mapping[str, str], summary: str) -> MathOp:
    def meta(x: Tensor, *, n: int, axis: int, norm: str) -> tuple[Meta, ...]:
        _check(name, x, n, norm)
        if name == "irfft":
            return ((replaced(x.shape, axis, n), real_of(x.dtype)),)
        size = n // 2 + 1 if name == "rfft" else n
        return ((replaced(x.shape, axis, size), COMPLEX_OF[x.dtype]),)

    return MathOp(
        name=name,
        kind="fft",
        summary=summary,
        domain=domain,
        refusals=refusals,
        accuracy=Accuracy("contraction", 4, lambda tensors, params: params["n"]),  # noqa: ARG005
        meta=meta,
        params=(ParamSpec("n", "int"), ParamSpec("axis", "int"), ParamSpec("norm", "str", default="backward")),
        gradients=frozenset({"x"}),
        features=_features,
        feature_names=("short", "contiguous"),
    )


OPS = (
    _fft("fft", FULL | COMPLEX, {**NO_INTEGER, **NO_HALF}, "Discrete Fourier transform along one axis."),
    _fft("ifft", FULL | COMPLEX, {**NO_INTEGER, **NO_HALF}, "Inverse of fft."),
    _fft("rfft", FULL, REAL_ONLY, "Non-negative frequencies of a real signal."),
    _fft(
        "irfft",
        COMPLEX,
        COMPLEX_ONLY,
        "Real signal of a half spectrum; imaginary parts of self-paired bins are read as 0.",
    ),
)
