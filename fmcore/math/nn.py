"""Fused ops of language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.math._canon import array, binary, integer, number, run
from fmcore.ops.math import OPS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["rms_norm", "rotary", "rotary_complex", "swiglu", "topk_gate"]


def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6, backend: str | None = None) -> Tensor:
    """Return x / sqrt(mean(x**2) + eps) over the last axis, times weight.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

    Args:
        x: [..., d], real floating-point.
        weight: [d] in x's dtype, float32 or float64.
        eps: Added to the mean square.
        backend: Strict choice of a backend.

    Returns:
        x's shape and dtype; half precision is computed in float32 and rounded once.

    Raises:
        InvalidInputError: Shapes or dtypes do not fit, or eps is negative.

    >>> fm.math.rms_norm(torch.tensor([[3.0, 3.0]]), eps=0.0)
    tensor([[1., 1.]])
    """
    x = array("rms_norm", "x", x)
    return run(OPS["rms_norm"], (x, weight), {"eps": number("rms_norm", "eps", eps)}, backend)  # type: ignore[no-any-return]


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, backend: str | None = None) -> Tensor:
    """Rotary position embedding.

    Pair i is features (i, i + pairs), or (2i, 2i + 1) if interleaved; (a, b) becomes (a cos - b sin, a sin + b cos).
    Features past 2 * pairs stay. Source: Su et al., "RoFormer", 2021.

    Args:
        x: [b, s, h, d], real floating-point.
        cos: [s, pairs] or [b, s, pairs] with 2 * pairs <= d, in x's dtype, float32 or float64.
        sin: Like cos.
        interleaved: Which features form a pair.
        backend: Strict choice of a backend.

    Returns:
        x's shape and dtype; half precision is computed in float32 and rounded once.

    Raises:
        InvalidInputError: Shapes or dtypes do not fit.

    >>> x = torch.tensor([1.0, 0.0]).reshape(1, 1, 1, 2)
    >>> fm.math.rotary(x, torch.zeros(1, 1), torch.ones(1, 1)).flatten()
    tensor([0., 1.])
    """
    tensors = (array("rotary", "x", x), cos, sin)
    return run(OPS["rotary"], tensors, {"interleaved": bool(interleaved)}, backend)  # type: ignore[no-any-return]


def rotary_complex(x: Tensor, rotation: Tensor, *, backend: str | None = None) -> Tensor:
    """Rotary position embedding as a product with unit complex numbers.

    Args:
        x: [b, s, h, m] complex, or [b, s, h, 2m] real whose features are (re, im) pairs.
        rotation: [s, m] or [b, s, m] complex, cos + i sin of the angles.
        backend: Strict choice of a backend.

    Returns:
        x's shape and dtype; half precision is computed in complex64 and rounded once.

    Raises:
        InvalidInputError: Shapes or dtypes do not fit.

    >>> x = torch.tensor([1.0, 0.0]).reshape(1, 1, 1, 2)
    >>> fm.math.rotary_complex(x, torch.tensor([[1j]])).flatten()
    tensor([0., 1.])
    """
    tensors = (array("rotary_complex", "x", x), rotation)
    return run(OPS["rotary_complex"], tensors, {}, backend)  # type: ignore[no-any-return]


def swiglu(gate: Tensor, up: Tensor, *, backend: str | None = None) -> Tensor:
    """Return gate * sigmoid(gate) * up, rounded once.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.

    >>> fm.math.swiglu(torch.tensor([0.0]), torch.tensor([5.0]))
    tensor([0.])
    """
    return binary("swiglu", array("swiglu", "gate", gate), array("swiglu", "up", up), backend)


def topk_gate(
    logits: Tensor,
    k: int,
    *,
    score: str = "softmax",
    renormalize: bool = True,
    scale: float = 1.0,
    bias: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose k experts per token and weigh them.

    Experts are ranked by their logits, or by score + bias where a bias is given (it takes part in the choice
    only); equal keys go to the lower index and NaN ranks first, so the choice is deterministic. Weights are the
    scores of the chosen ones, divided by their sum if renormalised, times scale. Gradients flow through the weights
    to logits.

    Args:
        logits: [..., experts], real floating-point.
        k: Experts per token.
        score: ``"softmax"`` over all experts, or ``"sigmoid"``.
        renormalize: Make a token's weights sum to ``scale``.
        scale: Factor of the weights.
        bias: [experts] in the dtype of logits, float32 or float64.
        backend: Strict choice of a backend.

    Returns:
        Weights [..., k], float32 (float64 for float64 logits), and indices [..., k], int64, best first.

    Raises:
        InvalidInputError: k is outside [1, experts], score is unknown, or shapes do not fit.

    >>> weights, indices = fm.math.topk_gate(torch.tensor([[0.0, 2.0, 2.0]]), 2)
    >>> indices, weights
    (tensor([[1, 2]]), tensor([[0.5000, 0.5000]]))
    """
    params = {
        "k": integer("topk_gate", "k", k),
        "score": score,
        "renormalize": bool(renormalize),
        "scale": number("topk_gate", "scale", scale),
    }
    return run(OPS["topk_gate"], (array("topk_gate", "logits", logits), bias), params, backend)  # type: ignore[no-any-return]
