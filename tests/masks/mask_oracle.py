"""The literal rules, pair by pair in plain Python, and hypothesis strategies for what they are given."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

FORMS = ((True, 1), (True, 2), (False, 2), (False, 4))


def hidden(bounds, causal, i, j, s_q, s_k):
    """The rule table of the format: is pair (i, j) hidden by the bounds of column j?"""
    if causal and j > i + (s_k - s_q):
        return True
    if causal and len(bounds) == 1:
        (lts,) = bounds
        return i >= lts
    if causal and len(bounds) == 2:
        lts, lte = bounds
        return lts <= i < lte
    if len(bounds) == 2:
        lts, ute = bounds
        return i >= lts or i < ute
    lts, lte, uts, ute = bounds
    return lts <= i < lte or uts <= i < ute


def dense_by_rule(indices, causal, s_q, s_k):
    """Bool [batch, heads, s_q, s_k], True where visible."""
    table = indices.tolist()
    rows = [
        [[[not hidden(head[j], causal, i, j, s_q, s_k) for j in range(s_k)] for i in range(s_q)] for head in heads]
        for heads in table
    ]
    return torch.tensor(rows, dtype=torch.bool).view(*indices.shape[:2], s_q, s_k)


def dense_by_pairs(s_q, s_k, visible):
    """Bool [s_q, s_k] of a predicate visible(i, j)."""
    pairs = [[bool(visible(i, j)) for j in range(s_k)] for i in range(s_q)]
    return torch.tensor(pairs, dtype=torch.bool).view(s_q, s_k)


def classes_by_tiles(dense, block_q, block_k):
    """uint8 [batch, heads, nq, nk]: 0 nothing visible, 1 some, 2 all, within bounds."""
    rows = [
        torch.stack([_class(strip[..., k : k + block_k]) for k in range(0, dense.shape[-1], block_k)], dim=-1)
        for strip in (dense[..., q : q + block_q, :] for q in range(0, dense.shape[-2], block_q))
    ]
    return torch.stack(rows, dim=-2)


def _class(tile):
    flat = tile.flatten(-2)
    return flat.any(-1).to(torch.uint8) + flat.all(-1).to(torch.uint8)


@st.composite
def raw_bounds(draw, max_size=24, forms=FORMS):
    """Any startend_row_indices with its causal flag and s_q: out of range, reversed, overlapping, whatever."""
    causal, n = draw(st.sampled_from(forms))
    s_q, s_k = draw(st.integers(0, max_size)), draw(st.integers(0, max_size))
    batch, heads = draw(st.sampled_from([(1, 1), (2, 1), (1, 3)]))
    size = batch * heads * s_k * n
    values = draw(st.lists(st.integers(-3, s_q + 3), min_size=size, max_size=size))
    indices = torch.tensor(values, dtype=torch.int32).view(batch, heads, s_k, n)
    return indices, causal, s_q


@st.composite
def smooth_bounds(draw, max_size=300):
    """Bounds that move slowly along the columns, as real masks do, so that tiles of all classes occur."""
    causal, n = draw(st.sampled_from(FORMS))
    s_q, s_k = draw(st.integers(1, max_size)), draw(st.integers(1, max_size))
    seed = draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    heads = draw(st.sampled_from([1, 2]))
    pieces = draw(st.integers(1, 6))
    level = torch.randint(-9, s_q + 9, (1, heads, pieces, n), generator=generator)
    column = torch.arange(s_k) * pieces // s_k
    slope = torch.arange(s_k).view(1, 1, s_k, 1) * draw(st.sampled_from([0, 1]))
    return (level[:, :, column] + slope).to(torch.int32), causal, s_q


lengths = st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(lambda row: sum(row) > 0)
