"""FlashMask backward: persistent, warp-specialised, over the plan's lists of query tiles.

A work item is one tile of 128 keys of one KV head; it walks the listed query tiles of 64 rows, masked ones first, for
every query head of the group. Two warpgroups own 64 keys each: S^T = K Q^T and dP^T = V dO^T, then dV += P^T dO and
dK += dS^T Q with P^T and dS^T as register operands, so that dK and dV never leave the registers before the item ends:
no atomics, and sums of fixed order. dQ = dS K needs all 128 keys: each warpgroup computes half of the head dimension,
dS crosses once through shared memory, and dQ goes from the accumulators to L2 by 16-byte vector reductions in a
permuted fp32 layout that `kernels/around.py` undoes. The next step's S is issued together with dQ and dK, so that the
tensor cores have work while dQ leaves. One producer warp loads everything (row statistics too) and draws tickets.

Three things decide whether ptxas keeps the products asynchronous and spills nothing in the loop; the tests read its
report for them:

- descriptors of K and V hang on `opaque_zero`, so they are rebuilt in uniform registers, not hoisted and spilled;
- the wait that returns S right after dP is issued never waits, but keeps dP's issue in one burst;
- dV is waited for before the next S is issued, because its P operand frees registers.

The row-parallel arithmetic is FlashAttention's; the transposed products with P as a register operand are
FlashAttention-3's.
"""

from fmcore_cuda_hopper.kernels.common import mail_read, mail_write, wide
from fmcore_cuda_hopper.kernels.gluon_names import (
    block_barrier,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    tma_load,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)


def _reduction(registers):
    """Assembly and constraints for ``registers`` fp32 values a thread: 16 bytes at a time from the first pointer on."""
    lines = [
        f"red.relaxed.gpu.global.add.v4.f32 [${registers}+{2048 * group}], "
        f"{{{', '.join(f'${2 * registers + 4 * group + i}' for i in range(4))}}};"
        for group in range(registers // 4)
    ]
    lines += [f"mov.u32 ${i}, 0;" for i in range(registers)]
    return " ".join(lines), ",".join(["=r"] * registers + ["l"] * registers + ["r"] * registers)


RED32, RED32_TYPES = (gl.constexpr(text) for text in _reduction(32))
RED16, RED16_TYPES = (gl.constexpr(text) for text in _reduction(16))


@gluon.jit
def opaque_zero(x, zero):
    """0, in a way that no compiler can see: what depends on it is not hoisted out of a loop over ``x``."""
    return gl.inline_asm_elementwise("and.b32 $0, $1, $2;", "=r,r,r", [x, zero], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def reduce_dq(dq_p, row, dq, BM: gl.constexpr, DH: gl.constexpr):
    """Add half of a dQ tile to block ``row`` of dq_p, a thread's runs of four accumulators side by side.

    Relabelling costs nothing: [D / 16, warp, lane / 4, lane % 4, half, pair].
    """
    x = gl.reshape(dq, [4, 2, 8, DH // 8, 4, 2])
    x = gl.permute(x, (3, 0, 2, 4, 1, 5))
    x = gl.reshape(x, [BM * DH])
    LAYOUT: gl.constexpr = x.type.layout
    p = (dq_p + wide(row) * (BM * DH)).to(gl.int64) + gl.arange(0, BM * DH, LAYOUT) * 4
    x = x.to(gl.int32, bitcast=True)
    if DH == 64:
        gl.inline_asm_elementwise(RED32, RED32_TYPES, [p, x], dtype=gl.int32, is_pure=False, pack=32)
    else:
        gl.inline_asm_elementwise(RED16, RED16_TYPES, [p, x], dtype=gl.int32, is_pure=False, pack=16)


@gluon.jit
def hide(p, offset, width, INSIDE: gl.constexpr, BM: gl.constexpr):
    """P^T [64 keys, BM rows] with 0 where (offset[key] + row) < width[key], unsigned, is INSIDE.

    The row number is split so that its register part is a constant: an add, a comparison and a select per element.
    """
    p4 = gl.reshape(p, [64, BM // 8, 4, 2])
    L4: gl.constexpr = p4.type.layout
    KEYS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, L4)))
    lane = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, L4)))) * 2
    block = gl.arange(0, BM // 8, gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, L4)))) * 8
    pair = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L4))))
    offset = gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.convert_layout(offset, KEYS), 1), 2), 3)
    width = gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.convert_layout(width, KEYS), 1), 2), 3).to(gl.uint32)
    base = offset + gl.expand_dims(gl.expand_dims(gl.expand_dims(lane, 0), 1), 3)
    step = gl.expand_dims(gl.expand_dims(gl.expand_dims(block, 0), 2), 3)
    step = step + gl.expand_dims(gl.expand_dims(gl.expand_dims(pair, 0), 1), 2)
    x = (base + step).to(gl.uint32)
    if INSIDE:  # noqa: SIM108 (the compiler takes constant branches, not constant expressions)
        p4 = gl.where(x < width, 0.0, p4)
    else:
        p4 = gl.where(x >= width, 0.0, p4)
    return gl.convert_layout(gl.reshape(p4, [64, BM]), p.type.layout)


@gluon.jit
def query_step(
    i, n_steps, kc, tiles, qt, s, dk, dv, a, b, c, d, q_s, do_s, stats_s, k_s, v_s, ds_s, dq_p,
    q_full, q_empty, do_full, ds_full, head0, n_q, zero, scale_log2,
    WHO: gl.constexpr, MASKED: gl.constexpr, G: gl.constexpr, BM: gl.constexpr, D: gl.constexpr, MODE: gl.constexpr,
    LST: gl.constexpr, LKV: gl.constexpr, LDQ: gl.constexpr,
):  # fmt: skip
    """One query tile of one head; its S has been computed. Issues the S of the step after."""
    DH: gl.constexpr = D // 2
    LP: gl.constexpr = gl.DotOperandLayout(0, LKV, 2)
    dtype: gl.constexpr = q_s.dtype
    slot = kc & 1
    ds_slot = (kc & 1) * 2
    z = opaque_zero(kc, zero)
    nxt = i + 1
    mbarrier.wait(do_full.index(slot), (kc >> 1) & 1)
    dp = warpgroup_mma(
        v_s.index(WHO + z),
        do_s.index(slot).permute((1, 0)),
        gl.zeros([64, BM], gl.float32, LST),
        use_acc=False,
        is_async=True,
    )
    s = warpgroup_mma_wait(1, [s])
    qt_next = gl.load(tiles + gl.minimum(nxt, n_steps - 1) // G).to(gl.int32)
    p = gl.exp2(s * scale_log2 - stats_s.index(slot * 2).load(LST))
    if MASKED:
        if MODE == 1:
            p = hide(p, qt * BM - a, b, False, BM)
        else:
            p = hide(p, qt * BM - a, b, True, BM)
            p = hide(p, qt * BM - c, d, True, BM)
    dv = warpgroup_mma(gl.convert_layout(p.to(dtype), LP), do_s.index(slot), dv, is_async=True)
    delta = stats_s.index(slot * 2 + 1).load(LST)
    dp = warpgroup_mma_wait(1, [dp])
    ds = (p * (dp - delta)).to(dtype)
    ds_s.index(ds_slot + WHO).store(ds)
    fence_async_shared()
    mbarrier.arrive(ds_full.index(ds_slot + WHO), count=1)
    after = kc + 1
    slot_next = after & 1
    mbarrier.wait(q_full.index(slot_next), (after >> 1) & 1, pred=nxt < n_steps)
    dv = warpgroup_mma_wait(0, [dv])
    s = warpgroup_mma(
        k_s.index(WHO + z),
        q_s.index(slot_next).permute((1, 0)),
        gl.zeros([64, BM], gl.float32, LST),
        use_acc=False,
        is_async=True,
    )
    dq = warpgroup_mma(
        ds_s.index(ds_slot + WHO).permute((1, 0)),
        k_s.index(WHO + z).slice(WHO * DH, DH, 1),
        gl.zeros([BM, DH], gl.float32, LDQ),
        use_acc=False,
        is_async=True,
    )
    mbarrier.wait(ds_full.index(ds_slot + 1 - WHO), (kc >> 1) & 1)
    dq = warpgroup_mma(
        ds_s.index(ds_slot + 1 - WHO).permute((1, 0)),
        k_s.index(1 - WHO + z).slice(WHO * DH, DH, 1),
        dq,
        is_async=True,
    )
    dk = warpgroup_mma(gl.convert_layout(ds, LP), q_s.index(slot), dk, is_async=True)
    s, dq = warpgroup_mma_wait(1, [s, dq])
    reduce_dq(dq_p, ((head0 + i % G) * n_q + qt) * 2 + WHO, dq, BM, DH)
    dk = warpgroup_mma_wait(0, [dk])
    mbarrier.arrive(q_empty.index(slot), count=1)  # frees Q, dO and the statistics together
    return qt_next, s, dk, dv


@gluon.jit
def key_planes(
    planes_p, item, n_items, n_k, columns, mask_batch, WHO: gl.constexpr, HK: gl.constexpr, MASK_GROUP: gl.constexpr,
    BN: gl.constexpr, MODE: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """The (begin, width) pairs of this warpgroup's keys: two or four registers a thread for the whole item."""
    item = gl.minimum(item, n_items - 1)
    head = item // n_k
    row = (head // HK) * mask_batch + (head % HK) // MASK_GROUP
    p = planes_p + wide(row * (2 * MODE)) * columns + ((item % n_k) * BN + WHO * 64) + gl.arange(0, 64, ROWS)
    a = gl.load(p)
    b = gl.load(p + columns)
    c = a
    d = b
    if MODE == 2:
        c = gl.load(p + 2 * columns)
        d = gl.load(p + 3 * columns)
    return a, b, c, d


@gluon.jit
def consume(
    WHO: gl.constexpr, desc_dk, desc_dv, dq_p, tiles_p, planes_p, q_s, do_s, stats_s, k_s, v_s, ds_s, dk_s, dv_s, box,
    q_full, q_empty, do_full, kv_full, kv_empty, ds_full, mail_full, mail_empty, scale, scale_log2, n_items, n_q, n_k,
    columns, mask_batch, zero,
    HK: gl.constexpr, G: gl.constexpr, MASK_GROUP: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, D: gl.constexpr,
    MODE: gl.constexpr,
):  # fmt: skip
    """One warpgroup: 64 keys of every work item."""
    LST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 16])
    LKV: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    LDQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D // 2, 16])
    ROWS: gl.constexpr = gl.SliceLayout(1, LST)
    dtype: gl.constexpr = q_s.dtype
    kc = 0
    it = 0
    item, n_part, n_all = mail_read(box, it, mail_full, mail_empty, 128)
    a, b, c, d = key_planes(planes_p, item, n_items, n_k, columns, mask_batch, WHO, HK, MASK_GROUP, BN, MODE, ROWS)
    while item < n_items:
        kt = item % n_k
        head = item // n_k
        batch = head // HK
        hk = head % HK
        tiles = tiles_p + wide((batch * mask_batch + hk // MASK_GROUP) * n_k + kt) * n_q
        head0 = head * G
        n_steps = G * n_all
        qt = gl.load(tiles).to(gl.int32)
        dk = gl.zeros([64, D], gl.float32, LKV)
        dv = gl.zeros([64, D], gl.float32, LKV)
        slot = kc & 1
        mbarrier.wait(kv_full.index(0), it & 1)
        mbarrier.wait(q_full.index(slot), (kc >> 1) & 1, pred=n_steps > 0)
        s = warpgroup_mma(
            k_s.index(WHO),
            q_s.index(slot).permute((1, 0)),
            gl.zeros([64, BM], gl.float32, LST),
            use_acc=False,
            is_async=True,
        )
        mbarrier.wait(kv_full.index(1), it & 1)
        s = warpgroup_mma_wait(0, [s])
        for i in range(G * n_part):
            qt, s, dk, dv = query_step(
                i, n_steps, kc, tiles, qt, s, dk, dv, a, b, c, d, q_s, do_s, stats_s, k_s, v_s, ds_s, dq_p,
                q_full, q_empty, do_full, ds_full, head0, n_q, zero, scale_log2,
                WHO, True, G, BM, D, MODE, LST, LKV, LDQ,
            )  # fmt: skip
            kc += 1
        for i in range(G * n_part, n_steps):
            qt, s, dk, dv = query_step(
                i, n_steps, kc, tiles, qt, s, dk, dv, a, b, c, d, q_s, do_s, stats_s, k_s, v_s, ds_s, dq_p,
                q_full, q_empty, do_full, ds_full, head0, n_q, zero, scale_log2,
                WHO, False, G, BM, D, MODE, LST, LKV, LDQ,
            )  # fmt: skip
            kc += 1
        mbarrier.arrive(kv_empty, count=1)
        it += 1
        item, n_part, n_all = mail_read(box, it, mail_full, mail_empty, 128)
        a, b, c, d = key_planes(planes_p, item, n_items, n_k, columns, mask_batch, WHO, HK, MASK_GROUP, BN, MODE, ROWS)
        tma_store_wait(0)
        dv_out = dv_s.index(WHO)
        dk_out = dk_s.index(WHO)
        dv_out.store(dv.to(dtype))
        dk_out.store((dk * scale).to(dtype))
        fence_async_shared()
        block_barrier()
        tma_store(desc_dv, [batch, kt * BN + WHO * 64, hk * D], dv_out.reshape([1, 64, D]))
        tma_store(desc_dk, [batch, kt * BN + WHO * 64, hk * D], dk_out.reshape([1, 64, D]))
    tma_store_wait(0)


@gluon.jit
def load_q(
    qt, h, batch, row, n_q, kc, desc_q, desc_stats, q_s, stats_s, q_full, q_empty, some,
    BM: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """Q and the two statistics of one query tile."""
    slot = kc & 1
    mbarrier.wait(q_empty.index(slot), ((kc >> 1) & 1) ^ 1, pred=some)
    mbarrier.expect(q_full.index(slot), BM * D * 2 + 2 * BM * 4, pred=some)
    tma_load(
        desc_q, [batch, qt * BM, h * D], q_full.index(slot), q_s.index(slot).reshape([1, BM, D]), pred=some
    )  # fmt: skip
    line = (row * n_q + qt) * 2
    tma_load(desc_stats, [line, 0], q_full.index(slot), stats_s.index(slot * 2), pred=some)
    tma_load(desc_stats, [line + 1, 0], q_full.index(slot), stats_s.index(slot * 2 + 1), pred=some)


@gluon.jit
def load_do(qt, h, batch, kc, desc_do, do_s, do_full, some, BM: gl.constexpr, D: gl.constexpr):
    """dO of one query tile; its slot is free when Q's is."""
    slot = kc & 1
    mbarrier.expect(do_full.index(slot), BM * D * 2, pred=some)
    tma_load(
        desc_do, [batch, qt * BM, h * D], do_full.index(slot), do_s.index(slot).reshape([1, BM, D]), pred=some
    )  # fmt: skip


@gluon.jit
def produce(
    desc_q, desc_k, desc_v, desc_do, desc_stats, rows_p, tiles_p, order_p, ticket_p, q_s, do_s, stats_s, k_s, v_s, box,
    q_full, q_empty, do_full, kv_full, kv_empty, mail_full, mail_empty, n_items, n_q, n_k, mask_batch,
    HK: gl.constexpr, G: gl.constexpr, KV_DIV: gl.constexpr, MASK_GROUP: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """One warp: all loads, and the tickets."""
    kc = 0
    it = 0
    w = gl.program_id(0)
    go = 1
    while go > 0:
        item = gl.load(order_p + gl.minimum(w, n_items - 1))
        kt = item % n_k
        head = item // n_k
        batch = head // HK
        hk = head % HK
        row = (batch * mask_batch + hk // MASK_GROUP) * n_k + kt
        entry = rows_p + wide(row) * 4
        n_part = gl.load(entry)
        n_all = gl.load(entry + 1)
        if w >= n_items:
            item = n_items
        mail_write(box, it, mail_full, mail_empty, item, n_part, n_all)
        if w < n_items:
            tiles = tiles_p + wide(row) * n_q
            n_steps = G * n_all
            some = n_steps > 0
            qt = gl.load(tiles).to(gl.int32)
            # The item's first Q is fetched while the item before still uses K and V.
            load_q(qt, hk * G, batch, head * G, n_q, kc, desc_q, desc_stats, q_s, stats_s, q_full, q_empty, some, BM, D)
            mbarrier.wait(kv_empty, (it & 1) ^ 1)
            mbarrier.expect(kv_full.index(0), BN * D * 2)
            mbarrier.expect(kv_full.index(1), BN * D * 2)
            column = (hk // KV_DIV) * D
            for half in gl.static_range(2):
                tma_load(
                    desc_k, [batch, kt * BN + half * 64, column], kv_full.index(0), k_s.index(half).reshape([1, 64, D])
                )  # fmt: skip
            for half in gl.static_range(2):
                tma_load(
                    desc_v, [batch, kt * BN + half * 64, column], kv_full.index(1), v_s.index(half).reshape([1, 64, D])
                )  # fmt: skip
            load_do(qt, hk * G, batch, kc, desc_do, do_s, do_full, some, BM, D)
            if n_steps > 0:
                kc += 1
            for i in range(1, n_steps):
                qt = gl.load(tiles + i // G).to(gl.int32)
                h = hk * G + i % G
                load_q(
                    qt, h, batch, head * G + i % G, n_q, kc, desc_q, desc_stats, q_s, stats_s, q_full, q_empty, True,
                    BM, D,
                )  # fmt: skip
                load_do(qt, h, batch, kc, desc_do, do_s, do_full, True, BM, D)
                kc += 1
            w = gl.atomic_add(ticket_p, 1) + gl.num_programs(0)
        else:
            go = 0
        it += 1


@gluon.jit(
    do_not_specialize=[
        "rows_p", "tiles_p", "order_p", "ticket_p", "planes_p", "n_items", "n_q", "n_k", "columns", "mask_batch",
        "zero",
    ]
)  # fmt: skip
def flashmask_backward(
    desc_q, desc_k, desc_v, desc_do, desc_stats, desc_dk, desc_dv, dq_p, rows_p, tiles_p, order_p, ticket_p, planes_p,
    scale, scale_log2, n_items, n_q, n_k, columns, mask_batch, zero,
    HK: gl.constexpr, G: gl.constexpr, KV_DIV: gl.constexpr, MASK_GROUP: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, D: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """Persistent kernel; a program draws items until none is left.

    Args:
        desc_q: Query descriptor [b, s_q, heads * D], block [1, BM, D]; desc_do likewise.
        desc_k: Key descriptor [b, s_k, KV heads * D], block [1, 64, D]; desc_v likewise.
        desc_v: See desc_k.
        desc_do: See desc_q.
        desc_stats: fp32 [heads * n_q * 2, BM], block [1, BM]: lse in base 2 (+inf where P is 0), and delta.
        desc_dk: [b, s_k, HK * D], block [1, 64, D]; desc_dv likewise.
        desc_dv: See desc_dk.
        dq_p: fp32, zero at the start: [heads, n_q, 2, BM * D / 2] in the order of `reduce_dq`.
        rows_p: int32 [mask rows, n_k, 4] of `kernels/work.py`.
        tiles_p: The plan's k_tiles.
        order_p: int32 [n_items]: items, b-major, then head, then key tile, in the order of the tickets.
        ticket_p: One int32, zero at the start.
        planes_p: int32 [mask rows, 2 * MODE, columns] of `kernels/work.py`.
        scale: Factor of dK: the softmax scale.
        scale_log2: softmax scale * log2(e).
        n_items: b * HK * n_k.
        n_q: Query tiles of BM rows.
        n_k: Key tiles.
        columns: Width of the planes.
        mask_batch: Mask heads if the mask has a batch, else 0.
        zero: 0.
        HK: Heads of the work items: KV heads, or query heads where every query head has its own mask.
        G: Query heads per item.
        KV_DIV: Heads HK per KV head.
        MASK_GROUP: Heads HK per mask head.
        BM: 64.
        BN: 128.
        D: Head dimension, 64 or 128.
        MODE: The mask's.
    """
    dtype: gl.constexpr = desc_q.dtype
    LQ: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, D], dtype)
    LK: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, D], dtype)
    LDS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, BM], dtype)
    BARRIERS: gl.constexpr = mbarrier.MBarrierLayout()
    # Placement matters: seven blocks in this order; the same loop with ds first was measured 3 % slower, with ds last
    # 5 % slower, for a reason not found.
    q_s = gl.allocate_shared_memory(dtype, [2, BM, D], LQ)
    do_s = gl.allocate_shared_memory(dtype, [2, BM, D], LQ)
    stats_s = gl.allocate_shared_memory(gl.float32, [4, 1, BM], gl.NVMMASharedLayout(0, 32, 2))
    k_s = gl.allocate_shared_memory(dtype, [2, 64, D], LK)
    v_s = gl.allocate_shared_memory(dtype, [2, 64, D], LK)
    dk_s = gl.allocate_shared_memory(dtype, [2, 64, D], LK)
    ds_s = gl.allocate_shared_memory(dtype, [4, 64, BM], LDS)
    dv_s = gl.allocate_shared_memory(dtype, [2, 64, D], LK)
    box = gl.allocate_shared_memory(gl.int32, [6, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIERS)
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIERS)
    do_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIERS)
    kv_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIERS)
    kv_empty = gl.allocate_shared_memory(gl.int64, [1], BARRIERS)
    ds_full = gl.allocate_shared_memory(gl.int64, [4, 1], BARRIERS)
    mail_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIERS)
    mail_empty = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIERS)
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=2)
        mbarrier.init(do_full.index(i), count=1)
        mbarrier.init(kv_full.index(i), count=1)
        mbarrier.init(mail_full.index(i), count=1)
        mbarrier.init(mail_empty.index(i), count=2)
    for i in gl.static_range(4):
        mbarrier.init(ds_full.index(i), count=1)
    mbarrier.init(kv_empty, count=2)
    first: gl.constexpr = 0
    second: gl.constexpr = 1
    gl.warp_specialize(
        [
            (
                consume,
                (
                    first, desc_dk, desc_dv, dq_p, tiles_p, planes_p, q_s, do_s, stats_s, k_s, v_s, ds_s, dk_s, dv_s,
                    box, q_full, q_empty, do_full, kv_full, kv_empty, ds_full, mail_full, mail_empty, scale,
                    scale_log2, n_items, n_q, n_k, columns, mask_batch, zero, HK, G, MASK_GROUP, BM, BN, D, MODE,
                ),
            ),
            (
                consume,
                (
                    second, desc_dk, desc_dv, dq_p, tiles_p, planes_p, q_s, do_s, stats_s, k_s, v_s, ds_s, dk_s, dv_s,
                    box, q_full, q_empty, do_full, kv_full, kv_empty, ds_full, mail_full, mail_empty, scale,
                    scale_log2, n_items, n_q, n_k, columns, mask_batch, zero, HK, G, MASK_GROUP, BM, BN, D, MODE,
                ),
            ),
            (
                produce,
                (
                    desc_q, desc_k, desc_v, desc_do, desc_stats, rows_p, tiles_p, order_p, ticket_p, q_s, do_s, stats_s,
                    k_s, v_s, box, q_full, q_empty, do_full, kv_full, kv_empty, mail_full, mail_empty, n_items, n_q,
                    n_k, mask_batch, HK, G, KV_DIV, MASK_GROUP, BM, BN, D,
                ),
            ),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
