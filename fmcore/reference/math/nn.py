"""Oracle of the fused LLM ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from fmcore.reference.math._wide import wide
from fmcore.reference.math.elementwise import sigmoid
from fmcore.reference.math.reductions import logsumexp_rows, mean

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ORACLE"]


def rms_norm(x: Tensor, weight: Tensor | None, *, eps: float) -> Tensor:
    """X / sqrt(mean(x**2) + eps) * weight."""
    v = wide(x)
    y = v / (mean(v * v, axis=(x.ndim - 1,), keepdims=True) + eps).sqrt()
    return y if weight is None else y * wide(weight)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Turn pair i of each head by its angle: features (2i, 2i + 1) if interleaved, else (i, i + pairs)."""
    y = wide(x).clone()
    pairs = cos.shape[-1]
    c, s = ((wide(t) if t.ndim == 3 else wide(t)[None])[:, :, None] for t in (cos, sin))
    for i in range(pairs):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
        a, b = wide(x)[..., first], wide(x)[..., second]
        y[..., first] = a * c[..., i] - b * s[..., i]
        y[..., second] = a * s[..., i] + b * c[..., i]
    return y


def rotary_complex(x: Tensor, rotation: Tensor) -> Tensor:
    """Return x times rotation, a real x read as (re, im) pairs."""
    turn = wide(rotation) if rotation.ndim == 3 else wide(rotation)[None]
    turn = turn[:, :, None]
    if x.is_complex():
        return wide(x) * turn
    pairs = wide(x).reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    y = torch.complex(pairs[..., 0], pairs[..., 1]) * turn
    return torch.stack((y.real, y.imag), dim=-1).reshape(x.shape)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Gate * sigmoid(gate) * up."""
    return wide(gate) * sigmoid(gate) * wide(up)


def topk_gate(
    logits: Tensor, bias: Tensor | None, *, k: int, score: str, renormalize: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Scores, then the k best one after another: larger key first, then lower index."""
    values = wide(logits)
    scores = (
        sigmoid(logits) if score == "sigmoid" else (values - logsumexp_rows(values.movedim(-1, 0))[..., None]).exp()
    )
    keys = values if bias is None else scores + wide(bias)
    flat, flat_scores, flat_values = (t.reshape(-1, t.shape[-1]).tolist() for t in (keys, scores, values))
    weights: list[list[float]] = []
    indices: list[list[int]] = []
    for row, row_scores, row_values in zip(flat, flat_scores, flat_values, strict=True):
        order = sorted(range(len(row)), key=lambda e: (row[e] == row[e], -row[e] if row[e] == row[e] else 0.0, e))[:k]
        indices.append(order)
        weights.append(
            _weights([row_scores[e] for e in order], [row_values[e] for e in order], score, renormalize, scale)
        )
    shape = (*logits.shape[:-1], k)
    device: Any = logits.device
    return (
        torch.tensor(weights, dtype=torch.float64, device=device).reshape(shape),
        torch.tensor(indices, dtype=torch.int64, device=device).reshape(shape),
    )


def _weights(scores: list[float], logits: list[float], score: str, renormalize: bool, scale: float) -> list[float]:  # noqa: FBT001
    if not renormalize:
        return [scale * s for s in scores]
    if sum(scores) > 1e-200:
        return [scale * s / sum(scores) for s in scores]
    # All scores underflow: the ratio of sigmoids, like that of exponentials, tends to that of exp(logit).
    del score
    powers = torch.tensor(logits, dtype=torch.float64).softmax(0)
    return [float(scale * p) for p in powers]


ORACLE: Final[dict[str, Callable[..., Any]]] = {
    "rms_norm": rms_norm,
    "rotary": rotary,
    "rotary_complex": rotary_complex,
    "swiglu": swiglu,
    "topk_gate": topk_gate,
}
