"""FlashMask forward: one program per query tile walks the list of its visible key tiles.

Online softmax in base 2 (FlashAttention-2's recurrence).  Partly masked tiles come first in the list and run with the
element mask, the rest without any.  Address arithmetic is 64-bit throughout; strides arrive in units of eight elements,
which tells the compiler that rows are 16-byte aligned without specialising on any length.

`scale` turns q.k into base-2 logits; with softcap it is softmax_scale / softcap and `cap` is softcap * log2(e).
"""

import triton
import triton.language as tl

from fmcore_triton.kernels.attn_common import (
    LN2,
    LOG2E,
    column_intervals,
    load_rows,
    ragged_tail,
    tanh,
    visible,
    work_item,
)


@triton.jit
def _fwd_tiles(
    acc,
    total,
    peak,
    q,
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
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if SOFTCAP:
            s = tanh(s * scale) * cap
        elif MASKED:
            s = s * scale
        if MASKED:
            b1, w1, b2, w2 = column_intervals(planes, cols, s_k, MODE)
            seen = visible(rows[:, None], b1[None, :], w1[None, :], b2[None, :], w2[None, :], MODE)
            s = tl.where(seen, s, float("-inf"))
            peak_new = tl.maximum(peak, tl.max(s, 1))
            # A row that has seen nothing yet has maximum -inf; subtracting 0 instead keeps its weights 0, not NaN.
            base = tl.where(peak_new == float("-inf"), 0.0, peak_new)
            p = tl.exp2(s - base[:, None])
        elif SOFTCAP:
            peak_new = tl.maximum(peak, tl.max(s, 1))
            base = peak_new
            p = tl.exp2(s - base[:, None])
        else:
            peak_new = tl.maximum(peak, tl.max(s, 1) * scale)
            base = peak_new
            p = tl.exp2(s * scale - base[:, None])
        alpha = tl.exp2(peak - base)
        total = total * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = load_rows(v_ptrs + start.to(tl.int64) * v_row, cols_ok, dims_v, DV, BLOCK_DV, MASKED)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        peak = peak_new
    return acc, total, peak


@triton.jit(
    do_not_specialize=[
        "q_b8", "q_s8", "q_h8", "k_b8", "k_s8", "k_h8", "v_b8", "v_s8", "v_h8",
        "s_q", "s_k", "n_q", "n_k", "heads", "group", "head_group", "mask_rows", "mask_group",
    ],
    do_not_specialize_on_alignment=["planes", "partial", "full", "tiles", "order"],
)  # fmt: skip
def attn_fwd(
    q,
    k,
    v,
    out,
    lse,
    sink,
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
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MODE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out [b, s_q, heads, DV] contiguous, lse [b, heads, s_q] fp32; grid (b * heads * n_q,)."""
    b, h, tile, mask_row = work_item(order, partial, full, n_q, heads, head_group, 1, mask_rows, mask_group, MODE)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    rows_ok = rows < s_q
    offs = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    dims_v = tl.arange(0, BLOCK_DV)

    q_row = q_s8.to(tl.int64) * 8
    k_row = k_s8.to(tl.int64) * 8
    v_row = v_s8.to(tl.int64) * 8
    h_kv = (h // group).to(tl.int64)
    q_base = q + b * (q_b8.to(tl.int64) * 8) + h.to(tl.int64) * (q_h8.to(tl.int64) * 8)
    k_base = k + b * (k_b8.to(tl.int64) * 8) + h_kv * (k_h8.to(tl.int64) * 8)
    v_base = v + b * (v_b8.to(tl.int64) * 8) + h_kv * (v_h8.to(tl.int64) * 8)
    k_ptrs = k_base + offs.to(tl.int64)[:, None] * k_row + dims[None, :]
    v_ptrs = v_base + offs.to(tl.int64)[:, None] * v_row + dims_v[None, :]
    q_tile = load_rows(q_base + rows.to(tl.int64)[:, None] * q_row + dims[None, :], rows_ok, dims, D, BLOCK_D, True)

    planes += mask_row * (2 * MODE) * s_k
    lists = mask_row * n_q + tile
    n_partial = tl.load(partial + lists).to(tl.int32)
    n_full = tl.load(full + lists).to(tl.int32)
    tiles += lists * n_k
    tail = ragged_tail(tiles, n_partial, n_full, n_k, s_k, BLOCK_N)
    n_all = n_partial + n_full

    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    acc, total, peak = _fwd_tiles(
        acc, total, peak, q_tile, k_ptrs, v_ptrs, k_row, v_row, tiles, 0, n_partial + tail, n_partial, n_all - 1,
        planes, rows, s_k, scale, cap, D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, MODE, SOFTCAP, True, PRECISION,
    )  # fmt: skip
    acc, total, peak = _fwd_tiles(
        acc, total, peak, q_tile, k_ptrs, v_ptrs, k_row, v_row, tiles, n_partial, n_all - tail, n_partial, n_all - 1,
        planes, rows, s_k, scale, cap, D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, MODE, SOFTCAP, False, PRECISION,
    )  # fmt: skip

    if SINK:
        # A sink is one more logit with no value: it enlarges the denominator only.
        extra = tl.load(sink + h).to(tl.float32) * LOG2E
        peak_new = tl.maximum(peak, extra)
        base = tl.where(peak_new == float("-inf"), 0.0, peak_new)
        alpha = tl.exp2(peak - base)
        total = total * alpha + tl.exp2(extra - base)
        acc = acc * alpha[:, None]
        peak = peak_new
    empty = total == 0.0
    inverse = tl.where(empty, 0.0, 1.0 / tl.where(empty, 1.0, total))
    result = acc * inverse[:, None]
    log_sum = tl.where(empty, float("-inf"), (peak + tl.log2(tl.where(empty, 1.0, total))) * LN2)

    tl.store(lse + (b * heads + h) * s_q + rows, log_sum, mask=rows_ok)
    out_row = heads.to(tl.int64) * DV
    out_ptrs = out + b * s_q * out_row + h * DV + rows.to(tl.int64)[:, None] * out_row + dims_v[None, :]
    if DV == BLOCK_DV:
        tl.store(out_ptrs, result.to(out.dtype.element_ty), mask=rows_ok[:, None])
    else:
        tl.store(out_ptrs, result.to(out.dtype.element_ty), mask=rows_ok[:, None] & (dims_v < DV)[None, :])
