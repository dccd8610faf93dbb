"""FlashMask backward in two deterministic passes over the canonical tile lists, after one row statistic.

`attn_bwd_rows` forms delta = rowsum(out * dout) - dlse and the base-2 lse.  `attn_bwd_kv` owns a key tile and walks its
query tiles (of every query head of the group, so GQA needs no expansion and no atomics); `attn_bwd_q` owns a query tile
and walks its key tiles.  That recomputes the scores once more than a single pass (7 products instead of 5) and needs no
atomics: a key pass that adds dq atomically into an fp32 buffer was measured and lost everywhere on an H200.

`scale` and `cap` as in attn_fwd; gradients are with respect to the base-e logits, `grad_scale` is softmax_scale.
"""

import triton
import triton.language as tl

from fmcore_triton.kernels.attn_common import (
    LOG2E,
    column_intervals,
    load_rows,
    ragged_tail,
    tanh,
    visible,
    work_item,
)

_STRIDES = [
    "q_b8", "q_s8", "q_h8", "k_b8", "k_s8", "k_h8", "v_b8", "v_s8", "v_h8", "g_b8", "g_s8", "g_h8",
]  # fmt: skip
_SIZES = ["s_q", "s_k", "n_q", "n_k", "group", "head_group", "mask_rows", "mask_group"]
_UNALIGNED = ["planes", "partial", "full", "tiles", "order"]


@triton.jit(do_not_specialize=["s_q", "heads", "g_b8", "g_s8", "g_h8"])
def attn_bwd_rows(
    out,
    dout,
    lse,
    dlse,
    lse2,
    delta,
    g_b8: tl.int64,
    g_s8: tl.int64,
    g_h8: tl.int64,
    s_q: tl.int32,
    heads: tl.int32,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HAS_DLSE: tl.constexpr,
):
    """delta and lse2 [b, heads, s_q] fp32; grid (tiles, b * heads).  Dead rows get lse2 = +inf: every weight is 0."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    bh = tl.program_id(1).to(tl.int64)
    b = bh // heads
    h = bh % heads
    rows_ok = rows < s_q
    dims = tl.arange(0, BLOCK_DV)
    wide = rows.to(tl.int64)[:, None]
    out_row = heads.to(tl.int64) * DV
    o = load_rows(out + b * s_q * out_row + h * DV + wide * out_row + dims[None, :], rows_ok, dims, DV, BLOCK_DV, True)
    g_base = dout + b * (g_b8.to(tl.int64) * 8) + h * (g_h8.to(tl.int64) * 8)
    g = load_rows(g_base + wide * (g_s8.to(tl.int64) * 8) + dims[None, :], rows_ok, dims, DV, BLOCK_DV, True)
    row_delta = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    at = bh * s_q + rows
    if HAS_DLSE:
        row_delta -= tl.load(dlse + at, mask=rows_ok, other=0.0).to(tl.float32)
    row_lse = tl.load(lse + at, mask=rows_ok, other=0.0)
    tl.store(lse2 + at, tl.where(row_lse == float("-inf"), float("inf"), row_lse * LOG2E), mask=rows_ok)
    tl.store(delta + at, row_delta, mask=rows_ok)


@triton.jit
def _kv_tiles(
    dk,
    dv,
    k,
    v,
    q_ptrs,
    g_ptrs,
    q_row,
    g_row,
    lse2,
    delta,
    tiles,
    first,
    last,
    n_partial,
    final,
    b1,
    w1,
    b2,
    w2,
    s_q,
    scale,
    cap,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    MODE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    offs = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    dims_v = tl.arange(0, BLOCK_DV)
    for i in tl.range(first, last):
        entry = tl.where(i < n_partial, i, final) if MASKED else i
        start = tl.load(tiles + entry).to(tl.int32) * BLOCK_M
        rows = start + offs
        rows_ok = rows < s_q
        q = load_rows(q_ptrs + start.to(tl.int64) * q_row, rows_ok, dims, D, BLOCK_D, MASKED)
        st = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        if MASKED:
            row_lse = tl.load(lse2 + rows, mask=rows_ok, other=float("inf"))
            row_delta = tl.load(delta + rows, mask=rows_ok, other=0.0)
        else:
            row_lse = tl.load(lse2 + rows)
            row_delta = tl.load(delta + rows)
        if SOFTCAP:
            t = tanh(st * scale)
            pt = tl.exp2(t * cap - row_lse[None, :])
        else:
            pt = tl.exp2(st * scale - row_lse[None, :])
        if MASKED:
            seen = visible(rows[None, :], b1[:, None], w1[:, None], b2[:, None], w2[:, None], MODE)
            pt = tl.where(seen, pt, 0.0)
        g = load_rows(g_ptrs + start.to(tl.int64) * g_row, rows_ok, dims_v, DV, BLOCK_DV, MASKED)
        dv = tl.dot(pt.to(g.dtype), g, dv, input_precision=PRECISION)
        dpt = tl.dot(v, tl.trans(g), input_precision=PRECISION)
        dst = pt * (dpt - row_delta[None, :])
        if SOFTCAP:
            dst = dst * (1.0 - t * t)
        dk = tl.dot(dst.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=[*_STRIDES, *_SIZES, "heads_kv"], do_not_specialize_on_alignment=_UNALIGNED)
def attn_bwd_kv(
    q,
    k,
    v,
    dout,
    lse2,
    delta,
    dk,
    dv,
    planes,
    partial,
    full,
    tiles,
    order,
    q_b8: tl.int64,
    q_s8: tl.int64,
    q_h8: tl.int64,
    k_b8: tl.int64,
    k_s8: tl.int64,
    k_h8: tl.int64,
    v_b8: tl.int64,
    v_s8: tl.int64,
    v_h8: tl.int64,
    g_b8: tl.int64,
    g_s8: tl.int64,
    g_h8: tl.int64,
    s_q: tl.int32,
    s_k: tl.int32,
    n_q: tl.int32,
    n_k: tl.int32,
    heads_kv: tl.int32,
    group: tl.int32,
    head_group: tl.int32,
    mask_rows: tl.int32,
    mask_group: tl.int32,
    scale,
    cap,
    grad_scale,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MODE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dk [b, s_k, heads_kv, D] and dv [.., DV] contiguous; grid (b * heads_kv * n_k,)."""
    b, h_kv, tile, _ = work_item(order, partial, full, n_k, heads_kv, head_group, group, mask_rows, mask_group, MODE)
    cols = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    cols_ok = cols < s_k
    offs = tl.arange(0, BLOCK_M).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    dims_v = tl.arange(0, BLOCK_DV)
    q_row = q_s8.to(tl.int64) * 8
    g_row = g_s8.to(tl.int64) * 8
    wide = cols.to(tl.int64)[:, None]
    k_base = k + b * (k_b8.to(tl.int64) * 8) + h_kv.to(tl.int64) * (k_h8.to(tl.int64) * 8)
    v_base = v + b * (v_b8.to(tl.int64) * 8) + h_kv.to(tl.int64) * (v_h8.to(tl.int64) * 8)
    k_tile = load_rows(k_base + wide * (k_s8.to(tl.int64) * 8) + dims[None, :], cols_ok, dims, D, BLOCK_D, True)
    v_tile = load_rows(v_base + wide * (v_s8.to(tl.int64) * 8) + dims_v[None, :], cols_ok, dims_v, DV, BLOCK_DV, True)
    dk_sum = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv_sum = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    heads = heads_kv * group

    for member in tl.range(0, group):
        h = h_kv * group + member
        mask_row = (b * mask_rows + h // mask_group).to(tl.int64)
        b1, w1, b2, w2 = column_intervals(planes + mask_row * (2 * MODE) * s_k, cols, s_k, MODE)
        lists = mask_row * n_k + tile
        n_partial = tl.load(partial + lists).to(tl.int32)
        n_full = tl.load(full + lists).to(tl.int32)
        mine = tiles + lists * n_q
        tail = ragged_tail(mine, n_partial, n_full, n_q, s_q, BLOCK_M)
        n_all = n_partial + n_full
        q_ptrs = q + b * (q_b8.to(tl.int64) * 8) + h.to(tl.int64) * (q_h8.to(tl.int64) * 8)
        g_ptrs = dout + b * (g_b8.to(tl.int64) * 8) + h.to(tl.int64) * (g_h8.to(tl.int64) * 8)
        q_ptrs = q_ptrs + offs[:, None] * q_row + dims[None, :]
        g_ptrs = g_ptrs + offs[:, None] * g_row + dims_v[None, :]
        statistics = (b * heads + h) * s_q
        dk_sum, dv_sum = _kv_tiles(
            dk_sum, dv_sum, k_tile, v_tile, q_ptrs, g_ptrs, q_row, g_row, lse2 + statistics, delta + statistics,
            mine, 0, n_partial + tail, n_partial, n_all - 1, b1, w1, b2, w2, s_q, scale, cap,
            D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, MODE, SOFTCAP, True, PRECISION,
        )  # fmt: skip
        dk_sum, dv_sum = _kv_tiles(
            dk_sum, dv_sum, k_tile, v_tile, q_ptrs, g_ptrs, q_row, g_row, lse2 + statistics, delta + statistics,
            mine, n_partial, n_all - tail, n_partial, n_all - 1, b1, w1, b2, w2, s_q, scale, cap,
            D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, MODE, SOFTCAP, False, PRECISION,
        )  # fmt: skip

    k_out = heads_kv.to(tl.int64) * D
    v_out = heads_kv.to(tl.int64) * DV
    dk_ptrs = dk + b * s_k * k_out + h_kv * D + wide * k_out + dims[None, :]
    dv_ptrs = dv + b * s_k * v_out + h_kv * DV + wide * v_out + dims_v[None, :]
    tl.store(dk_ptrs, (dk_sum * grad_scale).to(dk.dtype.element_ty), mask=cols_ok[:, None] & (dims < D)[None, :])
    tl.store(dv_ptrs, dv_sum.to(dv.dtype.element_ty), mask=cols_ok[:, None] & (dims_v < DV)[None, :])


@triton.jit
def _q_tiles(
    dq,
    q,
    g,
    row_lse,
    row_delta,
    k_ptrs,
    v_ptrs,
    k_row,
    v_row,
    tiles,
    first,
    last,
    n_partial,
    final,
    planes,
    rows,
    s_k,
    scale,
    cap,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MODE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    offs = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    dims_v = tl.arange(0, BLOCK_DV)
    for i in tl.range(first, last):
        entry = tl.where(i < n_partial, i, final) if MASKED else i
        start = tl.load(tiles + entry).to(tl.int32) * BLOCK_N
        cols = start + offs
        cols_ok = cols < s_k
        k = load_rows(k_ptrs + start.to(tl.int64) * k_row, cols_ok, dims, D, BLOCK_D, MASKED)
        v = load_rows(v_ptrs + start.to(tl.int64) * v_row, cols_ok, dims_v, DV, BLOCK_DV, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        if SOFTCAP:
            t = tanh(s * scale)
            p = tl.exp2(t * cap - row_lse[:, None])
        else:
            p = tl.exp2(s * scale - row_lse[:, None])
        if MASKED:
            b1, w1, b2, w2 = column_intervals(planes, cols, s_k, MODE)
            seen = visible(rows[:, None], b1[None, :], w1[None, :], b2[None, :], w2[None, :], MODE)
            p = tl.where(seen, p, 0.0)
        ds = p * (dp - row_delta[:, None])
        if SOFTCAP:
            ds = ds * (1.0 - t * t)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=[*_STRIDES, *_SIZES, "heads"], do_not_specialize_on_alignment=_UNALIGNED)
def attn_bwd_q(
    q,
    k,
    v,
    dout,
    lse2,
    delta,
    dq,
    planes,
    partial,
    full,
    tiles,
    order,
    q_b8: tl.int64,
    q_s8: tl.int64,
    q_h8: tl.int64,
    k_b8: tl.int64,
    k_s8: tl.int64,
    k_h8: tl.int64,
    v_b8: tl.int64,
    v_s8: tl.int64,
    v_h8: tl.int64,
    g_b8: tl.int64,
    g_s8: tl.int64,
    g_h8: tl.int64,
    s_q: tl.int32,
    s_k: tl.int32,
    n_q: tl.int32,
    n_k: tl.int32,
    heads: tl.int32,
    group: tl.int32,
    head_group: tl.int32,
    mask_rows: tl.int32,
    mask_group: tl.int32,
    scale,
    cap,
    grad_scale,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MODE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dq [b, s_q, heads, D] contiguous; grid (b * heads * n_q,)."""
    b, h, tile, mask_row = work_item(order, partial, full, n_q, heads, head_group, 1, mask_rows, mask_group, MODE)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    rows_ok = rows < s_q
    offs = tl.arange(0, BLOCK_N).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    dims_v = tl.arange(0, BLOCK_DV)
    k_row = k_s8.to(tl.int64) * 8
    v_row = v_s8.to(tl.int64) * 8
    h_kv = (h // group).to(tl.int64)
    wide = rows.to(tl.int64)[:, None]
    q_base = q + b * (q_b8.to(tl.int64) * 8) + h.to(tl.int64) * (q_h8.to(tl.int64) * 8)
    g_base = dout + b * (g_b8.to(tl.int64) * 8) + h.to(tl.int64) * (g_h8.to(tl.int64) * 8)
    k_base = k + b * (k_b8.to(tl.int64) * 8) + h_kv * (k_h8.to(tl.int64) * 8)
    v_base = v + b * (v_b8.to(tl.int64) * 8) + h_kv * (v_h8.to(tl.int64) * 8)
    q_tile = load_rows(q_base + wide * (q_s8.to(tl.int64) * 8) + dims[None, :], rows_ok, dims, D, BLOCK_D, True)
    g_tile = load_rows(g_base + wide * (g_s8.to(tl.int64) * 8) + dims_v[None, :], rows_ok, dims_v, DV, BLOCK_DV, True)
    k_ptrs = k_base + offs[:, None] * k_row + dims[None, :]
    v_ptrs = v_base + offs[:, None] * v_row + dims_v[None, :]
    statistics = (b * heads + h) * s_q
    row_lse = tl.load(lse2 + statistics + rows, mask=rows_ok, other=float("inf"))
    row_delta = tl.load(delta + statistics + rows, mask=rows_ok, other=0.0)

    planes += mask_row * (2 * MODE) * s_k
    lists = mask_row * n_q + tile
    n_partial = tl.load(partial + lists).to(tl.int32)
    n_full = tl.load(full + lists).to(tl.int32)
    tiles += lists * n_k
    tail = ragged_tail(tiles, n_partial, n_full, n_k, s_k, BLOCK_N)
    n_all = n_partial + n_full
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = _q_tiles(
        total, q_tile, g_tile, row_lse, row_delta, k_ptrs, v_ptrs, k_row, v_row, tiles, 0, n_partial + tail, n_partial,
        n_all - 1, planes, rows, s_k, scale, cap, D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, MODE, SOFTCAP, True, PRECISION,
    )  # fmt: skip
    total = _q_tiles(
        total, q_tile, g_tile, row_lse, row_delta, k_ptrs, v_ptrs, k_row, v_row, tiles, n_partial, n_all - tail,
        n_partial, n_all - 1, planes, rows, s_k, scale, cap,
        D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, MODE, SOFTCAP, False, PRECISION,
    )  # fmt: skip
    q_out = heads.to(tl.int64) * D
    dq_ptrs = dq + b * s_q * q_out + h * D + wide * q_out + dims[None, :]
    tl.store(dq_ptrs, (total * grad_scale).to(dq.dtype.element_ty), mask=rows_ok[:, None] & (dims < D)[None, :])
