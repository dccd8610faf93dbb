"""Gradients of every differentiable op, in float64 and complex128, by finite differences."""

from __future__ import annotations

import pytest
import torch

import fmcore as fm
from fmcore.ops.math import OPS, TORCH

DOUBLE = [(n, d) for n, op in OPS.items() if op.gradients for d in ("float64", "complex128") if op.support(d) is True]


def distinct(name, dtype, values):
    """Arguments without ties or zeros, where every op is differentiable."""
    x = values(dtype, 3, 4) + (0 if dtype.is_complex else torch.arange(12, dtype=dtype).reshape(3, 4) * 1e-3)
    if name in ("log", "sqrt") and not dtype.is_complex:
        x = x.abs() + 0.5
    y = values(dtype, 4, seed=3)
    rows = values(dtype, 1, 3, 2, 4)
    angles = torch.linspace(0, 2, 6, dtype=torch.float64).reshape(3, 2)
    turn = torch.polar(torch.ones_like(angles), angles) if not dtype.is_complex else values(dtype, 3, 4)
    special = {
        "where": ((torch.tensor([[True], [False], [True]]), x, y), {}),
        "astype": ((x, torch.complex128), {}),
        "cumulative_sum": ((x,), {"axis": -1, "include_initial": True}),
        "matmul": ((x, values(dtype, 4, 2)), {}),
        "grouped_matmul": ((x, values(dtype, 3, 4, 2), torch.tensor([1, 1, 2])), {}),
        "rms_norm": ((x, y), {}),
        "rotary": ((rows, angles[:, :1].cos(), angles[:, :1].sin()), {"interleaved": True}),
        "rotary_complex": ((rows, turn), {}),
        "topk_gate": ((x, 2), {"renormalize": False}),
        "irfft": ((x,), {"n": 5}),
        "fft": ((x,), {"n": 5, "norm": "ortho"}),
    }
    if name in special:
        return special[name]
    if OPS[name].kind == "reduction":
        return (x,), {"axis": 1}
    return ((x, y) if len(OPS[name].roles) == 2 else (x,)), {}


@pytest.mark.parametrize(("name", "dtype"), DOUBLE)
def test_gradcheck(name, dtype, values):
    args, kwargs = distinct(name, TORCH[dtype], values)
    args = tuple(
        a.clone().requires_grad_() if isinstance(a, torch.Tensor) and (a.is_floating_point() or a.is_complex()) else a
        for a in args
    )

    def call(*tensors):
        result = getattr(fm.math, name)(*tensors, **kwargs, backend="torch")
        return result[0] if isinstance(result, tuple) else result

    assert torch.autograd.gradcheck(call, args)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_gate_gradient_reaches_logits_and_never_the_bias(score, renormalize, values):
    logits = values(torch.float64, 4, 6).requires_grad_()
    bias = values(torch.float64, 6, seed=9)

    def weights(x):
        return fm.math.topk_gate(x, 3, score=score, renormalize=renormalize, bias=bias, scale=2.0)[0]

    assert torch.autograd.gradcheck(weights, (logits,))
    bias.requires_grad_()
    fm.math.topk_gate(logits, 3, score=score, bias=bias)[0].sum().backward()
    assert bias.grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_gradients_are_those_of_float64_rounded(dtype, values):
    for name, args in {
        "rms_norm": (values(dtype, 4, 32), values(dtype, 32)),
        "swiglu": (values(dtype, 4, 32), values(dtype, 4, 32, seed=2)),
        "softmax": (values(dtype, 4, 32),),
        "sum": (values(dtype, 4, 32),),
        "grouped_matmul": (values(dtype, 6, 8), values(dtype, 2, 8, 4), torch.tensor([2, 6])),
    }.items():
        low = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
        high = [a.double().requires_grad_() if a.is_floating_point() else a for a in args]
        weight = values(torch.float64, *getattr(fm.math, name)(*low).shape, seed=5).to(dtype)
        getattr(fm.math, name)(*low).backward(weight)
        getattr(fm.math, name)(*high).backward(weight.double())
        for a, b in zip(low, high, strict=True):
            if a.requires_grad:
                assert a.grad.dtype == dtype
                assert (a.grad.double() - b.grad).norm() <= 2.0 ** (
                    -8 if dtype == torch.bfloat16 else -11
                ) * b.grad.norm()


def test_a_cast_to_half_is_differentiable(values):
    x = values(torch.float64, 5).requires_grad_()
    fm.math.astype(x, torch.bfloat16).sum().backward()
    assert torch.equal(x.grad, torch.ones(5, dtype=torch.float64))


def test_ops_without_a_gradient_return_constants(values):
    x = values(torch.float32, 3, 4).requires_grad_()
    for result in (fm.math.argmax(x), fm.math.less(x, 0), fm.math.any(x), fm.math.topk_gate(x, 2)[1]):
        assert not result.requires_grad
    y = fm.math.angle(x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_ties_share_the_gradient_evenly():
    x = torch.tensor([2.0, 2.0, 1.0], requires_grad=True)
    fm.math.max(x).backward()
    assert x.grad.tolist() == [0.5, 0.5, 0.0]
