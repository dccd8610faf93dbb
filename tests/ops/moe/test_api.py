"""What the calls refuse, and what handles promise; one process."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

import fmcore as fm
from fmcore.errors import InvalidInputError, UnsupportedError

IDX = torch.tensor([[0, 2], [1, -1], [-1, -1]])
WEIGHTS = torch.tensor([[0.5, 0.25], [1.0, 9.0], [9.0, 9.0]])


def sent(**options: object) -> fm.moe.Dispatched:
    x = torch.arange(6.0).reshape(3, 2)
    return fm.moe.dispatch(x, fm.moe.layout(IDX, 4), IDX, WEIGHTS, **{"backend": "torch", **options})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fm.moe.layout(IDX[0], 4), "shape (2,), want [T, K]"),
        (lambda: fm.moe.layout(IDX.short(), 4), "want torch.int32 or torch.int64"),
        (lambda: fm.moe.layout(IDX, 0), "want a positive integer"),
        (lambda: fm.moe.layout(IDX, 2), "1 value(s) outside [-1, 2)"),
        (lambda: fm.moe.layout(IDX, 4, group="world"), "group is str"),
        (lambda: fm.moe.layout([[0]], 4), "topk_idx must be a torch tensor"),
        (lambda: fm.moe.dispatch(torch.ones(3, 2), IDX), "want the Layout"),
        (lambda: fm.moe.dispatch(torch.ones(2, 2), fm.moe.layout(IDX, 4)), "want 3 rows"),
        (lambda: fm.moe.dispatch(torch.ones(3), fm.moe.layout(IDX, 4)), "want [T, H]"),
        (lambda: fm.moe.dispatch((torch.ones(3, 2),), fm.moe.layout(IDX, 4)), "tuple of 1"),
        (lambda: fm.moe.dispatch((torch.ones(3, 2), torch.ones(2)), fm.moe.layout(IDX, 4)), "scales has shape (2,)"),
        (lambda: fm.moe.dispatch(torch.ones(3, 2), fm.moe.layout(IDX, 4), None, WEIGHTS), "give both or neither"),
        (lambda: fm.moe.dispatch(torch.ones(3, 2), fm.moe.layout(IDX, 4), IDX, WEIGHTS[:, :1]), "topk_weights is"),
        (lambda: fm.moe.dispatch(torch.ones(3, 2), fm.moe.layout(IDX, 4), IDX[:1]), "want int32 or int64 of [3, K]"),
        (lambda: sent(expert_alignment=0), "expert_alignment is 0"),
        (lambda: sent(expert_alignment="8"), "expert_alignment is '8', want a positive integer"),
        (lambda: sent(num_worst_tokens=4.0), "num_worst_tokens is 4.0, want 0"),
        (lambda: sent(timeout="soon"), "timeout is 'soon', want a positive number"),
        (lambda: fm.moe.dispatch(torch.ones(3, 2), fm.moe.layout(IDX, 4), IDX[0, 0]), "want int32 or int64 of [3, K]"),
        (lambda: sent(num_worst_tokens=-1), "num_worst_tokens is -1"),
        (lambda: sent(num_worst_tokens=1), "would receive 2 rows, but its num_worst_tokens is 1"),
        (lambda: fm.moe.dispatch(torch.ones(3, 2), sent().handle, IDX), "takes no topk_idx"),
        (lambda: fm.moe.dispatch(torch.ones(3, 2), sent().handle, expert_alignment=8), "takes no expert_alignment"),
        (lambda: fm.moe.combine(torch.ones(3, 2), sent().handle), "y has shape (3, 2), want [2, H]"),
        (lambda: fm.moe.combine(torch.ones(2, 2, 2), sent().handle), "want [2, H]"),
        (lambda: fm.moe.combine(torch.ones(2, 2), "handle"), "handle is str"),
        (lambda: fm.moe.combine(torch.ones(2, 2), sent().handle, weighted=True), "needs topk_weights"),
        (lambda: fm.moe.combine(torch.ones(2, 3, 2), sent().handle, torch.ones(2, 2), weighted=True), "K = 2"),
        (lambda: fm.moe.combine(torch.ones(2, 2), sent().handle, bias=[torch.ones(3, 2)] * 3), "at most two"),
        (lambda: fm.moe.combine(torch.ones(2, 2), sent().handle, bias=torch.ones(2, 2)), "bias is"),
        (lambda: fm.moe.combine(torch.ones(2, 2), sent().handle, bias=torch.ones(3, 2).half()), "bias is"),
        (lambda: fm.moe.combine(torch.ones(2, 2), sent().handle, backend="cpu"), "made by 'torch/local'"),
    ],
)  # fmt: skip
def test_refusals_say_what_is_wrong(call: object, words: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(words)):
        call()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_rows_without_a_sum_are_refused_with_a_reason(dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedError, match="no sum"):
        fm.moe.combine(torch.ones(2, 2).to(dtype), sent().handle)


def test_handles_cannot_be_changed() -> None:
    handle = sent().handle
    with pytest.raises(dataclasses.FrozenInstanceError):
        handle.num_rows = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        handle.state.token_of_row = None


def test_weights_never_act_without_the_flag() -> None:
    d = sent()
    plain, slots = fm.moe.combine(d.x, d.handle, d.topk_weights)
    assert torch.equal(plain, torch.tensor([[0.0, 1.0], [2.0, 3.0], [0.0, 0.0]]))
    assert torch.equal(slots, torch.tensor([[0.5, 0.25], [1.0, 0.0], [0.0, 0.0]]))
    weighted, _ = fm.moe.combine(d.x, d.handle, d.topk_weights, weighted=True)
    assert torch.equal(weighted, torch.tensor([[0.0, 0.75], [2.0, 3.0], [0.0, 0.0]]))


def test_a_foreign_slot_may_hold_nan() -> None:
    d = sent()
    y = torch.ones(2, 2, 2)
    y[1, 1] = float("nan")
    y.requires_grad_()
    w = d.topk_weights.clone().requires_grad_()
    out, _ = fm.moe.combine(y, d.handle, w, weighted=True)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(y.grad).all()
    assert torch.isfinite(w.grad).all()


def test_second_derivatives() -> None:
    layout = fm.moe.layout(IDX, 4)

    def loss(x: torch.Tensor) -> torch.Tensor:
        d = fm.moe.dispatch(x, layout)
        return fm.moe.combine(d.x**3, d.handle)[0]

    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, x)
    assert torch.autograd.gradgradcheck(loss, x)


def test_explain_names_the_world() -> None:
    decision = fm.explain("moe.combine", torch.ones(2, 2), sent().handle)
    assert decision.selected is not None
    assert decision.selected.id == sent().handle.impl


def test_scales_and_weights_get_gradients() -> None:
    scales = torch.ones(3, 1, requires_grad=True)
    d = fm.moe.dispatch((torch.ones(3, 4, dtype=torch.int8), scales), fm.moe.layout(IDX, 4))
    d.x[1].sum().backward()
    assert torch.equal(scales.grad, torch.tensor([[1.0], [1.0], [0.0]]))
