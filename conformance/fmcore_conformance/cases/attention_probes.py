"""Exact checks of attention: what a closeness test cannot see.

One wrongly hidden key among 4096 moves a bf16 row by less than its rounding; a count of the visible keys finds it in
every dtype.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fmcore_conformance.cases import attention_inputs as inputs
from fmcore_conformance.cases import attention_oracle as oracle
from fmcore_conformance.measure import (
    Untouched,
    check_bits,
    check_form,
    check_no_alias,
    check_rows,
    coordinates,
    exact,
    wide,
)
from fmcore_conformance.model import Measurement, Mismatch
from fmcore_conformance.tolerances import ATTENTION_BACKWARD, ATTENTION_FORWARD

if TYPE_CHECKING:
    from torch import Tensor

    from fmcore_conformance.cases.attention_inputs import Call
    from fmcore_conformance.target import Target

HUGE_V, HUGE_K = 2.0**13, 2.0**6


def lse_dtype(dtype: torch.dtype) -> torch.dtype:
    """Contract: fp32, or float64 for float64 inputs."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_contract(call: Call, out: Tensor, lse: Tensor) -> None:
    """Shapes, dtypes and memory of the results."""
    b, s_q, h_q, _ = call.q.shape
    check_form(out, (b, s_q, h_q, call.v.shape[-1]), call.q.dtype, "out")
    check_form(lse, (b, h_q, s_q), lse_dtype(call.q.dtype), "lse")
    check_no_alias([out, lse], [call.q, call.k, call.v], "attention")


def count_probe(target: Target, call: Call) -> list[Measurement]:
    """With q = 0 every score is 0, so lse = log(visible keys): an integer test of every row, in every dtype."""
    call = replace(call, q=torch.zeros_like(call.q))
    out, lse = call.run(target)
    check_contract(call, out, lse)
    want = call.mask.for_heads(call.mask.counts(), call.h_q).expand(lse.shape)
    got = wide(lse).exp()
    check_masked_rows(out, lse, want == 0)
    if lse.numel() == 0:
        return [exact("counts")]
    off = (got - want).abs()
    wrong = ~(off < 0.5)
    if bool(wrong.any()):
        flat = int(wrong.reshape(-1).nonzero()[0])
        b, h, i = coordinates(flat, lse.shape)
        seen = float(got[b, h, i])
        raise Mismatch(
            f"{int(wrong.sum())} of {lse.numel()} rows count wrong; first batch {b} head {h} row {i}: "
            f"exp(lse) = {seen:.6g}, "
            f"{int(want[b, h, i])} keys are visible ({mask_row(call, b, h, i)})",
            Measurement(float(off[b, h, i]), 0.5, "abs", "visible keys"),
        )
    return [Measurement(float(off.max()), 0.5, "abs", "visible keys")]


def mask_row(call: Call, b: int, h: int, i: int) -> str:
    """The visible keys of one row as ranges."""
    row = call.mask.for_heads(call.mask.dense(slice(i, i + 1)), call.h_q)
    visible = row[min(b, row.shape[0] - 1), h, 0]
    edges = torch.diff(
        visible.to(torch.int8), prepend=torch.zeros(1, dtype=torch.int8), append=torch.zeros(1, dtype=torch.int8)
    )
    starts, ends = (edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist()
    parts = [f"{a}-{e - 1}" for a, e in zip(starts, ends, strict=True)]
    return "keys " + (", ".join(parts[:6]) + (" ..." if len(parts) > 6 else "") or "none")


def check_masked_rows(out: Tensor, lse: Tensor, nothing: Tensor) -> None:
    """Rows that see nothing: out is exactly 0 and lse exactly -inf; no other lse is infinite or NaN.

    Args:
        out: [b, s_q, h_q, dv].
        lse: [b, h_q, s_q].
        nothing: Bool [b, h_q, s_q].
    """
    values = wide(lse)
    wrong = torch.where(nothing, values != -torch.inf, ~values.isfinite())
    if bool(wrong.any()):
        flat = int(wrong.reshape(-1).nonzero()[0])
        where = coordinates(flat, lse.shape)
        want = "-inf (the row sees nothing)" if bool(nothing[where]) else "a finite value"
        raise Mismatch(f"lse at batch, head, row {where} is {float(values[where])}, expected {want}")
    rows = wide(out).transpose(1, 2)[nothing]
    if rows.numel() and not bool((rows == 0).all()):
        raise Mismatch(
            f"out of rows that see nothing is not 0: {int((rows != 0).any(-1).sum())} rows, "
            f"e.g. {rows[rows != 0][0].item()!r}"
        )


def selection_probe(target: Target, call: Call) -> list[Measurement]:
    """Each row's query matches one key so well that its weight is exactly 1: out is that key's value, bit for bit.

    Keys are +-1 codes of their index, and each row aims at its first, last or middle visible key. Finds wrong head,
    batch and stride maps that a random input hides.
    """
    b, s_q, h_q, d = call.q.shape
    s_k, h_kv = call.k.shape[1], call.k.shape[2]
    bits = max(1, (s_k - 1).bit_length())
    repeat = d // bits
    code = _codes(s_k, bits, repeat, d)
    visible = call.visible().expand(b, h_q, s_q, s_k)
    g = target.generator("selection")
    for turn in ("first", "last", "random"):
        aim = _aim(visible, turn, g)
        q = (code[aim] * 16.0).transpose(1, 2)  # [b, s_q, h_q, d]
        k = code.view(1, s_k, 1, d).expand(b, s_k, h_kv, d)
        probe = replace(
            call,
            q=target.put(q.to(call.q.dtype).contiguous()),
            k=target.put(k.to(call.k.dtype).contiguous()),
            scale=1.0,
        )
        out, lse = probe.run(target)
        check_contract(probe, out, lse)
        values = call.v.cpu().transpose(1, 2).repeat_interleave(h_q // h_kv, 1)
        want = torch.gather(values, 2, aim.unsqueeze(-1).expand(*aim.shape, values.shape[-1]))
        want = want.masked_fill(~visible.any(-1, keepdim=True), 0.0).transpose(1, 2).contiguous()
        check_bits(out.cpu(), want, f"value of the {turn} visible key")
    return [exact("selected values")]


def _codes(s_k: int, bits: int, repeat: int, d: int) -> Tensor:
    if repeat < 1:
        raise ValueError(f"{s_k} keys need {bits} code bits, head_dim {d} is smaller")
    index = torch.arange(s_k).unsqueeze(1) >> torch.arange(bits) & 1
    code = (index.to(torch.float64) * 2 - 1).repeat_interleave(repeat, 1)
    return torch.nn.functional.pad(code, (0, d - code.shape[1]))


def _aim(visible: Tensor, turn: str, g: torch.Generator) -> Tensor:
    weight = torch.arange(visible.shape[-1], dtype=torch.float64)
    if turn == "first":
        weight = -weight
    if turn == "random":
        weight = torch.rand(visible.shape, generator=g, dtype=torch.float64)
    return torch.where(visible, weight, -torch.inf).argmax(-1)


def membership_probe(target: Target, call: Call) -> list[Measurement]:
    """Q = 0 and values that spell each key's index in bits: count * out counts the visible keys with each bit set.

    Tells which keys are seen, where the count probe tells how many. Needs at most 127 keys in bf16.
    """
    s_k, dv = call.k.shape[1], call.v.shape[-1]
    bit = (torch.arange(s_k).unsqueeze(1) >> torch.arange(dv) & 1).to(call.v.dtype)
    v = bit.view(1, s_k, 1, dv).expand(call.v.shape).contiguous()
    probe = replace(call, q=torch.zeros_like(call.q), v=target.put(v))
    out, lse = probe.run(target)
    check_contract(probe, out, lse)
    visible = call.visible().to(torch.float64)
    want = torch.einsum("bhij,jd->bhid", visible, bit.to(torch.float64)).expand(-1, -1, -1, -1)
    count = visible.sum(-1, keepdim=True)
    got = wide(out).transpose(1, 2) * count
    off = (got - want).abs()
    if not bool((off < 0.5).all()):
        where = coordinates(int((~(off < 0.5)).reshape(-1).nonzero()[0]), off.shape)
        raise Mismatch(
            f"batch {where[0]} head {where[1]} row {where[2]}: {float(got[where]):.3f} visible keys have "
            f"index bit {where[3]} set, "
            f"expected {int(want.expand_as(got)[where])} ({mask_row(call, *where[:3])})",
            Measurement(float(off[where]), 0.5, "abs", "keys by index bit"),
        )
    return [Measurement(float(off.max()), 0.5, "abs", "keys by index bit")]


def sentinel_probe(target: Target, call: Call, dtype: str) -> list[Measurement]:
    """Huge finite keys and values in some columns; rows that do not see them must not notice, forward and backward."""
    b, s_q, h_q, _ = call.q.shape
    s_k = call.k.shape[1]
    columns = torch.zeros(s_k, dtype=torch.bool)
    columns[s_k // 5 :: 7] = True
    where = target.put(columns).view(1, s_k, 1, 1)
    k = torch.where(where, torch.full_like(call.k, HUGE_K), call.k).detach().requires_grad_()
    v = torch.where(where, torch.full_like(call.v, HUGE_V), call.v).detach().requires_grad_()
    q = call.q.clone().requires_grad_()
    probe = replace(call, q=q, k=k, v=v)
    out, _ = probe.run(target)
    visible = call.visible().expand(b, h_q, s_q, s_k)
    unaware = ~(visible & columns).any(-1)  # [b, h_q, s_q]
    ref = oracle.forward(q, k, v, visible, scale=call.scale)
    keep = unaware.transpose(1, 2).unsqueeze(-1)
    found = check_rows(
        wide(out).where(keep, torch.zeros((), dtype=torch.float64)).to(out.dtype),
        ref.out.where(keep, torch.zeros((), dtype=torch.float64)),
        units=ATTENTION_FORWARD[dtype],
        dtype=dtype,
        what="out beside sentinels",
    )
    dout = inputs.normal(target.generator("sentinel"), *out.shape, dtype=dtype).masked_fill(~keep, 0.0)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), target.put(dout))
    back = oracle.backward(ref, q, k, v, dout, dtype=dtype)
    bound = ATTENTION_BACKWARD[dtype]
    for name, got, want, floor in (
        ("dq", dq, back.dq, back.floor_q),
        ("dk", dk, back.dk, back.floor_k),
        ("dv", dv, back.dv, back.floor_v),
    ):
        found += check_rows(got, want, units=bound, dtype=dtype, what=f"{name} beside sentinels", floor=floor)
    return found


def nan_key_probe(target: Target, call: Call) -> list[Measurement]:
    """NaN in keys that no row sees must not reach any result of the forward pass."""
    hidden = ~call.visible().expand(call.k.shape[0], -1, -1, -1).any(2).any(1)  # [b, s_k]
    if not bool(hidden.any()):
        raise ValueError("this probe needs a mask with columns that no row sees")
    spot = target.put(hidden).unsqueeze(-1).unsqueeze(-1)
    clean = replace(call, k=torch.where(spot, torch.zeros_like(call.k), call.k))
    dirty = replace(call, k=torch.where(spot, torch.full_like(call.k, float("nan")), call.k))
    (out, lse), (want, want_lse) = dirty.run(target), clean.run(target)
    check_bits(out, want, "out with NaN in hidden keys")
    check_bits(lse, want_lse, "lse with NaN in hidden keys")
    return [exact("hidden NaN")]


def masked_row_probe(target: Target, call: Call) -> list[Measurement]:
    """Rows that see nothing give 0 and -inf forward and exact zeros backward; columns that nobody sees get none."""
    q, k, v = (x.clone().requires_grad_() for x in (call.q, call.k, call.v))
    out, lse = replace(call, q=q, k=k, v=v).run(target)
    visible = call.visible().expand(call.q.shape[0], call.h_q, call.mask.s_q, call.mask.s_k)
    nothing = ~visible.any(-1)
    if not bool(nothing.any()):
        raise ValueError("this probe needs a mask with rows that see nothing")
    check_contract(call, out, lse)
    check_masked_rows(out, lse, nothing)
    dout = target.put(inputs.normal(target.generator("masked rows"), *out.shape, dtype="float32").to(out.dtype))
    for name, grad, dead in (
        *zip(
            ("dq", "dk", "dv"),
            torch.autograd.grad(out, (q, k, v), dout),
            (nothing.transpose(1, 2), *(_unseen(visible, call),) * 2),
            strict=True,
        ),
    ):
        values = wide(grad)
        if not bool(values.isfinite().all()):
            raise Mismatch(
                f"{name} has {int((~values.isfinite()).sum())} values that are not finite, beside rows that see nothing"
            )
        if not bool((values[dead] == 0).all()):
            raise Mismatch(f"{name} is not exactly 0 where nothing is seen: {values[dead].abs().max().item():.3g}")
    return [exact("rows that see nothing")]


def _unseen(visible: Tensor, call: Call) -> Tensor:
    """Key positions that no query head of a KV head sees, bool [b, s_k, h_kv]."""
    b, h_q, _, s_k = visible.shape
    h_kv = call.k.shape[2]
    return ~visible.any(2).view(b, h_kv, h_q // h_kv, s_k).any(2).transpose(1, 2)


def memory_probe(target: Target, call: Call) -> list[Measurement]:
    """Inputs inside guard bands of NaN: nothing beyond their ends is read or written, forward and backward."""
    q, k, v = (inputs.guarded(x).requires_grad_() for x in (call.q, call.k, call.v))
    watch = Untouched(q, k, v)
    probe = replace(call, q=q, k=k, v=v)
    out, lse = probe.run(target)
    check_contract(probe, out, lse)
    if not bool(out.isfinite().all()):
        raise Mismatch("out is not finite: memory beyond the end of an input was read")
    dout = inputs.guarded(
        target.put(inputs.normal(target.generator("memory"), *out.shape, dtype="float32").to(out.dtype))
    )
    watch_dout = Untouched(dout)
    grads = torch.autograd.grad(out, (q, k, v), dout)
    watch.check("attention")
    watch_dout.check("attention backward")
    check_no_alias([*grads], [q, k, v, dout, out], "attention gradients")
    plain = replace(call).run(target)
    check_bits(out, plain[0], "out inside guard bands")
    check_bits(lse, plain[1], "lse inside guard bands")
    if not all(bool(g.isfinite().all()) for g in grads):
        raise Mismatch("a gradient is not finite: memory beyond the end of an input was read")
    return [exact("memory")]


def determinism_probe(target: Target, call: Call, repeats: int = 5) -> list[Measurement]:
    """Under ``deterministic=True`` every rerun gives the same bits, forward and backward."""
    dout = target.put(
        inputs.normal(target.generator("determinism"), *call.q.shape[:3], call.v.shape[-1], dtype="float32").to(
            call.q.dtype
        )
    )
    first: list[Tensor] = []
    for turn in range(repeats):
        q, k, v = (x.clone().requires_grad_() for x in (call.q, call.k, call.v))
        out, lse = replace(call, q=q, k=k, v=v).run(target, deterministic=True)
        results = [out, lse, *torch.autograd.grad(out, (q, k, v), dout)]
        if turn == 0:
            first = [r.detach().clone() for r in results]
            continue
        for name, now, before in zip(("out", "lse", "dq", "dk", "dv"), results, first, strict=True):
            check_bits(now, before, f"{name} of rerun {turn}")
    return [exact("reruns")]
