"""Honest attention on whole matrices, every step a method: what attention saboteurs start from."""

# ruff: noqa: ARG002 (steps share their signatures with the faults that override them)

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from fmcore.masks import Mask

DTYPES = {"float16", "bfloat16", "float32", "float64"}


class Dense:
    """Honest attention with the whole score matrix in fp32 (float64 for float64 inputs). Every step is a method."""

    kind: str | None = None
    globs: tuple[str, ...] = ("*",)

    def read(self, x: Tensor) -> Tensor:
        """An input as the kernel sees it."""
        return x

    def heads(self, x: Tensor, h_q: int) -> Tensor:
        """[b, s, h, d] as [b, h_q, s, d] in the accumulation dtype, KV heads repeated for their group."""
        x = x.to(self.wide(x)).transpose(1, 2)
        return x.repeat_interleave(h_q // x.shape[1], 1)

    def wide(self, x: Tensor) -> torch.dtype:
        """Accumulation dtype."""
        return torch.float64 if x.dtype == torch.float64 else torch.float32

    def planes(self, mask: Mask) -> Tensor:
        """Hidden intervals of each column, [batch, heads, 4, s_k] as (us, ue, ls, le), canonical."""
        p = mask.planes
        if mask.mode == 2:
            return p
        begin, end = p[:, :, 0], p[:, :, 1]
        last = torch.full_like(begin, mask.s_q)
        return torch.stack([torch.zeros_like(begin), begin, end, last], 2)

    def dense(self, mask: Mask, planes: Tensor) -> Tensor:
        """Visible pairs from intervals."""
        i = torch.arange(mask.s_q).view(1, 1, -1, 1)
        us, ue, ls, le = (planes[:, :, n].unsqueeze(2) for n in range(4))
        return ~(((i >= us) & (i < ue)) | ((i >= ls) & (i < le)))

    def visible(self, mask: Mask, h_q: int) -> Tensor:
        """Visible pairs for every query head."""
        seen = self.dense(mask, self.planes(mask))
        return self.blocks(mask, seen).repeat_interleave(h_q // mask.heads, 1)

    def blocks(self, mask: Mask, seen: Tensor) -> Tensor:
        """The block mask applied."""
        if mask.block_mask is None:
            return seen
        tiles = (
            mask.block_mask.bool()
            .repeat_interleave(128, 2)[:, :, : mask.s_q]
            .repeat_interleave(128, 3)[..., : mask.s_k]
        )
        return seen & tiles

    def score(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """Scaled scores."""
        return scale * (q @ k.transpose(-1, -2))

    def capped(self, s: Tensor, softcap: float) -> Tensor:
        """Soft-capped scores."""
        return softcap * torch.tanh(s / softcap) if softcap else s

    def lse(self, s: Tensor, sink: Tensor | None) -> Tensor:
        """Logarithm of each row's sum of exponentials."""
        if sink is not None:
            s = torch.cat([s, sink.to(s.dtype).view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
        if s.shape[-1] == 0:
            return s.new_full(s.shape[:3], -torch.inf)
        return torch.logsumexp(s, -1)

    def probability(self, s: Tensor, lse: Tensor, seen: Tensor) -> Tensor:
        """Normalised weights; zero where nothing is seen."""
        return torch.exp(s - lse.masked_fill(lse.isinf(), 0.0).unsqueeze(-1)).masked_fill(~seen, 0.0)

    def product(self, p: Tensor, v: Tensor) -> Tensor:
        """Weighted sum of the values."""
        return p @ v

    def finish(self, out: Tensor, lse: Tensor, seen: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """Last step of the forward pass."""
        return out, lse

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        *,
        softmax_scale: float,
        softcap: float,
        sink: Tensor | None,
        deterministic: bool,
    ) -> tuple[Tensor, Tensor]:
        """Contract of the op."""
        out, lse, _ = self.attend(q, k, v, mask, softmax_scale, softcap, sink)
        return out, lse

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, softcap: float, sink: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The forward pass with its intermediate values."""
        h_q = q.shape[2]
        seen = self.visible(mask, h_q)
        Q, K, V = (self.heads(self.read(x), h_q) for x in (q, k, v))
        raw = self.score(Q, K, scale)
        s = self.capped(raw, softcap).masked_fill(~seen, -torch.inf)
        lse = self.lse(s, sink)
        p = self.probability(s, lse, seen)
        out = self.product(p, V)
        out, lse = self.finish(out, lse, seen, mask)
        return (
            out.to(q.dtype).transpose(1, 2).contiguous(),
            lse,
            {"Q": Q, "K": K, "V": V, "p": p, "raw": raw, "seen": seen},
        )

    def lse_gradient(self, dlse: Tensor | None, like: Tensor) -> Tensor:
        """Gradient of lse as the backward pass uses it."""
        return torch.zeros_like(like) if dlse is None else dlse.to(like.dtype)

    def gradient_in(self, dout: Tensor) -> Tensor:
        """The output's gradient as the kernel sees it."""
        return dout

    def per_kv(self, x: Tensor, h_kv: int) -> Tensor:
        """Sum over the query heads of each KV head."""
        b, h_q, s, d = x.shape
        return x.reshape(b, h_kv, h_q // h_kv, s, d).sum(2).transpose(1, 2)

    def key_scale(self, scale: float) -> float:
        """Factor of dK."""
        return scale

    def backward_mask(self, mask: Mask, seen: Tensor) -> Tensor:
        """Pairs that take part in the backward pass."""
        return seen

    def gradients(self, dq: Tensor, dk: Tensor, dv: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Last step of the backward pass."""
        return dq, dk, dv

    def backward(
        self,
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
        softcap: float,
        sink: Tensor | None,
        deterministic: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Contract of the paired backward."""
        h_q, h_kv = q.shape[2], k.shape[2]
        _, _, kept = self.attend(q, k, v, mask, softmax_scale, softcap, sink)
        Q, K, V, p, raw = (kept[name] for name in ("Q", "K", "V", "p", "raw"))
        seen = self.backward_mask(mask, kept["seen"])
        if seen is not kept["seen"]:
            s = self.capped(raw, softcap).masked_fill(~seen, -torch.inf)
            p = self.probability(s, self.lse(s, sink), seen)
        dO = self.heads(self.gradient_in(dout), h_q)
        delta = (dO * self.heads(out, h_q)).sum(-1)
        dl = self.lse_gradient(dlse, delta)
        dP = dO @ V.transpose(-1, -2)
        dS = p * (dP + (dl - delta).unsqueeze(-1))
        if softcap:
            dS = dS * (1 - torch.tanh(raw / softcap).square())
        dq = (softmax_scale * (dS @ K)).transpose(1, 2)
        dk = self.per_kv(self.key_scale(softmax_scale) * (dS.transpose(-1, -2) @ Q), h_kv)
        dv = self.per_kv(p.transpose(-1, -2) @ dO, h_kv)
        dq, dk, dv = self.gradients(dq, dk, dv, kept["seen"])
        dsink = None
        if sink is not None:
            share = torch.exp(sink.to(lse.dtype).view(1, -1, 1) - lse)
            dsink = (share * (dl - delta)).sum((0, 2)).to(sink.dtype)
        return dq.to(q.dtype).contiguous(), dk.to(k.dtype).contiguous(), dv.to(v.dtype).contiguous(), dsink
