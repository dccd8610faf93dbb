"""The walk that a plan becomes: it covers the visible tiles, each once, and no others."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
import torch

from fmcore import masks
from fmcore_torch.attention import schedule as module
from fmcore_torch.attention.schedule import schedule


def random_mask(s_q: int, s_k: int, seed: int, *, batch: int = 1, heads: int = 1) -> masks.Mask:
    g = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, s_q + 1, (batch, heads, s_k, 4), generator=g, dtype=torch.int32)
    indices = indices.sort(-1).values[..., [2, 3, 0, 1]]
    runs = torch.arange(s_k) // 23 * 23  # neighbours alike, so that whole tiles are skipped or full
    return masks.canonicalize(indices[:, :, runs], s_q=s_q, s_k=s_k, causal=False)


@pytest.mark.parametrize("width", [1, 10, 40, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_every_visible_pair_is_walked_once_and_masked_where_it_must_be(seed: int, width: int) -> None:
    s_q, s_k = (90, 101), (77, 130)
    mask = random_mask(s_q[seed % 2], s_k[seed % 2], seed, batch=1 + seed % 2, heads=1 + seed // 2)
    visible = mask.dense()
    met = torch.zeros_like(visible, dtype=torch.int32)
    unmasked = torch.zeros_like(visible)
    for group in schedule(mask.plan(8, 10), mask.s_q, mask.s_k, width):
        for tile in group.tiles:
            for segment in tile.segments:
                columns = [j for a, b in segment.ranges for j in range(a, b)]
                assert len(columns) == segment.width <= max(width, 10)
                assert columns == sorted(set(columns))
                met[group.batches, group.heads, tile.first : tile.stop, columns] += 1
                clear = set(columns)
                for offset, first, stop in segment.partial:
                    assert columns[offset : offset + stop - first] == list(range(first, stop))
                    clear -= set(range(first, stop))
                unmasked[group.batches, group.heads, tile.first : tile.stop, sorted(clear)] = True
    assert int(met.max()) == 1
    assert bool(met[visible].all())  # nothing visible is missed
    assert bool(visible[unmasked].all())  # nothing hidden goes without the mask


def test_no_tile_without_visible_keys_is_listed() -> None:
    mask = masks.degenerate("one_row", 64)
    (group,) = schedule(mask.plan(8, 8), 64, 64, 16)
    assert [t.first for t in group.tiles] == [32]
    assert group.visited == 8


def test_heads_share_a_walk_only_when_it_is_cheap() -> None:
    def ends(*lengths: int) -> masks.Mask:
        lts = torch.stack([(torch.arange(256) // n + 1).mul(n).clamp(max=256) for n in lengths]).to(torch.int32)
        return masks.canonicalize(lts.view(1, -1, 256, 1), s_q=256, s_k=256, causal=True)

    def groups(mask: masks.Mask) -> list[Any]:
        found = schedule(mask.plan(16, 16), 256, 256, 64)
        return [(g.batches, g.heads) for g in found]

    assert groups(ends(256, 255, 256, 250)) == [(slice(0, 1), slice(0, 4))]
    assert groups(ends(256, 16, 16, 16)) == [(slice(0, 1), slice(h, h + 1)) for h in range(4)]
    per_batch = masks.Mask(torch.cat([ends(256, 256).planes, ends(16, 16).planes]), s_q=256, mode=1)
    assert groups(per_batch) == [(slice(n, n + 1), slice(0, 2)) for n in range(2)]
    per_head = masks.Mask(torch.cat([ends(256, 16).planes] * 2), s_q=256, mode=1)
    assert groups(per_head) == [(slice(0, 2), slice(h, h + 1)) for h in range(2)]


def test_schedules_live_as_long_as_their_plan() -> None:
    mask = random_mask(64, 64, 0)
    before = len(module._KEPT)
    first = schedule(mask.plan(8, 8), 64, 64, 32)
    assert schedule(mask.plan(8, 8), 64, 64, 32) is first
    assert schedule(mask.plan(8, 8), 64, 64, 64) is not first
    assert len(module._KEPT) == before + 1
    del mask
    gc.collect()
    assert len(module._KEPT) == before


def test_neighbouring_tiles_are_one_range() -> None:
    (group,) = schedule(masks.causal(64).plan(8, 8), 64, 64, 1000)
    for tile, rows in zip(group.tiles, itertools.count(), strict=False):
        (segment,) = tile.segments
        assert segment.ranges == ((0, 8 * (rows + 1)),)
        assert segment.partial == ((8 * rows, 8 * rows, 8 * rows + 8),)
