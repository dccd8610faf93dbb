"""The plan in torch operations: exact tile classes by difference arrays, then compacted lists.

A hidden interval of a column touches a run of query tiles and covers a (shorter) run of them. Marking where each run
begins and ends and summing along the query tiles gives, per tile pair, how many columns are covered and how many are
touched: a tile is skipped iff all its columns are covered, full iff none is. O(s_k + tile pairs), whatever the mask.

Off the CPU nothing waits for the device and no size depends on the data, so the build can be captured in a graph. On
the CPU every strip of tiles is narrowed to the rows that its columns can see, and only visible entries of the lists are
written: untouched pages of the tensors cost no memory, so what is resident grows with the visible tiles.
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

STRIP_CPU = 1 << 18
"""Tile pairs at a time on the CPU, so that a strip stays in the cache."""

STRIP_DEVICE = 1 << 25
"""Tile pairs at a time elsewhere, to bound the temporaries of the build."""


def build_plan_torch(mask: Mask, planes: Tensor, block_mask: Tensor | None, block_q: int, block_k: int) -> Plan:
    """Build the plan on the device of ``planes``; see :class:`fmcore.masks.Plan`."""
    batch, heads = planes.shape[:2]
    classes = classify(mask, planes, block_mask, block_q, block_k)
    k_partial, k_full, k_tiles = _lists(classes)
    q_partial, q_full, q_tiles = _lists(classes.transpose(1, 2))
    nk, nq = classes.shape[1:]
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


def may_look(device: torch.device) -> bool:
    """Whether the build may read the data, which makes the host wait on anything but the CPU."""
    return device.type == "cpu"


def list_dtype(tiles: int) -> torch.dtype:
    """The integer that a list of tile numbers below ``tiles`` is kept in."""
    return torch.int16 if tiles <= 1 << 15 else torch.int32


def heaviest_first(work: Tensor) -> Tensor:
    """Tiles by falling work, ties ascending: int32 of the shape of ``work``."""
    return torch.argsort(work, dim=-1, descending=True, stable=True).to(torch.int32)


def _lists(classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Partial and full counts int32 ``[rows, n]`` and lists ``[rows, n, m]`` of ``classes`` ``[rows, n, m]``."""
    rows, n, m = classes.shape
    device = classes.device
    partial, full = (torch.zeros(rows, n, dtype=torch.int32, device=device) for _ in range(2))
    lists = torch.empty(rows, n, m, dtype=list_dtype(m), device=device)
    every = torch.arange(m, dtype=lists.dtype, device=device)
    for head, tile in _strips(rows, n, m, device):
        strip = classes[head, tile].contiguous()
        entry = every
        if may_look(device):  # what lies outside the tiles seen by this strip needs no work
            seen = strip.amax((0, 1)).nonzero()
            if not seen.numel():
                continue
            low, high = int(seen[0]), int(seen[-1]) + 1
            strip, entry = strip[..., low:high], every[low:high]
        members = (strip == 1, strip == 2)
        for counts, member in zip((partial, full), members, strict=True):
            counts[head, tile] = member.sum(-1, dtype=torch.int32)
        ends = partial[head, tile], partial[head, tile] + full[head, tile]
        if may_look(device):
            _fill_visible(lists[head, tile], members, ends, entry)
        else:
            _fill_all(lists[head, tile], members, ends, entry)
    return partial, full, lists


def _fill_visible(lists: Tensor, members: tuple[Tensor, Tensor], ends: tuple[Tensor, Tensor], entry: Tensor) -> None:
    """Write the visible entries alone."""
    column = torch.arange(int(ends[1].max()), dtype=torch.int32, device=lists.device)
    begin = torch.zeros_like(ends[0]).unsqueeze(-1)
    for member, stop in zip(members, ends, strict=True):
        end = stop.unsqueeze(-1)
        place = (column >= begin) & (column < end)
        lists[..., : column.numel()].masked_scatter_(place, entry.expand(member.shape)[member])
        begin = end


def _fill_all(lists: Tensor, members: tuple[Tensor, Tensor], ends: tuple[Tensor, Tensor], entry: Tensor) -> None:
    """Write a permutation, skipped tiles last: no size depends on the data."""
    skipped = ~(members[0] | members[1])
    place = skipped.cumsum(-1, dtype=torch.int32) + (ends[1].unsqueeze(-1) - 1)
    for member, end in zip(members, (torch.zeros_like(ends[0]), ends[0]), strict=True):
        place = torch.where(member, member.cumsum(-1, dtype=torch.int32) + (end.unsqueeze(-1) - 1), place)
    lists.scatter_(-1, place.long(), entry.expand(place.shape))


def _strips(rows: int, n: int, m: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Slices of ``[rows, n]`` whose ``m`` entries each make a strip: some whole rows, or a part of one."""
    limit = STRIP_CPU if may_look(device) else STRIP_DEVICE
    if not rows * n * m:
        return
    tiles = max(1, min(n, limit // m))
    step = max(1, limit // (n * m)) if tiles == n else 1
    for h in range(0, rows, step):
        for t in range(0, n, tiles):
            yield slice(h, min(rows, h + step)), slice(t, min(n, t + tiles))


def classify(mask: Mask, planes: Tensor, block_mask: Tensor | None, block_q: int, block_k: int) -> Tensor:
    """Classes of all tile pairs, uint8 ``[batch * heads, nk, nq]``: 0 skip, 1 partial, 2 full."""
    batch, heads, count, s_k = planes.shape
    # A tile beyond the end is the same tile; cut, its size fits the bounds' int32 and costs nothing.
    whole_q, whole_k = (
        max(1, size) if block_mask is None else -(-size // BLOCK) * BLOCK or BLOCK for size in (mask.s_q, s_k)
    )
    block_q, block_k = min(block_q, whole_q), min(block_k, whole_k)
    rows, nq, nk = batch * heads, -(-mask.s_q // block_q), -(-s_k // block_k)
    flat = planes.view(rows, count, s_k)
    keep = None if block_mask is None else block_mask.view(rows, *block_mask.shape[2:])
    classes = torch.zeros(rows, nk, nq, dtype=torch.uint8, device=planes.device)
    for head, tile in _strips(rows, nk, nq, planes.device):
        span = flat[head, :, tile.start * block_k : min(s_k, tile.stop * block_k)]
        if keep is not None:
            first = tile.start * block_k
            classes[head, tile] = _kept_classes(mask, span, keep[head], first, block_q=block_q, block_k=block_k)
            continue
        q0, q1 = _visible_tiles(mask.mode, span, mask.s_q, block_q) if may_look(planes.device) else (0, nq)
        if q0 < q1:
            strip = _classes(mask.mode, span, mask.s_q, block_q, block_k, tiles=(q0, q1))
            classes[head, tile, q0:q1] = strip
    return classes


def _visible_tiles(mode: int, planes: Tensor, s_q: int, block_q: int) -> tuple[int, int]:
    """Query tiles [first, stop) outside of which no row sees any of the columns; looks at the data."""
    us, ue, ls, le = hidden_intervals(mode, planes, s_q)
    some = ue - us + le - ls < s_q
    first = torch.where(us > 0, 0, ue)
    last = torch.where(le < s_q, s_q, ls)
    low = int(torch.where(some, first, s_q).min())
    high = int(torch.where(some, last, 0).max())
    return low // block_q, -(-high // block_q)


def _classes(mode: int, planes: Tensor, s_q: int, block_q: int, block_k: int, *, tiles: tuple[int, int]) -> Tensor:
    """Classes of ``planes`` ``[h, 2 or 4, columns]`` for some query tiles, uint8 ``[h, key tiles, tiles]``."""
    heads, _, columns = planes.shape
    q0, q1 = tiles
    nq, nk = q1 - q0, -(-columns // block_k)
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
        last = _ceil(end, block_q)
        runs = (
            (touched, start // block_q, last),
            (covered, _ceil(start, block_q), torch.where(end == s_q, last, end // block_q)),
        )
        for marks, a, b in runs:
            _mark(marks, base, a.clamp(q0, q1) - q0, b.clamp(q0, q1) - q0, some)
    size = torch.full((nk,), block_k, dtype=torch.int32, device=planes.device)
    if columns % block_k:
        size[-1:].fill_(columns % block_k)
    hidden = covered.view(heads, nk, nq + 1).cumsum(-1, dtype=torch.int32)[..., :nq] == size.view(nk, 1)
    clean = touched.view(heads, nk, nq + 1).cumsum(-1, dtype=torch.int32)[..., :nq] == 0
    return (~hidden).to(torch.uint8) + clean.to(torch.uint8)


def _ceil(row: Tensor, block: int) -> Tensor:
    """``ceil(row / block)`` where ``row + block`` may not fit int32."""
    return (row - 1) // block + 1


def _mark(runs: Tensor, base: Tensor, first: Tensor, stop: Tensor, some: Tensor) -> None:
    """Add +1 where a run of query tiles begins and -1 where it ends, for non-empty runs of non-empty intervals."""
    one = (some & (first < stop)).to(torch.int32).view(-1)
    runs.index_add_(0, base + first.reshape(-1), one)
    runs.index_add_(0, base + stop.reshape(-1), one, alpha=-1)


def _kept_classes(mask: Mask, planes: Tensor, keep: Tensor, first: int, *, block_q: int, block_k: int) -> Tensor:
    """As :func:`_classes` under a block mask, exact for any multiple of 16.

    ``first`` is the column that ``planes`` begins with. Classified on tiles that lie inside one 128 x 128 block each,
    then joined: skipped if all are, full if all are.
    """
    heads, _, columns = planes.shape
    fine_q, fine_k = gcd(block_q, BLOCK), gcd(block_k, BLOCK)
    every = (0, -(-mask.s_q // fine_q))
    classes = _classes(mask.mode, planes, mask.s_q, fine_q, fine_k, tiles=every)
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
