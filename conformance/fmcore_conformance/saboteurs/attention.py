"""Attention saboteurs: a plain dense implementation whose steps are overridden one at a time."""

# ruff: noqa: ARG002, D101 (each class is one planted fault: its name and kind say which; steps share their signatures)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fmcore.dispatch.caps import Caps
from fmcore_conformance.saboteurs.base import Saboteur
from fmcore_conformance.saboteurs.dense import DTYPES, Dense

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fmcore.dispatch.registrar import Registrar
    from fmcore.masks import Mask


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
