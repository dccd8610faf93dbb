"""Properties of combines and of gradients: C1 to C4, A1, A2."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import fmcore as fm
from fmcore.reference import moe as oracle
from fmcore_conformance.moe.checking import (
    combine,
    combined_equals_oracle,
    dispatch,
    prop,
    same,
    seat,
    send,
)
from fmcore_conformance.moe.inputs import ROUTINGS, coded, normal, routing


@prop("C1")
def identity_round_trip(group: Any, backend: str | None, device: str) -> None:
    """With identity experts a token comes back times its number of ranks, and its weights per slot."""
    me, ranks = seat(group)
    for kind in ROUTINGS:
        r = routing(kind, ranks)
        x = torch.arange(r.tokens[me] * 8, dtype=torch.float32).reshape(-1, 8) + 1
        sent = send(group, r, x, backend, device)
        back, weights = combine(sent.x, sent.handle, sent.topk_weights)
        reach = (fm.moe.layout(r.idx[me].to(device), r.num_experts, group=group).is_token_in_rank.sum(1)).float().cpu()
        same(back, x * reach[:, None], f"{kind}: rows")
        same(weights, torch.where(r.idx[me] >= 0, r.weights[me], 0.0), f"{kind}: weights")


@prop("C2")
def combine_recipe(group: Any, backend: str | None, device: str) -> None:
    """Bitwise the recipe: bias first, ranks ascending, fp32, one rounding (other dtypes: ``combine/*``)."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        combined_equals_oracle(group, routing("uniform", seat(group)[1]), dtype, 40, backend, device, 2)


@prop("C3")
def experts_that_scale(group: Any, backend: str | None, device: str) -> None:
    """Weighted by the experts or by the flag, per slot or per row: bitwise the recipe, and close to sum of w m x."""
    me, ranks = seat(group)
    r = routing("holes", ranks, topk=5)
    hidden = 6
    xs = [normal(torch.float32, t, hidden, seed=9 + rank) for rank, t in enumerate(r.tokens)]
    received = oracle.dispatch(xs, r.idx, r.weights, r.num_experts)
    local = r.num_experts // ranks
    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        slots = []
        for rank, got in enumerate(received):
            scale = torch.where(got.topk_idx >= 0, (got.topk_idx + rank * local + 1).float(), float("nan"))
            slots.append((scale[:, :, None] * got.x[:, None, :]).to(dtype))
        weights = [got.topk_weights for got in received]
        assert all(w is not None for w in weights)
        sent = send(group, r, xs[me], backend, device)
        want = oracle.combine(slots, received, r.tokens, topk_weights=weights)  # type: ignore[arg-type]
        got, _ = combine(slots[me].to(device), sent.handle, sent.topk_weights, weighted=True)
        same(got, want[me], f"weighted combine of {dtype} per slot")
        rows = [got.x.to(dtype) for got in received]
        want = oracle.combine(rows, received, r.tokens, topk_weights=weights)  # type: ignore[arg-type]
        got, _ = combine(rows[me].to(device), sent.handle, sent.topk_weights, weighted=True)
        same(got, want[me], f"weighted combine of {dtype} per row")
    scale = torch.where(r.idx[me] >= 0, r.weights[me] * (r.idx[me] + 1), 0.0).sum(1, keepdim=True)
    sent = send(group, r, xs[me], backend, device)
    m = torch.where(sent.topk_idx >= 0, sent.topk_weights * (sent.topk_idx + me * local + 1), 0.0).sum(1, keepdim=True)
    back, _ = combine(sent.x * m, sent.handle)
    error = (back.cpu() - scale * xs[me]).abs().max() if r.tokens[me] else torch.zeros(())
    assert float(error) <= 1e-5 * float((scale * xs[me]).abs().max()), f"sum of w m x is off by {float(error)}"


@prop("C4")
def tokens_without_expert(group: Any, backend: str | None, device: str) -> None:
    """A token that was sent nowhere gives exactly 0, or exactly its bias."""
    me, ranks = seat(group)
    r = routing("nowhere", ranks)
    sent = send(group, r, coded(torch.bfloat16, r.tokens[me], 4, me), backend, device)
    assert sent.x.shape == (0, 4)
    bias = normal(torch.bfloat16, r.tokens[me], 4, seed=3).to(device)
    empty = torch.empty(0, 4, dtype=torch.bfloat16, device=device)
    same(combine(empty, sent.handle)[0], torch.zeros_like(bias), "without bias")
    same(combine(empty, sent.handle, bias=bias)[0], bias, "with bias")


def _total(group: Any, value: torch.Tensor) -> float:
    value = value.detach().clone()
    if group is not None:
        dist.all_reduce(value, group=group)
    return float(value)


@prop("A1")
def adjoint(group: Any, backend: str | None, device: str) -> None:
    """<dispatch(x), y> = <x, combine(y)> exactly on small integers, and each one's backward is the other."""
    me, ranks = seat(group)
    r = routing("holes", ranks)
    x = normal(torch.int64, r.tokens[me], 5, seed=me).double().to(device).requires_grad_()
    w = r.weights[me].double().to(device).requires_grad_()
    idx = r.idx[me].to(device)
    sent = dispatch(x, fm.moe.layout(idx, r.num_experts, group=group, backend=backend), idx, w, backend=backend)
    y = normal(torch.int64, sent.x.shape[0], 5, seed=40 + me).double().to(device).requires_grad_()
    v = normal(torch.int64, *sent.topk_weights.shape, seed=80 + me).double().to(device).requires_grad_()
    back, slots = combine(y, sent.handle, v)
    assert _total(group, (sent.x * y).sum()) == _total(group, (x * back).sum()), "<dispatch(x), y> != <x, combine(y)>"
    torch.autograd.backward([(sent.x * y.detach()).sum() + (sent.topk_weights * v.detach()).sum()])
    same(x.grad, back.detach(), "backward of dispatch")
    here = torch.where(idx >= 0, combine(torch.where(sent.topk_idx >= 0, v, 0.0).detach(), sent.handle)[0], 0.0)
    same(w.grad, here, "backward of dispatch, weights")
    torch.autograd.backward([(back * x.detach()).sum() + (slots * w.detach()).sum()])
    same(y.grad, sent.x.detach(), "backward of combine")
    same(v.grad, dispatch(w.detach(), sent.handle).x, "backward of combine, weights")


@prop("A2")
def gradients_with_an_idle_rank(group: Any, backend: str | None, device: str) -> None:
    """Central differences of the whole round trip, weighted, with bias, where rank 0 has no token."""
    me, ranks = seat(group)
    r = routing("first_rank_idle" if ranks > 1 else "holes", ranks, tokens=4, topk=3)
    idx = r.idx[me].to(device)
    layout = fm.moe.layout(idx, r.num_experts, group=group, backend=backend)

    def loss(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        sent = dispatch(x, layout, idx, w, backend=backend)
        slots = torch.stack([torch.tanh(sent.x * (k + 1)) for k in range(3)], 1)
        out, _ = combine(slots, sent.handle, sent.topk_weights, weighted=True, bias=b)
        total: torch.Tensor = (out.sin() * (torch.arange(out.shape[-1], device=device) + 1)).sum()
        return total

    leaves = [
        normal(torch.float64, r.tokens[me], size, seed=n + 10 * me).to(device).requires_grad_()
        for n, size in enumerate((2, 3, 2))
    ]
    torch.autograd.backward([loss(*leaves)])
    step = 1e-6
    for owner in range(ranks):
        for n, leaf in enumerate(leaves):
            count = r.tokens[owner] * leaf.shape[1]
            for element in range(0, count, 2):
                sides = []
                for sign in (1, -1):
                    moved = [t.detach().clone() for t in leaves]
                    if me == owner:
                        moved[n].view(-1)[element] += sign * step
                    sides.append(_total(group, loss(*moved)))
                if me == owner:
                    assert leaf.grad is not None, f"input {n} got no gradient"
                    slope = (sides[0] - sides[1]) / (2 * step)
                    found = float(leaf.grad.view(-1)[element])
                    assert abs(slope - found) < 1e-6 * max(1.0, abs(slope)), (
                        f"input {n} element {element}: {found}, slope {slope}"
                    )
