"""The oracle of attention: the textbook formulas in float64, some rows at a time.

    S = scale * Q K^T;  S = softcap * tanh(S / softcap);  P = exp(S - lse) on visible pairs, 0 elsewhere;  O = P V
    dV = P^T dO;  dP = dO V^T;  dS = P * (dP - rowsum(dO * O) + dlse) * (1 - (S / softcap)^2)
    dQ = scale * dS K;  dK = scale * dS^T Q

Whatever comes in is widened to float64 on the host, so half inputs are exact; scores exist for a bounded number of
pairs at a time. Only visible pairs take part: a NaN at a hidden key reaches nothing. The backward recomputes everything
from the inputs and reads neither the rounded output nor the rounded lse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fmcore.masks import Mask

__all__ = ["backward", "exact_backward", "exact_forward", "forward", "gradient_floors"]

CHUNK = 1 << 22
"""Most pairs (batches x query heads x rows x keys) whose scores exist at a time: 32 MiB in float64."""


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
) -> tuple[Tensor, Tensor]:
    """Attention by definition, rounded once at the end.

    Args:
        q: ``[b, s_q, h_q, d]``, any real floating dtype and device.
        k: ``[b, s_k, h_kv, d]``.
        v: ``[b, s_k, h_kv, dv]``.
        mask: What is visible.
        softmax_scale: Factor of the scores.
        softcap: Where positive, a score s becomes ``softcap * tanh(s / softcap)``.
        sink: None, or ``[h_q]``: a logit without a value in each row's denominator.
        deterministic: Always honoured.

    Returns:
        out ``[b, s_q, h_q, dv]`` in q's dtype; lse ``[b, h_q, s_q]``, natural log, float32 (float64 for float64).
    """
    del deterministic
    out, lse = exact_forward(q, k, v, mask, softmax_scale=softmax_scale, softcap=softcap, sink=sink)
    return out.to(q.device, q.dtype), lse.to(q.device, torch.float64 if q.dtype == torch.float64 else torch.float32)


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
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients by definition, rounded once at the end; ``out`` and ``lse`` are recomputed, not read.

    Returns:
        ``(dq, dk, dv, dsink)`` in the dtypes of q, k, v and the sink; dsink is None without a sink.
    """
    del out, lse, deterministic
    options = {"softmax_scale": softmax_scale, "softcap": softcap}
    *found, dsink = exact_backward(dout, dlse, q, k, v, mask, sink=sink, **options)
    dq, dk, dv = (g.to(t.device, t.dtype) for g, t in zip(found, (q, k, v), strict=True))
    return dq, dk, dv, None if sink is None or dsink is None else dsink.to(sink.device, sink.dtype)


def exact_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As :func:`forward`, unrounded: out and lse in float64 on the host."""
    problem = _Problem.of(q, k, v, mask, softmax_scale, softcap, sink)
    out = problem.q.new_zeros(*problem.q.shape[:4], v.shape[3])
    lse = problem.q.new_full(problem.q.shape[:4], -torch.inf)
    for rows in problem.chunks():
        chunk = problem.chunk(*rows)
        out[rows], lse[rows] = _weigh(chunk.p, chunk.visible, problem.v[rows[0]]), chunk.lse
    return _rows_first(out), lse.flatten(1, 2)


def exact_backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """As :func:`backward`, unrounded: dq, dk, dv and dsink (None without a sink) in float64 on the host."""
    problem = _Problem.of(q, k, v, mask, softmax_scale, softcap, sink)
    grad = _query_heads(dout, k.shape[2])
    dlse = (
        torch.zeros(problem.q.shape[:4], dtype=torch.float64) if dlse is None else _wide(dlse).view(problem.q.shape[:4])
    )
    dq, dk, dv = (torch.zeros_like(t) for t in (problem.q, problem.k, problem.v))
    dsink = None if problem.sink is None else torch.zeros_like(problem.sink)
    for rows in problem.chunks():
        batch = rows[0]
        chunk, dO = problem.chunk(*rows), grad[rows]
        delta, dP = problem.row_terms(chunk, dO, batch)
        dS = chunk.p * chunk.slope * (dP + (dlse[rows] - delta).unsqueeze(-1)) * softmax_scale
        dS = dS.masked_fill(~chunk.visible, 0.0)
        dq[rows] = _weigh(dS, chunk.visible, problem.k[batch])
        dk[batch] += _weigh(dS.mT, chunk.visible.mT, problem.q[rows]).sum(2, keepdim=True)
        dv[batch] += _weigh(chunk.p.mT, chunk.visible.mT, dO).sum(2, keepdim=True)
        if dsink is not None:
            dsink += (chunk.p_sink * (dlse[rows] - delta)).sum((0, 3))
    return _rows_first(dq), _rows_first(dk), _rows_first(dv), None if dsink is None else dsink.flatten()


def gradient_floors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    mask: Mask,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    dlse: Tensor | None = None,
    by_terms: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Size, row by row, of the terms that may cancel in each gradient.

    A gradient row is a sum whose terms can cancel completely (dq of a row with one visible key is exactly 0), so an
    honest kernel's error is proportional to the size of the terms, not of the sum. With
    W = P * (|dP| + |delta| + |dlse|), times the slope of the soft cap, the floors are the row norms of::

        scale * W |K|  (dq),    scale * W^T |Q|  (dk),    P^T |dO|  (dv)

    ``by_terms`` takes |dO| |V|^T for |dP| and rowsum(|dO| * P |V|) for |delta|: dP and delta are sums too, and where
    they cancel an honest kernel is left with the rounding of their terms, not of their values.

    A gradient must keep ``|error row| <= c * u * (|reference row| + floor)``; ``docs/numerics.md`` says how c was
    found.

    Returns:
        Floors of dq ``[b, s_q, h_q]``, dk and dv ``[b, s_k, h_kv]``, float64 on the host.
    """
    if by_terms:
        v, dout = v.abs(), dout.abs()
    problem = _Problem.of(q, k, v, mask, softmax_scale, softcap, sink)
    grad = _query_heads(dout, k.shape[2])
    extra = (
        torch.zeros(problem.q.shape[:4], dtype=torch.float64) if dlse is None else _wide(dlse).view(problem.q.shape[:4])
    )
    dq, dk, dv = (torch.zeros_like(t) for t in (problem.q, problem.k, problem.v))
    for rows in problem.chunks():
        batch = rows[0]
        chunk, dO = problem.chunk(*rows), grad[rows]
        delta, dP = problem.row_terms(chunk, dO, batch)
        size = chunk.p * chunk.slope * (dP.abs() + (delta.abs() + extra[rows].abs()).unsqueeze(-1)) * abs(softmax_scale)
        size = size.masked_fill(~chunk.visible, 0.0)
        dq[rows] = _weigh(size, chunk.visible, problem.k[batch].abs())
        dk[batch] += _weigh(size.mT, chunk.visible.mT, problem.q[rows].abs()).sum(2, keepdim=True)
        dv[batch] += _weigh(chunk.p.mT, chunk.visible.mT, dO.abs()).sum(2, keepdim=True)
    floor_q, floor_k, floor_v = (_rows_first(t).norm(dim=-1) for t in (dq, dk, dv))
    return floor_q, floor_k, floor_v


@dataclass(frozen=True)
class _Chunk:
    """Some rows of the score matrix, all ``[batch, h_kv, group, rows, s_k]`` (``lse``, ``p_sink`` without s_k)."""

    visible: Tensor
    p: Tensor
    slope: Tensor
    lse: Tensor
    p_sink: Tensor


@dataclass(frozen=True)
class _Problem:
    """Inputs in float64: q ``[b, h_kv, group, s_q, d]``, k and v ``[b, h_kv, 1, s_k, n]``, sink ``[h_kv, group]``."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    scale: float
    softcap: float
    sink: Tensor | None

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, softcap: float, sink: Tensor | None
    ) -> _Problem:
        heads = k.shape[2]
        wide_sink = None if sink is None else _wide(sink).view(heads, -1)
        wide = _query_heads(q, heads), _query_heads(k, heads), _query_heads(v, heads)
        return cls(*wide, mask.to("cpu"), scale, softcap, wide_sink)

    def chunks(self) -> Iterator[tuple[slice, slice, slice, slice]]:
        """Indices of the chunks, each into ``[b, h_kv, group, s_q]``."""
        b, heads, group, s_q = self.q.shape[:4]
        if not b * s_q:
            return
        row = heads * group * max(1, self.k.shape[3])
        rows = max(1, min(s_q, CHUNK // row))
        batches = max(1, CHUNK // (row * rows)) if rows == s_q else 1
        everything = slice(None)
        for n in range(0, b, batches):
            for i in range(0, s_q, rows):
                yield slice(n, min(b, n + batches)), everything, everything, slice(i, min(s_q, i + rows))

    def chunk(self, batch: slice, heads: slice, group: slice, rows: slice) -> _Chunk:
        """Visible pairs, probabilities, slope of the soft cap and lse of one chunk."""
        q, k = self.q[batch, heads, group, rows], self.k[batch]
        visible = self._visible(batch, rows).expand(*q.shape[:4], k.shape[3])
        score = self.scale * (q @ k.mT)
        slope = torch.ones_like(score)
        if self.softcap:
            score = self.softcap * torch.tanh(score / self.softcap)
            slope = 1 - (score / self.softcap).square()
        score = score.masked_fill(~visible, -torch.inf)
        none = q.new_full((*q.shape[:4], 1), -torch.inf)
        sink = none if self.sink is None else self.sink[None, :, :, None, None].expand_as(none)
        lse = torch.logsumexp(torch.cat([score, sink], -1), -1)
        base = lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1)  # a row of nothing: exp(-inf - 0) = 0
        p_sink = torch.exp(sink - base).squeeze(-1)
        p = torch.exp(score - base).masked_fill(~visible, 0.0)  # a NaN row spoils its visible pairs alone
        return _Chunk(visible, p, slope.masked_fill(~visible, 0.0), lse, p_sink)

    def row_terms(self, chunk: _Chunk, dO: Tensor, batch: slice) -> tuple[Tensor, Tensor]:
        """Return delta = rowsum(dO * O), and dP = dO V^T on visible pairs."""
        out = _weigh(chunk.p, chunk.visible, self.v[batch])
        dP = (dO @ self.v[batch].mT).masked_fill(~chunk.visible, 0.0)
        return (dO * out).sum(-1), dP

    def _visible(self, batch: slice, rows: slice) -> Tensor:
        """The mask's rule for some rows: bool, broadcastable to ``[batch, h_kv, group, rows, s_k]``."""
        mask = self.mask
        one = mask.batch == 1
        row = torch.arange(rows.start, rows.stop).unsqueeze(-1)
        bounds = (mask.planes if one else mask.planes[batch]).unsqueeze(-2).unbind(2)
        if mask.mode == 1:
            visible = (bounds[0] <= row) & (row < bounds[1])
        else:
            us, ue, ls, le = bounds
            visible = ~((us <= row) & (row < ue)) & ~((ls <= row) & (row < le))
        if mask.block_mask is not None:
            keep = mask.block_mask if one else mask.block_mask[batch]
            column = torch.arange(mask.s_k)
            visible = visible & keep.bool()[:, :, row // 128, column // 128]
        heads = self.q.shape[1] if mask.heads > 1 else 1
        return visible.reshape(visible.shape[0], heads, mask.heads // heads, *visible.shape[2:])


def _wide(t: Tensor) -> Tensor:
    return t.detach().to("cpu", torch.float64)


def _query_heads(t: Tensor, heads: int) -> Tensor:
    """``[b, s, h, d]`` as float64 ``[b, heads, h // heads, s, d]``: query head h reads KV head h // group."""
    b, s, h, n = t.shape
    return _wide(t).reshape(b, s, heads, h // heads, n).permute(0, 2, 3, 1, 4).contiguous()


def _rows_first(t: Tensor) -> Tensor:
    """``[b, h_kv, group, s, d]`` as contiguous ``[b, s, h, d]``."""
    return t.flatten(1, 2).transpose(1, 2).contiguous()


def _weigh(weights: Tensor, visible: Tensor, values: Tensor) -> Tensor:
    """``weights @ values`` over visible pairs only: hidden NaN and infinite values do not count, visible ones do."""
    finite = values.isfinite()
    if bool(finite.all()):
        return weights @ values
    total = weights @ values.masked_fill(~finite, 0.0)
    reached = visible.to(torch.float64) @ (~finite).to(torch.float64)
    return total.masked_fill(reached > 0, torch.nan)
