"""What the kernels read of a mask, derived from its plan once and kept as long as the plan lives."""

from __future__ import annotations

import functools
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from fmcore.masks import Mask, Plan
from fmcore_cuda_hopper.kernels.work import pad_planes, work_order, work_rows
from fmcore_cuda_hopper.launch import cache_budget

BLOCK_K = 128
"""Keys of a tile in both passes, and rows of a query tile in the forward: the 128 x 128 blocks of a block mask."""
BLOCK_Q_BACKWARD = 64
_BLOCK = 256
_TOP = 2  # longest tiles of every head that go before all others where they are giants

_KNOWN: WeakKeyDictionary[Plan, dict[tuple[object, ...], torch.Tensor]] = WeakKeyDictionary()


class Work(NamedTuple):
    """Arguments of one pass.

    Attributes:
        planes: (begin, width) pairs, int32 [mask rows, 2 * mode, (n_k + 1) * 128].
        rows: int32 [mask rows, tiles, 4], see `kernels/work.py`.
        tiles: The plan's lists.
        order: int32 [items].
        n_q: Query tiles.
        n_k: Key tiles.
    """

    planes: torch.Tensor
    rows: torch.Tensor
    tiles: torch.Tensor
    order: torch.Tensor
    n_q: int
    n_k: int


def query_work(mask: Mask, device: torch.device, b: int, heads: int, bytes_per_head: int) -> Work:
    """Lists by query tile, for the forward: one item per query head and tile of 128 rows."""
    plan = mask.plan(BLOCK_K, BLOCK_K, device)
    return _work(mask, plan, device, b, heads, bytes_per_head, by_key=False)


def key_work(mask: Mask, device: torch.device, b: int, heads: int, bytes_per_head: int) -> Work:
    """Lists by key tile, for the backward: one item per head (of K and V, or of the mask) and tile of 128 keys."""
    plan = mask.plan(BLOCK_Q_BACKWARD, BLOCK_K, device)
    return _work(mask, plan, device, b, heads, bytes_per_head, by_key=True)


def _work(
    mask: Mask, plan: Plan, device: torch.device, b: int, heads: int, bytes_per_head: int, *, by_key: bool
) -> Work:
    known = _KNOWN.get(plan, {})
    tiles = plan.k_tiles if by_key else plan.q_tiles
    group = head_group(heads, bytes_per_head, cache_budget(device))
    key = ("order", by_key, b, heads, group)
    order = known.get(key)
    if order is None:
        made = {("planes",): known.get(("planes",)), ("rows", by_key): known.get(("rows", by_key))}
        planes = made[("planes",)]
        planes = _planes(mask, plan, device) if planes is None else planes
        rows = made[("rows", by_key)]
        rows = _rows(mask, plan, by_key=by_key) if rows is None else rows
        order = _order(mask, plan, rows, b, heads, group, by_key=by_key)
        known = {**known, ("planes",): planes, ("rows", by_key): rows, key: order}
        # What is made while a graph is captured is filled when that graph runs, so it is of no use outside.
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _KNOWN[plan] = known
    return Work(known[("planes",)], known[("rows", by_key)], tiles, order, plan.nq, plan.nk)


@functools.cache
def head_group(heads: int, bytes_per_head: int, budget: int) -> int:
    """Largest divisor of ``heads`` whose operands fit the budget together, 1 at least."""
    wanted = max(1, min(heads, budget // max(1, bytes_per_head)))
    return next(size for size in range(wanted, 0, -1) if heads % size == 0)


def _planes(mask: Mask, plan: Plan, device: torch.device) -> torch.Tensor:
    planes = mask.planes_on(device)
    rows, columns = mask.batch * mask.heads, (plan.nk + 1) * BLOCK_K
    out = torch.empty((rows, 2 * mask.mode, columns), dtype=torch.int32, device=device)
    pad_planes[(rows, -(-columns // _BLOCK))](planes, out, mask.s_k, columns, MODE=mask.mode, BLOCK=_BLOCK)
    return out


def _rows(mask: Mask, plan: Plan, *, by_key: bool) -> torch.Tensor:
    partial, full, tiles = (
        (plan.k_partial, plan.k_full, plan.k_tiles) if by_key else (plan.q_partial, plan.q_full, plan.q_tiles)
    )
    n, m = tiles.shape[2:]
    rows = mask.batch * mask.heads
    out = torch.empty((rows, n, 4), dtype=torch.int32, device=tiles.device)
    ragged = plan.nk - 1 if mask.s_k % BLOCK_K else -1
    work_rows[(rows, -(-n // _BLOCK))](partial, full, tiles, out, n, m, ragged, BY_KEY=by_key, BLOCK=_BLOCK)
    return out


def _order(mask: Mask, plan: Plan, rows: torch.Tensor, b: int, heads: int, group: int, *, by_key: bool) -> torch.Tensor:
    rank = plan.k_order if by_key else plan.q_order
    n = rank.shape[-1]
    order = torch.empty(b * heads * n, dtype=torch.int32, device=rank.device)
    work_order[(b * heads, -(-n // _BLOCK))](
        rows, rank, order, n, b, mask.heads if mask.batch > 1 else 0, group,
        H=heads, MASK_GROUP=heads // mask.heads, TOP=_TOP, BLOCK=_BLOCK,
    )  # fmt: skip
    return order
