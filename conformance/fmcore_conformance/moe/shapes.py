"""Properties of sizes, index dtypes and strides: S1 to S6."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import fmcore as fm
from fmcore_conformance.moe.checking import (
    combine,
    combined_equals_oracle,
    compare_dispatch,
    dispatch,
    everywhere,
    expected,
    prop,
    same,
    seat,
    send,
)
from fmcore_conformance.moe.inputs import Routing, coded, normal, routing


@prop("S1")
def token_counts(group: Any, backend: str | None, device: str) -> None:
    """T = 0 on all ranks, T = 1, T differing, one local expert, a number of local experts that is no power of two."""
    me, ranks = seat(group)
    for tokens, local in ((0, 3), (1, 3), (2, 1), (9, 1), (9, 7)):
        r = routing("holes" if tokens > 1 else "uniform", ranks, tokens=tokens, local_experts=local, topk=2)
        sent = send(group, r, coded(torch.bfloat16, r.tokens[me], 8, me), backend, device)
        compare_dispatch(sent, expected(r, torch.bfloat16, 8)[me], f"T = {tokens}, Le = {local}")
        combined_equals_oracle(group, r, torch.bfloat16, 8, backend, device, 1)


@prop("S2")
def every_topk(group: Any, backend: str | None, device: str) -> None:
    """K from 1 to far beyond a warp."""
    me, ranks = seat(group)
    for topk in (1, 2, 6, 8, 9, 16, 32, 40, 65):
        r = routing("holes", ranks, topk=topk, local_experts=max(3, topk // ranks))
        sent = send(group, r, coded(torch.bfloat16, r.tokens[me], 4, me), backend, device)
        compare_dispatch(sent, expected(r, torch.bfloat16, 4)[me], f"K = {topk}")


@prop("S3")
def every_width(group: Any, backend: str | None, device: str) -> None:
    """Any hidden size, whatever it is a multiple of."""
    me, ranks = seat(group)
    r = routing("uniform", ranks, tokens=4, topk=2)
    for hidden in (1, 7, 128, 2560, 2880, 3584, 6144, 7168, 8184, 8192):
        sent = send(group, r, coded(torch.bfloat16, r.tokens[me], hidden, me), backend, device)
        compare_dispatch(sent, expected(r, torch.bfloat16, hidden)[me], f"H = {hidden}")
        combined_equals_oracle(group, r, torch.bfloat16, hidden, backend, device, 0)


@prop("S4")
def index_dtypes(group: Any, backend: str | None, device: str) -> None:
    """int32 and int64 indices give the same; indices out of range raise on every rank."""
    me, ranks = seat(group)
    r = routing("holes", ranks)
    x = coded(torch.float32, r.tokens[me], 5, me)
    wide = send(group, r, x, backend, device)
    narrow = send(group, r, x, backend, device, idx_dtype=torch.int32)
    assert narrow.topk_idx.dtype == torch.int32
    for name in ("x", "topk_weights"):
        same(getattr(narrow, name), getattr(wide, name), name)
    same(narrow.topk_idx.to(torch.int64), wide.topk_idx, "topk_idx")
    same(narrow.handle.src_token, wide.handle.src_token, "src_token")
    for value in (-2, r.num_experts, 1 << 20):
        idx = r.idx[me].clone()
        if me == ranks - 1:
            idx[0, 0] = value

        broken = Routing(r.num_experts, (*r.idx[:me], idx, *r.idx[me + 1 :]), r.weights)
        call = partial(send, group, broken, x, backend, device)
        everywhere(group, call, "1 value(s) outside", f"[-1, {r.num_experts})")


@prop("S5")
def experts_per_rank(group: Any, backend: str | None, device: str) -> None:
    """E that is no multiple of R raises on every rank before anything is sent."""
    ranks = seat(group)[1]
    if ranks == 1:
        return
    idx = torch.zeros(3, 2, dtype=torch.int64, device=device)
    everywhere(
        group,
        lambda: fm.moe.layout(idx, 2 * ranks + 1, group=group, backend=backend),
        f"num_experts = {2 * ranks + 1}",
        "multiple",
    )


@prop("S6")
def strides(group: Any, backend: str | None, device: str) -> None:
    """Transposed, expanded and offset inputs, column-major scales, conjugate views."""
    me, ranks = seat(group)
    r = routing("holes", ranks)
    t = r.tokens[me]
    plain = coded(torch.float32, t, 6, me).to(device)
    store = torch.zeros(t + 3, 11, device=device)
    store[2 : t + 2, 3:9] = plain
    for name, x in (
        ("transposed", plain.t().contiguous().t()),
        ("offset", store[2 : t + 2, 3:9]),
        ("expanded", plain[:, :1].expand(-1, 6)),
    ):
        sent = send(group, r, x, backend, device)
        want = dispatch(x.contiguous(), sent.handle).x
        same(sent.x, want, name)
    scales = coded(torch.float32, t, 4, me, salt=1).t().contiguous().t().to(device)
    q = coded(torch.float8_e4m3fn, t, 32, me).to(device)
    got_q, got_scales = send(group, r, (q, scales), backend, device).x
    sent = send(group, r, q, backend, device)
    same(got_q, sent.x, "q of a pair")
    same(got_scales, dispatch(scales.contiguous(), sent.handle).x, "column-major scales")
    z = coded(torch.complex64, t, 3, me).to(device)
    same(
        dispatch(z.conj(), sent.handle).x,
        dispatch(z.conj().resolve_conj(), sent.handle).x,
        "conjugate view",
    )
    y = normal(torch.bfloat16, 5, sent.x.shape[0], seed=me).to(device).t()
    same(combine(y, sent.handle)[0], combine(y.contiguous(), sent.handle)[0], "transposed combine")
