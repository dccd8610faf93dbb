"""The plan in torch operations: exact tile classes by difference arrays, then compacted lists.

A hidden interval of a column touches a run of query tiles and covers a (shorter) run of them. Marking where each run
begins and ends and summing along the query tiles gives, per tile pair, how many columns are covered and how many are
touched: a tile is skipped iff all its columns are covered, full iff none is touched. O(s_k + tile pairs), whatever the mask.

Nothing waits for the device off the CPU. On the CPU the work goes in strips of key tiles that fit the cache and only
visible entries of the lists are written, so the memory in use grows with the visible tiles, not with all of them.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fmcore.masks._canonical import BLOCK, hidden_intervals
from fmcore.masks.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcore.masks.mask import Mask

STRIP = 1 << 20
"""Tile pairs classified at a time on the CPU (the strip stays in the cache); elsewhere 32 times as many."""


def build_plan_torch(mask: Mask, planes: Tensor, block_mask: Tensor | None, block_q: int, block_k: int) -> Plan:
    """Build the plan on the device of ``planes``; see :class:`fmcore.masks.Plan`."""
    batch, heads, _, s_k = planes.shape
    rows, nq, nk, device = batch * heads, -(-mask.s_q // block_q), -(-s_k // block_k), planes.device
    q_partial, q_full, k_partial, k_full = (
        torch.zeros(rows, n, dtype=torch.int32, device=device) for n in (nq, nq, nk, nk)
    )
    k_tiles = torch.empty(rows, nk, nq, dtype=list_dtype(nq), device=device)
    q_tiles = torch.empty(rows, nq, nk, dtype=list_dtype(nk), device=device)
    for head, tile, classes in _strips(mask, planes, block_mask, block_q, block_k):
        partial, full = classes == 1, classes == 2
        k_partial[head, tile] = partial.sum(-1, dtype=torch.int32)
        k_full[head, tile] = full.sum(-1, dtype=torch.int32)
        q_partial[head] += partial.sum(1, dtype=torch.int32)
        q_full[head] += full.sum(1, dtype=torch.int32)
        _emit(k_tiles[head, tile], classes, 0, _starts(k_partial[head, tile], k_full[head, tile]))
    # The full tiles of a query tile come after all its partial ones, so its list can only begin once those are counted.
    starts = _starts(q_partial, q_full)
    for head, tile, classes in _strips(mask, planes, block_mask, block_q, block_k):
        _emit(q_tiles[head], classes.transpose(1, 2), tile.start, [start[head] for start in starts])
    shape = (batch, heads)
    return Plan(
        mask,
        block_q,
        block_k,
        q_partial=q_partial.view(*shape, nq),
        q_full=q_full.view(*shape, nq),
        q_tiles=q_tiles.view(*shape, nq, nk),
        q_order=heaviest_first(q_partial + q_full).view(*shape, nq),
        k_partial=k_partial.view(*shape, nk),
        k_full=k_full.view(*shape, nk),
        k_tiles=k_tiles.view(*shape, nk, nq),
        k_order=heaviest_first(k_partial + k_full).view(*shape, nk),
    )


def list_dtype(tiles: int) -> torch.dtype:
    """The integer that a list of tile numbers below ``tiles`` is kept in."""
    return torch.int16 if tiles <= 1 << 15 else torch.int32


def heaviest_first(work: Tensor) -> Tensor:
    """Tiles by falling work, ties ascending: int32 of the shape of ``work``."""
    return torch.argsort(work, dim=-1, descending=True, stable=True).to(torch.int32)


def _starts(partial: Tensor, full: Tensor) -> list[Tensor]:
    """Where the skipped, the partial and the full entries of each list begin; indexed by class."""
    return [partial + full, torch.zeros_like(partial), partial.clone()]


def _emit(lists: Tensor, classes: Tensor, first: int, starts: list[Tensor]) -> None:
    """Append the tiles ``first, first + 1, ...`` of ``classes`` ``[h, r, m]`` to ``lists`` ``[h, r, n]``.

    ``starts[c]`` ``[h, r]`` is where the next entry of class c goes; it is moved on by what was appended.
    """
    on_cpu = lists.device.type == "cpu"
    classes = classes.contiguous()
    place = torch.empty(classes.shape, dtype=torch.int32, device=classes.device)
    for value in (1, 2) if on_cpu else (0, 1, 2):
        member = classes == value
        running = member.cumsum(-1, dtype=torch.int32)
        torch.where(member, running + (starts[value].unsqueeze(-1) - 1), place, out=place)
        if running.shape[-1]:
            starts[value] += running[..., -1]
    if on_cpu:  # only visible entries are written: untouched pages of the list cost nothing
        source = classes.view(-1).nonzero().squeeze(-1)
        row = torch.div(source, classes.shape[-1], rounding_mode="floor")
        entry = source - row * classes.shape[-1] + first
        lists.view(-1)[row * lists.shape[-1] + place.view(-1)[source]] = entry.to(lists.dtype)
    else:  # a permutation, so every entry is written and no size depends on the data
        entry = torch.arange(first, first + classes.shape[-1], dtype=lists.dtype, device=lists.device)
        lists.scatter_(-1, place.long(), entry.expand(classes.shape))


def _strips(
    mask: Mask, planes: Tensor, block_mask: Tensor | None, block_q: int, block_k: int
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Slices of heads and of key tiles with their classes, uint8 ``[heads, key tiles, nq]``."""
    batch, heads, count, s_k = planes.shape
    rows, nq, nk = batch * heads, -(-mask.s_q // block_q), -(-s_k // block_k)
    if not rows * nq * nk:
        return
    flat = planes.view(rows, count, s_k)
    keep = None if block_mask is None else block_mask.view(rows, *block_mask.shape[2:])
    limit = STRIP if planes.device.type == "cpu" else STRIP * 32
    tiles = max(1, min(nk, limit // nq))
    step = max(1, limit // (nq * nk)) if tiles == nk else 1
    for h in range(0, rows, step):
        head = slice(h, min(rows, h + step))
        for t in range(0, nk, tiles):
            tile = slice(t, min(nk, t + tiles))
            span = flat[head, :, t * block_k : min(s_k, tile.stop * block_k)]
            if keep is None:
                yield head, tile, _classes(mask.mode, span, mask.s_q, block_q, block_k)
            else:
                yield head, tile, _kept_classes(mask, span, keep[head], t * block_k, block_q=block_q, block_k=block_k)


def _classes(mode: int, planes: Tensor, s_q: int, block_q: int, block_k: int) -> Tensor:
    """Classes of ``planes`` ``[h, 2 or 4, columns]``, uint8 ``[h, key tiles, nq]``."""
    heads, _, columns = planes.shape
    nq, nk = -(-s_q // block_q), -(-columns // block_k)
    column = torch.arange(columns, device=planes.device)
    row = torch.arange(heads, device=planes.device).unsqueeze(-1) * nk + torch.div(
        column, block_k, rounding_mode="floor"
    )
    us, ue, ls, le = hidden_intervals(mode, planes, s_q)
    covered = torch.zeros(heads * nk * (nq + 1), dtype=torch.int32, device=planes.device)
    touched = torch.zeros_like(covered)
    base = (row * (nq + 1)).view(-1)
    for start, end in ((us, ue), (ls, le)):
        some = start < end
        up, down = (start + (block_q - 1)) // block_q, (end + (block_q - 1)) // block_q
        _mark(touched, base, start // block_q, down, some)
        _mark(covered, base, up, torch.where(end == s_q, nq, end // block_q), some)
    size = torch.full((nk,), block_k, dtype=torch.int32, device=planes.device)
    if columns % block_k:
        size[-1:].fill_(columns % block_k)
    hidden = covered.view(heads, nk, nq + 1).cumsum(-1, dtype=torch.int32)[..., :nq] == size.view(nk, 1)
    clean = touched.view(heads, nk, nq + 1).cumsum(-1, dtype=torch.int32)[..., :nq] == 0
    return (~hidden).to(torch.uint8) + clean.to(torch.uint8)


def _mark(runs: Tensor, base: Tensor, first: Tensor, stop: Tensor, some: Tensor) -> None:
    """Add +1 where a run of query tiles begins and -1 where it ends, for non-empty runs of non-empty intervals."""
    one = (some & (first < stop)).to(torch.int32).view(-1)
    runs.index_add_(0, base + first.reshape(-1), one)
    runs.index_add_(0, base + stop.reshape(-1), one, alpha=-1)


def _kept_classes(mask: Mask, planes: Tensor, keep: Tensor, first: int, *, block_q: int, block_k: int) -> Tensor:
    """As :func:`_classes` under a block mask, exact for any multiple of 16.

    ``first`` is the column that ``planes`` begins with. Classified on tiles that lie inside one 128 x 128 block each, then joined: skipped if all are, full if all are.
    """
    heads, _, columns = planes.shape
    fine_q, fine_k = gcd(block_q, BLOCK), gcd(block_k, BLOCK)
    classes = _classes(mask.mode, planes, mask.s_q, fine_q, fine_k)
    nk, nq = classes.shape[1:]
    block_row = torch.arange(nq, device=planes.device) * fine_q // BLOCK
    block_column = (first + torch.arange(nk, device=planes.device) * fine_k) // BLOCK
    classes *= keep[:, block_row][:, :, block_column].transpose(1, 2).to(torch.uint8)
    up_q, up_k = block_q // fine_q, block_k // fine_k
    coarse_q, coarse_k = -(-mask.s_q // block_q), -(-columns // block_k)
    low = classes.new_full((heads, coarse_k * up_k, coarse_q * up_q), 2)
    low[:, :nk, :nq] = classes
    high = torch.zeros_like(low)
    high[:, :nk, :nq] = classes
    shape = (heads, coarse_k, up_k, coarse_q, up_q)
    none, all_ = high.view(shape).amax((2, 4)) == 0, low.view(shape).amin((2, 4)) == 2
    return (~none).to(torch.uint8) + all_.to(torch.uint8)
