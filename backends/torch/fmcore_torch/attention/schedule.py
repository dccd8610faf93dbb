"""Which key columns each query tile reads, as a plain Python walk that is made once per plan.

The plan's classes are read on the host. Heads (and batches) whose tiles are nearly the same share one walk, so that a
shared mask costs one walk and a mask per head costs as few as its tiles allow; visible tiles that lie side by side
become one range, so that a matrix product is as long as the mask permits and a contiguous range is read without a copy.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from fmcore.masks import Plan

__all__ = ["Group", "QueryTile", "Segment", "schedule"]

SHARE = 1.1
"""Heads share a walk when the union of their tiles is at most this many times their own tiles."""


@dataclass(frozen=True)
class Segment:
    """Key columns read in one product.

    Attributes:
        ranges: Ascending, disjoint ``(first, stop)`` of key columns.
        partial: ``(offset, first, stop)``: columns that need the mask, and where they lie in the segment.
        width: Columns in all.
    """

    ranges: tuple[tuple[int, int], ...]
    partial: tuple[tuple[int, int, int], ...]
    width: int


@dataclass(frozen=True)
class QueryTile:
    """Query rows ``[first, stop)`` and all that they read; a tile that sees nothing is not listed."""

    first: int
    stop: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Group:
    """Mask batches and heads that share a walk, its query tiles, and the tile pairs it visits (for all of them)."""

    batches: slice
    heads: slice
    tiles: tuple[QueryTile, ...]
    visited: int


_KEPT: weakref.WeakKeyDictionary[Plan, dict[tuple[int, int, int], tuple[Group, ...]]] = weakref.WeakKeyDictionary()


def schedule(plan: Plan, s_q: int, s_k: int, width: int) -> tuple[Group, ...]:
    """The walks of a plan, kept for as long as the plan lives.

    Args:
        plan: A plan on the host.
        s_q: Query rows.
        s_k: Key columns.
        width: Most columns of a segment; at least one tile is taken.
    """
    kept = _KEPT.setdefault(plan, {})
    key = (s_q, s_k, width)
    if key not in kept:
        kept[key] = tuple(_build(plan, s_q, s_k, width))
    return kept[key]


def _build(plan: Plan, s_q: int, s_k: int, width: int) -> list[Group]:
    classes = plan.classes()
    batches, heads = classes.shape[:2]
    whole, each = slice(0, batches), [slice(n, n + 1) for n in range(batches)]
    choices = [[(whole, slice(0, heads))]]
    if heads > 1 and batches > 1:
        choices += [[(whole, slice(h, h + 1)) for h in range(heads)], [(n, slice(0, heads)) for n in each]]
    finest = [(n, slice(h, h + 1)) for n in each for h in range(heads)]
    work = _visited(classes)
    for parts in choices:
        if sum(_visited(_union(classes[n, h])) * _units(n, h) for n, h in parts) <= SHARE * work:
            break
    else:
        parts = finest
    groups = []
    for n, h in parts:
        union = _union(classes[n, h])
        tiles = _tiles(union, plan.block_q, plan.block_k, s_q, s_k, width)
        groups.append(Group(n, h, tiles, _visited(union) * _units(n, h)))
    return groups


def _units(batches: slice, heads: slice) -> int:
    return int((batches.stop - batches.start) * (heads.stop - heads.start))


def _visited(classes: Tensor) -> int:
    return int((classes > 0).sum())


def _union(classes: Tensor) -> Tensor:
    """One class map ``[nq, nk]`` that is right for every head: full where all are, skipped where all are."""
    low, high = classes.amin((0, 1)), classes.amax((0, 1))
    return torch.where(low == 2, 2, (high > 0).to(torch.uint8)).to(torch.uint8)


def _tiles(classes: Tensor, block_q: int, block_k: int, s_q: int, s_k: int, width: int) -> tuple[QueryTile, ...]:
    """Runs of equal class, row by row, packed into segments."""
    nq, nk = classes.shape
    edge = torch.full((nq, 1), 255, dtype=torch.uint8)
    padded = torch.cat([edge, classes, edge], 1)
    cuts: list[list[int]] = [[] for _ in range(nq)]
    for row, column in (padded[:, 1:] != padded[:, :-1]).nonzero().tolist():
        cuts[row].append(column)
    kinds = classes.tolist() if nq * nk <= 1 << 16 else None
    tiles = []
    for i, row in enumerate(cuts):
        runs = []
        for a, b in itertools.pairwise(row):
            kind = kinds[i][a] if kinds else int(classes[i, a])
            if kind:
                runs.append((a * block_k, min(s_k, b * block_k), kind == 1))
        if runs:
            tiles.append(QueryTile(i * block_q, min(s_q, (i + 1) * block_q), tuple(_pack(runs, max(width, block_k)))))
    return tuple(tiles)


def _pack(runs: list[tuple[int, int, bool]], width: int) -> list[Segment]:
    """Fill segments of at most ``width`` columns with the runs in order, cutting long runs."""
    segments: list[Segment] = []
    ranges: list[tuple[int, int]] = []
    partial: list[tuple[int, int, int]] = []
    used = 0
    for start, stop, masked in runs:
        first = start
        while first < stop:
            last = min(stop, first + width - used)
            if ranges and ranges[-1][1] == first:
                ranges[-1] = (ranges[-1][0], last)
            else:
                ranges.append((first, last))
            if masked:
                partial.append((used, first, last))
            used += last - first
            first = last
            if used == width:
                segments.append(Segment(tuple(ranges), tuple(partial), used))
                ranges, partial, used = [], [], 0
    if used:
        segments.append(Segment(tuple(ranges), tuple(partial), used))
    return segments
