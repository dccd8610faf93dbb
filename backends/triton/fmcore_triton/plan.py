"""The plan of a mask by two kernels: what :func:`fmcore.masks.build_plan` uses on GPUs once this backend is loaded.

The first kernel compares every column with every query tile's row range, exactly, and adds up the counts; the second
compacts the lists and ranks the tiles by work. Every size is a host integer and nothing waits for the device, so a
build can be captured in a graph. The class matrix, one byte per tile pair, lives for the time of the build.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from fmcore.masks.plan import Plan
from fmcore.masks.plan_torch import build_plan_torch, list_dtype
from fmcore_triton.kernels.plan import plan_classes, plan_lists

if TYPE_CHECKING:
    from torch import Tensor

    from fmcore.masks import Mask

NAME = "triton"
QUERIES, COLUMNS = 64, 64
CLASS_WARPS, LIST_WARPS = 4, 4
BLOCK = 128
"""Side of one entry of a block mask."""


def build_plan(mask: Mask, planes: Tensor, block_mask: Tensor | None, block_q: int, block_k: int) -> Plan:
    """Build the plan on the device of ``planes``, equal to the torch builder's.

    Args:
        mask: The mask, for its sizes.
        planes: Its canonical planes, int32 ``[batch, heads, 2 * mode, s_k]``, on the device.
        block_mask: Its block mask on the device, or None.
        block_q: Rows of a query tile, any positive number.
        block_k: Columns of a key tile, any positive number.
    """
    batch, heads, _, s_k = planes.shape
    rows, nq, nk = batch * heads, triton.cdiv(mask.s_q, block_q), triton.cdiv(s_k, block_k)
    if not rows * nq * nk:
        return build_plan_torch(mask, planes, block_mask, block_q, block_k)
    device = planes.device
    counts = torch.zeros(rows * 2 * (nq + nk), dtype=torch.int32, device=device)
    q_partial, q_full, k_partial, k_full = torch.split(counts, [rows * nq, rows * nq, rows * nk, rows * nk])
    orders = torch.empty(rows * (nq + nk), dtype=torch.int32, device=device)
    q_order, k_order = torch.split(orders, [rows * nq, rows * nk])
    q_tiles = torch.empty((rows, nq, nk), dtype=list_dtype(nk), device=device)
    k_tiles = torch.empty((rows, nk, nq), dtype=list_dtype(nq), device=device)
    classes = torch.empty((rows, nk, nq), dtype=torch.uint8, device=device)
    spans = 1
    if block_mask is not None:  # a tile that does not begin on a block's edge may reach into one more
        spans = triton.cdiv(block_q, BLOCK) + (block_q % BLOCK != 0)
    queries = min(QUERIES, max(16, triton.next_power_of_2(nq)))
    plan_classes[nk, triton.cdiv(nq, queries), rows](
        planes,
        planes if block_mask is None else block_mask,
        classes,
        q_partial,
        q_full,
        k_partial,
        k_full,
        mask.s_q,
        s_k,
        nq,
        nk,
        block_q,
        block_k,
        triton.cdiv(mask.s_q, BLOCK),
        triton.cdiv(s_k, BLOCK),
        MODE=mask.mode,
        KEEP=block_mask is not None,
        SPANS=spans,
        QUERIES=queries,
        COLUMNS=COLUMNS,
        num_warps=CLASS_WARPS,
    )
    chunk = min(1024, max(64, triton.next_power_of_2(max(nq, nk))))
    plan_lists[nq + nk, rows](
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
        CHUNK=chunk,
        num_warps=LIST_WARPS if chunk > 256 else 1,
    )
    shape = (batch, heads)
    return Plan(
        mask,
        block_q,
        block_k,
        q_partial=q_partial.view(*shape, nq),
        q_full=q_full.view(*shape, nq),
        q_tiles=q_tiles.view(*shape, nq, nk),
        q_order=q_order.view(*shape, nq),
        k_partial=k_partial.view(*shape, nk),
        k_full=k_full.view(*shape, nk),
        k_tiles=k_tiles.view(*shape, nk, nq),
        k_order=k_order.view(*shape, nk),
    )
