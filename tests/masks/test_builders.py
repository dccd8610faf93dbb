"""Every builder against its definition, written pair by pair."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_oracle import dense_by_pairs, lengths
from torch._subclasses.fake_tensor import FakeTensorMode

from fmcore import masks
from fmcore.errors import InvalidInputError
from fmcore.ops._attention_args import plain_mask, window_mask

SIZES = st.integers(0, 14)


def owner(row, s):
    """Document number and bounds of every position; None on padding."""
    out = [None] * s
    for number, (end, length) in enumerate(zip(accumulate(row), row, strict=True)):
        for i in range(end - length, end):
            out[i] = (number, end - length, end)
    return out


def check(mask, visible, batch=0, head=0):
    assert torch.equal(mask.dense()[batch, head], dense_by_pairs(mask.s_q, mask.s_k, visible))


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, st.integers(1, 6), st.booleans())
def test_masks_of_sizes_alone(s_q, s_k, window, causal):
    off = s_k - s_q
    check(masks.full(s_q, s_k), lambda i, j: True)
    check(masks.causal(s_q, s_k), lambda i, j: j <= i + off)
    check(masks.all_masked(s_q, s_k), lambda i, j: False)
    band = masks.sliding_window(s_q, s_k, window=window, causal=causal)
    check(band, lambda i, j: i + off - window < j <= i + off + (0 if causal else window - 1))
    if s_k:
        check(masks.single_column(s_q, s_k, column=s_k - 1), lambda i, j: j == s_k - 1)
        prefix = min(window, s_k)
        check(masks.prefix_lm_causal(s_q, s_k, prefix=prefix), lambda i, j: j < prefix or j <= i + off)


@settings(max_examples=40, deadline=None)
@given(lengths, st.integers(0, 4))
def test_documents(row, padding):
    s = sum(row) + padding
    doc = owner(row, s)
    same = lambda i, j: doc[i] is not None and doc[i] == doc[j]  # noqa: E731
    check(masks.document(row, s=s), same)
    check(masks.causal_document(row, s=s), lambda i, j: same(i, j) and j <= i)
    prefixes = [length // 2 for length in row]
    pairs = list(zip(prefixes, row, strict=True))
    in_prefix = lambda j: j < doc[j][1] + prefixes[doc[j][0]]  # noqa: E731
    check(masks.prefix_lm_document(pairs, s=s), lambda i, j: same(i, j) and (j <= i or in_prefix(j)))


def test_documents_by_sequence_of_the_batch():
    rows = [[3, 2], [1, 1, 4]]
    mask = masks.causal_document(rows)
    assert (mask.batch, mask.s_q) == (2, 6)
    for number, row in enumerate(rows):
        doc = owner(row, 6)
        check(mask, lambda i, j, doc=doc: doc[i] is not None and doc[i] == doc[j] and j <= i, batch=number)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3), st.integers(0, 2))
def test_share_question(documents, padding):
    totals = [sum(parts) for parts in documents]
    s = sum(totals) + padding
    doc = owner(totals, s)
    part = owner([p for parts in documents for p in parts], s)
    questions = list(accumulate((len(parts) for parts in documents), initial=0))

    def visible(i, j):
        if doc[i] is None or doc[i] != doc[j] or j > i:
            return False
        return part[j][0] == questions[doc[j][0]] or part[i] == part[j]

    check(masks.share_question(documents, s=s), visible)


@settings(max_examples=40, deadline=None)
@given(lengths.filter(lambda row: row[-1] > 0))
def test_causal_blockwise(row):
    doc = owner(row, sum(row))
    last = len(row) - 1
    check(masks.causal_blockwise(row), lambda i, j: j <= i and (doc[i] == doc[j] or doc[i][0] == last))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 16), st.integers(0, 6), st.integers(0, 5), st.integers(0, 5))
def test_global_sliding(s, tokens, left, right):
    mask = masks.global_sliding(s, global_tokens=tokens, window_size=(left, right))
    check(mask, lambda i, j: i < tokens or j < tokens or i - left <= j <= i + right)


def test_qk_sparse():
    ranges = [(2, 5), (7, 9)]

    def visible(i, j):
        return j <= i and not any(a <= j < b and i < b for a, b in ranges)

    check(masks.qk_sparse(11, ranges=ranges), visible)
    with pytest.raises(InvalidInputError, match="disjoint"):
        masks.qk_sparse(11, ranges=[(2, 5), (4, 9)])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20), st.integers(0, 3))
def test_random_eviction_keeps_a_cache_of_its_size(s, seed):
    kept = max(1, s // 2)
    mask = masks.random_eviction(s, heads=2, batch=2, kept=min(kept, max(s, 1)), seed=seed)
    dense = mask.dense()
    assert bool((dense == (dense & masks.causal(s).dense())).all())
    for i in range(s):
        assert dense[:, :, i].sum(-1).unique().tolist() == [min(i + 1, kept)]
    later = dense[:, :, 1:] & ~dense[:, :, :-1]  # nothing comes back but the row's own key
    assert not later.any() or bool((later.nonzero()[:, 2] + 1 == later.nonzero()[:, 3]).all())


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: masks.causal_document([]), "non-empty"),
        (lambda: masks.causal_document([3, -1]), "int >= 0, got -1"),
        (lambda: masks.causal_document([3, [1]]), "mixes"),
        (lambda: masks.causal_document([3, 4], s=6), "7 tokens together, but s=6"),
        (lambda: masks.sliding_window(4, window=0), "keys that a row sees.* must be an int >= 1, got 0"),
        (lambda: masks.causal(-1), "s_q must be an int"),
        (lambda: masks.causal(2.0), "s_q must be an int"),
        (lambda: masks.single_column(4, column=4), r"column must be an int in \[0, 3\], got 4"),
        (lambda: masks.prefix_lm_document([(3, 2)]), "prefix <= length"),
        (lambda: masks.prefix_lm_causal(4, prefix=5), "prefix must be"),
        (lambda: masks.causal_blockwise([[1, 2], [2, 2]]), r"same total length, got \[3, 4\]"),
        (lambda: masks.share_question([3]), "question, answer"),
        (lambda: masks.global_sliding(4, global_tokens=-1, window_size=2), "global_tokens must be an int >= 0, got -1"),
        (lambda: masks.random_eviction(4, kept=9), "kept must be"),
        (lambda: masks.benchmark("nope", 8192), "no benchmark mask 'nope'"),
        (lambda: masks.benchmark("causal_document", 100), "must be an int >= 512, got 100"),
        (lambda: masks.degenerate("nope", 4), "no degenerate mask"),
        (lambda: masks.degenerate("stripes", -1), "s_q must be an int"),
        (lambda: masks.prefix_lm_document(None), "list of pairs .prefix, length.*got None"),
        (lambda: masks.prefix_lm_document([(1.0, 3)]), "entry of documents must be an int, got 1.0"),
        (lambda: masks.global_sliding(8, global_tokens=1.5, window_size=1), "global_tokens must be an int, got 1.5"),
        (lambda: masks.global_sliding(8, global_tokens=1, window_size=None), "window_size must be an int, got None"),
        (lambda: masks.global_sliding(8, global_tokens=1, window_size=(1, 2, 3)), "int or a pair of ints"),
        (lambda: masks.from_window(2.5, 8, causal=True), "window_size must be an int, got 2.5"),
        (lambda: masks.qk_sparse(8, ranges=[1, 2]), "ranges must be a list of pairs .start, end.*got 1"),
        (lambda: masks.random_eviction(8, heads=-1), "heads must be an int >= 1, got -1"),
        (lambda: masks.random_eviction(8, kept=2.5), "kept must be an int, got 2.5"),
        (lambda: masks.benchmark("causal", "8192"), "s must be an int in"),
        (lambda: masks.Mask(torch.zeros(1, 1, 2, 4, dtype=torch.int32), s_q=-4, mode=1), "s_q must be an int in"),
        (lambda: masks.Mask(torch.zeros(0, 1, 2, 4, dtype=torch.int32), s_q=4, mode=1), "batch and heads at least 1"),
        (lambda: masks.from_dense(torch.zeros(0, 1, 4, 4, dtype=torch.bool)), "batch and heads at least 1"),
        (lambda: masks.canonicalize(None, s_q=4, s_k=4, causal=True, block_mask=[1]), "block_mask must be.*got list"),
    ],
)
def test_wrong_arguments_are_refused_with_what_was_found(build, says):
    with pytest.raises(InvalidInputError, match=says):
        build()


AREA_8K = {
    "full": 1.0,
    "causal": 0.5078,
    "sliding_window": 0.0757,
    "causal_document": 0.1492,
    "document": 0.2827,
    "global_sliding": 0.1646,
    "causal_blockwise": 0.3542,
    "prefix_lm_document": 0.1536,
    "prefix_lm_causal": 0.6289,
    "qk_sparse": 0.4822,
    "random_eviction": 0.5078,
}


@pytest.mark.parametrize("name", masks.BENCHMARK_MASKS)
def test_benchmark_masks_visit_the_tiles_that_measurements_count(name):
    mask = masks.benchmark(name, 8192)
    assert (mask.s_q, mask.s_k, mask.kind) == (8192, 8192, name)
    area = mask.plan(128, 128).tile_area
    if name == "share_question":  # the answers are split at random
        assert 0.08 < area < 0.12
    else:
        assert round(area, 4) == AREA_8K[name]


def test_benchmark_heads_and_other_lengths():
    assert masks.benchmark("random_eviction", 1024, heads=3).heads == 3
    for s in (512, 5000, 1 << 18):
        documents, _ = masks.benchmark_documents(s)
        assert sum(length for _, length in documents) == s
        assert all(0 <= prefix <= length for prefix, length in documents)
    assert masks.benchmark("document", 2048) != masks.benchmark("document_published", 2048)


def test_numbers_may_be_those_of_numpy():
    numpy = pytest.importorskip("numpy")
    assert masks.causal_document(numpy.array([3, 5])) == masks.causal_document([3, 5])
    assert masks.causal_document([numpy.int64(3), 5]) == masks.causal_document(torch.tensor([3, 5]))
    assert masks.sliding_window(8, window=numpy.int32(3)) == masks.sliding_window(8, window=3)


@pytest.mark.parametrize("window", [9, 2**40, 2**80])
def test_a_window_may_be_wider_than_anything(window):
    assert masks.sliding_window(8, 9, window=window) == masks.causal(8, 9)
    assert masks.from_window((window, window), 8, 9, causal=False) == masks.full(8, 9)
    assert masks.global_sliding(8, global_tokens=window, window_size=window) == masks.full(8)


ON_THE_HOST = {
    "causal": lambda: masks.causal(91),
    "sliding_window": lambda: masks.sliding_window(9, window=2),
    "global_sliding": lambda: masks.global_sliding(9, global_tokens=1, window_size=1),
    "causal_document": lambda: masks.causal_document([3, 5]),
    "causal_blockwise": lambda: masks.causal_blockwise([1, 2, 3]),
    "prefix_lm_document": lambda: masks.prefix_lm_document([(1, 3), (2, 4)]),
    "prefix_lm_causal": lambda: masks.prefix_lm_causal(9, prefix=2),
    "share_question": lambda: masks.share_question([[1, 2, 2], [3]]),
    "qk_sparse": lambda: masks.qk_sparse(9, ranges=[(1, 3)]),
    "random_eviction": lambda: masks.random_eviction(9, heads=2),
    "single_column": lambda: masks.single_column(4),
    "all_masked": lambda: masks.all_masked(4),
    "from_window": lambda: masks.from_window(2, 8, causal=True),
    "stripes": lambda: masks.degenerate("stripes", 8),
    "document_published": lambda: masks.benchmark("document_published", 512),
}


@pytest.mark.parametrize("name", ON_THE_HOST)
def test_a_default_device_is_where_a_mask_lies_and_nothing_else(name):
    want = ON_THE_HOST[name]()
    with torch.device("meta"):
        there = ON_THE_HOST[name]()
        assert want.plan(4, 4).exact_area == want.exact_area()
        assert masks.to_text(want)
        assert want.dense().shape == there.dense().shape
    assert there.device.type == "meta"
    assert ON_THE_HOST[name]().device.type == "cpu"  # nothing of the other device was kept
    with FakeTensorMode():
        fake = ON_THE_HOST[name]()
    assert fake.planes.shape == want.planes.shape
    assert type(ON_THE_HOST[name]().planes) is torch.Tensor


def test_attention_keeps_no_mask_of_a_default_device():
    with torch.device("meta"):
        kept = plain_mask(37, 39, causal=True), window_mask(37, 39, 5, 0, causal=True)
    assert [mask.device.type for mask in kept] == ["cpu", "cpu"]
    assert plain_mask(37, 39, causal=True) is kept[0]


def test_full_and_causal_are_kept_so_that_layers_share_a_plan():
    assert masks.causal(64) is masks.causal(64)
    assert masks.causal(64).plan(16, 16) is masks.causal(64).plan(16, 16)
    assert masks.full(8).is_full
