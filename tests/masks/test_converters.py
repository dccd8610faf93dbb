"""Converters against their definitions and against each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mask_oracle import dense_by_pairs, dense_by_rule, lengths, raw_bounds

from fmcore import masks
from fmcore.errors import InvalidInputError
from fmcore.masks import canonicalize


@settings(max_examples=60, deadline=None)
@given(raw_bounds())
def test_dense_and_back(case):
    indices, causal, s_q = case
    mask = canonicalize(indices, s_q=s_q, s_k=indices.shape[2], causal=causal)
    back = masks.from_dense(mask.dense())
    assert back == mask
    assert torch.equal(back.dense(), mask.dense())
    assert mask.mode == 2 or back.mode == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 7), st.integers(0, 4), st.data())
def test_any_dense_matrix_is_exact_or_names_its_column(s_q, s_k, data):
    bits = data.draw(st.lists(st.booleans(), min_size=s_q * s_k, max_size=s_q * s_k))
    dense = torch.tensor(bits, dtype=torch.bool).view(s_q, s_k)
    runs = [sum(h and not (i and col[i - 1]) for i, h in enumerate(col)) for col in (~dense).T.tolist()]
    bad = [j for j, count in enumerate(runs) if count > 2]
    if bad:
        with pytest.raises(InvalidInputError, match=rf"column {bad[0]} .*hides {runs[bad[0]]} separate"):
            masks.from_dense(dense)
    else:
        assert torch.equal(masks.from_dense(dense).dense()[0, 0], dense)


def test_dense_of_another_dtype_or_rank_is_refused():
    with pytest.raises(InvalidInputError, match="float32"):
        masks.from_dense(torch.zeros(2, 2))
    with pytest.raises(InvalidInputError, match=r"shape \(2, 2, 2\)"):
        masks.from_dense(torch.zeros(2, 2, 2, dtype=torch.bool))


@settings(max_examples=80, deadline=None)
@given(raw_bounds(max_size=10))
def test_indices_and_back(case):
    indices, causal, s_q = case
    s_k = indices.shape[2]
    mask = canonicalize(indices, s_q=s_q, s_k=s_k, causal=causal)
    plain = masks.to_startend_row_indices(mask)
    assert torch.equal(dense_by_rule(plain, False, s_q, s_k), mask.dense())
    try:
        compact, refusal = masks.to_startend_row_indices(mask, causal=True), ""
    except InvalidInputError as error:
        compact, refusal = None, str(error)
    if compact is None:
        assert not causal  # what was causal can be said causally
        assert "use causal=False" in refusal
    else:
        assert compact.shape[-1] in (1, 2)
        assert torch.equal(dense_by_rule(compact, True, s_q, s_k), mask.dense())


def test_causal_indices_are_one_vector_where_that_is_enough():
    for mask in (masks.causal_document([3, 4]), masks.causal(6), masks.sliding_window(9, window=3)):
        assert masks.to_startend_row_indices(mask, causal=True).shape[-1] == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(-1, 4), st.integers(-1, 4), st.booleans())
def test_window_counts_the_keys_besides_the_own(s_q, s_k, left, right, causal):
    def visible(i, j):
        own = i + s_k - s_q
        after = 0 if causal else right
        return (left == -1 or own - left <= j) and (after == -1 or j <= own + after)

    mask = masks.from_window((left, right), s_q, s_k, causal=causal)
    assert torch.equal(mask.dense()[0, 0], dense_by_pairs(s_q, s_k, visible))


def test_window_of_w_is_a_sliding_window_of_w_plus_one_keys():
    assert masks.from_window(3, 12, causal=True) == masks.sliding_window(12, window=4)
    assert masks.from_window(-1, 12, causal=True) == masks.causal(12)
    with pytest.raises(InvalidInputError, match="window_size"):
        masks.from_window(-2, 12, causal=True)


@settings(max_examples=50, deadline=None)
@given(lengths, st.booleans(), st.integers(0, 3), st.data())
def test_cu_seqlens(rows, causal, padding, data):
    columns = data.draw(st.lists(st.integers(0, 6), min_size=len(rows), max_size=len(rows)))
    cu_q, cu_k = (torch.tensor([0, *row]).cumsum(0).to(torch.int32) for row in (rows, columns))
    s_q, s_k = int(cu_q[-1]) + padding, int(cu_k[-1]) + padding
    q, k = cu_q.tolist(), cu_k.tolist()

    def visible(i, j):
        for d in range(len(rows)):
            if q[d] <= i < q[d + 1] and k[d] <= j < k[d + 1]:
                return not causal or (j - k[d]) <= (i - q[d]) + columns[d] - rows[d]
        return False

    mask = masks.from_cu_seqlens(cu_q, cu_k, causal=causal, s_q=s_q, s_k=s_k)
    assert torch.equal(mask.dense()[0, 0], dense_by_pairs(s_q, s_k, visible))
    own = masks.from_cu_seqlens(cu_q, causal=causal)
    build = masks.causal_document if causal else masks.document
    assert own == build(rows)


@pytest.mark.parametrize(
    ("cu", "says"),
    [
        (torch.tensor([0, 3, 2]), "must rise from 0"),
        (torch.tensor([1, 3]), "must rise from 0"),
        (torch.tensor([0.0, 3.0]), "int32 or int64"),
        (torch.zeros(0, dtype=torch.int32), r"documents \+ 1"),
        ([0, 3], "got list"),
    ],
)
def test_wrong_cu_seqlens_are_refused(cu, says):
    with pytest.raises(InvalidInputError, match=says):
        masks.from_cu_seqlens(cu, causal=True)


def test_documents_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInputError, match="cu_seqlens_q must rise from 0 to at most s_k=30"):
        masks.from_cu_seqlens(torch.tensor([0, 20, 64]), causal=True, s_k=30)


def test_no_document_at_all_is_all_padding():
    mask = masks.from_cu_seqlens(torch.tensor([0]), causal=True, s_q=3, s_k=3)
    assert not mask.dense().any()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(-1, 3), min_size=0, max_size=9), st.booleans())
def test_document_ids(ids, causal):
    s = len(ids)
    dense = dense_by_pairs(s, s, lambda i, j: ids[i] == ids[j] >= 0 and (not causal or j <= i))
    try:
        want = masks.from_dense(dense)
    except InvalidInputError as error:
        column = int(str(error).split()[1])
        with pytest.raises(InvalidInputError, match=rf"column {column} .*at most two"):
            masks.from_document_ids(torch.tensor(ids), causal=causal)
    else:
        mask = masks.from_document_ids(torch.tensor(ids, dtype=torch.int64), causal=causal)
        assert torch.equal(mask.dense()[0, 0], dense)
        assert mask == want


def test_document_ids_by_sequence():
    mask = masks.from_document_ids(torch.tensor([[0, 0, 1], [5, 6, 6]]), causal=False)
    assert mask == masks.document([[2, 1], [1, 2]])
    with pytest.raises(InvalidInputError, match="integer tensor"):
        masks.from_document_ids(torch.zeros(3), causal=False)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_jagged_nested_tensors():
    query = torch.nested.nested_tensor([torch.zeros(n, 4) for n in (2, 3)], layout=torch.jagged)
    key = torch.nested.nested_tensor([torch.zeros(n, 4) for n in (1, 5)], layout=torch.jagged)
    assert masks.from_nested(query, causal=True) == masks.causal_document([2, 3])
    cu_q, cu_k = torch.tensor([0, 2, 5]), torch.tensor([0, 1, 6])
    assert masks.from_nested(query, key, causal=True) == masks.from_cu_seqlens(cu_q, cu_k, causal=True)
    with pytest.raises(InvalidInputError, match="jagged"):
        masks.from_nested(torch.zeros(2, 2), causal=True)
    with pytest.raises(InvalidInputError, match="ragged in dimension 2"):
        masks.from_nested(query.transpose(1, 2), causal=True)
    with pytest.raises(InvalidInputError, match=r"got a nested tensor of layout torch\.strided"):
        masks.from_nested(torch.nested.nested_tensor([torch.zeros(2, 3)]), causal=True)


@settings(max_examples=25, deadline=None)
@given(raw_bounds(max_size=10))
def test_mask_mod_and_back(case):
    indices, causal, s_q = case
    assume(s_q and indices.shape[2])
    mask = canonicalize(indices, s_q=s_q, s_k=indices.shape[2], causal=causal)
    mod = masks.to_mask_mod(mask)
    back = masks.from_mask_mod(mod, s_q, mask.s_k, batch=mask.batch, heads=mask.heads)
    assert back == mask


def test_a_mask_mod_that_columns_cannot_say_names_its_column():
    with pytest.raises(InvalidInputError, match=r"column 0 .*hides 3 separate"):
        masks.from_mask_mod(lambda b, h, q_idx, kv_idx: (q_idx + kv_idx) % 2 == 0, 6)
    with pytest.raises(InvalidInputError, match="must return bool"):
        masks.from_mask_mod(lambda b, h, q_idx, kv_idx: q_idx - kv_idx, 6)


def test_grouped_heads_of_a_mask_mod():
    indices = torch.tensor([3, 7], dtype=torch.int32).view(1, 2, 1, 1).expand(1, 2, 8, 1)
    mask = canonicalize(indices, s_q=8, s_k=8, causal=True)
    wide = masks.from_mask_mod(masks.to_mask_mod(mask, heads_q=4), 8, heads=4)
    assert torch.equal(wide.dense(), mask.dense().repeat_interleave(2, dim=1))
    with pytest.raises(InvalidInputError, match="heads_q=3 is not a multiple"):
        masks.to_mask_mod(mask, heads_q=3)


def keep_of(s_q, s_k, seed=0, batch=1, heads=1):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(batch, heads, -(-s_q // 128), -(-s_k // 128), generator=generator) > 0.4).to(torch.int32)


@pytest.mark.parametrize("mask", [masks.causal_document([150, 200]), masks.document([90, 260]), masks.causal(350)])
def test_block_mask_there_and_back(mask):
    from torch.nn.attention.flex_attention import create_block_mask, create_mask

    held = masks.to_block_mask(mask)
    assert masks.from_block_mask(held) == mask
    made = create_block_mask(masks.to_mask_mod(mask), 1, 1, mask.s_q, mask.s_k, device="cpu")
    assert torch.equal(held.to_dense(), made.to_dense())
    assert masks.from_block_mask(made) == mask
    assert torch.equal(create_mask(masks.to_mask_mod(mask), 1, 1, mask.s_q, mask.s_k, device="cpu"), mask.dense())


def test_a_block_mask_lists_no_dropped_block():
    from torch.nn.attention.flex_attention import create_mask

    mask = masks.with_block_mask(masks.causal(300), keep_of(300, 300))
    held = masks.to_block_mask(mask)
    listed = held.to_dense().bool()
    assert not bool((listed & (mask.block_mask == 0)).any())
    wide = listed.repeat_interleave(128, 2).repeat_interleave(128, 3)[..., :300, :300]
    assert not bool((mask.dense() & ~wide).any())
    assert torch.equal(create_mask(held.mask_mod, 1, 1, 300, 300, device="cpu"), mask.dense())


@pytest.mark.parametrize("s", [100, 300])
def test_with_block_mask_hides_its_blocks(s):
    keep = keep_of(s, s, seed=3, heads=2)
    mask = masks.with_block_mask(masks.causal(s), keep)
    wide = keep.bool().repeat_interleave(128, 2).repeat_interleave(128, 3)[..., :s, :s]
    assert torch.equal(mask.dense(), masks.causal(s).dense() & wide)
    assert mask.exact_area() == pytest.approx(mask.dense().float().mean().item())
    assert not mask.is_causal_only
    assert mask == canonicalize(None, s_q=s, s_k=s, causal=True, block_mask=keep)
    twice = masks.with_block_mask(mask, keep_of(s, s, seed=4))
    assert torch.equal(
        twice.dense(), mask.dense() & masks.with_block_mask(masks.full(s), keep_of(s, s, seed=4)).dense()
    )
    assert masks.with_block_mask(masks.causal(s), torch.ones_like(keep[:, :1])) == masks.causal(s)
