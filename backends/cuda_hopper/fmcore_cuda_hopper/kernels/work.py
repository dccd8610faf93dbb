"""From a mask and its plan to what the attention kernels read: padded planes, one row of four numbers a tile, order."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["s_k", "columns"])
def pad_planes(planes_p, out_p, s_k, columns, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """Canonical planes [rows, 2 * MODE, s_k] as (begin, width) pairs [rows, 2 * MODE, columns].

    Columns past s_k are hidden from every row; there is at least one whole tile of them, the one a query tile that sees
    nothing is sent to.
    """
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = col < s_k
    inside = col < columns
    for i in tl.static_range(MODE):
        source = planes_p + (row * (2 * MODE) + 2 * i) * s_k + col
        begin = tl.load(source, mask=ok, other=0)
        end = tl.load(source + s_k, mask=ok, other=0)
        width = end - begin
        if MODE == 2:
            width = tl.where(ok, width, 0x7FFFFFFF)
        target = out_p + (row * (2 * MODE) + 2 * i) * columns + col
        tl.store(target, begin, mask=inside)
        tl.store(target + columns, width, mask=inside)


@triton.jit(do_not_specialize=["n", "m", "ragged"])
def work_rows(partial_p, full_p, tiles_p, rows_p, n, m, ragged, BY_KEY: tl.constexpr, BLOCK: tl.constexpr):
    """Per tile: (tiles that need the mask, all tiles, the first one, how far the list is shifted behind it).

    ``ragged`` is the key tile that reaches past the last key, or -1: it needs the mask even where the plan calls it
    full. By query it then goes first (it is the last entry of its list, so the others move up by one), and a query tile
    that sees nothing gets tile ``m``, which lies past all keys. By key the ragged tile's whole list needs the mask.
    """
    row = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = t < n
    part = tl.load(partial_p + row * n + t, mask=ok, other=0)
    work = part + tl.load(full_p + row * n + t, mask=ok, other=0)
    entry = tiles_p + (row * n + t) * m
    first = tl.load(entry, mask=ok & (work > 0), other=0).to(tl.int32)
    shift = tl.zeros_like(part)
    if BY_KEY:
        part = tl.where(t == ragged, work, part)
    else:
        last = tl.load(entry + tl.maximum(work - 1, 0), mask=ok & (work > part), other=-2).to(tl.int32)
        moved = last == ragged
        first = tl.where(moved, ragged, tl.where(work == 0, m, first))
        part = tl.where(moved | (work == 0), part + 1, part)
        work = tl.maximum(work, 1)
        shift = moved.to(tl.int32)
    out = rows_p + (row * n + t) * 4
    tl.store(out, part, mask=ok)
    tl.store(out + 1, work, mask=ok)
    tl.store(out + 2, first, mask=ok)
    tl.store(out + 3, shift, mask=ok)


@triton.jit(do_not_specialize=["n", "batches", "mask_batch", "group"])
def work_order(
    rows_p, rank_p, order_p, n, batches, mask_batch, group,
    H: tl.constexpr, MASK_GROUP: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Item numbers (b * H + h) * n + tile in the order of the tickets.

    Heads in groups whose operands fit the cache together, inside a group longest first, heads interleaved. Where the
    longest tile is far above the mean, the TOP longest of every head come before everything else: a late giant would
    leave the other multiprocessors idle. That is decided on the first mask head, so that all programs agree.
    """
    head = tl.program_id(0)
    b = head // H
    h = head % H
    longest = 0
    total = 0
    for start in range(0, n, BLOCK):
        j = start + tl.arange(0, BLOCK)
        work = tl.load(rows_p + j * 4 + 1, mask=j < n, other=0)
        longest = tl.maximum(longest, tl.max(work, 0))
        total += tl.sum(work, 0)
    top = tl.where(longest * n > 4 * total, tl.minimum(n, TOP), 0)
    rank = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = rank < n
    mask_row = (b * mask_batch + h // MASK_GROUP).to(tl.int64)
    tile = tl.load(rank_p + mask_row * n + rank, mask=ok, other=0)
    early = rank * (batches * H) + head
    late = batches * H * top + (b * H + (h // group) * group) * (n - top) + (rank - top) * group + h % group
    tl.store(order_p + tl.where(rank < top, early, late), head * n + tile, mask=ok)
