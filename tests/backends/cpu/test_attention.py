"""Attention against the float64 oracle: every dtype, mask form, head layout and feature, and what must be exact."""

from __future__ import annotations

import math

import pytest
import torch

from fmcore import masks
from fmcore.masks import Mask
from fmcore.reference import attention as oracle
from fmcore_cpu import _native, attention

pytestmark = pytest.mark.usefixtures("kernels")

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def unit(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next larger number."""
    return torch.finfo(dtype).eps / 2


def tensors(
    b: int, s_q: int, s_k: int, h_q: int, h_kv: int, d: int, dv: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(s_q + s_k + d)
    return (
        torch.randn(b, s_q, h_q, d).to(dtype),
        torch.randn(b, s_k, h_kv, d).to(dtype),
        torch.randn(b, s_k, h_kv, dv).to(dtype),
    )


def bounds(
    s_q: int, s_k: int, n: int, *, heads: int = 1, batch: int = 1, causal: bool = False, block: bool = False
) -> Mask:
    """Return a random mask, out-of-range and crossing values included."""
    torch.manual_seed(n)
    columns = torch.randint(-s_q // 4, s_q + s_q // 4, (batch, heads, s_k, n), dtype=torch.int32)
    keep = torch.randint(0, 2, (batch, heads, -(-s_q // 128), -(-s_k // 128)), dtype=torch.int32) if block else None
    return masks.canonicalize(columns, s_q=s_q, s_k=s_k, causal=causal, block_mask=keep)


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, **options: object) -> None:
    """Forward and backward within the bounds of the conformance suite: row by row, in units of the last place."""
    scale = q.shape[-1] ** -0.5
    out, lse = attention.forward(q, k, v, mask, softmax_scale=scale, **options)
    want, want_lse = oracle.exact_forward(q, k, v, mask, softmax_scale=scale, **options)
    u, wide = unit(q.dtype), unit(_native.compute_dtype(q.dtype))
    none = want_lse == -math.inf
    assert torch.equal(lse == -math.inf, none)
    assert (out.double().transpose(1, 2)[none] == 0).all()
    low = q.dtype in (torch.bfloat16, torch.float16)
    score = scale * (q.double().norm(dim=-1).max() * k.double().norm(dim=-1).max()).item()  # no score is larger
    exact = 64 + 4 * score  # exp turns the absolute error of a score, score * u, into a relative one
    assert (lse.double() - want_lse)[~none].abs().max().item() <= exact * wide
    error = (out.double() - want).norm(dim=-1)
    bound = 2 * u + 4 * score * wide if low else exact * u
    assert (error <= bound * want.norm(dim=-1) + 1e-30).all(), f"{(error / want.norm(dim=-1)).max() / u:.1f} u"

    dout, dlse = torch.randn_like(out), torch.randn_like(lse).masked_fill(none, 0.0)
    got = attention.backward(dout, dlse, q, k, v, out, lse, mask, softmax_scale=scale, **options)
    goal = oracle.exact_backward(dout, dlse, q, k, v, mask, softmax_scale=scale, **options)
    floors = oracle.gradient_floors(q, k, v, dout, mask, softmax_scale=scale, dlse=dlse, **options)
    for name, grad, good, floor, source in zip(("dq", "dk", "dv"), got, goal, floors, (q, k, v), strict=False):
        assert grad.dtype == source.dtype
        assert grad.shape == source.shape
        error = (grad.double() - good).norm(dim=-1)
        size = good.norm(dim=-1) + floor
        assert (error <= (4 * u if low else exact * u) * size + 1e-30).all(), (
            f"{name}: {(error / size).max() / u:.1f} u"
        )
    if options.get("sink") is not None:
        assert torch.allclose(got[3].double(), goal[3], rtol=200 * u, atol=200 * u * math.sqrt(q.shape[0] * q.shape[1]))
    else:
        assert got[3] is None


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_documents_with_grouped_heads(dtype: torch.dtype) -> None:
    check(*tensors(2, 203, 203, 4, 2, 64, 64, dtype), masks.causal_document([70, 1, 132]))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize(("n", "causal"), [(1, True), (2, True), (2, False), (4, False)])
def test_every_form_of_bounds_and_mask_heads(n: int, causal: bool, heads: int) -> None:
    check(*tensors(2, 150, 210, 4, 2, 24, 40, torch.float32), bounds(150, 210, n, heads=heads, batch=2, causal=causal))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("with_sink", [False, True])
def test_soft_cap_sink_and_lengths_apart(dtype: torch.dtype, with_sink: bool) -> None:
    sink = torch.randn(4).to(dtype) if with_sink else None
    for s_q, s_k in ((1, 77), (77, 1), (130, 65), (65, 130)):
        check(*tensors(1, s_q, s_k, 4, 1, 33, 17, dtype), masks.causal(s_q, s_k), softcap=3.0, sink=sink)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_block_mask_and_two_hidden_intervals(dtype: torch.dtype) -> None:
    check(*tensors(1, 300, 290, 2, 2, 32, 32, dtype), bounds(300, 290, 4, heads=2, block=True))


@pytest.mark.parametrize("d", [1, 8, 80, 96, 128, 192, 256])
def test_head_dims(d: int) -> None:
    check(*tensors(1, 140, 140, 2, 1, d, max(8, d // 2), torch.float32), masks.causal(140, 140))


@pytest.mark.parametrize("s_q", [0, 3])
@pytest.mark.parametrize("s_k", [0, 3])
@pytest.mark.parametrize("b", [0, 1])
def test_empty_sizes(b: int, s_q: int, s_k: int) -> None:
    q, k, v = torch.randn(b, s_q, 2, 8), torch.randn(b, s_k, 1, 8), torch.randn(b, s_k, 1, 4)
    mask = masks.full(s_q, s_k)
    out, lse = attention.forward(q, k, v, mask, softmax_scale=1.0)
    assert out.shape == (b, s_q, 2, 4)
    if not s_k:
        assert (out == 0).all()
        assert (lse == -math.inf).all()
    dq, dk, dv, _ = attention.backward(torch.randn_like(out), None, q, k, v, out, lse, mask, softmax_scale=1.0)
    if not (b and s_q and s_k):
        assert not any(t.any() for t in (dq, dk, dv))


def test_row_that_sees_nothing_but_has_a_sink() -> None:
    q, k, v = tensors(1, 70, 70, 2, 2, 16, 16, torch.float32)
    mask = masks.canonicalize(torch.zeros(1, 1, 70, 1, dtype=torch.int32), s_q=70, s_k=70, causal=True)
    sink = torch.tensor([0.5, -1.0])
    out, lse = attention.forward(q, k, v, mask, softmax_scale=0.25, sink=sink)
    assert (out == 0).all()
    assert torch.equal(lse, sink[None, :, None].expand_as(lse))
    dlse = torch.ones_like(lse)
    *grads, dsink = attention.backward(
        torch.ones_like(out), dlse, q, k, v, out, lse, mask, softmax_scale=0.25, sink=sink
    )
    assert not any(t.any() for t in grads)
    assert torch.allclose(dsink, torch.full((2,), 70.0))


def test_any_strides() -> None:
    q, k, v = tensors(2, 100, 100, 4, 2, 32, 32, torch.float32)
    mask = masks.causal(100, 100)
    want = attention.forward(q, k, v, mask, softmax_scale=0.2)
    turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    wide = [torch.cat([t, t], -1)[..., :32] for t in (q, k, v)]
    spread = [torch.stack([t, t], -1)[..., 0] for t in (q, k, v)]
    dout = torch.ones(1).expand_as(want[0])
    grads = attention.backward(dout.contiguous(), None, q, k, v, *want, mask, softmax_scale=0.2)
    for other in (turned, wide, spread):
        got = attention.forward(*other, mask, softmax_scale=0.2)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        again = attention.backward(dout, None, *other, *got, mask, softmax_scale=0.2)
        assert all(torch.equal(a, b) for a, b in zip(again[:3], grads[:3], strict=True))


def test_hidden_keys_leak_nothing() -> None:
    q, k, v = tensors(1, 200, 200, 2, 2, 32, 32, torch.float32)
    hidden = torch.zeros(200, dtype=torch.bool)
    hidden[30:190:7] = True
    columns = torch.where(hidden, 0, 200).to(torch.int32).view(1, 1, 200, 1)
    mask = masks.canonicalize(columns, s_q=200, s_k=200, causal=True)
    clean = attention.forward(q, k, v, mask, softmax_scale=0.2)
    dout = torch.randn_like(q)
    want = attention.backward(dout, None, q, k, v, *clean, mask, softmax_scale=0.2)
    k[:, hidden], v[:, hidden] = 3e38, -3e38
    got = attention.forward(q, k, v, mask, softmax_scale=0.2)
    assert all(torch.equal(a, b) for a, b in zip(got, clean, strict=True))
    again = attention.backward(dout, None, q, k, v, *got, mask, softmax_scale=0.2)
    assert all(torch.equal(a, b) for a, b in zip(again[:3], want[:3], strict=True))
    assert not again[1][:, hidden].any()


def test_nan_is_not_swallowed() -> None:
    q, k, v = tensors(1, 130, 130, 1, 1, 16, 16, torch.float32)
    q[0, 7], v[0, 100, 0, 3] = math.nan, math.nan
    out, lse = attention.forward(q, k, v, masks.causal(130, 130), softmax_scale=0.25)
    assert out[0, 7].isnan().all()
    assert lse[0, 0, 7].isnan()
    assert out[0, 100:, 0, 3].isnan().all()
    assert not out[0, :7].isnan().any()


def test_lse_counts_visible_keys() -> None:
    mask = bounds(500, 700, 4, heads=2)
    q, k, v = torch.zeros(1, 500, 2, 8), torch.randn(1, 700, 2, 8), torch.randn(1, 700, 2, 8)
    _, lse = attention.forward(q, k, v, mask, softmax_scale=1.0)
    assert torch.equal(lse.exp().round().long(), mask.dense().sum(-1))


def test_large_scores() -> None:
    q, k, v = tensors(1, 150, 150, 1, 1, 64, 64, torch.float32)
    check(20 * q, 20 * k, v, masks.causal(150, 150))
