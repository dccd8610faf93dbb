"""Fake and meta tensors, torch.compile, functional transforms; layouts and aliasing of eager results."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import fmcore as fm
from fmcore.ops.math import OPS, SUPPORTED, TORCH

CELLS = [
    (op, d)
    for op, row in SUPPORTED.items()
    for d in ("bool", "int8", "bfloat16", "float32", "complex64")
    if row[d] is True
]


def to(value, device):
    return value.to(device) if isinstance(value, torch.Tensor) else value


def described(result):
    return [(tuple(r.shape), r.dtype, r.stride()) for r in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize(("name", "dtype"), CELLS)
def test_fake_and_meta_agree_with_eager(name, dtype, calls):
    function = getattr(fm.math, name)
    for args, kwargs in calls(name, TORCH[dtype])[:4]:
        real = described(function(*args, **kwargs))
        extra = {k: to(v, "meta") for k, v in kwargs.items()}
        assert described(function(*(to(a, "meta") for a in args), **extra)) == real
        with FakeTensorMode() as mode:
            fake = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
            extra = {k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
            assert described(function(*fake, **extra)) == real
        declared = OPS[name].fake
        from fmcore.math._canon import canonical

        tensors, params = canonical(name, args, kwargs)
        assert described(declared(*tensors, **params)) == real


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.support("float32") is True])
def test_results_are_new_memory(name, calls):
    args, kwargs = calls(name, torch.float32)[0]
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    result = getattr(fm.math, name)(*args, **kwargs)
    for r in result if isinstance(result, tuple) else (result,):
        assert all(r.data_ptr() != a.data_ptr() for a in args if isinstance(a, torch.Tensor))
        r.fill_(1)
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(args, before, strict=True))


def test_compiles_whole_with_gradients():
    def step(x, w, ends):
        y = fm.math.rms_norm(x)
        weights, _ = fm.math.topk_gate(y, 2)
        z = fm.math.grouped_matmul(y, w, ends)
        half = fm.math.astype(fm.math.add(y.to(torch.float64), 1.5), torch.bfloat16)
        return (
            fm.math.sum(weights)
            + fm.math.sum(z)
            + fm.math.sum(half, dtype=torch.float32)
            + fm.math.sum(fm.math.abs(fm.math.rfft(x, n=5)))
        )

    g = torch.Generator().manual_seed(0)
    x, w = torch.randn(3, 4, generator=g, requires_grad=True), torch.randn(2, 4, 5, generator=g, requires_grad=True)
    ends = torch.tensor([1, 3])
    eager = step(x, w, ends)
    want = torch.autograd.grad(eager, (x, w))
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(x, w, ends)
    got = torch.autograd.grad(compiled, (x, w))
    assert torch.allclose(compiled, eager)
    assert all(torch.allclose(a, b) for a, b in zip(got, want, strict=True))


def test_functional_gradient_and_jacobian():
    x = torch.tensor([0.5, -1.0, 2.0])
    assert torch.allclose(torch.func.grad(lambda v: fm.math.sum(fm.math.exp(v)))(x), x.exp())
    jacobian = torch.func.jacrev(lambda v: fm.math.softmax(v, axis=0))(x)
    p = x.softmax(0)
    assert torch.allclose(jacobian, torch.diag(p) - torch.outer(p, p), atol=1e-6)


def test_explain_takes_the_calls_own_arguments():
    decision = fm.explain("math.sum", torch.ones(2, 3), axis=-1)
    assert decision.impl.backend == "torch"


def test_autocast_changes_no_dtype_and_no_value(values):
    x = values(torch.float32, 4, 4)
    ends = torch.tensor([1, 4])
    functions = {
        "matmul": lambda: fm.math.matmul(x, x),
        "grouped": lambda: fm.math.grouped_matmul(x, torch.stack((x, x)), ends),
        "softmax": lambda: fm.math.softmax(x),
        "meta": lambda: fm.math.matmul(x.to("meta"), x.to("meta")).new_zeros(1, device="cpu"),
    }
    for name, function in functions.items():
        plain = function()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(function(), plain), name


def test_autocast_leaves_gradients_in_their_dtype(values):
    x, w = values(torch.float32, 4, 4).requires_grad_(), values(torch.float32, 2, 4, 4).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = fm.math.sum(fm.math.grouped_matmul(x, w, torch.tensor([1, 4])))
        under = torch.autograd.grad(loss, (x, w))
    loss = fm.math.sum(fm.math.grouped_matmul(x, w, torch.tensor([1, 4])))
    assert all(torch.equal(a, b) for a, b in zip(under, torch.autograd.grad(loss, (x, w)), strict=True))


def test_export_keeps_a_free_length():
    class Module(torch.nn.Module):
        def forward(self, x, y):
            return fm.math.sum(fm.math.add(fm.math.rms_norm(x), y), axis=-1)

    length = torch.export.Dim("length")
    program = torch.export.export(Module(), (torch.ones(3, 4), torch.ones(4)), dynamic_shapes=({0: length}, None))
    x = torch.arange(28.0).reshape(7, 4)
    assert torch.allclose(program.module()(x, torch.ones(4)), Module()(x, torch.ones(4)))


def test_vmap_gives_the_batched_result(values):
    x = values(torch.float64, 3, 5)
    assert torch.equal(torch.func.vmap(fm.math.softmax)(x), fm.math.softmax(x))
    halves = torch.func.vmap(lambda row: fm.math.astype(row, torch.bfloat16))(x)
    assert torch.equal(halves, fm.math.astype(x, torch.bfloat16))
