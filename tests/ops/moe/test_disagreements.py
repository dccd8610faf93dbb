"""One rank's mistake is every rank's error, whatever the sizes of what the ranks would have sent; then work goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import fmcore as fm
from fmcore.compat import deep_ep
from fmcore.errors import FallbackWarning, FmcoreError
from fmcore_conformance.distributed import run_world, values

T, H, K = 4, 5, 2


def mistakes(group: Any) -> dict[str, Callable[[bool], object]]:
    """Calls that go wrong where their argument is true; unlike messages would end a process of some libraries."""
    idx = torch.arange(T * K).reshape(T, K) % (2 * group.size())
    x, weights = torch.ones(T, H), torch.ones(T, K)
    layout = fm.moe.layout(idx, 2 * group.size(), group=group)
    sent = fm.moe.dispatch(x, layout, idx, weights, timeout=10.0)
    y, back = sent.x, sent.topk_weights
    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    return {
        "[{n}, H]": lambda bad: fm.moe.combine(y[:, 0] if bad else y, sent.handle),
        "want [": lambda bad: fm.moe.combine(y[:, None].expand(-1, K, -1) if bad else y, sent.handle),
        "needs topk_weights": lambda bad: fm.moe.combine(y, sent.handle, None if bad else back, weighted=True),
        "y has shape ()": lambda bad: fm.moe.combine(y[0, 0] if bad else y, sent.handle, back, weighted=True),
        "bytes per row of x": lambda bad: fm.moe.combine(y[:, :2] if bad else y, sent.handle),
        "dtype of x": lambda bad: fm.moe.combine(y.double() if bad else y, sent.handle),
        "want [T, H]": lambda bad: fm.moe.dispatch(x[:, 0] if bad else x, sent.handle, timeout=10.0),
        "disagree on op": lambda bad: fm.moe.combine(y, sent.handle) if bad else fm.moe.dispatch(x, layout, idx),
        "topk_weights is torch.int64": lambda bad: fm.moe.dispatch(
            x, layout, idx, weights.long() if bad else weights, timeout=10.0
        ),
        "topk_idx is torch.int64 of shape ()": lambda bad: fm.moe.dispatch(
            x, layout, idx[0, 0] if bad else idx, timeout=10.0
        ),
        "num_worst_tokens is 8.0": lambda bad: fm.moe.dispatch(
            x, layout, idx, num_worst_tokens=8.0 if bad else 0, timeout=10.0
        ),
        "4 tokens are more than": lambda bad: buffer.low_latency_dispatch(
            x[: T if bad else 1], idx[: T if bad else 1], 1, 2 * group.size(), use_fp8=False
        ),
    }


def make_them_all(group: Any) -> dict[str, str]:
    said = {}
    for words, call in mistakes(group).items():
        try:
            call(group.rank() == 1)
            said[words] = "nothing"
        except FmcoreError as error:
            said[words] = str(error)
    idx = torch.zeros(1, 1, dtype=torch.int64)
    fm.moe.dispatch(torch.ones(1, 1), fm.moe.layout(idx, group.size(), group=group), idx)
    return said


def test_every_rank_says_the_same_and_goes_on() -> None:
    first, *others = values(run_world(make_them_all, 3, timeout=60.0))
    for words, text in first.items():
        assert words.replace("[{n}, H]", "H]: the rows of the dispatch") in text
    assert others == [first, first]


def warned(group: Any) -> list[str]:
    idx = torch.zeros(1, 1, dtype=torch.int64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sent = fm.moe.dispatch(torch.ones(1, 1), fm.moe.layout(idx, group.size(), group=group), idx)
        fm.moe.combine(sent.x, sent.handle)
    return [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)]


def test_that_a_backend_serves_one_process_only_is_no_fallback() -> None:
    assert values(run_world(warned, 2, timeout=60.0)) == [[], []]
