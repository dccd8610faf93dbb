"""Properties of MoE dispatch and combine, each a function ``check(group, backend, device)`` that every rank runs.

A check raises AssertionError with the first difference. ``group`` is a process group, or None for one process. The ids
are those of the property list: L layout, D dispatch, C combine, A adjoint, S shapes, R robustness, T dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import fmcore as fm
from fmcore.errors import FmcoreError, InvalidInputError
from fmcore.reference import moe as oracle
from fmcore_conformance.moe_inputs import DTYPES, ROUTINGS, Routing, bits, coded, normal, routing

__all__ = ["PROPERTIES", "run_properties"]

Check = Callable[[Any, "str | None", str], None]
PROPERTIES: dict[str, Check] = {}


def _property(name: str) -> Callable[[Check], Check]:
    def keep(check: Check) -> Check:
        PROPERTIES[name] = check
        return check

    return keep


def run_properties(group: Any, names: tuple[str, ...] = (), backend: str | None = None, device: str = "cpu") -> dict[str, str]:
    """Run the named properties (all, if none are named) on this rank; return the text of each failure, or ``""``."""
    found = {}
    for name in names or tuple(PROPERTIES):
        try:
            PROPERTIES[name](group, backend, device)
        except (AssertionError, FmcoreError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = ""
    return found


# --------------------------------------------------------------------------------------------------------- helpers


def _where(group: Any) -> tuple[int, int]:
    return (0, 1) if group is None else (group.rank(), group.size())


def _same(got: torch.Tensor | None, want: torch.Tensor | None, what: str) -> None:
    """Bitwise equality, with the place of the first difference."""
    assert got is not None, f"{what}: nothing was returned"
    assert want is not None
    got = got.detach().cpu()
    want = want.detach().cpu()
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, want {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, want {tuple(want.shape)}"
    if got.numel() == 0:
        return
    differs = (bits(got.reshape(got.shape[0], -1)).reshape(got.shape[0], -1) != bits(want.reshape(want.shape[0], -1)).reshape(got.shape[0], -1)).any(1)
    if bool(differs.any()):
        row = int(differs.nonzero()[0, 0])
        raise AssertionError(f"{what}: row {row} of {got.shape[0]} differs: got {got[row].flatten()[:6]}, want {want[row].flatten()[:6]}")


def _send(group: Any, r: Routing, payload: Any, backend: str | None, device: str, *, idx_dtype: torch.dtype = torch.int64, **options: Any) -> Any:
    me, _ = _where(group)
    idx = r.idx[me].to(device, idx_dtype)
    move = payload.to(device) if isinstance(payload, torch.Tensor) else tuple(p.to(device) for p in payload)
    layout = fm.moe.layout(idx, r.num_experts, group=group, backend=backend)
    return fm.moe.dispatch(move, layout, idx, r.weights[me].to(device), backend=backend, **options)


def _expect(r: Routing, dtype: torch.dtype, hidden: int, **options: Any) -> list[oracle.ReferenceRank]:
    xs = [coded(dtype, t, hidden, rank) for rank, t in enumerate(r.tokens)]
    return oracle.dispatch(xs, r.idx, r.weights, r.num_experts, **options)


def _compare_dispatch(sent: Any, want: oracle.ReferenceRank, what: str) -> None:
    n = len(want.src)
    src = torch.tensor(want.src, dtype=torch.int32).reshape(-1, 2)
    _same(sent.handle.src_rank[:n], src[:, 0], f"{what}: source ranks")
    _same(sent.handle.src_token[:n], src[:, 1], f"{what}: source tokens")
    _same(sent.x[:n], want.x, f"{what}: rows")
    _same(sent.topk_idx[:n].to(torch.int64), want.topk_idx, f"{what}: local expert numbers")
    _same(sent.topk_weights[:n], want.topk_weights, f"{what}: weights")


def _everywhere(group: Any, call: Callable[[], Any], *words: str, kind: type[Exception] = InvalidInputError) -> None:
    """The call raises the same exception on every rank, and its text has the words."""
    said = "nothing was raised"
    try:
        call()
    except kind as error:
        said = f"{type(error).__name__}: {error}"
    texts = [said]
    if group is not None:
        texts = [""] * group.size()
        dist.all_gather_object(texts, said, group=group)
    assert len(set(texts)) == 1, f"the ranks say different things: {texts}"
    for word in words:
        assert word in said, f"{word!r} is missing from: {said}"


def _combined(group: Any, r: Routing, dtype: torch.dtype, hidden: int, backend: str | None, device: str, biases: int) -> None:
    me, ranks = _where(group)
    want_ranks = oracle.dispatch([torch.zeros(t, 1) for t in r.tokens], r.idx, r.weights, r.num_experts)
    ys = [normal(dtype, len(w.src), hidden, seed=50 + rank) for rank, w in enumerate(want_ranks)]
    bias = [[normal(dtype, t, hidden, seed=70 + 10 * rank + n) for n in range(biases)] for rank, t in enumerate(r.tokens)]
    want = oracle.combine(ys, want_ranks, r.tokens, bias=bias)
    sent = _send(group, r, torch.zeros(r.tokens[me], 1), backend, device)
    got, _ = fm.moe.combine(ys[me].to(device), sent.handle, bias=[b.to(device) for b in bias[me]])
    _same(got, want[me], f"combine of {dtype} over {ranks} ranks with {biases} biases")


# ---------------------------------------------------------------------------------------------------------- layout


@_property("L1")
def layout_counts(group: Any, backend: str | None, device: str) -> None:
    """Counts per rank are of tokens, counts per expert of slots; the map agrees; -1 contributes nothing."""
    me, ranks = _where(group)
    for kind in ROUTINGS:
        r = routing(kind, ranks)
        per_rank, per_expert, in_rank = oracle.layout(r.idx[me], r.num_experts, ranks)
        got = fm.moe.layout(r.idx[me].to(device), r.num_experts, group=group, backend=backend)
        _same(got.num_tokens_per_rank, torch.tensor(per_rank, dtype=torch.int32), f"{kind}: tokens per rank")
        _same(got.num_tokens_per_expert, torch.tensor(per_expert, dtype=torch.int32), f"{kind}: slots per expert")
        _same(got.is_token_in_rank, torch.tensor(in_rank, dtype=torch.bool).reshape(-1, ranks), f"{kind}: map")
        assert int(got.is_token_in_rank.sum()) == int(got.num_tokens_per_rank.sum())


@_property("L2")
def layout_of_nothing(group: Any, backend: str | None, device: str) -> None:
    """All -1, and no tokens at all, give zeros."""
    for tokens in (0, 5):
        got = fm.moe.layout(torch.full((tokens, 3), -1, device=device), 4 * _where(group)[1], group=group, backend=backend)
        assert not got.is_token_in_rank.any()
        assert not got.num_tokens_per_rank.any()
        assert not got.num_tokens_per_expert.any()
        assert got.is_token_in_rank.shape == (tokens, _where(group)[1])


# -------------------------------------------------------------------------------------------------------- dispatch


@_property("D1-D4")
def dispatch_equals_oracle(group: Any, backend: str | None, device: str) -> None:
    """Row count, bits, strict order, local expert numbers, weights 0 where the slot is elsewhere, for every routing."""
    me, ranks = _where(group)
    for kind in ROUTINGS:
        r = routing(kind, ranks)
        sent = _send(group, r, coded(torch.bfloat16, r.tokens[me], 24, me), backend, device)
        want = _expect(r, torch.bfloat16, 24)[me]
        assert sent.x.shape[0] == len(want.src), f"{kind}: {sent.x.shape[0]} rows, want {len(want.src)}"
        _compare_dispatch(sent, want, kind)
        assert bool(((sent.topk_weights == 0) == (sent.topk_idx < 0)).all()), f"{kind}: weight 0 iff index -1"
        order = sent.handle.src_rank.to(torch.int64) * 10_000 + sent.handle.src_token
        assert bool((order.diff() > 0).all()), f"{kind}: rows are not in order"


@_property("D5")
def counts_are_aligned(group: Any, backend: str | None, device: str) -> None:
    """Host counts are histograms of the local numbers, rounded up; also without topk_idx."""
    me, ranks = _where(group)
    for alignment in (1, 8, 16, 128):
        r = routing("holes", ranks, local_experts=5)
        x = coded(torch.float32, r.tokens[me], 3, me)
        want = _expect(r, torch.float32, 3, expert_alignment=alignment)[me].counts_per_expert
        sent = _send(group, r, x, backend, device, expert_alignment=alignment)
        assert sent.counts_per_expert == want, f"alignment {alignment}: {sent.counts_per_expert}, want {want}"
        layout = fm.moe.layout(r.idx[me].to(device), r.num_experts, group=group, backend=backend)
        bare = fm.moe.dispatch(x.to(device), layout, expert_alignment=alignment, backend=backend)
        assert bare.counts_per_expert == want, f"without topk_idx: {bare.counts_per_expert}, want {want}"
        assert bare.topk_idx is None
        assert bare.topk_weights is None


@_property("D6")
def worst_case_mode(group: Any, backend: str | None, device: str) -> None:
    """The prefix equals the exact mode bit for bit, the tail has index -1, and the way back ignores it."""
    me, ranks = _where(group)
    for kind in ("holes", "one_rank", "nowhere", "first_rank_idle"):
        r = routing(kind, ranks)
        x = coded(torch.float16, r.tokens[me], 10, me)
        sent = _send(group, r, x, backend, device, num_worst_tokens=ranks * 13)
        assert sent.x.shape[0] == ranks * 13
        assert sent.counts_per_expert == ()
        want = _expect(r, torch.float16, 10)[me]
        _compare_dispatch(sent, want, kind)
        n = len(want.src)
        assert bool((sent.topk_idx[n:] == -1).all()), f"{kind}: tail of topk_idx"
        assert bool((sent.handle.src_rank[n:] == -1).all()), f"{kind}: tail of src_rank"
        y = torch.full((ranks * 13, 4), float("nan"), device=device)
        y[:n] = 1.0
        back, _ = fm.moe.combine(y, sent.handle)
        reach = fm.moe.layout(r.idx[me].to(device), r.num_experts, group=group, backend=backend).is_token_in_rank.sum(1)
        _same(back, reach[:, None].float().expand(-1, 4), f"{kind}: combine of the padded rows")


@_property("D7")
def cached_dispatch(group: Any, backend: str | None, device: str) -> None:
    """A handle sends another tensor, of other dtype and width, along the same routes."""
    me, ranks = _where(group)
    r = routing("holes", ranks)
    sent = _send(group, r, coded(torch.bfloat16, r.tokens[me], 16, me), backend, device)
    again = fm.moe.dispatch(coded(torch.bfloat16, r.tokens[me], 16, me).to(device), sent.handle)
    _same(again.x, sent.x, "cached dispatch of the same tensor")
    assert again.topk_idx is None
    for dtype, hidden in ((torch.int8, 7), (torch.complex128, 3), (torch.float32, 33)):
        other = fm.moe.dispatch(coded(dtype, r.tokens[me], hidden, me).to(device), sent.handle)
        _same(other.x, _expect(r, dtype, hidden)[me].x, f"cached dispatch of {dtype} x {hidden}")


@_property("D8")
def one_row_per_rank(group: Any, backend: str | None, device: str) -> None:
    """A token whose experts share a rank arrives there once."""
    me, ranks = _where(group)
    r = routing("same_rank", ranks, topk=6)
    sent = _send(group, r, coded(torch.float32, r.tokens[me], 2, me), backend, device)
    pairs = torch.stack((sent.handle.src_rank, sent.handle.src_token), 1)
    assert pairs.unique(dim=0).shape == pairs.shape
    assert bool((sent.topk_idx >= 0).all())


# --------------------------------------------------------------------------------------------------------- combine


@_property("C1")
def identity_round_trip(group: Any, backend: str | None, device: str) -> None:
    """With identity experts a token comes back times its number of ranks, and its weights per slot."""
    me, ranks = _where(group)
    for kind in ROUTINGS:
        r = routing(kind, ranks)
        x = torch.arange(r.tokens[me] * 8, dtype=torch.float32).reshape(-1, 8) + 1
        sent = _send(group, r, x, backend, device)
        back, weights = fm.moe.combine(sent.x, sent.handle, sent.topk_weights)
        reach = (fm.moe.layout(r.idx[me].to(device), r.num_experts, group=group).is_token_in_rank.sum(1)).float().cpu()
        _same(back, x * reach[:, None], f"{kind}: rows")
        _same(weights, torch.where(r.idx[me] >= 0, r.weights[me], 0.0), f"{kind}: weights")


@_property("C2")
def combine_recipe(group: Any, backend: str | None, device: str) -> None:
    """Bitwise the recipe: bias first, ranks ascending, fp32, one rounding; 0, 1 and 2 biases; every dtype that sums."""
    ranks = _where(group)[1]
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int32, torch.int64):
        for biases in (0, 1, 2):
            _combined(group, routing("holes", ranks, tokens=7, seed=biases), dtype, 19, backend, device, biases)


@_property("C3")
def experts_that_scale(group: Any, backend: str | None, device: str) -> None:
    """Weighted by the experts or by the flag, per slot or per row: bitwise the recipe, and close to sum of w m x."""
    me, ranks = _where(group)
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
        sent = _send(group, r, xs[me], backend, device)
        want = oracle.combine(slots, received, r.tokens, topk_weights=weights)  # type: ignore[arg-type]
        got, _ = fm.moe.combine(slots[me].to(device), sent.handle, sent.topk_weights, weighted=True)
        _same(got, want[me], f"weighted combine of {dtype} per slot")
        rows = [got.x.to(dtype) for got in received]
        want = oracle.combine(rows, received, r.tokens, topk_weights=weights)  # type: ignore[arg-type]
        got, _ = fm.moe.combine(rows[me].to(device), sent.handle, sent.topk_weights, weighted=True)
        _same(got, want[me], f"weighted combine of {dtype} per row")
    scale = torch.where(r.idx[me] >= 0, r.weights[me] * (r.idx[me] + 1), 0.0).sum(1, keepdim=True)
    sent = _send(group, r, xs[me], backend, device)
    m = torch.where(sent.topk_idx >= 0, sent.topk_weights * (sent.topk_idx + me * local + 1), 0.0).sum(1, keepdim=True)
    back, _ = fm.moe.combine(sent.x * m, sent.handle)
    error = (back.cpu() - scale * xs[me]).abs().max() if r.tokens[me] else torch.zeros(())
    assert float(error) <= 1e-5 * float((scale * xs[me]).abs().max()), f"sum of w m x is off by {float(error)}"


@_property("C4")
def tokens_without_expert(group: Any, backend: str | None, device: str) -> None:
    """A token that was sent nowhere gives exactly 0, or exactly its bias."""
    me, ranks = _where(group)
    r = routing("nowhere", ranks)
    sent = _send(group, r, coded(torch.bfloat16, r.tokens[me], 4, me), backend, device)
    assert sent.x.shape == (0, 4)
    bias = normal(torch.bfloat16, r.tokens[me], 4, seed=3).to(device)
    empty = torch.empty(0, 4, dtype=torch.bfloat16, device=device)
    _same(fm.moe.combine(empty, sent.handle)[0], torch.zeros_like(bias), "without bias")
    _same(fm.moe.combine(empty, sent.handle, bias=bias)[0], bias, "with bias")


# --------------------------------------------------------------------------------------------------------- adjoint


def _total(group: Any, value: torch.Tensor) -> float:
    value = value.detach().clone()
    if group is not None:
        dist.all_reduce(value, group=group)
    return float(value)


@_property("A1")
def adjoint(group: Any, backend: str | None, device: str) -> None:
    """<dispatch(x), y> = <x, combine(y)> exactly on small integers, and each one's backward is the other."""
    me, ranks = _where(group)
    r = routing("holes", ranks)
    x = normal(torch.int64, r.tokens[me], 5, seed=me).double().to(device).requires_grad_()
    w = r.weights[me].double().to(device).requires_grad_()
    idx = r.idx[me].to(device)
    sent = fm.moe.dispatch(x, fm.moe.layout(idx, r.num_experts, group=group, backend=backend), idx, w, backend=backend)
    y = normal(torch.int64, sent.x.shape[0], 5, seed=40 + me).double().to(device).requires_grad_()
    v = normal(torch.int64, *sent.topk_weights.shape, seed=80 + me).double().to(device).requires_grad_()
    back, slots = fm.moe.combine(y, sent.handle, v)
    assert _total(group, (sent.x * y).sum()) == _total(group, (x * back).sum()), "<dispatch(x), y> != <x, combine(y)>"
    ((sent.x * y.detach()).sum() + (sent.topk_weights * v.detach()).sum()).backward()
    _same(x.grad, back.detach(), "backward of dispatch")
    here = torch.where(idx >= 0, fm.moe.combine(torch.where(sent.topk_idx >= 0, v, 0.0).detach(), sent.handle)[0], 0.0)
    _same(w.grad, here, "backward of dispatch, weights")
    ((back * x.detach()).sum() + (slots * w.detach()).sum()).backward()
    _same(y.grad, sent.x.detach(), "backward of combine")
    _same(v.grad, fm.moe.dispatch(w.detach(), sent.handle).x, "backward of combine, weights")


@_property("A2")
def gradients_with_an_idle_rank(group: Any, backend: str | None, device: str) -> None:
    """Central differences of the whole round trip, weighted, with bias, where rank 0 has no token."""
    me, ranks = _where(group)
    r = routing("first_rank_idle" if ranks > 1 else "holes", ranks, tokens=4, topk=3)
    idx = r.idx[me].to(device)
    layout = fm.moe.layout(idx, r.num_experts, group=group, backend=backend)

    def loss(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        sent = fm.moe.dispatch(x, layout, idx, w, backend=backend)
        slots = torch.stack([torch.tanh(sent.x * (k + 1)) for k in range(3)], 1)
        out, _ = fm.moe.combine(slots, sent.handle, sent.topk_weights, weighted=True, bias=b)
        return (out.sin() * (torch.arange(out.shape[-1], device=device) + 1)).sum()

    leaves = [normal(torch.float64, r.tokens[me], size, seed=n + 10 * me).to(device).requires_grad_() for n, size in enumerate((2, 3, 2))]
    loss(*leaves).backward()
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
                    slope = (sides[0] - sides[1]) / (2 * step)
                    found = float(leaf.grad.view(-1)[element])
                    assert abs(slope - found) < 1e-6 * max(1.0, abs(slope)), f"input {n} element {element}: {found}, slope {slope}"


# ---------------------------------------------------------------------------------------------------------- shapes


@_property("S1")
def token_counts(group: Any, backend: str | None, device: str) -> None:
    """T = 0 on all ranks, T = 1, T differing, one local expert, a number of local experts that is no power of two."""
    me, ranks = _where(group)
    for tokens, local in ((0, 3), (1, 3), (2, 1), (9, 1), (9, 7)):
        r = routing("holes" if tokens > 1 else "uniform", ranks, tokens=tokens, local_experts=local, topk=2)
        sent = _send(group, r, coded(torch.bfloat16, r.tokens[me], 8, me), backend, device)
        _compare_dispatch(sent, _expect(r, torch.bfloat16, 8)[me], f"T = {tokens}, Le = {local}")
        _combined(group, r, torch.bfloat16, 8, backend, device, 1)


@_property("S2")
def every_topk(group: Any, backend: str | None, device: str) -> None:
    """K from 1 to far beyond a warp."""
    me, ranks = _where(group)
    for topk in (1, 2, 6, 8, 9, 16, 32, 40, 65):
        r = routing("holes", ranks, topk=topk, local_experts=max(3, topk // ranks))
        sent = _send(group, r, coded(torch.bfloat16, r.tokens[me], 4, me), backend, device)
        _compare_dispatch(sent, _expect(r, torch.bfloat16, 4)[me], f"K = {topk}")


@_property("S3")
def every_width(group: Any, backend: str | None, device: str) -> None:
    """Any hidden size, whatever it is a multiple of."""
    me, ranks = _where(group)
    r = routing("uniform", ranks, tokens=4, topk=2)
    for hidden in (1, 7, 128, 2560, 2880, 3584, 6144, 7168, 8184, 8192):
        sent = _send(group, r, coded(torch.bfloat16, r.tokens[me], hidden, me), backend, device)
        _compare_dispatch(sent, _expect(r, torch.bfloat16, hidden)[me], f"H = {hidden}")
        _combined(group, r, torch.bfloat16, hidden, backend, device, 0)


@_property("S4")
def index_dtypes(group: Any, backend: str | None, device: str) -> None:
    """int32 and int64 indices give the same; indices out of range raise on every rank."""
    me, ranks = _where(group)
    r = routing("holes", ranks)
    x = coded(torch.float32, r.tokens[me], 5, me)
    wide = _send(group, r, x, backend, device)
    narrow = _send(group, r, x, backend, device, idx_dtype=torch.int32)
    assert narrow.topk_idx.dtype == torch.int32
    for name in ("x", "topk_weights"):
        _same(getattr(narrow, name), getattr(wide, name), name)
    _same(narrow.topk_idx.to(torch.int64), wide.topk_idx, "topk_idx")
    _same(narrow.handle.src_token, wide.handle.src_token, "src_token")
    for value in (-2, r.num_experts, 1 << 20):
        idx = r.idx[me].clone()
        if me == ranks - 1:
            idx[0, 0] = value

        def call(idx: torch.Tensor = idx.to(device)) -> None:
            fm.moe.dispatch(x.to(device), fm.moe.layout(idx, r.num_experts, group=group, backend=backend), idx, backend=backend)

        _everywhere(group, call, "1 value(s) outside", f"[-1, {r.num_experts})")


@_property("S5")
def experts_per_rank(group: Any, backend: str | None, device: str) -> None:
    """E that is no multiple of R raises on every rank before anything is sent."""
    ranks = _where(group)[1]
    if ranks == 1:
        return
    idx = torch.zeros(3, 2, dtype=torch.int64, device=device)
    _everywhere(group, lambda: fm.moe.layout(idx, 2 * ranks + 1, group=group, backend=backend), f"num_experts = {2 * ranks + 1}", "multiple")


@_property("S6")
def strides(group: Any, backend: str | None, device: str) -> None:
    """Transposed, expanded and offset inputs, column-major scales, conjugate views."""
    me, ranks = _where(group)
    r = routing("holes", ranks)
    t = r.tokens[me]
    plain = coded(torch.float32, t, 6, me).to(device)
    store = torch.zeros(t + 3, 11, device=device)
    store[2 : t + 2, 3:9] = plain
    for name, x in (("transposed", plain.t().contiguous().t()), ("offset", store[2 : t + 2, 3:9]), ("expanded", plain[:, :1].expand(-1, 6))):
        sent = _send(group, r, x, backend, device)
        want = fm.moe.dispatch(x.contiguous(), sent.handle).x
        _same(sent.x, want, name)
    scales = coded(torch.float32, t, 4, me, salt=1).t().contiguous().t().to(device)
    q = coded(torch.float8_e4m3fn, t, 32, me).to(device)
    got_q, got_scales = _send(group, r, (q, scales), backend, device).x
    sent = _send(group, r, q, backend, device)
    _same(got_q, sent.x, "q of a pair")
    _same(got_scales, fm.moe.dispatch(scales.contiguous(), sent.handle).x, "column-major scales")
    z = coded(torch.complex64, t, 3, me).to(device)
    _same(fm.moe.dispatch(z.conj(), sent.handle).x, fm.moe.dispatch(z.conj().resolve_conj(), sent.handle).x, "conjugate view")
    y = normal(torch.bfloat16, 5, sent.x.shape[0], seed=me).to(device).t()
    _same(fm.moe.combine(y, sent.handle)[0], fm.moe.combine(y.contiguous(), sent.handle)[0], "transposed combine")


# ------------------------------------------------------------------------------------------------------ robustness


@_property("R1")
def reproducible(group: Any, backend: str | None, device: str) -> None:
    """Twenty repeats give the same bits, also in torch's deterministic mode."""
    me, ranks = _where(group)
    r = routing("holes", ranks)
    x = normal(torch.bfloat16, r.tokens[me], 16, seed=me)
    first: list[torch.Tensor] = []
    for repeat in range(20):
        torch.set_deterministic_debug_mode("error" if repeat % 2 else "default")
        try:
            sent = _send(group, r, x, backend, device, num_worst_tokens=13 * ranks if repeat % 4 > 1 else 0)
            back, weights = fm.moe.combine(sent.x, sent.handle, sent.topk_weights)
        finally:
            torch.set_deterministic_debug_mode("default")
        first = first or [back, weights]
        _same(back, first[0], f"repeat {repeat}")
        _same(weights, first[1], f"repeat {repeat}: weights")


@_property("R2")
def reentrant_handles(group: Any, backend: str | None, device: str) -> None:
    """Many rounds of changing T; handles of earlier dispatches stay good, in any order of use."""
    me, ranks = _where(group)
    kept = []
    for turn in range(20):
        r = routing(ROUTINGS[turn % len(ROUTINGS)], ranks, tokens=1 + turn % 7, seed=turn)
        sent = _send(group, r, coded(torch.float32, r.tokens[me], 4, me, salt=turn), backend, device)
        kept.append((r, sent))
    for r, sent in kept[::-1] + kept[::2]:
        ones = torch.ones(sent.x.shape[0], 2, device=device)
        back, _ = fm.moe.combine(ones, sent.handle)
        reach = fm.moe.layout(r.idx[me].to(device), r.num_experts, group=group).is_token_in_rank.sum(1)
        _same(back, reach[:, None].float().expand(-1, 2), "combine along an earlier handle")


@_property("R7")
def mistakes_are_collective(group: Any, backend: str | None, device: str) -> None:
    """A mistake on one rank raises the same exception on all, and the group works afterwards."""
    me, ranks = _where(group)
    last = ranks - 1
    r = routing("uniform", ranks, tokens=6)
    x = normal(torch.float32, r.tokens[me], 4, seed=me).to(device)
    idx, w = r.idx[me].to(device), r.weights[me].to(device)
    layout = fm.moe.layout(idx, r.num_experts, group=group, backend=backend)
    bad = x[:-1] if me == last else x
    _everywhere(group, lambda: fm.moe.dispatch(bad, layout, idx, w, backend=backend), "x has shape", "rows")
    _everywhere(group, lambda: fm.moe.dispatch(x, layout, idx, w[:, : 3 if me == last else 4], backend=backend), "topk_weights is")
    _everywhere(group, lambda: fm.moe.dispatch(x, layout, idx, w, num_worst_tokens=2 if me == last else 1000, backend=backend), "num_worst_tokens is 2")
    sent = fm.moe.dispatch(x, layout, idx, w, backend=backend)
    if device == "cpu":
        _everywhere(group, lambda: fm.moe.dispatch(bad, sent.handle), "x has shape")
        y = sent.x[:-1] if me == last else sent.x
        _everywhere(group, lambda: fm.moe.combine(y, sent.handle), "y has shape", "want [")
        b = x[:-1] if me == last else x
        _everywhere(group, lambda: fm.moe.combine(sent.x, sent.handle, bias=b), "bias is")
    if ranks > 1:
        mixed = x.double() if me == last else x
        _everywhere(group, lambda: fm.moe.dispatch(mixed, layout, idx, w, backend=backend), "disagree on dtype of x")
        other = fm.moe.layout(idx, r.num_experts * (2 if me == last else 1), group=group, backend=backend)
        _everywhere(group, lambda: fm.moe.dispatch(x, other, idx, w, backend=backend), "disagree on num_experts")
    again = fm.moe.dispatch(x, layout, idx, w, backend=backend)
    _same(again.x, sent.x, "a dispatch after the mistakes")


# ---------------------------------------------------------------------------------------------------------- dtypes


@_property("T1")
def payload_dtypes(group: Any, backend: str | None, device: str) -> None:
    """Every dtype travels bit for bit, fp8 and int8 with scales among them; those without a sum refuse to combine."""
    me, ranks = _where(group)
    r = routing("holes", ranks)
    for name, dtype in DTYPES.items():
        sent = _send(group, r, coded(dtype, r.tokens[me], 9, me), backend, device)
        _compare_dispatch(sent, _expect(r, dtype, 9)[me], name)
        if dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.float8_e4m3fn, torch.float8_e5m2):
            rows = sent.x
            _everywhere(group, lambda rows=rows, h=sent.handle: fm.moe.combine(rows, h), "cannot be combined", kind=fm.errors.UnsupportedError)
    for quant, scale_shape in ((torch.float8_e4m3fn, (4,)), (torch.float8_e5m2, (4,)), (torch.int8, (1,)), (torch.int8, ())):
        q = coded(quant, r.tokens[me], 512, me)
        s = coded(torch.float32, r.tokens[me], 4, me, salt=1)[:, : scale_shape[0]] if scale_shape else coded(torch.float32, r.tokens[me], 1, me, salt=1)[:, 0]
        got_q, got_s = _send(group, r, (q, s), backend, device).x
        want = _expect(r, quant, 512)[me]
        _same(got_q, want.x, f"{quant} payload")
        ss = [coded(torch.float32, t, 4 if scale_shape == (4,) else 1, rank, salt=1) for rank, t in enumerate(r.tokens)]
        expected = oracle.dispatch(ss, r.idx, None, r.num_experts)[me].x
        _same(got_s.reshape(got_s.shape[0], -1), expected, f"scales of {quant}")
