"""Every mask, head arrangement, option and dtype against the oracle, with tiles small enough that there are many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fmcore import masks
from fmcore.reference import attention as oracle

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
HEADS = {
    "one": {},
    "one per batch": {"batch": 2},
    "kv": {"heads": 2},
    "query": {"heads": 4},
    "query per batch": {"batch": 2, "heads": 4},
}


def random_mask(s_q: int, s_k: int, *, batch: int = 1, heads: int = 1, n: int = 4, causal: bool = False) -> masks.Mask:
    g = torch.Generator().manual_seed(3)
    indices = torch.randint(0, s_q + 1, (batch, heads, s_k, n), generator=g, dtype=torch.int32)
    return masks.canonicalize(indices, s_q=s_q, s_k=s_k, causal=causal)


def spread_mask(batch: int = 1, heads: int = 1, s: int = 100) -> masks.Mask:
    """A document layout that differs so much between heads and batches that they cannot share a walk."""
    lts = torch.zeros(batch, heads, s, 1, dtype=torch.int32)
    for n in range(batch * heads):
        length = (10, 25, 50, 100, 7, 14, 33, 60)[n % 8]
        ends = (torch.arange(s) // length + 1).mul(length).clamp(max=s)
        lts.view(batch * heads, s)[n] = ends.to(torch.int32)
    return masks.canonicalize(lts, s_q=s, s_k=s, causal=True)


@pytest.mark.parametrize("name", masks.BENCHMARK_MASKS)
def test_benchmark_masks(name: str, make: Callable[..., Any]) -> None:
    make(masks.benchmark(name, 520), b=1, h_q=2, h_kv=1, d=8, dv=8).check()


@pytest.mark.parametrize("name", masks.DEGENERATE_MASKS)
def test_degenerate_masks(name: str, make: Callable[..., Any]) -> None:
    make(masks.degenerate(name, 61, 67), b=1).check()


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_mask_heads(heads: dict[str, int], make: Callable[..., Any]) -> None:
    make(random_mask(100, 90, **heads)).check()
    make(spread_mask(**heads), sink=True).check()


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (3, 3), (1, 1), (6, 2)], ids=str)
def test_query_and_kv_heads(heads: tuple[int, int], make: Callable[..., Any]) -> None:
    h_q, h_kv = heads
    for mask_heads in {1, h_kv, h_q}:
        make(random_mask(50, 70, heads=mask_heads), h_q=h_q, h_kv=h_kv).check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"softcap": 1.5},
        {"sink": True},
        {"softcap": 0.8, "sink": True, "softmax_scale": -0.6},
        {"dlse": False},
        {"softmax_scale": 0.0},
    ],
)
def test_options_and_dtypes(options: dict[str, Any], dtype: torch.dtype, make: Callable[..., Any]) -> None:
    make(random_mask(90, 100, heads=2, n=2), dtype=dtype, **options).check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_default_tiles(dtype: torch.dtype, make: Callable[..., Any]) -> None:
    make(masks.causal_document([200, 1, 129, 300]), b=1, h_q=2, h_kv=1, dtype=dtype, small=False).check()


@pytest.mark.parametrize("sizes", [(1, 1), (1, 100), (100, 1), (127, 129), (17, 16), (16, 17), (33, 200)], ids=str)
def test_odd_lengths(sizes: tuple[int, int], make: Callable[..., Any]) -> None:
    make(masks.causal(*sizes)).check()
    make(masks.full(*sizes), small=False).check()


@pytest.mark.parametrize("dims", [(1, 1), (8, 64), (40, 3), (33, 33)], ids=str)
def test_head_dims(dims: tuple[int, int], make: Callable[..., Any]) -> None:
    make(d=dims[0], dv=dims[1]).check()


@pytest.mark.parametrize("tile", [16, 64, 128])
@pytest.mark.parametrize("heads", [1, 4])
def test_block_mask(heads: int, tile: int, make: Callable[..., Any]) -> None:
    g = torch.Generator().manual_seed(5)
    keep = torch.randint(0, 2, (1, heads, 3, 4), generator=g, dtype=torch.int32)
    call = make(masks.with_block_mask(random_mask(300, 400, heads=heads, n=2), keep), b=1)
    call.how = call.how.__class__(torch.float32, torch.float32, tile, tile, width=3 * tile, pairs=1 << 14)
    call.check()


def test_many_short_sequences(make: Callable[..., Any]) -> None:
    make(random_mask(32, 32, batch=64, heads=2, n=2), b=64, h_q=4, h_kv=2, d=8, dv=8, small=False).check()


def test_large_logits(make: Callable[..., Any]) -> None:
    """Scores of +-1e4 neither overflow nor lose the normalisation; their rounding alone moves weights by 1e4 u."""
    call = make(random_mask(60, 60, n=2), dtype=torch.float64, softmax_scale=2e3)
    found = call.run()
    want = oracle.exact_forward(call.q, call.k, call.v, call.mask, **call.options)
    want += oracle.exact_backward(call.dout, call.dlse, call.q, call.k, call.v, call.mask, **call.options)[:3]
    assert float(found[1][found[1].isfinite()].abs().max()) > 1e4
    for got, w in zip(found[:5], want, strict=True):
        torch.testing.assert_close(got, w, rtol=1e-8, atol=1e-8)


def test_equal_keys(make: Callable[..., Any]) -> None:
    """With equal keys every visible key weighs the same, so exp(lse) counts them."""
    call = make(masks.causal(100))
    call.q.zero_()
    _, lse, *_ = call.run()
    assert torch.equal(lse.exp().round(), torch.arange(1, 101).float().expand(2, 4, 100))
