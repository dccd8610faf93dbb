"""The walk over visible tiles that forward and backward share: operands in tile order, and the mask of a tile.

Operands lie head by head, and the query heads of a KV head lie side by side in each row: ``[b, h_kv, s_q, group, d]``.
So the rows of a tile with all their query heads are one matrix against one key matrix, and keys are never repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fmcore.masks import Mask
from fmcore_torch.attention.arithmetic import Arithmetic
from fmcore_torch.attention.schedule import Group, QueryTile, Segment, schedule

__all__ = ["Part", "Walk", "keys_first", "pack_rows"]

BLOCK = 128
"""Rows and columns of an entry of a mask's ``block_mask``."""

OBSERVERS: list[Callable[[int], None]] = []
"""Told of the tile pairs of every group that is walked; see ``counting``."""


@dataclass(frozen=True)
class Part:
    """One query tile for some batches and heads: a stack of matrices.

    Attributes:
        batches: Batches.
        heads: KV heads.
        group: Query heads of each KV head.
        tile: Rows, and the segments of keys they read.
        hidden: For each segment, ``(offset, stop, hidden)`` of its partial columns; hidden is bool and broadcasts to
            ``[batches, heads, rows, group, columns]``.
    """

    batches: slice
    heads: slice
    group: slice
    tile: QueryTile
    hidden: tuple[tuple[tuple[int, int, Tensor], ...], ...]

    def rows(self, t: Tensor) -> Tensor:
        """This part's rows of ``[b, h_kv, s_q, group, n]``, as ``[batches * heads, rows * group, n]``."""
        return self.window(t).flatten(2, 3).flatten(0, 1)

    def window(self, t: Tensor) -> Tensor:
        """This part's rows of ``[b, h_kv, s_q, group, ...]``: a view."""
        return t[self.batches, self.heads, self.tile.first : self.tile.stop, self.group]

    def columns(self, t: Tensor, segment: Segment) -> Tensor:
        """A segment of ``[b, h_kv, s_k, n]``, as ``[batches * heads, columns, n]``; a copy only if it has gaps."""
        stack = t[self.batches, self.heads]
        pieces = [stack[:, :, a:b] for a, b in segment.ranges]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)).flatten(0, 1)

    def pieces(self, t: Tensor, segment: Segment) -> Iterator[tuple[int, int, Tensor]]:
        """Each range of a segment: offset, end, and its ``[batches * heads, columns, n]`` as a view to add to."""
        offset = 0
        for a, b in segment.ranges:
            stack = t[self.batches, self.heads, a:b]
            yield offset, offset + b - a, stack.view(stack.shape[0] * stack.shape[1], b - a, stack.shape[3])
            offset += b - a

    def hide(self, scores: Tensor, which: int, value: float) -> None:
        """Put ``value`` where segment ``which`` is hidden, in place."""
        if not self.hidden[which]:
            return
        batches, heads = self.batches.stop - self.batches.start, self.heads.stop - self.heads.start
        rows = self.tile.stop - self.tile.first
        shaped = scores.view(batches, heads, rows, -1, scores.shape[-1])
        for start, stop, hidden in self.hidden[which]:
            shaped[..., start:stop].masked_fill_(hidden, value)


class Walk:
    """All parts of a call, in a fixed order.

    Args:
        mask: The mask.
        arithmetic: Tile sizes and dtypes.
        shape: ``(b, s_q, s_k, h_q, h_kv)``.
        device: Where the operands lie.
    """

    def __init__(
        self, mask: Mask, arithmetic: Arithmetic, shape: tuple[int, int, int, int, int], device: torch.device
    ) -> None:
        self.batch, self.s_q, self.s_k, h_q, self.heads = shape
        self.group = h_q // self.heads
        self.mask = mask
        self.pairs = arithmetic.pairs
        self.planes = mask.planes_on(device)
        self.keep = mask.block_mask_on(device)
        if self.batch and self.s_q and self.s_k:
            plan = mask.plan(arithmetic.block_q, arithmetic.block_k, "cpu")
            self.groups = schedule(plan, self.s_q, self.s_k, arithmetic.width)
        else:
            self.groups = ()

    def __iter__(self) -> Iterator[Part]:
        for group in self.groups:
            for observe in OBSERVERS:
                observe(group.visited)
            for tile in group.tiles:
                hidden = tuple(self._hidden(group, tile, segment) for segment in tile.segments)
                yield from self._parts(group, tile, hidden)

    def _parts(
        self, group: Group, tile: QueryTile, hidden: tuple[tuple[tuple[int, int, Tensor], ...], ...]
    ) -> Iterator[Part]:
        """Cut a tile's heads, then its batches, so that the scores of one product stay within bounds."""
        batches = group.batches if self.mask.batch > 1 else slice(0, self.batch)
        heads, queries = self._heads(group)
        rows = (tile.stop - tile.first) * (queries.stop - queries.start)
        stack = max(1, self.pairs // (rows * max(s.width for s in tile.segments)))
        all_heads = heads.stop - heads.start
        step_h = min(all_heads, stack)
        step_b = max(1, stack // all_heads) if step_h == all_heads else 1
        for n in range(batches.start, batches.stop, step_b):
            for h in range(heads.start, heads.stop, step_h):
                ns, hs = slice(n, min(n + step_b, batches.stop)), slice(h, min(h + step_h, heads.stop))
                own = tuple(
                    tuple((a, b, _share(x, ns, batches.start, hs, heads.start)) for a, b, x in spans)
                    for spans in hidden
                )
                yield Part(ns, hs, queries, tile, own)

    def _heads(self, group: Group) -> tuple[slice, slice]:
        """KV heads, and query heads of each, that a group's mask heads speak for."""
        everything = slice(0, self.heads), slice(0, self.group)
        count = self.mask.heads
        if count == 1 or group.heads == slice(0, count):
            return everything
        h = group.heads.start
        if count == self.heads:
            return slice(h, h + 1), everything[1]
        kv, member = divmod(h, self.group)
        return slice(kv, kv + 1), slice(member, member + 1)

    def _hidden(self, group: Group, tile: QueryTile, segment: Segment) -> tuple[tuple[int, int, Tensor], ...]:
        """Hidden pairs of a segment's partial columns, ``[mask batch, mask KV heads, rows, mask group, columns]``."""
        spans = []
        for offset, first, stop in segment.partial:
            bounds = self.planes[group.batches, group.heads, :, first:stop].unsqueeze(-2).unbind(2)
            row = torch.arange(tile.first, tile.stop, dtype=torch.int32, device=self.planes.device).unsqueeze(-1)
            if self.mask.mode == 1:
                hidden = (row < bounds[0]) | (row >= bounds[1])
            else:
                us, ue, ls, le = bounds
                hidden = ((row >= us) & (row < ue)) | ((row >= ls) & (row < le))
            if self.keep is not None:
                column = torch.arange(first, stop, device=self.planes.device)
                keep = self.keep[group.batches, group.heads]
                hidden = hidden | (keep[:, :, (row // BLOCK).long(), column // BLOCK] == 0)
            count = hidden.shape[1]
            if count == self.heads * self.group and count > self.heads:  # one mask per query head, all heads together
                shape = hidden.shape[0], self.heads, self.group, *hidden.shape[2:]
                hidden = hidden.view(shape).transpose(2, 3)
            else:
                hidden = hidden.unsqueeze(3)
            spans.append((offset, offset + stop - first, hidden))
        return tuple(spans)


def _share(hidden: Tensor, batches: slice, first_batch: int, heads: slice, first_head: int) -> Tensor:
    """The part of ``hidden`` for some batches and heads; size 1 broadcasts."""
    if hidden.shape[0] > 1:
        hidden = hidden[batches.start - first_batch : batches.stop - first_batch]
    if hidden.shape[1] > 1:
        hidden = hidden[:, heads.start - first_head : heads.stop - first_head]
    return hidden


def pack_rows(t: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """``[b, s_q, h_q, n]`` as contiguous ``[b, heads, s_q, h_q // heads, n]`` in ``dtype``."""
    b, s, h, n = t.shape
    return t.reshape(b, s, heads, h // heads, n).transpose(1, 2).to(dtype).contiguous()


def keys_first(t: Tensor, dtype: torch.dtype) -> Tensor:
    """``[b, s_k, h_kv, n]`` as contiguous ``[b, h_kv, s_k, n]`` in ``dtype``."""
    return t.transpose(1, 2).to(dtype).contiguous()
