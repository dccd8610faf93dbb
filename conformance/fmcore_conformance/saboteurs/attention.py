"""Attention saboteurs: a plain dense implementation whose steps are overridden one at a time."""

# ruff: noqa: ARG002, D101 (each class is one planted fault: its name and kind say which; steps share their signatures)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fmcore.dispatch.caps import Caps
from fmcore_conformance.saboteurs.base import Saboteur

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fmcore.dispatch.registrar import Registrar
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


def _shifted(plane: int, by: int) -> Any:
    def planes(self: Dense, mask: Mask) -> Tensor:
        p = Dense.planes(self, mask).clone()
        first, second = (0, 1) if plane < 2 else (2, 3)
        inside = p[:, :, first] < p[:, :, second]
        moved = p[:, :, plane] + by
        ok = inside & (moved >= 0) & (moved <= mask.s_q)
        # Causal masks and the border of the sequence have no interval end to be wrong about at 0 and s_q.
        ok &= (p[:, :, plane] > 0) & (p[:, :, plane] < mask.s_q)
        p[:, :, plane] = torch.where(ok, moved, p[:, :, plane])
        return p

    return planes


class UpperStart(Dense):
    kind = "mask-upper-start"
    planes = _shifted(0, 1)


class UpperEnd(Dense):
    kind = "mask-upper-end"
    planes = _shifted(1, 1)


class LowerStart(Dense):
    kind = "mask-lower-start"
    planes = _shifted(2, 1)


class LowerEnd(Dense):
    kind = "mask-lower-end"
    planes = _shifted(3, -1)


class KeyDropped(Dense):
    kind = "key-dropped"

    def visible(self, mask: Mask, h_q: int) -> Tensor:
        seen = super().visible(mask, h_q).clone()
        if mask.s_k >= 90:
            seen[..., mask.s_k // 3] = False
        return seen


class CausalTopLeft(Dense):
    kind = "causal-alignment"

    def visible(self, mask: Mask, h_q: int) -> Tensor:
        if not mask.is_causal_only:
            return super().visible(mask, h_q)
        seen = torch.ones(mask.s_q, mask.s_k, dtype=torch.bool).tril()
        return seen.view(1, 1, mask.s_q, mask.s_k).expand(1, h_q, -1, -1)


class MaskHeadModulo(Dense):
    kind = "mask-head-map"

    def visible(self, mask: Mask, h_q: int) -> Tensor:
        seen = self.blocks(mask, self.dense(mask, self.planes(mask)))
        return seen.repeat(1, h_q // mask.heads, 1, 1)


class MaskOfFirstItem(Dense):
    kind = "mask-batch-map"

    def visible(self, mask: Mask, h_q: int) -> Tensor:
        return super().visible(mask, h_q)[:1]


class NoBlockMask(Dense):
    kind = "block-mask-ignored"

    def blocks(self, mask: Mask, seen: Tensor) -> Tensor:
        return seen


class TailUnmasked(Dense):
    """Columns past s_k of the last tile, zeros in memory, take part in the softmax's sum."""

    kind = "tail-tile"

    def lse(self, s: Tensor, sink: Tensor | None) -> Tensor:
        past = -s.shape[-1] % 64
        padding = torch.zeros(*s.shape[:3], past, dtype=s.dtype)
        seen = s.isfinite().any(-1, keepdim=True)
        return super().lse(torch.cat([s, padding.masked_fill(~seen, -torch.inf)], -1), sink)


class KvHeadModulo(Dense):
    kind = "kv-head-map"

    def heads(self, x: Tensor, h_q: int) -> Tensor:
        x = x.to(self.wide(x)).transpose(1, 2)
        return x.repeat(1, h_q // x.shape[1], 1, 1)


class NoScale(Dense):
    kind = "scale"

    def score(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return super().score(q, k, q.shape[-1] ** -0.5)


class NoSoftcap(Dense):
    kind = "softcap-ignored"

    def capped(self, s: Tensor, softcap: float) -> Tensor:
        return s


class NoSink(Dense):
    kind = "sink-ignored"

    def lse(self, s: Tensor, sink: Tensor | None) -> Tensor:
        return super().lse(s, None)


class LseBase2(Dense):
    kind = "lse-base-2"

    def finish(self, out: Tensor, lse: Tensor, seen: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        return out, lse / 0.6931471805599453


class LseRounded(Dense):
    kind = "lse-rounded"

    def finish(self, out: Tensor, lse: Tensor, seen: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        return out, lse.to(torch.bfloat16).to(lse.dtype)


class LsePlusInfinity(Dense):
    kind = "masked-row-lse-inf"

    def finish(self, out: Tensor, lse: Tensor, seen: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        return out, lse.masked_fill(lse == -torch.inf, torch.inf)


class MaskedRowNan(Dense):
    kind = "masked-row-nan"

    def probability(self, s: Tensor, lse: Tensor, seen: Tensor) -> Tensor:
        return torch.exp(s - lse.unsqueeze(-1))


class MaskedRowMean(Dense):
    kind = "masked-row-mean"

    def probability(self, s: Tensor, lse: Tensor, seen: Tensor) -> Tensor:
        p = super().probability(s, lse, seen)
        return torch.where(seen.any(-1, keepdim=True), p, torch.full_like(p, 1 / max(p.shape[-1], 1)))


class LowAccumulation(Dense):
    kind = "low-accumulation"

    def product(self, p: Tensor, v: Tensor) -> Tensor:
        if p.dtype != torch.float32 or p.shape[-1] < 2048:
            return super().product(p, v)
        total = torch.zeros(*p.shape[:3], v.shape[-1], dtype=torch.bfloat16)
        for at in range(0, p.shape[-1], 16):
            total = total + (p[..., at : at + 16] @ v[..., at : at + 16, :]).to(torch.bfloat16)
        return total.to(torch.float32)


class NoMaximum(Dense):
    kind = "large-logits"

    def lse(self, s: Tensor, sink: Tensor | None) -> Tensor:
        if sink is not None or s.shape[-1] == 0:
            return super().lse(s, sink)
        return s.exp().sum(-1).log()


class AdditiveMask(Dense):
    """A finite penalty in place of -inf: a huge key overcomes it."""

    kind = "sentinel-leak"

    def probability(self, s: Tensor, lse: Tensor, seen: Tensor) -> Tensor:
        p = super().probability(s, lse, seen)
        return torch.where(seen | ~seen.any(-1, keepdim=True), p, torch.full_like(p, 1e-4))


class NanReaches(Dense):
    """A hidden key's NaN goes through the whole row."""

    kind = "sentinel-leak"
    globs = ("attention/probe/nan*",)

    def capped(self, s: Tensor, softcap: float) -> Tensor:
        capped = super().capped(s, softcap)
        return capped + 0.0 * capped.sum(-1, keepdim=True)


class NoLseGradient(Dense):
    kind = "dlse-ignored"

    def lse_gradient(self, dlse: Tensor | None, like: Tensor) -> Tensor:
        return torch.zeros_like(like)


class HeadOfGroupDropped(Dense):
    """dK of the last KV head misses the last query head of its group."""

    kind = "dk-head-dropped"

    def per_kv(self, x: Tensor, h_kv: int) -> Tensor:
        group = x.shape[1] // h_kv
        if group == 1:
            return super().per_kv(x, h_kv)
        x = x.clone()
        x[:, -1] = 0
        return super().per_kv(x, h_kv)


class ExpandedGradient(Dense):
    """A zero-stride gradient read through its data pointer: only the first element is right."""

    kind = "expanded-grad"

    def gradient_in(self, dout: Tensor) -> Tensor:
        if 0 not in dout.stride() or dout.numel() < 2:
            return dout
        flat = torch.zeros_like(dout, memory_format=torch.contiguous_format)
        flat.view(-1)[0] = dout.reshape(-1)[0]
        return flat


class KeyGradientUnscaled(Dense):
    kind = "grad-scale"

    def key_scale(self, scale: float) -> float:
        return 1.0


class MaskedGradNan(Dense):
    kind = "masked-grad-nan"

    def gradients(self, dq: Tensor, dk: Tensor, dv: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nothing = (~seen.any(-1)).expand(dq.shape[0], dq.shape[2], dq.shape[1]).transpose(1, 2).unsqueeze(-1)
        return dq.masked_fill(nothing, torch.nan), dk, dv


class BackwardForgetsMask(Dense):
    kind = "backward-mask"

    def backward_mask(self, mask: Mask, seen: Tensor) -> Tensor:
        wider = seen.clone()
        wider[..., : mask.s_k // 2] |= seen[..., :1]
        return wider


class Unstable(Dense):
    """Sums in an order that changes from call to call."""

    kind = "nondeterministic"
    turn = 0

    def product(self, p: Tensor, v: Tensor) -> Tensor:
        type(self).turn += 1
        order = torch.randperm(p.shape[-1], generator=torch.Generator().manual_seed(self.turn))
        half = max(1, p.shape[-1] // 2)
        a, b = order[:half], order[half:]
        return p[..., a] @ v[..., a, :] + p[..., b] @ v[..., b, :]

    def finish(self, out: Tensor, lse: Tensor, seen: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        return out, lse + (self.turn % 2) * lse.abs().masked_fill(lse.isinf(), 0) * 2.0**-23


class Int32Offsets(Dense):
    """Batch offsets wrapped to 32 bits: an item beyond 2**31 elements is read at the wrong place (here: the first)."""

    kind = "int32-overflow"

    def read(self, x: Tensor) -> Tensor:
        if x.shape[0] > 1 and x.stride(0) * (x.shape[0] - 1) >= 2**31:
            return x[:1].expand(x.shape)
        return x


class StalePlan(Dense):
    """A plan cached by shape alone."""

    kind = "stale-cache"

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], Tensor] = {}

    def visible(self, mask: Mask, h_q: int) -> Tensor:
        key = (mask.batch, mask.heads, mask.s_q, mask.s_k, h_q, mask.mode)
        if key not in self._kept:
            self._kept[key] = super().visible(mask, h_q)
        return self._kept[key]


class AliasedOutput(Dense):
    kind = "output-alias"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **options: Any) -> tuple[Tensor, Tensor]:
        out, lse = super().forward(q, k, v, mask, **options)
        if q.shape == out.shape and q.is_contiguous() and q.dtype == out.dtype:
            scratch = q.detach()
            scratch.copy_(out)
            return scratch.view(out.shape), lse
        return out, lse


class WritesInput(Dense):
    """Pre-scales the keys where they lie."""

    kind = "input-written"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **options: Any) -> tuple[Tensor, Tensor]:
        result = super().forward(q, k, v, mask, **options)
        if k.numel() and 0 not in k.stride():
            k.detach().mul_(2.0)
        return result


class IgnoresStrides(Dense):
    """Reads memory as if every input were contiguous."""

    kind = "swapped-strides"

    def read(self, x: Tensor) -> Tensor:
        if x.is_contiguous() or x.numel() == 0:
            return x
        owned = x.untyped_storage().nbytes() // x.element_size()
        start = x.storage_offset()
        flat = torch.as_strided(x.detach(), (max(0, min(x.numel(), owned - start)),), (1,), start)
        filled = torch.zeros(x.numel(), dtype=x.dtype)
        filled[: flat.numel()] = flat
        return filled.view(x.shape)


class WrongDtype(Dense):
    kind = "wrong-dtype"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **options: Any) -> tuple[Tensor, Tensor]:
        out, lse = super().forward(q, k, v, mask, **options)
        return out.to(torch.float32), lse


class UnlikeItsFake(Dense):
    """lse in float64, where the op's fake promises fp32."""

    kind = "fake-mismatch"
    globs = ("engine/*",)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **options: Any) -> tuple[Tensor, Tensor]:
        out, lse = super().forward(q, k, v, mask, **options)
        return out, lse.to(torch.float64)


def _registration(implementation: type[Dense]) -> Callable[[Registrar], None]:
    def register(registrar: Registrar) -> None:
        made = implementation()
        registrar.impl("flashmask_attention", name="dense", caps=Caps(dtypes=DTYPES), backward=made.backward)(
            made.forward
        )

    return register


def _name(implementation: type[Dense]) -> str:
    return "sabotage_" + "".join(f"_{c.lower()}" if c.isupper() else c for c in implementation.__name__).strip("_")


FAULTY = tuple(Dense.__subclasses__())
SABOTEURS = [
    Saboteur("honest_attention", None, "attention", _registration(Dense)),
    *(Saboteur(_name(c), c.kind, "attention", _registration(c), c.globs) for c in FAULTY),
]
