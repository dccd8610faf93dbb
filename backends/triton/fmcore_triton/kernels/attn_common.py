"""What the attention kernels share: row loads, column intervals, tile lists, work order, softcap."""

# ruff: noqa: RET505 (branches on constants, NaN tests: the language is Triton)

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
HIDDEN = tl.constexpr(2147483647)


@triton.jit
def load_rows(ptrs, rows_ok, dims, D: tl.constexpr, BLOCK_D: tl.constexpr, GUARD: tl.constexpr):
    """A [rows, BLOCK_D] tile; padded head dimensions read as zero, and rows too where GUARD is set."""
    if GUARD:
        if D == BLOCK_D:
            return tl.load(ptrs, mask=rows_ok[:, None], other=0.0)
        return tl.load(ptrs, mask=rows_ok[:, None] & (dims < D)[None, :], other=0.0)
    if D == BLOCK_D:
        return tl.load(ptrs)
    return tl.load(ptrs, mask=(dims < D)[None, :], other=0.0)


@triton.jit
def column_intervals(planes, cols, s_k, MODE: tl.constexpr):
    """Begin and width of the column's interval(s); a column past s_k is hidden from every row.

    The planes lie one s_k apart.  Mode 1 has one visible interval (the second pair is an unused copy), mode 2
    two hidden ones.
    """
    ok = cols < s_k
    step = s_k.to(tl.int64)
    if MODE == 1:
        b1 = tl.load(planes + cols, mask=ok, other=0)
        e1 = tl.load(planes + step + cols, mask=ok, other=0)
        w1 = tl.maximum(e1 - b1, 0)
        return b1, w1, b1, w1
    else:
        b1 = tl.load(planes + cols, mask=ok, other=0)
        e1 = tl.load(planes + step + cols, mask=ok, other=HIDDEN)
        b2 = tl.load(planes + 2 * step + cols, mask=ok, other=0)
        e2 = tl.load(planes + 3 * step + cols, mask=ok, other=0)
        return b1, tl.maximum(e1 - b1, 0), b2, tl.maximum(e2 - b2, 0)


@triton.jit
def visible(rows, b1, w1, b2, w2, MODE: tl.constexpr):
    """Visibility of broadcastable row and column vectors; begin <= row < end is one unsigned comparison."""
    inside = (rows - b1).to(tl.uint32) < w1.to(tl.uint32)
    if MODE == 1:
        return inside
    else:
        return (inside | ((rows - b2).to(tl.uint32) < w2.to(tl.uint32))) == 0


@triton.jit
def tanh(x):
    """Hyperbolic tangent from exp2 alone (a libdevice call is not portable); absolute error about 1e-7."""
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -t, t)


@triton.jit
def heavy_ranks(order, partial, full, n_tiles):
    """How many of the heaviest tiles carry more than 2.5 times the work of the middle one, to a sixteenth of them all.

    A few global rows, or one document that sees every other: such tiles run far longer than the rest.  Causal and
    local masks have none.
    """
    step = (n_tiles + 15) // 16
    samples = tl.arange(0, 16)
    tiles = tl.load(order + tl.minimum(samples * step, n_tiles - 1)).to(tl.int32)
    work = tl.load(partial + tiles).to(tl.int32) + tl.load(full + tiles).to(tl.int32)
    middle = tl.sum(tl.where(samples == n_tiles // (2 * step), work, 0), 0)
    return tl.minimum(tl.sum((2 * work > 5 * middle).to(tl.int32), 0) * step, n_tiles)


@triton.jit
def work_item(order, partial, full, n_tiles, heads, head_group, queries, mask_rows, mask_group, MODE: tl.constexpr):
    """(batch, head, tile, mask row) of this program.

    The few tiles that are far heavier than the rest go first, those of all heads: begun late, they would run on alone.
    The others go by groups of heads whose operands fit the L2 cache together, in each group the heaviest first.  The
    mask row is that of the head's first query head (`queries` of them per head), `mask_group` query heads sharing a
    mask head; mask_rows is 0 where one mask serves every batch entry.
    """
    pid = tl.program_id(0)
    per_batch = heads * n_tiles
    b = pid // per_batch
    rest = pid % per_batch
    if MODE == 1:  # one visible interval per key: no tile is that heavy, and to look for it costs short masks a quarter
        h = rest // (head_group * n_tiles) * head_group + rest % (head_group * n_tiles) % head_group
        rank = rest % (head_group * n_tiles) // head_group
    else:
        # All programs of a batch entry must agree on this number, so its first mask head decides.
        shared = (b * mask_rows).to(tl.int64) * n_tiles
        lead = heavy_ranks(order + shared, partial + shared, full + shared, n_tiles)
        if rest < lead * heads:
            h = rest % heads
            rank = rest // heads
        else:
            rest -= lead * heads
            per_group = head_group * (n_tiles - lead)
            h = rest // per_group * head_group + rest % per_group % head_group
            rank = lead + rest % per_group // head_group
    row = (b * mask_rows + h * queries // mask_group).to(tl.int64)
    tile = tl.load(order + row * n_tiles + rank).to(tl.int32)
    return b.to(tl.int64), h, tile, row


@triton.jit
def ragged_tail(tiles, n_partial, n_full, n_tiles, length, BLOCK: tl.constexpr):
    """1 where the last entry of the full list is the ragged last tile, which must run guarded; else 0."""
    tail = 0
    if (n_full > 0) & (n_tiles * BLOCK > length):
        tail = (tl.load(tiles + n_partial + n_full - 1).to(tl.int32) == n_tiles - 1).to(tl.int32)
    return tail
