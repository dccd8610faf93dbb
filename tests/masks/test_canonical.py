"""Canonical planes against the literal rule table, for every form of the format."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from mask_oracle import FORMS, dense_by_rule, raw_bounds

from fmcore.errors import InvalidInputError
from fmcore.masks import (
    DEGENERATE_MASKS,
    Mask,
    canonicalize,
    degenerate,
    degenerate_bounds,
    from_dense,
    to_startend_row_indices,
    with_block_mask,
)


@settings(max_examples=100, deadline=None)
@given(raw_bounds())
def test_visibility_is_what_the_rule_says(case):
    indices, causal, s_q = case
    mask = canonicalize(indices, s_q=s_q, s_k=indices.shape[2], causal=causal)
    dense = dense_by_rule(indices, causal, s_q, indices.shape[2])
    assert torch.equal(mask.dense(), dense)
    assert mask.exact_area() == pytest.approx(dense.float().mean().item() if dense.numel() else 0.0)


@settings(max_examples=100, deadline=None)
@given(raw_bounds())
def test_planes_are_canonical_and_canonicalising_again_changes_nothing(case):
    indices, causal, s_q = case
    mask = canonicalize(indices, s_q=s_q, s_k=indices.shape[2], causal=causal)
    assert mask.mode == (2 if (causal, indices.shape[3]) in {(True, 2), (False, 4)} else 1)
    assert mask.planes.is_contiguous()
    assert mask.planes.dtype == torch.int32
    if mask.mode == 1:
        begin, end = mask.planes.unbind(2)
        assert bool(((begin == 0) & (end == 0) | (begin < end) & (begin >= 0) & (end <= s_q)).all())
    else:
        us, ue, ls, le = mask.planes.unbind(2)
        upper, lower = us < ue, ls < le
        assert bool(((us >= 0) & (us <= ue) & (ue <= ls) & (ls <= le) & (le <= s_q)).all())
        assert bool((upper | (ue == 0)).all())
        assert bool((lower | (ls == s_q)).all())
        assert bool((~(upper & lower) | (ue < ls)).all())
        assert bool((upper | ~lower | (ls > 0)).all())
    again = canonicalize(to_startend_row_indices(mask), s_q=s_q, s_k=mask.s_k, causal=False)
    assert again.mode == mask.mode
    assert torch.equal(again.planes, mask.planes)
    assert again == mask


@settings(max_examples=60, deadline=None)
@given(raw_bounds(max_size=12), raw_bounds(max_size=12))
def test_equality_is_equality_of_what_is_hidden(one, other):
    masks = [canonicalize(i, s_q=s, s_k=i.shape[2], causal=c) for i, c, s in (one, other)]
    dense = [mask.dense() for mask in masks]
    same = dense[0].shape == dense[1].shape and torch.equal(*dense)
    # Without rows, bounds are all there is to compare, and they all are 0.
    assert (masks[0] == masks[1]) == same
    assert not same or hash(masks[0]) == hash(masks[1])


@pytest.mark.parametrize("name", DEGENERATE_MASKS)
@pytest.mark.parametrize(("s_q", "s_k"), [(1, 1), (12, 12), (12, 7), (7, 12), (0, 3), (3, 0)])
def test_degenerate_masks_follow_the_rule(name, s_q, s_k):
    raw = degenerate_bounds(name, s_q, s_k)
    want = dense_by_rule(raw.startend_row_indices, raw.causal, s_q, s_k)
    mask = degenerate(name, s_q, s_k)
    assert torch.equal(mask.dense(), want)
    assert mask.kind == name


def test_masks_are_equal_if_a_block_mask_makes_their_bounds_hide_the_same():
    keep = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.int32).view(1, 1, 3, 3)
    causal = with_block_mask(from_dense(torch.ones(300, 290, dtype=torch.bool).tril(10)), keep)
    dense = causal.dense()
    wider = torch.ones(300, 290, dtype=torch.bool).tril(10)
    wider[:128, 128:] = True  # only where the block mask drops
    assert with_block_mask(from_dense(wider), keep) == causal
    dropped = from_dense(torch.ones(300, 290, dtype=torch.bool).tril(10)[:, :256].contiguous())
    one, two = (with_block_mask(dropped, k[..., :2].contiguous()) for k in (keep, keep.tril()))
    assert one == two  # above the diagonal nothing is left to drop
    wider[255, 200] = False
    assert torch.equal(dense, causal.dense())
    assert with_block_mask(from_dense(wider), keep) != causal
    assert with_block_mask(from_dense(wider), torch.ones_like(keep)) != causal


def test_none_hides_nothing_or_what_is_above_the_diagonal():
    assert bool(canonicalize(None, s_q=3, s_k=5, causal=False).dense().all())
    causal = canonicalize(None, s_q=2, s_k=4, causal=True)
    assert causal.dense().int()[0, 0].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert causal.is_causal_only
    assert not causal.is_full


@pytest.mark.parametrize(
    ("indices", "causal", "says"),
    [
        (torch.zeros(1, 1, 4, 1), True, r"int32.*float32"),
        (torch.zeros(1, 1, 4, 1, dtype=torch.int64), True, r"int32.*int64"),
        (torch.zeros(1, 4, 1, dtype=torch.int32), True, r"4 dimensions.*\(1, 4, 1\)"),
        (torch.zeros(1, 1, 5, 1, dtype=torch.int32), True, "5 columns.*s_k=4"),
        (torch.zeros(1, 1, 4, 3, dtype=torch.int32), True, "n=3.*1 .LTS. or 2"),
        (torch.zeros(1, 1, 4, 4, dtype=torch.int32), True, "n=4"),
        (torch.zeros(1, 1, 4, 1, dtype=torch.int32), False, "n=1.*2 .LTS, UTE. or 4"),
        (torch.zeros(0, 1, 4, 1, dtype=torch.int32), True, "at least one batch"),
        ([[1]], True, "torch tensor, got list"),
        (torch.zeros(1, 1, 4, 1, dtype=torch.int32), 1, "causal must be a bool"),
    ],
)
def test_wrong_bounds_are_refused_with_what_was_found(indices, causal, says):
    with pytest.raises(InvalidInputError, match=says):
        canonicalize(indices, s_q=4, s_k=4, causal=causal)


@pytest.mark.parametrize("shape", [(1, 1, 2, 2), (2, 1, 1, 1), (1, 3, 1, 1), (1, 1)])
def test_a_block_mask_of_the_wrong_shape_is_refused(shape):
    indices = torch.zeros(1, 1, 100, 1, dtype=torch.int32)
    with pytest.raises(InvalidInputError, match="block_mask has shape"):
        canonicalize(indices, s_q=100, s_k=100, causal=True, block_mask=torch.ones(shape, dtype=torch.int32))


def test_a_mask_says_which_size_does_not_fit():
    mask = canonicalize(torch.zeros(2, 4, 8, 1, dtype=torch.int32), s_q=8, s_k=8, causal=True)
    mask.check_fits(batch=2, heads_q=8, heads_kv=4, s_q=8, s_k=8)
    good = {"batch": 2, "heads_q": 8, "heads_kv": 4, "s_q": 8, "s_k": 8}
    for name, value, says in [
        ("batch", 3, "batch 2, but q has batch 3"),
        ("heads_kv", 2, "4 heads; with 8 query heads and 2 KV heads"),
        ("s_k", 9, "k has 9 keys"),
    ]:
        with pytest.raises(InvalidInputError, match=says):
            mask.check_fits(**{**good, name: value})


def test_a_mask_is_immutable_and_survives_pickling():
    mask = canonicalize(torch.full((1, 2, 6, 2), 3, dtype=torch.int32), s_q=6, s_k=6, causal=True, kind="x")
    with pytest.raises(AttributeError, match="immutable"):
        mask.s_q = 7
    copy = pickle.loads(pickle.dumps(mask))
    assert copy == mask
    assert copy.kind == "x"
    assert mask != object()


def test_planes_of_the_wrong_shape_are_refused():
    with pytest.raises(InvalidInputError, match="mode must be 1"):
        Mask(torch.zeros(1, 1, 2, 4, dtype=torch.int32), s_q=4, mode=3)
    with pytest.raises(InvalidInputError, match=r"mode 2 must be int32 \[batch, heads, 4, s_k\]"):
        Mask(torch.zeros(1, 1, 2, 4, dtype=torch.int32), s_q=4, mode=2)


def test_forms_are_all_of_the_table():
    assert {(c, n) for c, n in FORMS} == {(True, 1), (True, 2), (False, 2), (False, 4)}
