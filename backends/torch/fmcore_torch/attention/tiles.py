"""FlashMask attention by tiles in torch matrix products, forward and backward, on any torch device.

Every query tile reads its visible keys alone, in products as long as the mask permits, with the online softmax of
FlashAttention (Dao et al., arXiv 2205.14135) between them; the backward recomputes the probabilities from lse. Beyond
inputs and outputs memory is a copy of the operands in tile order, and the scores of one product. Every sum runs in a
fixed order.

Scores are kept times log2(e), a factor that costs nothing beside the softmax scale: exp2 is the faster function, above
all where it underflows, which is what hidden pairs do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fmcore.masks import Mask
from fmcore_torch.attention.arithmetic import Arithmetic, arithmetic
from fmcore_torch.attention.walk import Part, Walk, keys_first, pack_rows

__all__ = ["backward", "forward"]

LN2 = math.log(2.0)
LOG2E = 1.0 / LN2


@dataclass(frozen=True)
class _Logits:
    """From products of query and key to scores in units of log2(e): ``after * tanh(before * qk)``, or ``before * qk``.

    Where factors are as precise as sums, ``before`` is multiplied into the queries once and ``left`` is None.
    """

    before: float
    after: float
    left: float | None
    undo: float  # the softmax scale over ``before``

    @classmethod
    def of(cls, scale: float, softcap: float, how: Arithmetic) -> _Logits:
        before = scale / softcap if softcap else scale * LOG2E
        left = None if how.operand == how.sums else before
        return cls(before, softcap * LOG2E, left, softcap or LN2)

    def queries(self, q: Tensor, heads: int, how: Arithmetic) -> Tensor:
        """Queries in tile order."""
        rows = pack_rows(q, heads, how.operand)
        return rows.mul(self.before) if self.left is None else rows

    def scores(self, products: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scores, in the memory of ``products``, and the slope of the soft cap or None."""
        if self.left is not None:
            products *= self.left
        if not self.after:
            return products, None
        products.tanh_()
        slope = 1.0 - products.square()
        products *= self.after
        return products, slope


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    deterministic: bool = True,
    how: Arithmetic | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of validated tensors under ``mask``.

    Args:
        q: ``[b, s_q, h_q, d]`` in float16, bfloat16, float32 or float64, of any strides.
        k: ``[b, s_k, h_kv, d]``.
        v: ``[b, s_k, h_kv, dv]``.
        mask: What is visible.
        softmax_scale: Factor of the scores.
        softcap: Where positive, a score s becomes ``softcap * tanh(s / softcap)``.
        sink: None, or ``[h_q]``: a logit without a value in each row's denominator.
        deterministic: Always honoured.
        how: Tile sizes and dtypes; by device if None.

    Returns:
        out ``[b, s_q, h_q, dv]`` in q's dtype; lse ``[b, h_q, s_q]``, natural log, float32 (float64 for float64).
    """
    del deterministic
    how = how or arithmetic(q.dtype, q.device)
    b, s_q, h_q, _ = q.shape
    s_k, heads = k.shape[1:3]
    group = h_q // heads
    logits = _Logits.of(softmax_scale, softcap, how)
    Q = logits.queries(q, heads, how)
    K, V = keys_first(k, how.operand), keys_first(v, how.operand)
    out = q.new_zeros(b, s_q, heads, group, v.shape[3])
    lse = Q.new_full((b, heads, s_q, group), -torch.inf, dtype=how.sums)
    rows_out = out.transpose(1, 2)
    for part in Walk(mask, how, (b, s_q, s_k, h_q, heads), q.device):
        total, weight, top = _softmax_sum(part, Q, K, V, logits, how)
        window = part.window(lse)
        row_lse = (top + weight.log2()).mul_(LN2).view(window.shape)
        share = 1.0 / weight.masked_fill(weight == 0.0, 1.0)
        if sink is not None:
            logit = _per_head(sink, heads, how.sums)[:, part.heads, :, part.group]
            with_sink = torch.logaddexp(row_lse, logit)
            share *= torch.exp(row_lse - with_sink.masked_fill(with_sink == -torch.inf, 0.0)).view(share.shape)
        window.copy_(row_lse)
        target = part.window(rows_out)
        target.copy_((total.mul_(share)).view(target.shape))
    if sink is not None:
        torch.logaddexp(lse, _per_head(sink, heads, how.sums), out=lse)
    return out.flatten(2, 3), lse.transpose(2, 3).flatten(1, 2)


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Mask,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    deterministic: bool = True,
    how: Arithmetic | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v and the sink; the gradient of lse is honoured.

    Returns:
        ``(dq, dk, dv, dsink)`` in the dtypes of q, k, v and the sink; dsink is None without a sink. Columns that nobody
        sees and rows that see nothing get zeros, whatever ``dlse`` holds there.
    """
    del deterministic
    how = how or arithmetic(q.dtype, q.device)
    b, s_q, h_q, _ = q.shape
    s_k, heads = k.shape[1:3]
    group = h_q // heads
    logits = _Logits.of(softmax_scale, softcap, how)
    Q = logits.queries(q, heads, how)
    K, V = keys_first(k, how.operand), keys_first(v, how.operand)
    dO = pack_rows(dout, heads, how.operand)
    norm = _by_row(lse, heads, how.sums).contiguous()
    delta = _delta(dO, out, dlse, heads, how.sums)
    # Where a row sees nothing lse is -inf: then P = exp(s - inf) = 0 and dS = 0 * (dP - 0), never a NaN.
    nothing = norm == -torch.inf
    norm, delta = norm.masked_fill_(nothing, torch.inf), delta.masked_fill_(nothing, 0.0)
    norm2 = norm * LOG2E
    dq = q.new_zeros(b, s_q, heads, group, q.shape[3])
    dK, dV = (torch.zeros_like(t, dtype=how.sums) for t in (K, V))
    rows_dq = dq.transpose(1, 2)
    for part in Walk(mask, how, (b, s_q, s_k, h_q, heads), q.device):
        _gradients(part, (Q, K, V, dO), (norm2, delta), (rows_dq, dK, dV), softmax_scale, logits, how)
    dK *= softmax_scale if logits.left is not None else logits.undo
    dsink = None
    if sink is not None:
        share = torch.exp(_per_head(sink, heads, how.sums) - norm)
        dsink = -(share * delta).sum((0, 2)).flatten().to(sink.dtype)
    return (
        dq.flatten(2, 3),
        dK.to(k.dtype).transpose(1, 2).contiguous(),
        dV.to(v.dtype).transpose(1, 2).contiguous(),
        dsink,
    )


def _softmax_sum(
    part: Part, Q: Tensor, K: Tensor, V: Tensor, logits: _Logits, how: Arithmetic
) -> tuple[Tensor, Tensor, Tensor]:
    """Over the keys of a part: sums of exp2(s - top) v and of exp2(s - top), and top, the largest s (0 if -inf)."""
    rows = part.rows(Q)
    total = weight = top = safe = None
    for which, segment in enumerate(part.tile.segments):
        scores, _ = logits.scores(how.product(rows, part.columns(K, segment).mT))
        part.hide(scores, which, -torch.inf)
        largest = scores.amax(-1, keepdim=True)
        new = largest if top is None else torch.maximum(top, largest)
        new_safe = new.masked_fill(new == -torch.inf, 0.0)
        p = scores.sub_(new_safe).exp2_()
        mass = p.sum(-1, keepdim=True)
        values = part.columns(V, segment)
        if top is None or total is None or weight is None or safe is None:
            total, weight = how.product(how.factor(p), values), mass
        else:
            shrink = torch.exp2(top - new_safe)  # top may be -inf: then nothing is kept of the zero sums
            weight = weight * shrink + mass
            total *= shrink
            how.add_product(total, how.factor(p), values)
        top, safe = new, new_safe
    if total is None or weight is None or safe is None:
        raise RuntimeError("a query tile without segments was scheduled")
    return total, weight, safe


def _gradients(
    part: Part,
    operands: tuple[Tensor, Tensor, Tensor, Tensor],
    row_values: tuple[Tensor, Tensor],
    gradients: tuple[Tensor, Tensor, Tensor],
    scale: float,
    logits: _Logits,
    how: Arithmetic,
) -> None:
    """Write dq of a part and add to dk and dv of the keys that it reads."""
    Q, K, V, dO = operands
    dq, dK, dV = gradients
    rows, grad = part.rows(Q), part.rows(dO)
    norm, delta = (part.window(t).reshape(rows.shape[0], rows.shape[1], 1) for t in row_values)
    total = None
    for which, segment in enumerate(part.tile.segments):
        keys = part.columns(K, segment)
        p, slope = logits.scores(how.product(rows, keys.mT))
        part.hide(p, which, -torch.inf)
        p.sub_(norm).exp2_()
        dS = how.product(grad, part.columns(V, segment).mT).sub_(delta).mul_(p)
        if slope is not None:
            dS *= slope
        weights, dS = how.factor(p), how.factor(dS)
        for (a, b, dv), (_, _, dk) in zip(part.pieces(dV, segment), part.pieces(dK, segment), strict=True):
            how.add_product(dv, weights[..., a:b].mT, grad)
            how.add_product(dk, dS[..., a:b].mT, rows)
        if total is None:
            total = how.product(dS, keys)
        else:
            how.add_product(total, dS, keys)
    if total is not None:
        target = part.window(dq)
        target.copy_(total.mul_(scale).view(target.shape))


def _delta(dO: Tensor, out: Tensor, dlse: Tensor | None, heads: int, sums: torch.dtype) -> Tensor:
    """rowsum(dO * out) - dlse, ``[b, h_kv, s_q, group]``."""
    delta = (dO.to(sums) * pack_rows(out, heads, sums)).sum(-1)
    if dlse is not None:
        delta -= _by_row(dlse, heads, sums)
    return delta


def _by_row(t: Tensor, heads: int, sums: torch.dtype) -> Tensor:
    """``[b, h_q, s_q]`` as ``[b, h_kv, s_q, group]``, a view if the dtype is right."""
    b, h, s = t.shape
    return t.to(sums).reshape(b, heads, h // heads, s).transpose(2, 3)


def _per_head(sink: Tensor, heads: int, sums: torch.dtype) -> Tensor:
    """``[h_q]`` as ``[1, h_kv, 1, group]``."""
    return sink.to(sums).view(1, heads, 1, -1)
