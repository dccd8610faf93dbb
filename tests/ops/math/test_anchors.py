"""The oracle itself, anchored by loops in pure Python over a few numbers."""

from __future__ import annotations

import cmath
import math
from fractions import Fraction

import pytest
import torch

from fmcore.ops.math import OPS
from fmcore.reference.math import ORACLE, rounded
from fmcore.reference.math._wide import round_to, total, wrap

X = [0.75, -1.5, 2.25, 3.0, -0.125]
Z = [1 + 2j, -0.5j, 3 - 1j, -2 + 0.25j, 0.5 + 0j]


def close(a, b):
    return a == pytest.approx(b, rel=1e-14, abs=1e-14)


def test_elementwise():
    x, z = torch.tensor(X), torch.tensor(Z)
    for name, fn in {
        "exp": math.exp,
        "tanh": math.tanh,
        "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
        "abs": abs,
    }.items():
        assert close(ORACLE[name](x).tolist(), [fn(v) for v in X])
    for name, fn in {
        "exp": cmath.exp,
        "log": cmath.log,
        "sqrt": cmath.sqrt,
        "tanh": cmath.tanh,
        "abs": abs,
        "angle": cmath.phase,
        "conj": lambda v: v.conjugate(),
    }.items():
        got = ORACLE[name](z).tolist()
        assert all(cmath.isclose(g, fn(v), rel_tol=1e-14) for g, v in zip(got, Z, strict=True))
    assert ORACLE["divide"](z, z.flip(0)).tolist() == pytest.approx([a / b for a, b in zip(Z, Z[::-1], strict=True)])


def test_integers_wrap_like_python_modulo():
    a, b = torch.tensor([127, -128, 77], dtype=torch.int8), torch.tensor([2, -1, 99], dtype=torch.int8)
    for name, fn in {"add": int.__add__, "subtract": int.__sub__, "multiply": int.__mul__}.items():
        assert ORACLE[name](a, b).tolist() == [
            (fn(p, q) + 128) % 256 - 128 for p, q in zip(a.tolist(), b.tolist(), strict=True)
        ]
    assert wrap(torch.tensor([1 << 31]), torch.int32).item() == -(1 << 31)


def test_sums_are_nearly_exact():
    x = torch.tensor([1e16, 1.0, -1e16, 1e-3] * 50, dtype=torch.float64)
    assert total(x).item() == pytest.approx(float(sum(Fraction(v) for v in x.tolist())), rel=1e-15)
    assert total(torch.tensor([math.inf, 1.0])).item() == math.inf
    x = torch.tensor(X)
    assert close(
        ORACLE["cumulative_sum"](x, axis=0, dtype=torch.float32, include_initial=False).tolist(),
        [math.fsum(X[: i + 1]) for i in range(5)],
    )
    assert close(ORACLE["prod"](x, axis=(0,), dtype=torch.float32, keepdims=False).item(), math.prod(X))
    assert close(ORACLE["logsumexp"](x, axis=(0,), keepdims=False).item(), math.log(math.fsum(map(math.exp, X))))
    assert close(ORACLE["softmax"](x, axis=0).tolist(), [math.exp(v) / math.fsum(map(math.exp, X)) for v in X])
    assert ORACLE["argmax"](x, axis=None, keepdims=False).item() == 3


def test_matmul():
    a, b = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(3, 4) / 8
    expected = [[math.fsum(a[i, k].item() * b[k, j].item() for k in range(3)) for j in range(4)] for i in range(2)]
    assert ORACLE["matmul"](a, b).tolist() == expected
    x = torch.arange(8.0).reshape(4, 2)
    w = torch.stack((torch.eye(2), 2 * torch.eye(2)))
    assert ORACLE["grouped_matmul"](x, w, torch.tensor([1, 3])).tolist() == [[0, 1], [4, 6], [8, 10], [0, 0]]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_fourier(n):
    z = [(Z * 2)[j] for j in range(n)]
    expected = [sum(z[j] * cmath.exp(-2j * cmath.pi * j * k / n) for j in range(n)) for k in range(n)]
    got = ORACLE["fft"](torch.tensor(z), n=n, axis=0, norm="backward")
    assert all(abs(g - e) < 1e-13 for g, e in zip(got.tolist(), expected, strict=True))
    back = ORACLE["ifft"](got, n=n, axis=0, norm="backward").tolist()
    assert all(abs(g - e) < 1e-13 for g, e in zip(back, z, strict=True))
    x = torch.tensor([v.real for v in z])
    half = ORACLE["rfft"](x, n=n, axis=0, norm="ortho")
    assert ORACLE["irfft"](half, n=n, axis=0, norm="ortho").tolist() == pytest.approx(x.tolist(), abs=1e-13)


def test_language_model_ops():
    x = torch.tensor([X[:4]])
    root = math.sqrt(math.fsum(v * v for v in X[:4]) / 4 + 1e-6)
    assert close(ORACLE["rms_norm"](x, None, eps=1e-6).tolist()[0], [v / root for v in X[:4]])
    rows, c, s = x.reshape(1, 1, 1, 4), torch.tensor([[0.6, 0.8]]), torch.tensor([[0.8, 0.6]])
    turned = ORACLE["rotary"](rows, c.double(), s.double(), interleaved=False).flatten().tolist()
    c, s = c.double()[0].tolist(), s.double()[0].tolist()
    assert close(
        turned,
        [X[0] * c[0] - X[2] * s[0], X[1] * c[1] - X[3] * s[1], X[0] * s[0] + X[2] * c[0], X[1] * s[1] + X[3] * c[1]],
    )
    pair = ORACLE["rotary_complex"](rows, torch.tensor([[1j, -1]])).flatten().tolist()
    assert close(pair, [-X[1], X[0], -X[2], -X[3]])
    weights, indices = ORACLE["topk_gate"](x, None, k=2, score="softmax", renormalize=False, scale=3.0)
    assert indices.tolist() == [[3, 2]]
    assert close(weights.tolist()[0], [3 * math.exp(v) / math.fsum(map(math.exp, X[:4])) for v in (3.0, 2.25)])


def test_rounding_reaches_the_declared_dtype():
    assert set(ORACLE) == set(OPS)
    assert (
        rounded("sum")(torch.ones(3, dtype=torch.bfloat16), axis=(0,), dtype=torch.bfloat16, keepdims=False).dtype
        == torch.bfloat16
    )
    assert round_to(
        torch.tensor([65519.0, 65520.0, 2.0**-25, 2.0**-24 * 1.5], dtype=torch.float64), torch.float16
    ).tolist() == [
        65504.0,
        math.inf,
        0.0,
        2.0**-23,
    ]
