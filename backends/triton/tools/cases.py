"""Attention cases with a literal float64 oracle: shared by the device check and the interpreter tests.

The oracle knows nothing of masks as values, planes or tiles: it reads the raw interval rules.
"""

# ruff: noqa: INP001 (programs beside the package: they print, and run themselves again)

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch

from fmcore.masks import Mask, canonicalize

KINDS = ("full", "causal", "causal_doc", "document", "sliding", "gap", "band", "random1", "random4", "hidden", "blocks")
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
FORWARD_UNITS = {torch.float16: 2.0, torch.bfloat16: 2.0, torch.float32: 64.0}
BACKWARD_UNITS = {torch.float16: 4.0, torch.bfloat16: 4.0, torch.float32: 256.0}
LSE_FLOOR = {torch.float16: 1e-3, torch.bfloat16: 1e-3, torch.float32: 1e-5}


@dataclass(frozen=True)
class Case:
    """One call; `mask_heads` is "1", "kv" or "q", `layout` is "dense", "strided" or "zero" (an expanded gradient)."""

    kind: str = "causal_doc"
    b: int = 1
    s_q: int = 200
    s_k: int = 200
    h_q: int = 2
    h_kv: int = 1
    d: int = 64
    dv: int = 64
    dtype: str = "bfloat16"
    mask_heads: str = "1"
    mask_batch: bool = False
    softcap: float = 0.0
    sink: bool = False
    dlse: bool = False
    scale: float | None = None
    deterministic: bool = False
    layout: str = "dense"
    magnitude: float = 1.0
    seed: int = 0

    @property
    def name(self) -> str:
        """Short text that tells the case from others."""
        base = Case()
        extra = [
            f"{k}={v}"
            for k, v in asdict(self).items()
            if v != getattr(base, k) and k not in ("kind", "b", "s_q", "s_k", "h_q", "h_kv", "d", "dv", "dtype")
        ]
        return " ".join(
            [
                self.kind,
                f"b{self.b}",
                f"{self.s_q}x{self.s_k}",
                f"h{self.h_q}/{self.h_kv}",
                f"d{self.d}/{self.dv}",
                self.dtype,
                *extra,
            ]
        )


def indices(case: Case) -> tuple[torch.Tensor | None, bool]:
    """Raw bounds [b or 1, heads, s_k, n] (None for none) and the causal flag of a case."""
    g = torch.Generator().manual_seed(case.seed)
    s_q, s_k = case.s_q, case.s_k
    heads = {"1": 1, "kv": case.h_kv, "q": case.h_q}[case.mask_heads]
    batch = case.b if case.mask_batch else 1
    col = torch.arange(s_k, dtype=torch.int32).expand(batch, heads, s_k)
    if case.kind in ("full", "blocks"):
        return None, False
    if case.kind == "causal":
        return None, True
    if case.kind in ("causal_doc", "document"):
        cuts = torch.rand(batch, heads, s_k, generator=g) < 4.0 / s_k
        cuts[..., 0] = True
        which = cuts.long().cumsum(-1)
        start = torch.where(cuts, col, 0).cummax(-1).values
        last = torch.where(which[..., None, :] == which[..., :, None], col[..., None, :], 0).amax(-1) + 1
        if case.kind == "causal_doc":
            return last[..., None].int(), True
        return torch.stack([last, start], -1).int(), False
    if case.kind == "sliding":
        return (col + max(1, s_q // 5)).clamp(max=s_q)[..., None].int(), True
    if case.kind == "gap":
        begin = (col + s_q // 7).clamp(max=s_q)
        return torch.stack([begin, (begin + s_q // 3).clamp(max=s_q)], -1).int(), True
    if case.kind == "band":
        width = max(1, s_q // 6)
        return torch.stack(
            [
                (col + width).clamp(max=s_q),
                torch.full_like(col, s_q),
                torch.zeros_like(col),
                (col - width).clamp(0, s_q),
            ],
            -1,
        ).int(), False
    if case.kind == "random1":
        return torch.randint(0, s_q + 2, (batch, heads, s_k, 1), generator=g).int(), True
    if case.kind == "random4":
        return torch.sort(torch.randint(-3, s_q + 3, (batch, heads, s_k, 4), generator=g), -1).values[
            ..., [2, 3, 0, 1]
        ].int(), False
    if case.kind == "hidden":
        return torch.zeros(batch, heads, s_k, 1, dtype=torch.int32), True
    raise ValueError(f"no mask kind {case.kind!r}; there are {KINDS}")


def block_mask(case: Case) -> torch.Tensor | None:
    """Random 128 x 128 keep bits of the kind "blocks"; None for the others."""
    if case.kind != "blocks":
        return None
    g = torch.Generator().manual_seed(case.seed)
    return (torch.rand(1, 1, -(-case.s_q // 128), -(-case.s_k // 128), generator=g) < 0.5).int()


def visible(case: Case) -> torch.Tensor:
    """Dense visibility [b or 1, heads, s_q, s_k], straight from the rules."""
    idx, causal = indices(case)
    row = torch.arange(case.s_q).view(1, 1, -1, 1)
    col = torch.arange(case.s_k).view(1, 1, 1, -1)
    seen = torch.ones(1, 1, case.s_q, case.s_k, dtype=torch.bool)
    if causal:
        seen = seen & (col <= row + case.s_k - case.s_q)
    if idx is not None:
        v = [idx[..., i].unsqueeze(2) for i in range(idx.shape[-1])]
        if causal:
            seen = seen & ~((row >= v[0]) & (row < (v[1] if len(v) == 2 else case.s_q)))
        elif len(v) == 2:
            seen = seen & ~((row >= v[0]) | (row < v[1]))
        else:
            seen = seen & ~(((row >= v[0]) & (row < v[1])) | ((row >= v[2]) & (row < v[3])))
    keep = block_mask(case)
    if keep is not None:
        seen = seen & keep.bool().repeat_interleave(128, 2)[:, :, : case.s_q].repeat_interleave(128, 3)[..., : case.s_k]
    return seen


def make_mask(case: Case, device: torch.device | str) -> Mask:
    """The same mask as fmcore's value."""
    idx, causal = indices(case)
    keep = block_mask(case)
    if keep is not None:
        idx = torch.zeros(1, 1, case.s_k, 2, dtype=torch.int32)
        idx[..., 0] = case.s_q
        mask = canonicalize(idx, s_q=case.s_q, s_k=case.s_k, causal=False, block_mask=keep)
    else:
        mask = canonicalize(idx, s_q=case.s_q, s_k=case.s_k, causal=causal)
    return mask.to(torch.device(device))


@dataclass
class Operands:
    """Inputs of a case on a device, rounded to its dtype."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    dlse: torch.Tensor | None
    sink: torch.Tensor | None
    scale: float


def operands(case: Case, device: torch.device | str) -> Operands:
    """Draw the inputs of a case."""
    g = torch.Generator().manual_seed(case.seed + 1)
    dtype = getattr(torch, case.dtype)

    def draw(*shape: int) -> torch.Tensor:
        b, s, h, d = shape
        if case.layout == "strided":  # heads outside the sequence, and a gap behind every row
            wide = torch.randn(b, h, s, d + 8, generator=g) * case.magnitude
            return wide.to(device, dtype)[..., :d].transpose(1, 2)
        return (torch.randn(b, s, h, d, generator=g) * case.magnitude).to(device, dtype)

    q, k, v = (
        draw(case.b, case.s_q, case.h_q, case.d),
        draw(case.b, case.s_k, case.h_kv, case.d),
        draw(case.b, case.s_k, case.h_kv, case.dv),
    )
    dout = draw(case.b, case.s_q, case.h_q, case.dv)
    if case.layout == "zero":
        dout = torch.ones((), dtype=dtype, device=device).expand(case.b, case.s_q, case.h_q, case.dv)
    dlse = torch.randn(case.b, case.h_q, case.s_q, generator=g).to(device) if case.dlse else None
    sink = torch.randn(case.h_q, generator=g).to(device) if case.sink else None
    return Operands(q, k, v, dout, dlse, sink, case.d**-0.5 if case.scale is None else case.scale)


@dataclass
class Result:
    """Measured over allowed, per output; a NaN counts as infinite."""

    ratios: dict[str, float]

    @property
    def ok(self) -> bool:
        """Whether every output lies within its bound."""
        return all(value <= 1.0 for value in self.ratios.values())


def _ratio(got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor) -> float:
    """Worst row of |got - want| over what is allowed there; inf for NaN or a missing value."""
    error = torch.linalg.vector_norm(got.double() - want, dim=-1)
    ratio = torch.where(error == 0, 0.0, error / allowed.clamp_min(1e-300))
    worst = float(ratio.max()) if ratio.numel() else 0.0
    return math.inf if math.isnan(worst) else worst


def judge(
    case: Case, x: Operands, out: torch.Tensor, lse: torch.Tensor, grads: tuple[torch.Tensor | None, ...] | None
) -> Result:
    """Compare with the oracle: row-wise relative L2 in units of the dtype, backward with floors for cancelling rows."""
    device = x.q.device
    dtype = getattr(torch, case.dtype)
    u = UNIT[dtype]
    group = case.h_q // case.h_kv
    q, g = x.q.double().transpose(1, 2), x.dout.double().transpose(1, 2)
    k, v = (t.double().transpose(1, 2).repeat_interleave(group, 1) for t in (x.k, x.v))
    seen = visible(case).to(device)
    if seen.shape[1] != 1:
        seen = seen.repeat_interleave(case.h_q // seen.shape[1], 1)
    raw = q @ k.transpose(-1, -2) * x.scale
    score = case.softcap * torch.tanh(raw / case.softcap) if case.softcap else raw
    slope = 1 - (score / case.softcap) ** 2 if case.softcap else torch.ones_like(raw)
    masked = score.masked_fill(~seen, -math.inf)
    if x.sink is not None:
        extra = x.sink.double().view(1, -1, 1, 1).expand(*masked.shape[:-1], 1)
        want_lse = torch.logsumexp(torch.cat([masked, extra], -1), -1)
    else:
        want_lse = torch.logsumexp(masked, -1) if case.s_k else masked.new_full(masked.shape[:-1], -math.inf)
    dead = torch.isneginf(want_lse)
    p = torch.exp(masked - torch.where(dead, 0.0, want_lse)[..., None])
    want = p @ v
    size = torch.linalg.vector_norm(want, dim=-1)
    peak = score.abs().amax() if score.numel() else score.new_zeros(())
    logits = 8 * 2.0**-24 * peak  # fp32 logits of size s are off by s * 2**-24, and every weight with them
    ratios = {"out": _ratio(out.transpose(1, 2), want, (FORWARD_UNITS[dtype] * u + logits) * size)}
    same = torch.equal(torch.isneginf(lse), dead)
    allowed = LSE_FLOOR[dtype] + 4 * 2.0**-24 * (want_lse.abs() + peak)
    off = torch.where(dead, 0.0, (lse.double() - want_lse).abs() / allowed)
    ratios["lse"] = math.inf if not same or bool(off.isnan().any()) else float(off.max()) if off.numel() else 0.0
    if grads is None:
        return Result(ratios)
    norm = torch.linalg.vector_norm
    dp = g @ v.transpose(-1, -2)
    delta = (want * g).sum(-1, keepdim=True) - (0.0 if x.dlse is None else x.dlse.double()[..., None])
    ds = p * (dp - delta) * slope
    # Where dP and delta cancel, an honest kernel is left with the rounding of the out that delta is made from, and with
    # the float32 rounding of the terms of both (fmcore.reference.attention.gradient_floors, by terms, is laxer).
    terms = g.abs() @ v.abs().transpose(-1, -2) + (g.abs() * (p @ v.abs())).sum(-1, keepdim=True)
    size_of = dp.abs() + delta.abs() + norm(want * g, dim=-1, keepdim=True) + 2.0**-24 / u * terms
    if x.dlse is not None:
        size_of = size_of + x.dlse.double()[..., None].abs()
    noise = p * size_of * slope
    # A weight below the smallest normal number may be flushed to zero, and its share of a sum with it.
    lost = torch.where(p < torch.finfo(torch.float32).tiny, p, 0.0)
    lost_noise = lost * size_of * slope

    def fold(t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(1, (case.h_kv, group)).sum(2)

    limit = BACKWARD_UNITS[dtype] * u + logits
    scale = abs(x.scale)
    expected = {
        "dq": (x.scale * ds @ k, scale * noise @ k.abs(), scale * lost_noise @ k.abs()),
        "dk": (
            fold(x.scale * ds.transpose(-1, -2) @ q),
            fold(scale * noise.transpose(-1, -2) @ q.abs()),
            fold(scale * lost_noise.transpose(-1, -2) @ q.abs()),
        ),
        "dv": (
            fold(p.transpose(-1, -2) @ g),
            fold(p.transpose(-1, -2) @ g.abs()),
            fold(lost.transpose(-1, -2) @ g.abs()),
        ),
    }
    for name, got in zip(("dq", "dk", "dv"), grads[:3], strict=True):
        ref, floor, flushed = expected[name]
        if got is None:
            ratios[name] = math.inf
            continue
        tiny = torch.finfo(got.dtype).tiny * got.shape[-1] ** 0.5  # what the result itself may lose to flushing
        allowed = limit * (norm(ref, dim=-1) + norm(floor, dim=-1)) + norm(flushed, dim=-1) + tiny
        ratios[name] = _ratio(got.transpose(1, 2), ref, allowed)
    if x.sink is not None:
        weight = torch.exp(x.sink.double().view(1, -1, 1) - torch.where(dead, 0.0, want_lse)) * (~dead)
        ref = -(weight * delta[..., 0]).sum((0, 2))
        allow = limit * (weight * (g * want).abs().sum(-1)).sum((0, 2)) + limit * ref.abs() + 1e-30
        ratios["dsink"] = math.inf if grads[3] is None else _ratio(grads[3][:, None], ref[:, None], allow)
    return Result(ratios)
