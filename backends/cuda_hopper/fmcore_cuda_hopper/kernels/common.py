"""What both passes need: ring arithmetic, and the mailbox between the producer warp and the two consumer warpgroups."""

from fmcore_cuda_hopper.kernels.gluon_names import gl, gluon, mbarrier


@gluon.jit
def wide(x):
    """A number in 64 bits, before it multiplies past 2**31."""
    return x.to(gl.int64)


@gluon.jit
def ring_slot(count, STAGES: gl.constexpr):
    """Slot of the ring that number ``count`` goes through; STAGES is 2 or 4 (a signed remainder costs more)."""
    return count & (STAGES - 1)


@gluon.jit
def ring_parity(count, STAGES: gl.constexpr):
    """Parity of the slot's barriers in that round."""
    SHIFT: gl.constexpr = 1 if STAGES == 2 else 2
    return (count >> SHIFT) & 1


@gluon.jit
def mail_read(box, it, full, empty, THREADS: gl.constexpr):
    """Take work item number ``it``: (item, partial tiles, all tiles). Two slots, so the producer is one item ahead."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [THREADS // 32], [0])
    slot = it & 1
    mbarrier.wait(full.index(slot), (it >> 1) & 1)
    item = gl.sum(box.index(slot * 3).load(LAYOUT), 0)
    n_part = gl.sum(box.index(slot * 3 + 1).load(LAYOUT), 0)
    n_all = gl.sum(box.index(slot * 3 + 2).load(LAYOUT), 0)
    mbarrier.arrive(empty.index(slot), count=1)
    return item, n_part, n_all


@gluon.jit
def mail_write(box, it, full, empty, item, n_part, n_all):
    """Hand work item number ``it`` over, once both warpgroups have read the one before last."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    slot = it & 1
    mbarrier.wait(empty.index(slot), ((it >> 1) & 1) ^ 1)
    box.index(slot * 3).store(gl.full([1], 0, gl.int32, LAYOUT) + item)
    box.index(slot * 3 + 1).store(gl.full([1], 0, gl.int32, LAYOUT) + n_part)
    box.index(slot * 3 + 2).store(gl.full([1], 0, gl.int32, LAYOUT) + n_all)
    mbarrier.arrive(full.index(slot), count=1)
