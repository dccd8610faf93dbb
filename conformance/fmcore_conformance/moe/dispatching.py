"""Properties of layouts and dispatches: L1, L2, D1 to D8."""

from __future__ import annotations

from typing import Any

import torch

import fmcore as fm
from fmcore.reference import moe as oracle
from fmcore_conformance.moe.checking import (
    combine,
    compare_dispatch,
    dispatch,
    expected,
    prop,
    same,
    seat,
    send,
)
from fmcore_conformance.moe.inputs import ROUTINGS, coded, routing


@prop("L1")
def layout_counts(group: Any, backend: str | None, device: str) -> None:
    """Counts per rank are of tokens, counts per expert of slots; the map agrees; -1 contributes nothing."""
    me, ranks = seat(group)
    for kind in ROUTINGS:
        r = routing(kind, ranks)
        per_rank, per_expert, in_rank = oracle.layout(r.idx[me], r.num_experts, ranks)
        got = fm.moe.layout(r.idx[me].to(device), r.num_experts, group=group, backend=backend)
        same(got.num_tokens_per_rank, torch.tensor(per_rank, dtype=torch.int32), f"{kind}: tokens per rank")
        same(got.num_tokens_per_expert, torch.tensor(per_expert, dtype=torch.int32), f"{kind}: slots per expert")
        same(got.is_token_in_rank, torch.tensor(in_rank, dtype=torch.bool).reshape(-1, ranks), f"{kind}: map")
        assert int(got.is_token_in_rank.sum()) == int(got.num_tokens_per_rank.sum())


@prop("L2")
def layout_of_nothing(group: Any, backend: str | None, device: str) -> None:
    """All -1, and no tokens at all, give zeros."""
    for tokens in (0, 5):
        got = fm.moe.layout(
            torch.full((tokens, 3), -1, device=device), 4 * seat(group)[1], group=group, backend=backend
        )
        assert not got.is_token_in_rank.any()
        assert not got.num_tokens_per_rank.any()
        assert not got.num_tokens_per_expert.any()
        assert got.is_token_in_rank.shape == (tokens, seat(group)[1])


@prop("D1-D4")
def dispatch_equals_oracle(group: Any, backend: str | None, device: str) -> None:
    """Row count, bits, strict order, local expert numbers, weights 0 where the slot is elsewhere, for every routing."""
    me, ranks = seat(group)
    for kind in ROUTINGS:
        r = routing(kind, ranks)
        sent = send(group, r, coded(torch.bfloat16, r.tokens[me], 24, me), backend, device)
        want = expected(r, torch.bfloat16, 24)[me]
        assert sent.x.shape[0] == len(want.src), f"{kind}: {sent.x.shape[0]} rows, want {len(want.src)}"
        compare_dispatch(sent, want, kind)
        assert bool(((sent.topk_weights == 0) == (sent.topk_idx < 0)).all()), f"{kind}: weight 0 iff index -1"
        order = sent.handle.src_rank.to(torch.int64) * 10_000 + sent.handle.src_token
        assert bool((order.diff() > 0).all()), f"{kind}: rows are not in order"


@prop("D5")
def counts_are_aligned(group: Any, backend: str | None, device: str) -> None:
    """Host counts are histograms of the local numbers, rounded up; also without topk_idx."""
    me, ranks = seat(group)
    for alignment in (1, 8, 16, 128):
        r = routing("holes", ranks, local_experts=5)
        x = coded(torch.float32, r.tokens[me], 3, me)
        want = expected(r, torch.float32, 3, expert_alignment=alignment)[me].counts_per_expert
        sent = send(group, r, x, backend, device, expert_alignment=alignment)
        assert sent.counts_per_expert == want, f"alignment {alignment}: {sent.counts_per_expert}, want {want}"
        layout = fm.moe.layout(r.idx[me].to(device), r.num_experts, group=group, backend=backend)
        bare = dispatch(x.to(device), layout, expert_alignment=alignment, backend=backend)
        assert bare.counts_per_expert == want, f"without topk_idx: {bare.counts_per_expert}, want {want}"
        assert bare.topk_idx is None
        assert bare.topk_weights is None


@prop("D6")
def worst_case_mode(group: Any, backend: str | None, device: str) -> None:
    """The prefix equals the exact mode bit for bit, the tail has index -1, and the way back ignores it."""
    me, ranks = seat(group)
    for kind in ("holes", "one_rank", "nowhere", "first_rank_idle"):
        r = routing(kind, ranks)
        x = coded(torch.float16, r.tokens[me], 10, me)
        sent = send(group, r, x, backend, device, num_worst_tokens=ranks * 13)
        assert sent.x.shape[0] == ranks * 13
        assert sent.counts_per_expert == ()
        want = expected(r, torch.float16, 10)[me]
        compare_dispatch(sent, want, kind)
        n = len(want.src)
        assert bool((sent.topk_idx[n:] == -1).all()), f"{kind}: tail of topk_idx"
        assert bool((sent.handle.src_rank[n:] == -1).all()), f"{kind}: tail of src_rank"
        y = torch.full((ranks * 13, 4), float("nan"), device=device)
        y[:n] = 1.0
        back, _ = combine(y, sent.handle)
        reach = fm.moe.layout(r.idx[me].to(device), r.num_experts, group=group, backend=backend).is_token_in_rank.sum(1)
        same(back, reach[:, None].float().expand(-1, 4), f"{kind}: combine of the padded rows")


@prop("D7")
def cached_dispatch(group: Any, backend: str | None, device: str) -> None:
    """A handle sends another tensor, of other dtype and width, along the same routes."""
    me, ranks = seat(group)
    r = routing("holes", ranks)
    sent = send(group, r, coded(torch.bfloat16, r.tokens[me], 16, me), backend, device)
    again = dispatch(coded(torch.bfloat16, r.tokens[me], 16, me).to(device), sent.handle)
    same(again.x, sent.x, "cached dispatch of the same tensor")
    assert again.topk_idx is None
    for dtype, hidden in ((torch.int8, 7), (torch.complex128, 3), (torch.float32, 33)):
        other = dispatch(coded(dtype, r.tokens[me], hidden, me).to(device), sent.handle)
        same(other.x, expected(r, dtype, hidden)[me].x, f"cached dispatch of {dtype} x {hidden}")


@prop("D8")
def one_row_per_rank(group: Any, backend: str | None, device: str) -> None:
    """A token whose experts share a rank arrives there once."""
    me, ranks = seat(group)
    r = routing("same_rank", ranks, topk=6)
    sent = send(group, r, coded(torch.float32, r.tokens[me], 2, me), backend, device)
    pairs = list(zip(sent.handle.src_rank.tolist(), sent.handle.src_token.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs), "a token arrived twice"
    assert bool((sent.topk_idx >= 0).all())
