"""The plan of a mask: classes of all tile pairs with their counts, then compacted lists and work orders."""

import triton
import triton.language as tl


@triton.jit
def _sees(planes, s_k, col, ok, a, b, MODE: tl.constexpr):
    """For rows [a, b) against columns: is some pair visible, are all; bool [rows, columns], planes lie s_k apart."""
    first = tl.load(planes + col, mask=ok, other=0)[None, :]
    second = tl.load(planes + s_k + col, mask=ok, other=0)[None, :]
    if MODE == 1:
        some = (first < b) & (second > a)
        whole = (first <= a) & (second >= b)
    else:
        third = tl.load(planes + 2 * s_k + col, mask=ok, other=0)[None, :]
        fourth = tl.load(planes + 3 * s_k + col, mask=ok, other=0)[None, :]
        some = ((first > a) | (second < b)) & ((third > a) | (fourth < b))
        whole = ((first >= b) | (second <= a)) & ((third >= b) | (fourth <= a))
    return some, whole


@triton.jit(do_not_specialize=["s_q", "s_k", "nq", "nk", "block_q", "block_k", "keep_q", "keep_k"])
def plan_classes(
    planes,
    keep,
    classes,
    q_partial,
    q_full,
    k_partial,
    k_full,
    s_q,
    s_k,
    nq,
    nk,
    block_q,
    block_k,
    keep_q,
    keep_k,
    MODE: tl.constexpr,
    KEEP: tl.constexpr,
    SPANS: tl.constexpr,
    QUERIES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One key tile against QUERIES query tiles: classes [rows, nk, nq], counts added up in the four count arrays.

    With a block mask a query tile is looked at in SPANS pieces that lie in one row of 128 x 128 blocks each.
    """
    kt = tl.program_id(0)
    row = tl.program_id(2).to(tl.int64)
    q = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    begin = q * block_q
    end = tl.minimum(begin + block_q, s_q)
    planes += row * (2 * MODE) * s_k
    stop = tl.minimum((kt + 1) * block_k, s_k)
    seen = tl.zeros([QUERIES], tl.int32)
    missing = tl.zeros([QUERIES], tl.int32)
    for column in range(kt * block_k, stop, COLUMNS):
        col = column + tl.arange(0, COLUMNS)
        ok = col < stop
        for span in tl.static_range(SPANS):
            a = begin
            b = end
            if KEEP:
                a = tl.maximum(begin, (begin // 128 + span) * 128)
                b = tl.minimum(end, (begin // 128 + span + 1) * 128)
            some, whole = _sees(planes, s_k, col, ok, a[:, None], b[:, None], MODE)
            counted = (a < b)[:, None] & ok[None, :]
            if KEEP:
                block = (row * keep_q + a // 128)[:, None] * keep_k + (col // 128)[None, :]
                kept = tl.load(keep + block, mask=counted, other=0) != 0
                some = some & kept
                whole = whole & kept
            seen += tl.sum((some & counted).to(tl.int32), 1)
            missing += tl.sum(((whole == 0) & counted).to(tl.int32), 1)
    inside = q < nq
    partial = (inside & (seen > 0) & (missing > 0)).to(tl.int32)
    full = (inside & (seen > 0) & (missing == 0)).to(tl.int32)
    tl.store(classes + (row * nk + kt) * nq + q, (partial + 2 * full).to(tl.uint8), mask=inside)
    tl.atomic_add(q_partial + row * nq + q, partial, mask=partial > 0)
    tl.atomic_add(q_full + row * nq + q, full, mask=full > 0)
    tl.atomic_add(k_partial + row * nk + kt, tl.sum(partial, 0))
    tl.atomic_add(k_full + row * nk + kt, tl.sum(full, 0))


@triton.jit
def _compact(classes, stride, n, partial, tiles, CHUNK: tl.constexpr):
    """Entries of one list: partial tiles from 0 on, full ones behind them."""
    at_partial = 0
    at_full = partial
    for start in range(0, n, CHUNK):
        entry = start + tl.arange(0, CHUNK)
        value = tl.load(classes + entry.to(tl.int64) * stride, mask=entry < n, other=0)
        is_partial = (value == 1).to(tl.int32)
        is_full = (value == 2).to(tl.int32)
        place = tl.where(value == 1, at_partial + tl.cumsum(is_partial, 0), at_full + tl.cumsum(is_full, 0)) - 1
        tl.store(tiles + place, entry.to(tiles.dtype.element_ty), mask=value > 0)
        at_partial += tl.sum(is_partial, 0)
        at_full += tl.sum(is_full, 0)


@triton.jit
def _rank(partial, full, order, me, n, CHUNK: tl.constexpr):
    """Put tile ``me`` at its place among n tiles: more work first, ties ascending."""
    mine = tl.load(partial + me) + tl.load(full + me)
    rank = 0
    for start in range(0, n, CHUNK):
        other = start + tl.arange(0, CHUNK)
        work = tl.load(partial + other, mask=other < n, other=-1) + tl.load(full + other, mask=other < n, other=0)
        ahead = (work > mine) | ((work == mine) & (other < me))
        rank += tl.sum((ahead & (other < n)).to(tl.int32), 0)
    tl.store(order + rank, me)


@triton.jit(do_not_specialize=["nq", "nk"])
def plan_lists(
    classes,
    q_partial,
    q_full,
    k_partial,
    k_full,
    q_tiles,
    k_tiles,
    q_order,
    k_order,
    nq,
    nk,
    CHUNK: tl.constexpr,
):
    """Programs [0, nq) make the list and the rank of a query tile, programs [nq, nq + nk) those of a key tile."""
    i = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    classes += row * nk * nq
    q_partial += row * nq
    q_full += row * nq
    k_partial += row * nk
    k_full += row * nk
    if i < nq:
        _compact(classes + i, nq, nk, tl.load(q_partial + i), q_tiles + (row * nq + i) * nk, CHUNK)
        _rank(q_partial, q_full, q_order + row * nq, i, nq, CHUNK)
    else:
        t = i - nq
        _compact(classes + t.to(tl.int64) * nq, 1, nq, tl.load(k_partial + t), k_tiles + (row * nk + t) * nq, CHUNK)
        _rank(k_partial, k_full, k_order + row * nk, t, nk, CHUNK)
