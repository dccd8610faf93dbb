"""On an accelerator: the same plan as on the CPU, without waiting, and inside a captured graph."""

from __future__ import annotations

import pytest
import torch

from fmcore import masks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MASKS = ("causal", "document", "global_sliding", "qk_sparse", "random_eviction")


def same(one, other):
    for name in ("q_partial", "q_full", "k_partial", "k_full", "q_order", "k_order"):
        assert torch.equal(getattr(one, name).cpu(), getattr(other, name).cpu()), name
    assert torch.equal(one.classes().cpu(), other.classes().cpu())


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("tile", [(128, 128), (64, 96)])
def test_the_plan_of_a_device_is_that_of_the_cpu(name, tile):
    mask = masks.benchmark(name, 4096, heads=2)
    same(mask.plan(*tile), mask.plan(*tile, device="cuda"))
    assert mask.plan(*tile, device="cuda") is mask.plan(*tile, device="cuda:0")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # torch calls it a prototype
def test_building_does_not_wait():
    indices = torch.randint(0, 1024, (1, 2, 1024, 1), dtype=torch.int32, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        masks.canonicalize(indices, s_q=1024, s_k=1024, causal=True).plan(128, 128)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # the last capture looks at host objects only
def test_a_captured_plan_follows_new_bounds():
    lts = masks.to_startend_row_indices(masks.causal_document([500, 524]), causal=True).cuda()
    build = lambda: masks.canonicalize(lts, s_q=1024, s_k=1024, causal=True).plan(64, 64)  # noqa: E731
    build()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan = build()
    lts.copy_(masks.to_startend_row_indices(masks.causal_document([100, 924]), causal=True))
    graph.replay()
    same(plan, masks.causal_document([100, 924]).plan(64, 64))
    wrapped = masks.causal_document([100, 924]).planes.cuda()
    masks.Mask.from_planes(wrapped, s_q=1024, mode=1).plan(64, 64)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        one = masks.Mask.from_planes(wrapped, s_q=1024, mode=1)
        assert one is not masks.Mask.from_planes(wrapped, s_q=1024, mode=1)
