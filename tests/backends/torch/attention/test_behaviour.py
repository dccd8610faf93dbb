"""What does not show in closeness: masked rows, empty sizes, strides, repeatability, work and memory."""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fmcore as fm
from fmcore import masks
from fmcore_torch.attention import count_tiles, tiles


def holes(s: int = 100) -> masks.Mask:
    """Rows 30 to 49 see nothing, and keys 60 to 79 are never seen; the rest is causal."""
    column = torch.arange(s, dtype=torch.int32)
    dead = (column >= 60) & (column < 80)
    lts, lte = torch.full((s,), 30), torch.full((s,), 50)
    lts, lte = lts.masked_fill(dead, 0), lte.masked_fill(dead, s)
    indices = torch.stack([lts, lte], -1).to(torch.int32).view(1, 1, s, 2)
    return masks.canonicalize(indices, s_q=s, s_k=s, causal=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_rows_and_columns_of_nothing(dtype: torch.dtype, softcap: float, make: Callable[..., Any]) -> None:
    call = make(holes(), dtype=dtype, softcap=softcap)
    call.dlse[..., 30:50] = math.nan  # what the backward of exp(lse) and the like may leave there
    out, lse, dq, dk, dv, _ = call.run()
    assert not out[:, 30:50].any()
    assert bool((lse[..., 30:50] == -math.inf).all())
    assert bool(lse[..., :30].isfinite().all() and lse[..., 50:].isfinite().all())
    assert not dq[:, 30:50].any()
    assert not dk[:, 60:80].any()
    assert not dv[:, 60:80].any()
    assert not any(t.isnan().any() for t in (out, lse, dq, dk, dv))


def test_sink_of_rows_that_see_nothing(make: Callable[..., Any]) -> None:
    call = make(holes(), sink=True)
    call.options["sink"] = torch.tensor([-math.inf, -300.0, 0.0, 300.0])
    out, lse, *grads = call.check()
    assert not out[:, 30:50].any()
    assert torch.equal(lse[:, :, 30], call.options["sink"].expand(2, 4))
    assert not any(t.isnan().any() for t in grads)


def test_huge_values_at_hidden_keys_do_not_leak(make: Callable[..., Any]) -> None:
    call = make(holes())
    clean = call.run()
    call.k[:, 60:80], call.v[:, 60:80] = 1e30, -1e30
    for a, b in zip(call.run()[:4], clean[:4], strict=True):
        assert torch.equal(a, b)
    call.k[:, 60:80] = math.nan
    assert torch.equal(tiles.forward(call.q, call.k, call.v, call.mask, how=call.how, **call.options)[0], clean[0])


@pytest.mark.parametrize("empty", ["b", "s_q", "s_k"])
@pytest.mark.parametrize("sink", [False, True])
def test_empty_sizes(empty: str, sink: bool, make: Callable[..., Any]) -> None:
    out, lse, dq, dk, dv, dsink = make(**{empty: 0}, sink=sink).check()
    assert not any(t.any() for t in (out, dq, dk, dv))
    assert lse.numel() == 0 or sink or bool((lse == -math.inf).all())
    assert dsink is None or dsink.shape == (4,)


@pytest.mark.parametrize("heads", [1, 4])
def test_rerun_is_bitwise_equal(heads: int, make: Callable[..., Any]) -> None:
    g = torch.Generator().manual_seed(3)
    indices = torch.randint(0, 301, (1, heads, 300, 4), generator=g, dtype=torch.int32)
    mask = masks.canonicalize(indices, s_q=300, s_k=300, causal=False)
    call = make(mask, sink=True)
    first = call.run()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(call.run(), first, strict=True))


@pytest.mark.parametrize(
    "tile", [(16, 64, 100, 1 << 9), (33, 7, 7, 1), (128, 128, 4096, 1 << 20), (1, 100, 10, 1 << 12)]
)
def test_tile_sizes_do_not_matter(tile: tuple[int, int, int, int], make: Callable[..., Any]) -> None:
    call = make(masks.degenerate("stripes", 90, 80), dtype=torch.float64, sink=True, softcap=3.0)
    want = call.run()
    call.how = dataclasses.replace(call.how, block_q=tile[0], block_k=tile[1], width=tile[2], pairs=tile[3])
    for a, b in zip(call.run(), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def strided(t: torch.Tensor, kind: str) -> torch.Tensor:
    """The same values with other strides."""
    if kind == "heads-first":
        return t.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "every-other":
        wide = torch.full((*t.shape[:-1], 2 * t.shape[-1]), math.nan, dtype=t.dtype)
        wide[..., ::2] = t
        return wide[..., ::2]
    wide = torch.full((t.shape[0], t.shape[1] + 3, t.shape[2] * 3, t.shape[3] + 1), math.nan, dtype=t.dtype)
    inside = wide[:, 2:-1, 1::3, 1:]
    inside.copy_(t)
    return inside


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["heads-first", "every-other", "inside"])
def test_strides_do_not_matter(kind: str, dtype: torch.dtype, make: Callable[..., Any]) -> None:
    call = make(holes(), dtype=dtype)
    want = call.run()
    other = dataclasses.replace(call, **{n: strided(getattr(call, n), kind) for n in ("q", "k", "v", "dout")})
    for a, b in zip(other.run(), want, strict=True):
        assert a is b or torch.equal(a, b)
        assert a is None or a.is_contiguous()


def test_expanded_gradients(make: Callable[..., Any]) -> None:
    call = make(holes())
    call.dout = torch.tensor(0.75).expand(call.dout.shape)
    call.dlse = torch.tensor(-0.5).expand(call.dlse.shape)
    call.check()
    call.q, call.k = call.q[:, :1].expand(call.q.shape), call.k[:1, :, :1].expand(call.k.shape)
    call.check()


def test_inputs_are_left_alone(make: Callable[..., Any]) -> None:
    call = make(holes(), h_q=1, h_kv=1, b=1, sink=True, softmax_scale=1.0)
    names = "q", "k", "v", "dout", "dlse"
    kept = [getattr(call, n).clone() for n in names]
    found = call.run()
    assert all(torch.equal(getattr(call, n), old) for n, old in zip(names, kept, strict=True))
    mine = {t.untyped_storage().data_ptr() for t in found if t is not None}
    assert not mine & {getattr(call, n).untyped_storage().data_ptr() for n in names}


def test_two_layers_whose_first_has_rows_of_nothing() -> None:
    """out and lse of masked rows flow on; the gradients are those of the oracle through the same network."""
    g = torch.Generator().manual_seed(11)
    x = torch.randn(1, 100, 2, 8, generator=g, dtype=torch.float64)
    weights = [torch.randn(8, 8, generator=g, dtype=torch.float64) / 3 for _ in range(4)]

    def gradients(backend: str) -> list[torch.Tensor]:
        leaves = [t.clone().requires_grad_() for t in (x, *weights)]
        h, w = leaves[0], leaves[1:]
        h, lse = fm.flashmask_attention(h @ w[0], h @ w[1], h, mask=holes(), return_softmax_lse=True, backend=backend)
        seen = lse.isfinite()
        h = fm.flashmask_attention(h @ w[2], h @ w[3], h, mask=masks.causal(100), backend=backend)
        loss = h.square().sum() + torch.where(seen, lse, 0.0).sum()
        return list(torch.autograd.grad(loss, leaves))

    for mine, want in zip(gradients("torch"), gradients("reference"), strict=True):
        assert bool(mine.isfinite().all())
        torch.testing.assert_close(mine, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["full", "causal", "causal_document", "sliding_window", "share_question", "qk_sparse"])
def test_work_follows_visible_tiles(name: str, make: Callable[..., Any]) -> None:
    mask = masks.benchmark(name, 1024)
    call = make(mask, b=1, h_q=1, h_kv=1, d=1, dv=1)
    call.how = dataclasses.replace(call.how, block_q=32, block_k=32, width=256)
    with count_tiles() as count:
        call.run()
    assert count.visited == 2 * mask.plan(32, 32).visited  # forward and backward


def test_heads_that_differ_do_not_pay_for_each_other(make: Callable[..., Any]) -> None:
    """One head sees everything, three see a narrow window; sharing the dense walk would cost four dense heads."""
    s = 512
    indices = (torch.arange(s) + 8).clamp(max=s).to(torch.int32).view(1, 1, s, 1).repeat(1, 4, 1, 1)
    indices[:, 0] = s
    mask = masks.canonicalize(indices, s_q=s, s_k=s, causal=True)
    call = make(mask, b=1, d=1, dv=1, h_q=4, h_kv=4)
    with count_tiles() as count:
        tiles.forward(call.q, call.k, call.v, mask, how=call.how, softmax_scale=1.0)
    own = mask.plan(16, 16).visited
    assert own <= count.visited <= 1.1 * own


class PeakBytes(TorchDispatchMode):
    """Bytes of storages that are alive at once and were made inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for t in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(t, torch.Tensor):
                self.see(t.untyped_storage())
        return result

    def see(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self.known:
            self.known.add(key)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.gone, key, storage.nbytes())

    def gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


@pytest.mark.parametrize("name", ["causal", "causal_document", "global_sliding"])
def test_memory_grows_with_the_length(name: str, make: Callable[..., Any]) -> None:
    """Four times the length takes at most 4.4 times the memory; all scores of the longer call would be 16 MiB more."""
    peaks = []
    for s in (512, 2048):
        mask = masks.benchmark(name, s)
        call = make(mask, b=1, h_q=1, h_kv=1, d=16, dv=16)
        call.how = dataclasses.replace(call.how, block_q=64, block_k=64, width=128, pairs=1 << 13)
        call.run()  # makes the plan, which the mask keeps
        with PeakBytes() as seen:
            call.run()
        assert seen.peak > call.q.nbytes  # the measure sees something
        peaks.append(seen.peak)
    assert peaks[1] <= 4.4 * peaks[0]
    assert peaks[1] <= 20 * call.q.nbytes + 4 * 4 * call.how.pairs
