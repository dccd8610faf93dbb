"""Repetition, reuse and mistakes: R1, R2, R7."""

from __future__ import annotations

from typing import Any

import torch

import fmcore as fm
from fmcore_conformance.moe.checking import (
    combine,
    dispatch,
    everywhere,
    prop,
    same,
    seat,
    send,
)
from fmcore_conformance.moe.inputs import ROUTINGS, coded, normal, routing


@prop("R1")
def reproducible(group: Any, backend: str | None, device: str) -> None:
    """Twenty repeats give the same bits, also in torch's deterministic mode."""
    me, ranks = seat(group)
    r = routing("holes", ranks)
    x = normal(torch.bfloat16, r.tokens[me], 16, seed=me)
    first: list[torch.Tensor] = []
    for repeat in range(20):
        torch.set_deterministic_debug_mode("error" if repeat % 2 else "default")
        try:
            sent = send(group, r, x, backend, device, num_worst_tokens=13 * ranks if repeat % 4 > 1 else 0)
            back, weights = combine(sent.x, sent.handle, sent.topk_weights)
        finally:
            torch.set_deterministic_debug_mode("default")
        first = first or [back, weights]
        same(back, first[0], f"repeat {repeat}")
        same(weights, first[1], f"repeat {repeat}: weights")


@prop("R2")
def reentrant_handles(group: Any, backend: str | None, device: str) -> None:
    """Many rounds of changing T; handles of earlier dispatches stay good, in any order of use."""
    me, ranks = seat(group)
    kept = []
    for turn in range(20):
        r = routing(ROUTINGS[turn % len(ROUTINGS)], ranks, tokens=1 + turn % 7, seed=turn)
        sent = send(group, r, coded(torch.float32, r.tokens[me], 4, me, salt=turn), backend, device)
        kept.append((r, sent))
    for r, sent in kept[::-1] + kept[::2]:
        ones = torch.ones(sent.x.shape[0], 2, device=device)
        back, _ = combine(ones, sent.handle)
        reach = fm.moe.layout(r.idx[me].to(device), r.num_experts, group=group).is_token_in_rank.sum(1)
        same(back, reach[:, None].float().expand(-1, 2), "combine along an earlier handle")


@prop("R7")
def mistakes_are_collective(group: Any, backend: str | None, device: str) -> None:
    """A mistake on one rank raises the same exception on all, and the group works afterwards."""
    me, ranks = seat(group)
    last = ranks - 1
    r = routing("uniform", ranks, tokens=6)
    x = normal(torch.float32, r.tokens[me], 4, seed=me).to(device)
    idx, w = r.idx[me].to(device), r.weights[me].to(device)
    layout = fm.moe.layout(idx, r.num_experts, group=group, backend=backend)
    bad = x[:-1] if me == last else x
    everywhere(group, lambda: dispatch(bad, layout, idx, w, backend=backend), "x has shape", "rows")
    everywhere(
        group,
        lambda: dispatch(x, layout, idx, w[:, : 3 if me == last else 4], backend=backend),
        "topk_weights is",
    )
    everywhere(
        group,
        lambda: dispatch(x, layout, idx, w, num_worst_tokens=2 if me == last else 1000, backend=backend),
        "num_worst_tokens is 2",
    )
    sent = dispatch(x, layout, idx, w, backend=backend)
    if device == "cpu":
        everywhere(group, lambda: dispatch(bad, sent.handle), "x has shape")
        y = sent.x[:-1] if me == last else sent.x
        everywhere(group, lambda: combine(y, sent.handle), "y has shape", "want [")
        b = x[:-1] if me == last else x
        everywhere(group, lambda: combine(sent.x, sent.handle, bias=b), "bias is")
    if ranks > 1:
        mixed = x.double() if me == last else x
        everywhere(group, lambda: dispatch(mixed, layout, idx, w, backend=backend), "disagree on dtype of x")
        other = fm.moe.layout(idx, r.num_experts * (2 if me == last else 1), group=group, backend=backend)
        everywhere(group, lambda: dispatch(x, other, idx, w, backend=backend), "disagree on num_experts")
    again = dispatch(x, layout, idx, w, backend=backend)
    same(again.x, sent.x, "a dispatch after the mistakes")
