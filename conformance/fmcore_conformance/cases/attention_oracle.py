"""Attention and its gradients in float64 by the textbook formulas, with the magnitudes that the floors are made of.

This is the suite's second derivation, independent of ``fmcore.reference`` (a test holds the two together): it takes the
visible pairs as a dense matrix from the literal rule table, and it is meant for short sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Forward:
    """Reference of the forward pass, all float64.

    Attributes:
        out: [b, s_q, h_q, dv].
        lse: [b, h_q, s_q]; -inf for rows that see nothing and have no sink.
        max_terms: Largest visible ``scale * |q| . |k|`` of each row, [b, h_q, s_q]: a score is rounded in proportion
            to its terms.
        p: Probabilities [b, h_q, s_q, s_k].
        cap: Derivative of the soft cap at each score, or 1.
        scale: Softmax scale.
    """

    out: Tensor
    lse: Tensor
    max_terms: Tensor
    p: Tensor
    cap: Tensor
    scale: float


@dataclass(frozen=True)
class Backward:
    """Reference gradients in float64, and the floor of each row for dq, dk and dv."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dsink: Tensor | None
    floor_q: Tensor
    floor_k: Tensor
    floor_v: Tensor


def _heads_first(x: Tensor, h_q: int) -> Tensor:
    """[b, s, h, d] as float64 [b, h_q, s, d] on the host, key/value heads repeated for their group."""
    x = x.detach().cpu().to(torch.float64).transpose(1, 2)
    return x.repeat_interleave(h_q // x.shape[1], 1)


def forward(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, *, scale: float, softcap: float = 0.0, sink: Tensor | None = None
) -> Forward:
    """Reference forward pass.

    Args:
        q: [b, s_q, h_q, d].
        k: [b, s_k, h_kv, d].
        v: [b, s_k, h_kv, dv].
        visible: Bool, broadcastable to [b, h_q, s_q, s_k].
        scale: Softmax scale.
        softcap: Soft cap of the scores; 0 for none.
        sink: [h_q], an extra term of each row's denominator.
    """
    h_q = q.shape[2]
    Q, K, V = _heads_first(q, h_q), _heads_first(k, h_q), _heads_first(v, h_q)
    visible = visible.expand(Q.shape[0], h_q, Q.shape[2], K.shape[2])
    # Products with hidden keys are never formed into a score: they may be NaN on purpose.
    score = scale * torch.einsum("bhid,bhjd->bhij", Q, torch.nan_to_num(K))
    cap = torch.ones_like(score)
    if softcap:
        score = softcap * torch.tanh(score / softcap)
        cap = 1 - (score / softcap).square()
    masked = score.masked_fill(~visible, -torch.inf)
    rows = masked
    if sink is not None:
        column = sink.detach().cpu().to(torch.float64).view(1, h_q, 1, 1).expand(*masked.shape[:3], 1)
        rows = torch.cat([masked, column], -1)
    if rows.shape[-1] == 0:
        lse = torch.full(rows.shape[:3], -torch.inf, dtype=torch.float64)
    else:
        lse = torch.logsumexp(rows, -1)
    p = torch.exp(masked - lse.masked_fill(lse.isinf(), 0.0).unsqueeze(-1)).masked_fill(~visible, 0.0)
    out = torch.einsum("bhij,bhjd->bhid", p, V).transpose(1, 2)
    terms = abs(scale) * torch.einsum("bhid,bhjd->bhij", Q.abs(), torch.nan_to_num(K).abs()).masked_fill(~visible, 0.0)
    most = terms.amax(-1) if terms.shape[-1] else torch.zeros_like(lse)
    return Forward(out, lse, most, p, cap, scale)


def backward(
    ref: Forward,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    dlse: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    dtype: str = "float64",
) -> Backward:
    """Reference gradients: dS = P (dP - delta + dlse), through the soft cap and the scale.

    Args:
        ref: The forward pass.
        q: Query, as given to ``forward``.
        k: Key.
        v: Value.
        dout: Gradient of out, [b, s_q, h_q, dv].
        dlse: Gradient of lse, [b, h_q, s_q], or None.
        sink: The sink, if the forward pass had one.
        dtype: Tested dtype. Probabilities and their gradients enter products in it, and below its smallest normal
            number they keep an absolute accuracy only: that number is added to their magnitudes in the floors.
    """
    h_q, h_kv = q.shape[2], k.shape[2]
    Q, K, V = _heads_first(q, h_q), _heads_first(k, h_q), _heads_first(v, h_q)
    dO, O = _heads_first(dout, h_q), ref.out.transpose(1, 2)
    dl = torch.zeros_like(ref.lse) if dlse is None else dlse.detach().cpu().to(torch.float64)
    dP = torch.einsum("bhid,bhjd->bhij", dO, V)
    delta = (dO * O).sum(-1)
    dS = ref.p * (dP + (dl - delta).unsqueeze(-1)) * ref.cap
    # dP and delta are sums too: where they cancel, an honest kernel is left with the rounding of their terms.
    dP_terms = torch.einsum("bhid,bhjd->bhij", dO.abs(), V.abs())
    delta_terms = (dO.abs() * torch.einsum("bhij,bhjd->bhid", ref.p, V.abs())).sum(-1)
    size = ref.p * (dP_terms + (delta_terms + dl.abs()).unsqueeze(-1)) * ref.cap
    tiny = float(torch.finfo(getattr(torch, dtype)).tiny) * (ref.p > 0)
    size = size + tiny
    dq = ref.scale * torch.einsum("bhij,bhjd->bhid", dS, K)
    dk = ref.scale * torch.einsum("bhij,bhid->bhjd", dS, Q)
    dv = torch.einsum("bhij,bhid->bhjd", ref.p, dO)
    floor_q = ref.scale * torch.einsum("bhij,bhjd->bhid", size, K.abs())
    floor_k = ref.scale * torch.einsum("bhij,bhid->bhjd", size, Q.abs())
    floor_v = torch.einsum("bhij,bhid->bhjd", ref.p + tiny, dO.abs())
    dsink = None
    if sink is not None:
        share = torch.exp(sink.detach().cpu().to(torch.float64).view(1, h_q, 1) - ref.lse)
        dsink = (share * (dl - delta)).sum((0, 2))
    return Backward(
        dq.transpose(1, 2),
        _per_kv(dk, h_kv),
        _per_kv(dv, h_kv),
        dsink,
        floor_q.norm(dim=-1).transpose(1, 2),
        _per_kv(floor_k, h_kv).norm(dim=-1),
        _per_kv(floor_v, h_kv).norm(dim=-1),
    )


def _per_kv(x: Tensor, h_kv: int) -> Tensor:
    """[b, h_q, s, d] summed over each KV head's query heads, as [b, s, h_kv, d]."""
    b, h_q, s, d = x.shape
    return x.reshape(b, h_kv, h_q // h_kv, s, d).sum(2).transpose(1, 2)
