"""Around the backward: row statistics and a zeroed dQ before it, dQ put in order, scaled and rounded after it."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["lse_p", "dlse_p", "ticket_p", "s_q", "n_q", "ob", "os", "oh", "db", "ds", "dh"])
def before_backward(
    out_p, do_p, lse_p, dlse_p, stats_p, dq_p, ticket_p, s_q, n_q, ob, os, oh, db, ds, dh,
    H: tl.constexpr, HAS_DLSE: tl.constexpr, BM: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Statistics [b * H * n_q, 2, BM] of a query tile: lse in base 2, +inf where P shall be 0; delta - dlse.

    Also clears the tile's block of dq_p and the ticket. Strides of out and dO are in units of eight elements.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the main kernel begins with head 0: leave it in the cache
    qt = block % n_q
    head = block // n_q
    b = (head // H).to(tl.int64)
    h = (head % H).to(tl.int64)
    rows = qt * BM + tl.arange(0, BM)
    ok = rows < s_q
    cols = tl.arange(0, D)
    at = rows[:, None].to(tl.int64)
    o = tl.load(out_p + (b * ob + h * oh + at * os) * 8 + cols[None, :], mask=ok[:, None], other=0.0).to(tl.float32)
    do = tl.load(do_p + (b * db + h * dh + at * ds) * 8 + cols[None, :], mask=ok[:, None], other=0.0).to(tl.float32)
    delta = tl.sum(o * do, 1)
    line = head.to(tl.int64) * s_q + rows
    if HAS_DLSE:
        delta -= tl.load(dlse_p + line, mask=ok, other=0.0)
    lse = tl.load(lse_p + line, mask=ok, other=float("-inf"))
    lse2 = tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634)
    block = block.to(tl.int64)
    tl.store(stats_p + block * (2 * BM) + tl.arange(0, BM), lse2)
    # A row that sees nothing has P = 0, but 0 * delta must stay 0 whatever its dlse is.
    tl.store(stats_p + block * (2 * BM) + BM + tl.arange(0, BM), tl.where(lse == float("-inf"), 0.0, delta))
    tl.store(dq_p + block * (BM * D) + tl.arange(0, BM * D), tl.zeros([BM * D], tl.float32))
    tl.store(ticket_p, 0, mask=block == 0)


@triton.jit(do_not_specialize=["s_q", "n_q", "ob", "os", "oh"])
def after_backward(dq_p, out_p, s_q, n_q, scale, ob, os, oh, H: tl.constexpr, BM: tl.constexpr, D: tl.constexpr):
    """dQ tiles from the accumulators' order [D / 16, warp 4, lane / 4 8, lane % 4 4, half 2, pair 2] of each half of D.

    Strides of dQ are in units of eight elements.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the last head's dQ is still in the cache
    qt = block % n_q
    head = block // n_q
    b = (head // H).to(tl.int64)
    h = (head % H).to(tl.int64)
    x = tl.load(dq_p + block.to(tl.int64) * (BM * D) + tl.arange(0, BM * D))
    x = tl.reshape(x * scale, [2, D // 16, 4, 8, 4, 2, 2])
    x = tl.permute(x, (2, 5, 3, 0, 1, 4, 6))  # warp, half, lane / 4 | side of D, block of 8, lane % 4, pair
    x = tl.reshape(x, [BM, D])
    rows = qt * BM + tl.arange(0, BM)
    cols = tl.arange(0, D)
    place = out_p + (b * ob + h * oh + rows[:, None].to(tl.int64) * os) * 8 + cols[None, :]
    tl.store(place, x.to(out_p.dtype.element_ty), mask=(rows < s_q)[:, None])
