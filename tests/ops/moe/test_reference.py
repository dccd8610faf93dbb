"""The oracle against cases worked out by hand."""

from __future__ import annotations

import torch

from fmcore.reference import moe

IDX = (torch.tensor([[0, 1], [3, 0], [-1, -1]]), torch.tensor([[2, -1]]))
WEIGHTS = (torch.tensor([[0.5, 0.25], [1.0, 2.0], [7.0, 7.0]]), torch.tensor([[4.0, 9.0]]))


def test_dispatch_by_hand() -> None:
    xs = [torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[4.0]])]
    first, second = moe.dispatch(xs, IDX, WEIGHTS, 4, expert_alignment=2)
    assert first.src == ((0, 0), (0, 1))
    assert first.topk_idx.tolist() == [[0, 1], [-1, 0]]
    assert first.topk_weights.tolist() == [[0.5, 0.25], [0.0, 2.0]]
    assert first.counts_per_expert == (2, 2)
    assert second.src == ((0, 1), (1, 0))
    assert second.x.tolist() == [[2.0], [4.0]]
    assert second.topk_idx.tolist() == [[1, -1], [0, -1]]
    assert second.counts_per_expert == (2, 2)


def test_combine_by_hand() -> None:
    received = moe.dispatch([torch.zeros(3, 1), torch.zeros(1, 1)], IDX, WEIGHTS, 4)
    ys = [torch.tensor([[10.0], [20.0]]), torch.tensor([[30.0], [40.0]])]
    assert [o.tolist() for o in moe.combine(ys, received, (3, 1))] == [[[10.0], [50.0], [0.0]], [[40.0]]]
    weights = [r.topk_weights for r in received]
    weighted = moe.combine(ys, received, (3, 1), topk_weights=weights)
    assert [o.tolist() for o in weighted] == [[[7.5], [70.0], [0.0]], [[160.0]]]


def test_recipe_rounds_once_and_adds_bias_first() -> None:
    """In bf16, 256 + 1 + 1 is 258 with one rounding and 256 with two; in fp32, 2**24 absorbs a 1 that comes late."""
    idx = (torch.tensor([[0, 1]]), torch.tensor([[-1, -1]]))
    received = moe.dispatch([torch.zeros(1, 1), torch.zeros(1, 1)], idx, None, 2)
    ones = [torch.ones(1, 1, dtype=torch.bfloat16)] * 2
    bias = [[torch.full((1, 1), 256.0, dtype=torch.bfloat16)], [torch.zeros(1, 1, dtype=torch.bfloat16)]]
    assert moe.combine(ones, received, (1, 1), bias=bias)[0].item() == 258.0
    late = [torch.full((1, 1), 2.0**24), torch.full((1, 1), -(2.0**24))]
    early = [[torch.ones(1, 1)], [torch.ones(1, 1)]]
    assert moe.combine(late, received, (1, 1), bias=early)[0].item() == 0.0
    assert moe.combine(late, received, (1, 1), bias=early, exact=True)[0].item() == 1.0
