"""Plans against dense masks cut into tiles, on the path for the CPU and on the one for devices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_oracle import classes_by_tiles, smooth_bounds
from torch.utils._python_dispatch import TorchDispatchMode

from fmcore import masks
from fmcore.errors import InvalidInputError
from fmcore.masks import plan as plan_module
from fmcore.masks import plan_torch
from fmcore.masks.plan_torch import build_plan_torch

TILES = st.sampled_from([16, 32, 48, 64, 96, 128, 160, 192, 256])
ODD_TILES = st.integers(1, 70)


class NoWaiting(TorchDispatchMode):
    """Refuses what would make the host wait for a device, or a size depend on data."""

    FORBIDDEN = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "unique",
        "is_nonzero",
        "equal",
        "index.Tensor_bool",
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if any(f".{word}" in name for word in self.FORBIDDEN):
            raise AssertionError(f"{name} waits for the device")
        if "aten.index" in name and any(
            getattr(a, "dtype", None) is torch.bool for a in args[1:2] if not isinstance(a, list)
        ):
            raise AssertionError(f"{name} by a bool mask waits for the device")
        return func(*args, **(kwargs or {}))


def as_on_a_device(mask, block_q, block_k):
    """The plan by the path of devices, on CPU tensors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_torch, "may_look", lambda device: False)
        with NoWaiting():
            return build_plan_torch(mask, mask.planes, mask.block_mask, block_q, block_k)


def check(plan, mask, block_q, block_k):
    want = classes_by_tiles(mask.dense(), block_q, block_k)
    assert torch.equal(plan.classes(), want)
    assert (plan.nq, plan.nk) == tuple(want.shape[-2:])
    check_lists(plan.q_partial, plan.q_full, plan.q_tiles, plan.q_order, want)
    check_lists(plan.k_partial, plan.k_full, plan.k_tiles, plan.k_order, want.transpose(-1, -2))
    assert plan.visited == int((want > 0).sum())
    assert plan.tile_area == pytest.approx((want > 0).float().mean().item())
    assert plan.exact_area == pytest.approx(mask.dense().float().mean().item(), abs=1e-6)


def check_lists(partial, full, tiles, order, classes):
    assert partial.dtype == full.dtype == order.dtype == torch.int32
    assert torch.equal(partial, (classes == 1).sum(-1))
    assert torch.equal(full, (classes == 2).sum(-1))
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in classes.shape[:3])).tolist():
        row = classes[b, h, t]
        want = (row == 1).nonzero().flatten().tolist() + (row == 2).nonzero().flatten().tolist()
        assert tiles[b, h, t, : len(want)].tolist() == want
    work = (partial + full).flatten(0, 1)
    for row, ranks in zip(work.tolist(), order.flatten(0, 1).tolist(), strict=True):
        assert ranks == sorted(range(len(row)), key=lambda t, row=row: -row[t])


@settings(max_examples=25, deadline=None)
@given(smooth_bounds(), TILES, TILES)
def test_classes_and_lists_are_those_of_the_dense_mask(case, block_q, block_k):
    indices, causal, s_q = case
    mask = masks.canonicalize(indices, s_q=s_q, s_k=indices.shape[2], causal=causal)
    check(mask.plan(block_q, block_k), mask, block_q, block_k)
    check(as_on_a_device(mask, block_q, block_k), mask, block_q, block_k)


@settings(max_examples=25, deadline=None)
@given(smooth_bounds(max_size=80), ODD_TILES, ODD_TILES)
def test_any_tile_size(case, block_q, block_k):
    indices, causal, s_q = case
    mask = masks.canonicalize(indices, s_q=s_q, s_k=indices.shape[2], causal=causal)
    check(mask.plan(block_q, block_k), mask, block_q, block_k)
    check(as_on_a_device(mask, block_q, block_k), mask, block_q, block_k)


@settings(max_examples=15, deadline=None)
@given(smooth_bounds(max_size=420), TILES, TILES, st.integers(0, 999))
def test_block_masks_are_classified_exactly_on_any_tile(case, block_q, block_k, seed):
    indices, causal, s_q = case
    s_k, heads = indices.shape[2], indices.shape[1]
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(1, heads, -(-s_q // 128), -(-s_k // 128), generator=generator) > 0.3
    mask = masks.canonicalize(indices, s_q=s_q, s_k=s_k, causal=causal, block_mask=keep)
    check(mask.plan(block_q, block_k), mask, block_q, block_k)
    check(as_on_a_device(mask, block_q, block_k), mask, block_q, block_k)


@pytest.mark.parametrize("strip", [1, 7, 50])
def test_strips_of_any_size_give_the_same_plan(strip, monkeypatch):
    indices = torch.randint(0, 90, (2, 3, 90, 4), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    mask = masks.canonicalize(indices, s_q=90, s_k=90, causal=False)
    monkeypatch.setattr(plan_torch, "STRIP_CPU", strip)
    monkeypatch.setattr(plan_torch, "STRIP_DEVICE", strip)
    check(mask.plan(16, 16), mask, 16, 16)
    check(as_on_a_device(mask, 16, 16), mask, 16, 16)


@pytest.mark.parametrize(("s_q", "s_k"), [(0, 0), (0, 5), (5, 0)])
def test_empty_masks_have_empty_plans(s_q, s_k):
    for mask in (masks.causal(s_q, s_k), masks.all_masked(s_q, s_k)):
        plan = mask.plan(4, 4)
        assert plan.tile_area == plan.exact_area == 0.0
        assert plan.q_order.flatten().tolist() == list(range(plan.nq))
        assert plan.k_order.flatten().tolist() == list(range(plan.nk))
        assert int(plan.q_work.sum()) == int(plan.k_work.sum()) == 0


def test_lists_are_int16_where_that_fits_and_cost_4_bytes_per_tile_pair():
    plan = masks.causal(2048).plan(16, 16)
    assert plan.q_tiles.dtype == plan.k_tiles.dtype == torch.int16
    pairs = plan.nq * plan.nk
    assert plan.nbytes <= 4 * pairs + 6 * 4 * max(plan.nq, plan.nk)
    assert plan_torch.list_dtype(1 << 15) == torch.int16
    assert plan_torch.list_dtype((1 << 15) + 1) == torch.int32


def test_more_than_int16_tiles():
    mask = masks.sliding_window(33000, window=3)
    plan = mask.plan(16500, 1)
    assert plan.q_tiles.dtype == torch.int32
    assert plan.q_partial[0, 0].tolist() == [16500, 16502]
    assert plan.q_tiles[0, 0, 1, [0, 16501]].tolist() == [16498, 32999]


def test_plans_are_kept_per_tile_size_and_rebuilt_when_the_planes_change():
    mask = masks.causal_document([40, 60])
    plan = mask.plan(16, 32)
    assert mask.plan(16, 32) is plan
    assert mask.plan(32, 16) is not plan
    mask.planes[:, :, 1].fill_(100)  # against the rules, but seen
    again = mask.plan(16, 32)
    assert again is not plan
    assert torch.equal(again.classes(), masks.causal(100).plan(16, 32).classes())


def test_what_is_kept_with_a_mask_follows_its_planes():
    mask = masks.causal_document([40, 60])
    assert mask.plan(16, 16).exact_area == mask.exact_area() != masks.causal(100).exact_area()
    there = mask.to("meta")
    mask.planes[:, :, 1].fill_(100)
    assert mask.exact_area() == mask.plan(16, 16).exact_area == masks.causal(100).exact_area()
    assert mask.to("meta") is not there
    for _ in range(5):
        mask.planes.add_(0)
        mask.plan(16, 16)
    assert len(mask._plans) == 1  # those of planes that are gone are gone


def test_tiles_and_rows_may_be_as_large_as_int32_and_larger():
    mask = masks.causal_document([40, 60])
    for tile in (100, 2**31 - 1, 2**31, 2**40):
        check(mask.plan(tile, 16), mask, 100, 16)
        check(mask.plan(16, tile), mask, 16, 100)
    keep = masks.with_block_mask(masks.causal(300), torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 1]]).int()[None, None])
    assert keep.plan(2**40, 2**40).classes().tolist() == [[[[1]]]]
    s_q = 2**31 - 2
    lts = torch.tensor([s_q - 1, 5], dtype=torch.int32).view(1, 1, 2, 1)
    plan = masks.canonicalize(lts, s_q=s_q, s_k=2, causal=True).plan(2**28, 128)
    assert plan.q_partial.flatten().tolist() == [0, 0, 0, 0, 0, 0, 0, 1]
    assert plan.k_tiles.flatten().tolist()[:1] == [7]


def test_planes_seen_before_yield_the_same_mask_and_plan():
    planes = masks.causal_document([40, 60]).planes.clone()
    mask = masks.Mask.from_planes(planes, s_q=100, mode=1)
    assert masks.Mask.from_planes(planes, s_q=100, mode=1) is mask
    plan = mask.plan(16, 16)
    del mask
    again = masks.Mask.from_planes(planes, s_q=100, mode=1)
    assert again.plan(16, 16) is plan
    assert plan.exact_area == again.exact_area()
    assert masks.Mask.from_planes(planes, s_q=101, mode=1) is not again
    planes[0, 0, 1, 0] = 7
    changed = masks.Mask.from_planes(planes, s_q=100, mode=1)
    assert changed is not again
    assert changed.plan(16, 16) is not plan


def test_another_block_mask_is_another_mask_even_at_the_same_address():
    planes = masks.causal(256).planes.clone()

    def wrap(keep):
        blocks = torch.tensor(keep, dtype=torch.int32).view(1, 1, 2, 2)
        return masks.Mask.from_planes(planes, s_q=256, mode=1, block_mask=blocks).plan(128, 128).visited

    assert [wrap(keep) for keep in ([1, 0, 1, 1], [1, 0, 0, 1], [1, 0, 0, 0])] == [3, 2, 1]
    blocks = torch.ones(1, 1, 2, 2, dtype=torch.int32)
    mask = masks.Mask.from_planes(planes, s_q=256, mode=1, block_mask=blocks)
    assert masks.Mask.from_planes(planes, s_q=256, mode=1, block_mask=blocks) is mask
    blocks[0, 0, 1, 0] = 0
    assert masks.Mask.from_planes(planes, s_q=256, mode=1, block_mask=blocks).plan(128, 128).visited == 2


def test_planes_may_die():
    planes = masks.causal(50).planes.clone()
    plan = masks.Mask.from_planes(planes, s_q=50, mode=1).plan(16, 16)
    del planes
    with pytest.raises(RuntimeError, match="Mask of this plan is gone"):
        _ = plan.exact_area


def test_a_mask_made_in_inference_mode_serves_training():
    with torch.inference_mode():
        mask = masks.causal_document([3, 4])
    assert not mask.planes.is_inference()
    assert mask.plan(4, 4).visited == 3


@pytest.mark.parametrize("tile", [0, -16, 2.0, True, None])
def test_a_tile_size_that_is_none_is_refused(tile):
    with pytest.raises(InvalidInputError, match="block_q must be a positive int"):
        masks.causal(8).plan(tile, 16)


def test_block_masks_want_tiles_of_16():
    mask = masks.with_block_mask(masks.causal(200), torch.ones(1, 1, 2, 2, dtype=torch.int32))
    with pytest.raises(InvalidInputError, match="multiples of 16, got block_q=16, block_k=24"):
        mask.plan(16, 24)


def test_one_builder_holds_a_device_type(monkeypatch):
    monkeypatch.setattr(plan_module, "_BUILDERS", {})
    masks.register_plan_builder("meta", build_plan_torch, name="a")
    masks.register_plan_builder("meta", build_plan_torch, name="a")
    assert masks.plan_builders() == {"meta": "a"}
    with pytest.raises(InvalidInputError, match="'b' wants device type 'meta', which 'a' holds"):
        masks.register_plan_builder("meta", build_plan_torch, name="b")


def test_the_registered_builder_is_asked_on_its_device_alone(monkeypatch):
    asked = []

    def builder(mask, planes, block_mask, block_q, block_k):
        asked.append(planes.device.type)
        return build_plan_torch(mask, torch.zeros(planes.shape, dtype=torch.int32), block_mask, block_q, block_k)

    monkeypatch.setattr(plan_module, "_BUILDERS", {})
    masks.register_plan_builder("meta", builder, name="a")
    masks.register_plan_builder("cpu", builder, name="a")
    mask = masks.causal_document([3, 4])
    mask.plan(4, 4)
    mask.plan(4, 4, "meta")
    assert asked == ["meta"]
