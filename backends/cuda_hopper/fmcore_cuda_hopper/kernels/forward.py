"""FlashMask forward: persistent, warp-specialised, over the plan's lists of key tiles.

Partitions: two consumer warpgroups of 64 query rows each and one producer warp, which makes all loads by TMA and draws
the work items by ticket. A work item is one query tile of 128 rows of one head; its key tiles come partial ones first,
so one loop masks and the other does not, and no branch surrounds a product in flight.

A consumer's iteration: issue S = Q K^T, issue O += P V of the tile before, let the other warpgroup go (they take turns
on the tensor cores, so that one's exponentials run under the other's products), wait for S, softmax, wait for O. The
scheme of turns and of overlap inside a warpgroup is FlashAttention-3's (Shah et al., 2024); lists in place of scanning
and tickets in place of a static stride are explained in docs/hopper.md.
"""

from fmcore_cuda_hopper.kernels.common import mail_read, mail_write, ring_parity, ring_slot, wide
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


@gluon.jit
def turn_wait(WHO: gl.constexpr):
    """Wait for this warpgroup's turn to issue products: named barriers 9 and 10, which the compiler leaves free."""
    if WHO == 0:
        gl.inline_asm_elementwise("bar.sync 9, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise("bar.sync 10, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def turn_give(WHO: gl.constexpr):
    """Give warpgroup WHO its turn."""
    if WHO == 0:
        gl.inline_asm_elementwise("bar.arrive 9, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise("bar.arrive 10, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def pack(p, DTYPE: gl.constexpr):
    """P as 32-bit words of two values: a loop that carries a 16-bit tensor pays one permutation per element."""
    first, second = gl.split(gl.reshape(p, [p.shape[0], p.shape[1] // 2, 2]))
    if DTYPE == gl.bfloat16:  # noqa: SIM300
        return gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [first, second], dtype=gl.int32, is_pure=True, pack=1
        )
    return gl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [first, second], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def unpack(words, DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    """The words of `pack` as the left operand of a product; costs no instruction."""
    low = words.to(gl.int16).to(DTYPE, bitcast=True)
    high = (words >> 16).to(gl.int16).to(DTYPE, bitcast=True)
    return gl.convert_layout(gl.reshape(gl.join(low, high), [words.shape[0], words.shape[1] * 2]), LAYOUT)


@gluon.jit
def mask_scores(s, planes, first, row0, MODE: gl.constexpr, LAYOUT: gl.constexpr):
    """Scores with -inf where hidden; an interval test is one unsigned comparison, (row - begin) < width.

    Mode 1: one visible interval (begin, width) per column. Mode 2: two hidden ones.
    """
    HIDDEN: gl.constexpr = float("-inf")
    row = gl.expand_dims(row0 + gl.arange(0, s.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
    x = (row - planes.index(first).load(LAYOUT)).to(gl.uint32)
    width = planes.index(first + 1).load(LAYOUT).to(gl.uint32)
    if MODE == 1:
        s = gl.where(x >= width, HIDDEN, s)
    else:
        s = gl.where(x < width, HIDDEN, s)
        x = (row - planes.index(first + 2).load(LAYOUT)).to(gl.uint32)
        width = planes.index(first + 3).load(LAYOUT).to(gl.uint32)
        s = gl.where(x < width, HIDDEN, s)
    return s


@gluon.jit
def softmax(s, m, l, scale_log2):
    """One step of the online softmax in base 2: P, the new row maxima and sums, and the factor of what was before."""
    m_new = gl.maximum(m, gl.max(s, 1))
    base = gl.where(m_new == float("-inf"), 0.0, m_new) * scale_log2
    alpha = gl.exp2(m * scale_log2 - base)
    p = gl.exp2(s * scale_log2 - gl.expand_dims(base, 1))
    l = l * alpha + gl.sum(p, 1)
    return p, m_new, l, alpha


@gluon.jit
def tile_step(
    q, words, acc, m, l, kc, row0, k_s, v_s, planes_s, k_full, k_empty, v_full, v_empty, scale_log2,
    WHO: gl.constexpr, MASKED: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, MODE: gl.constexpr,
    LS: gl.constexpr, LO: gl.constexpr, LP: gl.constexpr,
):  # fmt: skip
    """Scores of tile ``kc``, while O takes in the tile before it."""
    HALF: gl.constexpr = q.shape[0]
    slot = ring_slot(kc, STAGES)
    before = ring_slot(kc - 1, STAGES)
    mbarrier.wait(k_full.index(slot), ring_parity(kc, STAGES))
    turn_wait(WHO)
    s = warpgroup_mma(
        q, k_s.index(slot).permute((1, 0)), gl.zeros([HALF, BN], gl.float32, LS), use_acc=False, is_async=True
    )
    mbarrier.wait(v_full.index(before), ring_parity(kc - 1, STAGES))
    acc = warpgroup_mma(unpack(words, q.dtype, LP), v_s.index(before), acc, is_async=True)
    turn_give(1 - WHO)
    s = warpgroup_mma_wait(1, [s])
    if MASKED:
        s = mask_scores(s, planes_s, slot * (2 * MODE), row0, MODE, LS)
    mbarrier.arrive(k_empty.index(slot), count=1)
    p, m, l, alpha = softmax(s, m, l, scale_log2)
    acc = warpgroup_mma_wait(0, [acc])
    mbarrier.arrive(v_empty.index(before), count=1)
    words = pack(p, q.dtype)
    acc = acc * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, LO)), 1)
    return words, acc, m, l


@gluon.jit
def consume(
    WHO: gl.constexpr, desc_o, lse_p, q_s, k_s, v_s, planes_s, box, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    mail_full, mail_empty, scale_log2, n_items, n_q, s_q,
    H: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """One warpgroup: 64 rows of every work item."""
    HALF: gl.constexpr = BM // 2
    LS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    LO: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    LP: gl.constexpr = gl.DotOperandLayout(0, LO, 2)
    RS: gl.constexpr = gl.SliceLayout(1, LS)
    RO: gl.constexpr = gl.SliceLayout(1, LO)
    kc = 0  # key tiles taken so far: ring slots and parities follow from it
    it = 0
    if WHO == 1:
        turn_give(0)
    item, n_part, n_all = mail_read(box, it, mail_full, mail_empty, 128)
    while item < n_items:
        head = item // n_q
        row0 = (item % n_q) * BM + WHO * HALF
        slot = (it & 1) * 2 + WHO
        q = q_s.index(slot)
        mbarrier.wait(q_full.index(slot), (it >> 1) & 1)
        # The first tile has no product of the one before it to run with; it always takes the masked path.
        first = ring_slot(kc, STAGES)
        mbarrier.wait(k_full.index(first), ring_parity(kc, STAGES))
        s = warpgroup_mma(
            q,
            k_s.index(first).permute((1, 0)),
            gl.zeros([HALF, BN], gl.float32, LS),
            use_acc=False,
            is_async=True,
        )
        tma_store_wait(0)  # the item before has left its slot: the producer may refill it
        mbarrier.arrive(q_empty.index(((it & 1) ^ 1) * 2 + WHO), count=1, pred=it > 0)
        s = warpgroup_mma_wait(0, [s])
        s = mask_scores(s, planes_s, first * (2 * MODE), row0, MODE, LS)
        mbarrier.arrive(k_empty.index(first), count=1)
        m = gl.full([HALF], float("-inf"), gl.float32, RS)
        l = gl.zeros([HALF], gl.float32, RS)
        p, m, l, _ = softmax(s, m, l, scale_log2)
        words = pack(p, q.dtype)
        acc = gl.zeros([HALF, D], gl.float32, LO)
        kc += 1
        for _ in range(1, n_part):
            words, acc, m, l = tile_step(
                q, words, acc, m, l, kc, row0, k_s, v_s, planes_s, k_full, k_empty, v_full, v_empty, scale_log2,
                WHO, True, BN, STAGES, MODE, LS, LO, LP,
            )  # fmt: skip
            kc += 1
        for _ in range(gl.maximum(n_part, 1), n_all):
            words, acc, m, l = tile_step(
                q, words, acc, m, l, kc, row0, k_s, v_s, planes_s, k_full, k_empty, v_full, v_empty, scale_log2,
                WHO, False, BN, STAGES, MODE, LS, LO, LP,
            )  # fmt: skip
            kc += 1
        last = ring_slot(kc - 1, STAGES)
        mbarrier.wait(v_full.index(last), ring_parity(kc - 1, STAGES))
        acc = warpgroup_mma(unpack(words, q.dtype, LP), v_s.index(last), acc, is_async=True)
        acc = warpgroup_mma_wait(0, [acc])
        mbarrier.arrive(v_empty.index(last), count=1)
        inverse = gl.where(l > 0.0, 1.0 / l, 0.0)
        lse = gl.where(l > 0.0, m * scale_log2 + gl.log2(l), float("-inf")) * 0.6931471805599453
        rows = row0 + gl.arange(0, HALF, RS)
        gl.store(lse_p + head * s_q + rows, lse, mask=rows < s_q)
        o = acc * gl.expand_dims(gl.convert_layout(inverse, RO), 1)
        q.store(o.to(q.dtype))  # Q is not needed any more: its tile carries O out
        fence_async_shared()
        block_barrier()
        tma_store(desc_o, [head // H, row0, (head % H) * D], q.reshape([1, HALF, D]))
        it += 1
        item, n_part, n_all = mail_read(box, it, mail_full, mail_empty, 128)
    tma_store_wait(0)


@gluon.jit
def produce(
    desc_q, desc_k, desc_v, desc_planes, rows_p, tiles_p, order_p, ticket_p, q_s, k_s, v_s, planes_s, box,
    q_full, q_empty, k_full, k_empty, v_full, v_empty, mail_full, mail_empty, n_items, n_q, n_k, mask_batch,
    H: gl.constexpr, G: gl.constexpr, MASK_GROUP: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, D: gl.constexpr,
    STAGES: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """One warp: all loads, and the tickets. Item number ``w`` of the order is whose turn it is, not whose SM it is."""
    HALF: gl.constexpr = BM // 2
    PLANES: gl.constexpr = 2 * MODE
    QUERY_BYTES: gl.constexpr = HALF * D * 2
    KEY_BYTES: gl.constexpr = BN * D * 2
    kc = 0
    it = 0
    w = gl.program_id(0)
    go = 1
    while go > 0:
        item = gl.load(order_p + gl.minimum(w, n_items - 1))
        head = item // n_q
        mask_head = (head // H) * mask_batch + (head % H) // MASK_GROUP
        row = mask_head * n_q + item % n_q
        entry = rows_p + wide(row) * 4
        n_part = gl.load(entry)
        n_all = gl.load(entry + 1)
        kt = gl.load(entry + 2)
        tiles = tiles_p + (wide(row) * n_k - gl.load(entry + 3))
        if w >= n_items:
            item = n_items
        mail_write(box, it, mail_full, mail_empty, item, n_part, n_all)
        if w < n_items:
            n_part = gl.maximum(n_part, 1)
            b = head // H
            for c in gl.static_range(2):
                slot = (it & 1) * 2 + c
                mbarrier.wait(q_empty.index(slot), ((it >> 1) & 1) ^ 1)
                mbarrier.expect(q_full.index(slot), QUERY_BYTES)
                tma_load(
                    desc_q,
                    [b, (item % n_q) * BM + c * HALF, (head % H) * D],
                    q_full.index(slot),
                    q_s.index(slot).reshape([1, HALF, D]),
                )
            column = ((head % H) // G) * D
            for i in range(n_all):
                ks = ring_slot(kc, STAGES)
                mbarrier.wait(k_empty.index(ks), ring_parity(kc, STAGES) ^ 1)
                partial = i < n_part
                mbarrier.expect(k_full.index(ks), KEY_BYTES + PLANES * BN * 4, pred=partial)
                mbarrier.expect(k_full.index(ks), KEY_BYTES, pred=i >= n_part)
                for j in gl.static_range(PLANES):
                    tma_load(
                        desc_planes,
                        [mask_head * PLANES + j, kt * BN],
                        k_full.index(ks),
                        planes_s.index(ks * PLANES + j),
                        pred=partial,
                    )
                tma_load(desc_k, [b, kt * BN, column], k_full.index(ks), k_s.index(ks).reshape([1, BN, D]))
                mbarrier.wait(v_empty.index(ks), ring_parity(kc, STAGES) ^ 1)
                mbarrier.expect(v_full.index(ks), KEY_BYTES)
                tma_load(desc_v, [b, kt * BN, column], v_full.index(ks), v_s.index(ks).reshape([1, BN, D]))
                kt = gl.load(tiles + (i + 1), mask=i + 1 < n_all, other=0).to(gl.int32)
                kc += 1
            w = gl.atomic_add(ticket_p, 1) + gl.num_programs(0)
        else:
            go = 0
        it += 1


@gluon.jit(
    do_not_specialize=[
        "rows_p", "tiles_p", "order_p", "ticket_p", "n_items", "n_q", "n_k", "s_q", "mask_batch",
    ]
)  # fmt: skip
def flashmask_forward(
    desc_q, desc_k, desc_v, desc_o, desc_planes, lse_p, rows_p, tiles_p, order_p, ticket_p,
    scale_log2, n_items, n_q, n_k, s_q, mask_batch,
    H: gl.constexpr, G: gl.constexpr, MASK_GROUP: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, D: gl.constexpr,
    STAGES: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """Persistent kernel; a program draws items until none is left.

    Args:
        desc_q: Query descriptor [b, s_q, H * D], block [1, 64, D]; desc_o likewise, desc_k and desc_v with [1, BN, D].
        desc_k: See desc_q.
        desc_v: See desc_q.
        desc_o: See desc_q.
        desc_planes: Interval planes of `kernels/work.py`, int32 [mask rows * 2 * MODE, columns], block [1, BN].
        lse_p: fp32 [b, H, s_q].
        rows_p: int32 [mask rows, n_q, 4] of `kernels/work.py`.
        tiles_p: The plan's q_tiles.
        order_p: int32 [n_items]: items, b-major, then head, then query tile, in the order of the tickets.
        ticket_p: One int32, zero at the start.
        scale_log2: softmax scale * log2(e), positive.
        n_items: b * H * n_q.
        n_q: Query tiles.
        n_k: Key tiles.
        s_q: Query rows.
        mask_batch: Mask heads if the mask has a batch, else 0.
        H: Query heads.
        G: Query heads per KV head.
        MASK_GROUP: Query heads per mask head.
        BM: 128.
        BN: 128.
        D: Head dimension, 64 or 128.
        STAGES: Tiles of K, and of V, in flight.
        MODE: The mask's.
    """
    HALF: gl.constexpr = BM // 2
    dtype: gl.constexpr = desc_q.dtype
    LQ: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HALF, D], dtype)
    LK: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, D], dtype)
    BARRIERS: gl.constexpr = mbarrier.MBarrierLayout()
    q_s = gl.allocate_shared_memory(dtype, [4, HALF, D], LQ)  # two items deep: the next one's Q loads early
    k_s = gl.allocate_shared_memory(dtype, [STAGES, BN, D], LK)
    v_s = gl.allocate_shared_memory(dtype, [STAGES, BN, D], LK)
    planes_s = gl.allocate_shared_memory(gl.int32, [STAGES * 2 * MODE, 1, BN], gl.NVMMASharedLayout(0, 32, 2))
    box = gl.allocate_shared_memory(gl.int32, [6, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [4, 1], BARRIERS)
    q_empty = gl.allocate_shared_memory(gl.int64, [4, 1], BARRIERS)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    mail_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIERS)
    mail_empty = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIERS)
    for i in gl.static_range(4):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(mail_full.index(i), count=1)
        mbarrier.init(mail_empty.index(i), count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=2)
    first: gl.constexpr = 0
    second: gl.constexpr = 1
    gl.warp_specialize(
        [
            (
                consume,
                (
                    first, desc_o, lse_p, q_s, k_s, v_s, planes_s, box, q_full, q_empty, k_full, k_empty, v_full,
                    v_empty, mail_full, mail_empty, scale_log2, n_items, n_q, s_q, H, BM, BN, D, STAGES, MODE,
                ),
            ),
            (
                consume,
                (
                    second, desc_o, lse_p, q_s, k_s, v_s, planes_s, box, q_full, q_empty, k_full, k_empty, v_full,
                    v_empty, mail_full, mail_empty, scale_log2, n_items, n_q, s_q, H, BM, BN, D, STAGES, MODE,
                ),
            ),
            (
                produce,
                (
                    desc_q, desc_k, desc_v, desc_planes, rows_p, tiles_p, order_p, ticket_p, q_s, k_s, v_s, planes_s,
                    box, q_full, q_empty, k_full, k_empty, v_full, v_empty, mail_full, mail_empty, n_items, n_q, n_k,
                    mask_batch, H, G, MASK_GROUP, BM, BN, D, STAGES, MODE,
                ),
            ),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
