"""Attention as honest kernels of lower precision compute it: what the conformance bounds are calibrated on.

A bound must pass every honest kernel and no dishonest one, so its constant is measured, not guessed: these functions
put the roundings of real kernels into the textbook formulas, and :func:`measure` says how far from the oracle they
come, in the units of the bound. ``docs/numerics.md`` records the figures and the constants that follow from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from fmcore import masks
from fmcore.masks import Mask
from fmcore.reference import attention as oracle

__all__ = ["UNIT", "Simulation", "low_precision_simulation", "measure"]

UNIT: Final = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
"""Unit round-off."""

Case = tuple[Tensor, Tensor, Tensor, Tensor, Mask, dict[str, Any]]
"""q, k, v, dout, mask, and the options of the simulation."""

KEYS: Final = 64
"""Keys per step of the simulated running sum."""


@dataclass(frozen=True)
class Simulation:
    """Results of a simulated kernel, in the dtypes of the contract."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def low_precision_simulation(
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
    low: bool = False,
) -> Simulation:
    """Forward and backward with the roundings of a flash kernel in the dtype of ``q``; dense, for short sequences.

    Scores and sums are float32; P and dS are rounded to the dtype before they are multiplied; out, dq, dk and dv are
    rounded once; delta comes from the rounded out. For float32 nothing but float32 arithmetic remains.

    Args:
        q: ``[b, s_q, h_q, d]`` in float16, bfloat16 or float32, and all others as in the oracle.
        k: Keys.
        v: Values.
        dout: Gradient of out.
        mask: What is visible.
        softmax_scale: Factor of the scores.
        softcap: Soft cap, or 0.
        sink: None, or ``[h_q]``.
        dlse: Gradient of lse, or None.
        low: Round scores, and every running sum after each 64 terms, to the dtype: a kernel that accumulates low.
    """
    dtype = q.dtype
    group = q.shape[2] // k.shape[2]
    Q, K, V, dO = (t.float().transpose(1, 2) for t in (q, k, v, dout))
    K, V = K.repeat_interleave(group, 1), V.repeat_interleave(group, 1)
    visible = mask.dense("cpu").repeat_interleave(q.shape[2] // mask.heads, 1)

    def cast(t: Tensor) -> Tensor:
        return t.to(dtype).float()

    def score(t: Tensor) -> Tensor:
        return cast(t) if low else t

    S = score(softmax_scale * (Q @ K.mT))
    slope = torch.ones_like(S)
    if softcap:
        tanh = torch.tanh(S / softcap)
        S, slope = score(softcap * tanh), 1.0 - tanh.square()
    S = S.masked_fill(~visible, -torch.inf)
    extra = torch.full_like(S[..., :1], -torch.inf)
    if sink is not None:
        extra = sink.float().view(1, -1, 1, 1).expand_as(extra)
    top = torch.cat([S, extra], -1).amax(-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)
    E = torch.exp(S - top)
    weight = E.sum(-1, keepdim=True) + torch.exp(extra - top)
    O = cast(_sum_of(cast(E), V, dtype, low=low) / weight.masked_fill(weight == 0.0, 1.0))
    lse = (top + weight.log()).squeeze(-1)
    P = torch.exp(S - lse.masked_fill(lse == -torch.inf, torch.inf).unsqueeze(-1))
    delta = (dO * O).sum(-1)
    if dlse is not None:
        delta = delta - dlse.float().masked_fill(lse == -torch.inf, 0.0)
    dS = P * (score(dO @ V.mT) - delta.unsqueeze(-1)) * slope
    dQ = softmax_scale * _sum_of(cast(dS), K, dtype, low=low)
    dK = softmax_scale * _per_kv(_sum_of(cast(dS).mT, Q, dtype, low=low), group)
    dV = _per_kv(_sum_of(cast(P).mT, dO, dtype, low=low), group)
    out, dq, dk, dv = (t.to(dtype).transpose(1, 2) for t in (O, dQ, dK, dV))
    return Simulation(out, lse, dq, dk, dv)


def measure(dtype: torch.dtype, *, low: bool = False, length: int = 320, seeds: int = 3) -> dict[str, float]:
    """Worst error of the simulated kernel over adversarial cases, in the units of the bounds.

    Cases: packed documents with many one- and two-row ones, a window, a full mask, random bounds; plain, large and
    all-equal logits, one dominant key, soft cap, sink, a loss that uses lse; group sizes 1 and 4; head dims 16 and 64.

    Args:
        dtype: What to simulate.
        low: Accumulate in the dtype.
        length: Rows and keys.
        seeds: Repetitions.

    Returns:
        ``out`` in u of the row norm; ``dq``, ``dk``, ``dv`` in u of row norm + floor by terms; ``dq_values`` and
        ``dk_values`` in u of row norm + floor by values; ``dq_relative`` in u of the row norm alone; ``lse`` in units
        of ``2^-24 (|lse| + max |q| |k| scale)`` beyond ``1e-5``.
    """
    worst = dict.fromkeys(("out", "dq", "dk", "dv", "dq_values", "dk_values", "dq_relative", "lse"), 0.0)
    for q, k, v, dout, mask, options in _cases(dtype, length, seeds):
        got = low_precision_simulation(q, k, v, dout, mask, low=low, **options)
        dlse = options["dlse"]
        own = {name: value for name, value in options.items() if name != "dlse"}
        out, lse = oracle.exact_forward(q, k, v, mask, **own)
        grads = oracle.exact_backward(dout, dlse, q, k, v, mask, **own)[:3]
        by_values = oracle.gradient_floors(q, k, v, dout, mask, dlse=dlse, **own)
        by_terms = oracle.gradient_floors(q, k, v, dout, mask, dlse=dlse, by_terms=True, **own)
        found = {"out": _units(got.out, out, out.norm(dim=-1), dtype)}
        for name, grad, terms, values in zip(("dq", "dk", "dv"), grads, by_terms, by_values, strict=True):
            found[name] = _units(getattr(got, name), grad, grad.norm(dim=-1) + terms, dtype)
            found[f"{name}_values"] = _units(getattr(got, name), grad, grad.norm(dim=-1) + values, dtype)
        found["dq_relative"] = _units(got.dq, grads[0], grads[0].norm(dim=-1), dtype)
        seen = lse.isfinite()
        size = lse.abs() + own["softmax_scale"] * q.double().norm(dim=-1).amax() * k.double().norm(dim=-1).amax()
        excess = ((got.lse.double() - lse).abs() - 1e-5).clamp_min(0.0) / (2.0**-24 * size)
        found["lse"] = float(excess[seen].max()) if bool(seen.any()) else 0.0
        worst = {name: max(value, found[name]) for name, value in worst.items()}
    return worst


def _units(got: Tensor, want: Tensor, size: Tensor, dtype: torch.dtype) -> float:
    """Worst row error over its size, in u; rows of size below what the dtype can hold do not count."""
    tiny = 2 * torch.finfo(dtype).tiny * want.shape[-1] ** 0.5
    ratio = (got.double() - want).norm(dim=-1) / (size + tiny) / UNIT[dtype]
    return float(ratio.masked_fill(size <= 1e-6, 0.0).max())


def _cases(dtype: torch.dtype, length: int, seeds: int) -> Iterator[Case]:
    short = [1, 2, 1, 3, 2, 1, 64, 2, 31]
    layouts = [
        masks.causal_document([*short, length - sum(short)]),
        masks.sliding_window(length, window=17),
        masks.full(length),
    ]
    for seed in range(seeds):
        g = torch.Generator().manual_seed(seed)
        bounds = torch.randint(0, length + 1, (1, 1, length, 4), generator=g, dtype=torch.int32)
        for mask in (*layouts, masks.canonicalize(bounds, s_q=length, s_k=length, causal=False)):
            for group, d in ((1, 64), (4, 16)):
                for kind in ("plain", "large", "equal", "dominant", "softcap", "sink", "lse"):
                    yield _case(g, dtype, mask, group, d, kind)


def _case(g: torch.Generator, dtype: torch.dtype, mask: Mask, group: int, d: int, kind: str) -> Case:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    q, k, v = normal(1, mask.s_q, group, d), normal(1, mask.s_k, 1, d), normal(1, mask.s_k, 1, d)
    if kind == "large":
        q *= 8.0
    elif kind == "equal":
        k[:] = k[:, :1].clone()
    elif kind == "dominant":
        k[:, 0] *= 6.0
    options = {
        "softmax_scale": d**-0.5,
        "softcap": 2.0 if kind == "softcap" else 0.0,
        "sink": normal(group) if kind == "sink" else None,
        "dlse": normal(1, group, mask.s_q) if kind == "lse" else None,
    }
    dout = normal(1, mask.s_q, group, d)
    return q.to(dtype), k.to(dtype), v.to(dtype), dout.to(dtype), mask, options


def _sum_of(weights: Tensor, values: Tensor, dtype: torch.dtype, *, low: bool) -> Tensor:
    """``weights @ values`` in float32; if ``low``, the running sum is rounded to ``dtype`` after every 64 terms."""
    if not low:
        return weights @ values
    total = torch.zeros(*weights.shape[:-1], values.shape[-1])
    for j in range(0, values.shape[-2], KEYS):
        total = (total + weights[..., j : j + KEYS] @ values[..., j : j + KEYS, :]).to(dtype).float()
    return total


def _per_kv(t: Tensor, group: int) -> Tensor:
    """Sum over the query heads of each KV head."""
    b, h, s, d = t.shape
    return t.view(b, h // group, group, s, d).sum(2)
