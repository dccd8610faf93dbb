"""Fused LLM ops as compositions of torch ops: computed in float32 or wider, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from fmcore_torch.math._half import accumulator, raised

if TYPE_CHECKING:
    from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, *, eps: float) -> Tensor:
    """Statistics, scale and weight in one precision, then one rounding."""
    v = x.to(accumulator(x.dtype))
    y = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y, factor = raised(y, weight)
        y = y * factor
    return y.to(x.dtype)


def _by_position(table: Tensor) -> Tensor:
    """[s, pairs] or [b, s, pairs] to [b or 1, s, 1, pairs]."""
    return (table if table.ndim == 3 else table.unsqueeze(0)).unsqueeze(2)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Turn the first 2 * pairs features, keep the rest."""
    pairs = cos.shape[-1]
    v, c, s = raised(x, _by_position(cos), _by_position(sin))
    turned, rest = v[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        a, b = turned.reshape(*turned.shape[:-1], pairs, 2).unbind(-1)
        y = torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :pairs], turned[..., pairs:]
        y = torch.cat((a * c - b * s, a * s + b * c), dim=-1)
    return torch.cat((y.to(x.dtype), rest), dim=-1)


def rotary_complex(x: Tensor, rotation: Tensor) -> Tensor:
    """Product with unit complex numbers; a real x is read as (re, im) pairs."""
    turn = _by_position(rotation)
    if x.is_complex():
        return (x * turn).to(x.dtype)
    pairs = x.to(accumulator(x.dtype)).reshape(*x.shape[:-1], x.shape[-1] // 2, 2).contiguous()
    return torch.view_as_real(torch.view_as_complex(pairs) * turn).flatten(-2).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    g, u = raised(gate, up)
    return (torch.nn.functional.silu(g) * u).to(gate.dtype)


def topk_gate(
    logits: Tensor, bias: Tensor | None, *, k: int, score: str, renormalize: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Select on logits, or on score + bias; a softmax of log-scores renormalises and cannot be 0 / 0."""
    values = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    keys = values.detach()
    if bias is not None:
        keys = _log_scores(keys, score).exp() + bias.detach().to(values.dtype)
    indices = torch.sort(keys, dim=-1, descending=True, stable=True).indices[..., :k].contiguous()
    chosen = _log_scores(values, score).gather(-1, indices)
    weights = torch.softmax(chosen, dim=-1) if renormalize else chosen.exp()
    return weights * scale, indices


def _log_scores(values: Tensor, score: str) -> Tensor:
    return torch.nn.functional.logsigmoid(values) if score == "sigmoid" else torch.log_softmax(values, dim=-1)


IMPLS: Final[dict[str, Callable[..., Any]]] = {
    "rms_norm": rms_norm,
    "rotary": rotary,
    "rotary_complex": rotary_complex,
    "swiglu": swiglu,
    "topk_gate": topk_gate,
}
