"""Layout, dispatch and combine against plain Python and the recipe of the contract, bit for bit."""

from __future__ import annotations

import pytest
import torch

import fmcore as fm
from fmcore.errors import InvalidInputError
from fmcore_cpu import moe

pytestmark = pytest.mark.usefixtures("kernels")


class Ranks:
    """A group of which only the size matters."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return self.ranks


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("tokens", "experts", "ranks"), [(0, 4, 2), (7, 4, 1), (5000, 64, 8), (40, 256, 128)])
@pytest.mark.parametrize("threads", [1, 3])
def test_layout_by_hand(tokens: int, experts: int, ranks: int, dtype: torch.dtype, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(tokens)
    idx = torch.randint(-1, experts, (tokens, 4)).to(dtype)
    got = moe.layout(idx, num_experts=experts, group=Ranks(ranks))
    per_expert, in_rank = [0] * experts, [[False] * ranks for _ in range(tokens)]
    for token, slots in enumerate(idx.tolist()):
        for expert in slots:
            if expert >= 0:
                per_expert[expert] += 1
                in_rank[token][expert // (experts // ranks)] = True
    assert got.num_tokens_per_expert.tolist() == per_expert
    assert got.is_token_in_rank.tolist() == in_rank
    assert got.num_tokens_per_rank.tolist() == [sum(row[r] for row in in_rank) for r in range(ranks)]
    assert int(got.num_invalid) == 0


def test_layout_counts_what_is_no_expert() -> None:
    idx = torch.tensor([[0, -2], [4, -1], [3, 2**31]])
    got = moe.layout(idx, num_experts=4, group=Ranks(2))
    assert int(got.num_invalid) == 3
    assert got.num_tokens_per_expert.tolist() == [1, 0, 0, 1]
    with pytest.raises(InvalidInputError, match=r"3 value\(s\) outside \[-1, 4\)"):
        moe.layout(idx, num_experts=4, group=None)


def recipe(y: torch.Tensor, weights: torch.Tensor, idx: torch.Tensor, bias: list[torch.Tensor]) -> torch.Tensor:
    """Return the contract's sum: float32, slots ascending, two roundings a term, biases, one rounding at the end."""
    total = torch.zeros(y.shape[0], y.shape[-1])
    for k in range(idx.shape[1]):
        row = torch.where(idx[:, k : k + 1] >= 0, y if y.ndim == 2 else y[:, k], 0).float()
        total = total + row * torch.where(idx[:, k : k + 1] >= 0, weights[:, k : k + 1], 0)
    base = sum((b.float() for b in bias[1:]), bias[0].float()) if bias else torch.zeros_like(total)
    return (base + total).to(y.dtype)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("hidden", [1, 7, 64, 133])
@pytest.mark.parametrize("biases", [0, 1, 2])
def test_weighted_combine_is_the_recipe(dtype: torch.dtype, hidden: int, biases: int) -> None:
    torch.manual_seed(hidden)
    idx, weights = torch.randint(-1, 8, (37, 3)), torch.rand(37, 3)
    idx[:, 0] = idx[:, 0].clamp(min=0)  # every token has a row, so rows and tokens are in the same order
    sent = fm.moe.dispatch(torch.randn(37, hidden).to(dtype), fm.moe.layout(idx, 8), idx, weights, backend="cpu")
    bias = [torch.randn(37, hidden).to(dtype) for _ in range(biases)]
    for shape in ((37, 3, hidden), (37, hidden)):
        y = torch.randn(shape).to(dtype)
        if len(shape) == 3:
            y[idx < 0] = torch.nan  # a slot without an expert counts nowhere
        got, back = fm.moe.combine(y, sent.handle, sent.topk_weights, bias=bias, weighted=True)
        assert torch.equal(got, recipe(y, weights, idx, bias))
        assert torch.equal(back, torch.where(idx >= 0, weights, 0))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.float8_e4m3fn, torch.complex64, torch.complex128, torch.int64], ids=str
)
def test_rows_travel_as_bits(dtype: torch.dtype) -> None:
    idx = torch.tensor([[0], [-1], [2], [3]])
    x = torch.randn(4, 5).mul(4).to(dtype)
    sent = fm.moe.dispatch(x, fm.moe.layout(idx, 4), idx, num_worst_tokens=6, backend="cpu")
    assert torch.equal(sent.x[:3].view(torch.uint8), x[[0, 2, 3]].view(torch.uint8))
    assert sent.topk_idx.flatten().tolist() == [0, 2, 3, -1, -1, -1]
    payload = torch.tensor([[float("nan")], [1.0], [-0.0], [float("inf")]]).view(torch.int32) | 1
    row = fm.moe.dispatch(payload.view(torch.float32), fm.moe.layout(idx, 4), idx, backend="cpu").x
    assert torch.equal(row.view(torch.int32), payload[[0, 2, 3]])


@pytest.mark.parametrize("slots", [False, True])
def test_gradients(slots: bool) -> None:
    idx = torch.tensor([[0, 2], [-1, -1], [-1, 3], [1, 1]])
    layout = fm.moe.layout(idx, 4)

    def run(x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        sent = fm.moe.dispatch(x, layout, idx, weights, backend="cpu")
        y = torch.stack([sent.x.tanh(), sent.x**2], 1) if slots else sent.x.tanh()
        return fm.moe.combine(y, sent.handle, sent.topk_weights, bias=bias, weighted=True)[0]

    torch.manual_seed(0)
    leaves = [torch.randn(4, 3), torch.rand(4, 2), torch.randn(4, 3)]
    mine = torch.autograd.grad(run(*(t.requires_grad_() for t in leaves)).square().sum(), leaves)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    want = torch.autograd.grad(run(*wide).square().sum(), wide)
    assert torch.autograd.gradcheck(run, wide)
    for a, b in zip(mine, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_no_rows_at_all() -> None:
    idx = torch.full((3, 2), -1)
    sent = fm.moe.dispatch(torch.ones(3, 4), fm.moe.layout(idx, 4), idx, torch.rand(3, 2), backend="cpu")
    assert sent.x.shape == (0, 4)
    out, _ = fm.moe.combine(torch.empty(0, 2, 4), sent.handle, sent.topk_weights, weighted=True)
    assert torch.equal(out, torch.zeros(3, 4))
