"""The oracle of attention against loops of plain Python, against autograd, and against finite differences."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fmcore import masks
from fmcore.reference import attention as oracle


def by_loops(
    q: Any, k: Any, v: Any, visible: Any, *, softmax_scale: float, softcap: float = 0.0, sink: Any = None
) -> Any:
    """Attention of nested lists [b][s][h][d] with math.exp and nothing else; ``visible(b, h, i, j)``."""
    out, lse = {}, {}
    for n, h, i in itertools.product(range(len(q)), range(len(q[0][0])), range(len(q[0]))):
        kv = h // (len(q[0][0]) // len(k[0][0]))
        scores = {}
        for j in range(len(k[0])):
            if visible(n, h, i, j):
                s = softmax_scale * sum(a * b for a, b in zip(q[n][i][h], k[n][j][kv], strict=True))
                scores[j] = softcap * math.tanh(s / softcap) if softcap else s
        total = sum(math.exp(s) for s in scores.values()) + (0.0 if sink is None else math.exp(sink[h]))
        lse[n, h, i] = math.log(total) if total else -math.inf
        width = len(v[0][0][0])
        out[n, i, h] = [
            sum(math.exp(s) * v[n][j][kv][c] for j, s in scores.items()) / (total or 1.0) for c in range(width)
        ]
    return out, lse


def inputs(b: int = 2, s_q: int = 7, s_k: int = 6, h_q: int = 4, h_kv: int = 2, d: int = 3, dv: int = 5) -> list[Any]:
    g = torch.Generator().manual_seed(1)
    shapes = [(b, s_q, h_q, d), (b, s_k, h_kv, d), (b, s_k, h_kv, dv)]
    return [torch.randn(*shape, generator=g, dtype=torch.float64) for shape in shapes]


def random_mask(s_q: int, s_k: int, *, batch: int = 1, heads: int = 1, n: int = 4, causal: bool = False) -> masks.Mask:
    g = torch.Generator().manual_seed(2)
    indices = torch.randint(0, s_q + 1, (batch, heads, s_k, n), generator=g, dtype=torch.int32)
    return masks.canonicalize(indices, s_q=s_q, s_k=s_k, causal=causal)


MASKS = {
    "full": lambda: masks.full(7, 6),
    "causal": lambda: masks.causal(7, 6),
    "one-head": lambda: random_mask(7, 6, n=2),
    "kv-heads": lambda: random_mask(7, 6, batch=2, heads=2, n=1, causal=True),
    "query-heads": lambda: random_mask(7, 6, batch=2, heads=4),
    "two-intervals-causal": lambda: random_mask(7, 6, heads=4, n=2, causal=True),
    "nothing": lambda: masks.all_masked(7, 6),
}
OPTIONS = {
    "plain": {"softmax_scale": 0.6},
    "softcap": {"softmax_scale": 1.3, "softcap": 0.7},
    "sink": {"softmax_scale": 0.6, "sink": torch.tensor([0.5, -2.0, 3.0, 0.0], dtype=torch.float64)},
    "all": {"softmax_scale": -0.8, "softcap": 2.0, "sink": torch.tensor([0.5, -2.0, 3.0, 0.0], dtype=torch.float64)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_forward_equals_loops(mask: Any, options: dict[str, Any]) -> None:
    m = mask()
    q, k, v = inputs()
    dense = m.dense().expand(2 if m.batch > 1 else 1, -1, -1, -1)

    def visible(n: int, h: int, i: int, j: int) -> bool:
        return bool(dense[n % m.batch, h // (4 // m.heads), i, j])

    plain = {**options, "sink": options["sink"].tolist()} if "sink" in options else options
    want, want_lse = by_loops(q.tolist(), k.tolist(), v.tolist(), visible, **plain)
    out, lse = oracle.exact_forward(q, k, v, m, **options)
    for (n, i, h), row in want.items():
        assert out[n, i, h].tolist() == pytest.approx(row, rel=1e-12, abs=1e-12)
    for (n, h, i), value in want_lse.items():
        assert float(lse[n, h, i]) == pytest.approx(value, rel=1e-12, abs=1e-12)


def by_autograd(
    q: Any,
    k: Any,
    v: Any,
    m: Any,
    dout: Any,
    dlse: Any,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    sink: Any = None,
) -> Any:
    """Gradients by torch's autograd of a dense formula."""
    leaves = [t.clone().requires_grad_() for t in (q, k, v, *([] if sink is None else [sink]))]
    group, heads = q.shape[2] // k.shape[2], q.shape[2]
    wide_k, wide_v = (t.repeat_interleave(group, 2) for t in leaves[1:3])
    scores = softmax_scale * torch.einsum("bihd,bjhd->bhij", leaves[0], wide_k)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    visible = m.dense().repeat_interleave(heads // m.heads, 1).expand_as(scores)
    weights = torch.exp(scores) * visible
    total = weights.sum(-1)
    if sink is not None:
        total = total + leaves[3].exp().view(1, -1, 1)
    some = total > 0
    safe = torch.where(some, total, 1.0)
    out = torch.einsum("bhij,bjhd->bihd", weights / safe[..., None], wide_v)
    loss = (out * dout).sum() + (torch.where(some, safe.log(), 0.0) * dlse).sum()
    return torch.autograd.grad(loss, leaves, allow_unused=True)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_backward_equals_autograd(mask: Any, options: dict[str, Any]) -> None:
    q, k, v = inputs()
    dout, dlse = torch.randn(2, 7, 4, 5, dtype=torch.float64), torch.randn(2, 4, 7, dtype=torch.float64)
    want = by_autograd(q, k, v, mask(), dout, dlse, **options)
    got = oracle.exact_backward(dout, dlse, q, k, v, mask(), **options)
    for g, w in zip(got[: len(want)], want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-11, atol=1e-12)
    assert (got[3] is None) == ("sink" not in options)


class Literal(torch.autograd.Function):
    """The oracle as a differentiable function, for gradcheck."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, sink: Any, mask: Any, softcap: float) -> Any:
        ctx.save_for_backward(q, k, v, sink)
        ctx.rest = {"softmax_scale": 0.9, "softcap": softcap}
        ctx.mask = mask
        return oracle.exact_forward(q, k, v, mask, sink=sink, **ctx.rest)

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        q, k, v, sink = ctx.saved_tensors
        return *oracle.exact_backward(dout, dlse, q, k, v, ctx.mask, sink=sink, **ctx.rest), None, None


@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("mask", ["one-head", "query-heads"])
def test_backward_passes_gradcheck(mask: str, softcap: float) -> None:
    leaves = [t.requires_grad_() for t in (*inputs(), OPTIONS["sink"]["sink"].clone())]
    assert torch.autograd.gradcheck(Literal.apply, (*leaves, MASKS[mask](), softcap))


@pytest.mark.parametrize("chunk", [1, 40, 100, 1000])
def test_the_chunk_changes_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(b=3, s_q=9, s_k=8)
    mask = random_mask(9, 8, batch=3, heads=2)
    mask = masks.with_block_mask(mask, torch.ones(3, 2, 1, 1, dtype=torch.int32))
    dout, dlse = torch.randn(3, 9, 4, 5, dtype=torch.float64), torch.randn(3, 4, 9, dtype=torch.float64)

    def everything() -> list[Any]:
        found = [*oracle.exact_forward(q, k, v, mask, softmax_scale=1.0)]
        found += oracle.exact_backward(dout, dlse, q, k, v, mask, softmax_scale=1.0)[:3]
        return [*found, *oracle.gradient_floors(q, k, v, dout, mask, softmax_scale=1.0)]

    whole = everything()
    monkeypatch.setattr(oracle, "CHUNK", chunk)
    for a, b in zip(everything(), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


class Largest(TorchDispatchMode):
    """Remembers the most elements that any one result had."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for t in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(t, torch.Tensor):
                self.numel = max(self.numel, t.numel())
        return result


def test_scores_are_never_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "CHUNK", 1 << 14)
    q, k, v = inputs(b=1, s_q=700, s_k=700, h_q=2, h_kv=1)
    mask = masks.causal(700)
    with Largest() as seen:
        oracle.exact_forward(q, k, v, mask, softmax_scale=1.0)
        oracle.exact_backward(torch.ones(1, 700, 2, 5), None, q, k, v, mask, softmax_scale=1.0)
        oracle.gradient_floors(q, k, v, torch.ones(1, 700, 2, 5), mask, softmax_scale=1.0)
    assert seen.numel <= (1 << 14) + 2 * 700  # a chunk, with the column of the sink


def test_block_mask_is_honoured() -> None:
    q, k, v = inputs(b=1, s_q=200, s_k=300, h_q=2, h_kv=1)
    keep = torch.tensor([[[[1, 0, 1], [0, 1, 0]]]], dtype=torch.int32)
    mask = masks.with_block_mask(random_mask(200, 300), keep)
    out, lse = oracle.exact_forward(q, k, v, mask, softmax_scale=1.0)
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)).masked_fill(~mask.dense(), -math.inf)
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    weights = torch.exp(scores - lse.nan_to_num(neginf=0.0)[..., None])
    torch.testing.assert_close(out, torch.einsum("bhij,bjhd->bihd", weights, v.repeat_interleave(2, 2)))


@pytest.mark.parametrize("empty", ["b", "s_q", "s_k"])
def test_empty_sizes(empty: str) -> None:
    q, k, v = inputs(**{empty: 0})
    mask = masks.full(q.shape[1], k.shape[1])
    out, lse = oracle.exact_forward(q, k, v, mask, softmax_scale=1.0)
    assert out.shape == (*q.shape[:3], 5)
    assert lse.shape == (q.shape[0], 4, q.shape[1])
    grads = oracle.exact_backward(torch.ones_like(out), None, q, k, v, mask, softmax_scale=1.0)
    floors = oracle.gradient_floors(q, k, v, torch.ones_like(out), mask, softmax_scale=1.0)
    assert [g.shape for g in grads[:3]] == [q.shape, k.shape, v.shape]
    assert [f.shape for f in floors] == [q.shape[:3], k.shape[:3], v.shape[:3]]
    assert not out.any()
    assert bool((lse == -math.inf).all())
    assert not any(g.any() for g in grads[:3])


def test_rows_that_see_nothing() -> None:
    q, k, v = inputs()
    mask = random_mask(7, 6, n=2)
    blind = ~mask.dense()[0, 0].any(-1)
    assert blind.any()
    assert not blind.all()
    dlse = torch.full((2, 4, 7), math.nan, dtype=torch.float64)
    dlse[..., ~blind] = 1.0
    sink = OPTIONS["sink"]["sink"]
    out, lse = oracle.exact_forward(q, k, v, mask, softmax_scale=1.0)
    assert not out[:, blind].any()
    assert bool((lse[..., blind] == -math.inf).all())
    assert not lse[..., ~blind].isinf().any()
    dq, dk, dv, _ = oracle.exact_backward(torch.ones_like(out), dlse, q, k, v, mask, softmax_scale=1.0)
    assert not dq[:, blind].any()
    assert not any(t.isnan().any() for t in (dq, dk, dv))
    out, lse = oracle.exact_forward(q, k, v, mask, softmax_scale=1.0, sink=sink)
    assert not out[:, blind].any()
    torch.testing.assert_close(lse[..., blind], sink.view(1, 4, 1).expand(2, 4, int(blind.sum())))


def test_hidden_values_reach_nothing_and_visible_nans_do() -> None:
    q, k, v = inputs(s_k=7)
    mask = masks.causal(7)
    clean = oracle.exact_forward(q, k, v, mask, softmax_scale=1.0)
    k[:, 5], v[:, 5] = math.nan, math.inf  # key 5 is hidden from rows 0 to 4
    out, lse = oracle.exact_forward(q, k, v, mask, softmax_scale=1.0)
    assert torch.equal(out[:, :5], clean[0][:, :5])
    assert torch.equal(lse[..., :5], clean[1][..., :5])
    assert bool(out[:, 5:].isnan().all())
    dout = torch.zeros_like(out)
    dout[:, :5] = 1.0
    dq, dk, _, _ = oracle.exact_backward(dout, None, q, k, v, mask, softmax_scale=1.0)
    assert not dq[:, :5].isnan().any()
    assert bool(dk[:, 5].isnan().all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_contract_rounds_once(dtype: torch.dtype) -> None:
    q, k, v = (t.to(dtype) for t in inputs())
    mask = masks.causal(7, 6)
    sink = torch.zeros(4, dtype=torch.float32)
    out, lse = oracle.forward(q, k, v, mask, softmax_scale=0.5, sink=sink)
    exact = oracle.exact_forward(q, k, v, mask, softmax_scale=0.5, sink=sink)
    assert torch.equal(out, exact[0].to(dtype))
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    nonsense = torch.full_like(out, math.nan), torch.full_like(lse, math.nan)
    grads = oracle.backward(out, None, q, k, v, *nonsense, mask, softmax_scale=0.5, sink=sink)
    assert [g.dtype for g in grads] == [dtype, dtype, dtype, torch.float32]
    want = oracle.exact_backward(out, None, q, k, v, mask, softmax_scale=0.5, sink=sink)
    assert all(torch.equal(g, w.to(g.dtype)) for g, w in zip(grads, want, strict=True))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_floors_are_the_size_of_the_terms(options: dict[str, Any]) -> None:
    """Written out over dense matrices, and never below the gradient: a sum is no larger than its terms."""
    q, k, v = inputs()
    mask = random_mask(7, 6, heads=4)
    dout = torch.randn(2, 7, 4, 5, dtype=torch.float64)
    floors = oracle.gradient_floors(q, k, v, dout, mask, **options)
    grads = oracle.exact_backward(dout, None, q, k, v, mask, **options)[:3]
    for floor, grad in zip(floors, grads, strict=True):
        assert bool((floor >= grad.norm(dim=-1) - 1e-12).all())
    out, lse = oracle.exact_forward(q, k, v, mask, **options)
    wide_k, wide_v = k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)
    scores = options["softmax_scale"] * torch.einsum("bihd,bjhd->bhij", q, wide_k)
    cap = options.get("softcap")
    slope = 1 - torch.tanh(scores / cap).square() if cap else 1.0
    scores = cap * torch.tanh(scores / cap) if cap else scores
    p = torch.exp(scores.masked_fill(~mask.dense(), -math.inf) - lse.nan_to_num(neginf=0.0)[..., None])
    size = torch.einsum("bihd,bjhd->bhij", dout, wide_v).abs() + (dout * out).sum(-1).abs().transpose(1, 2)[..., None]
    size = size * p * slope * abs(options["softmax_scale"])
    terms_k = torch.einsum("bhij,bihd->bjhd", size, q.abs()).unflatten(2, (2, 2)).sum(3)
    terms_v = torch.einsum("bhij,bihd->bjhd", p, dout.abs()).unflatten(2, (2, 2)).sum(3)
    torch.testing.assert_close(floors[0], torch.einsum("bhij,bjhd->bihd", size, wide_k.abs()).norm(dim=-1))
    torch.testing.assert_close(floors[1], terms_k.norm(dim=-1))
    torch.testing.assert_close(floors[2], terms_v.norm(dim=-1))
