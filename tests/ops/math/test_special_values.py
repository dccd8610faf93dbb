"""NaN, infinities, signed zeros, branch cuts, integer wrap-around, shifts, rounding, ties, empty arrays."""

from __future__ import annotations

import cmath
import itertools
import math
from fractions import Fraction

import pytest
import torch

import fmcore as fm
from fmcore.math._canon import canonical
from fmcore.reference.math import ORACLE

INF, NAN = math.inf, math.nan
REAL = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-40, 3e38, -3e38]
PARTS = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN]
GRID = [complex(re, im) for re, im in itertools.product(PARTS, PARTS)]


def identical(a, b, rtol):
    """Same NaN places, same infinities, same zero signs, else close."""
    if a.is_complex():
        return identical(a.real, b.real, rtol) & identical(a.imag, b.imag, rtol)
    a, b = a.double(), b.to(a.dtype).double()
    exact = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return (a.isnan() & b.isnan()) | exact | ((a - b).abs() <= rtol * b.abs()) & (b != 0)


def assert_special(name, *tensors):
    for repeat in (1, 8):  # torch's scalar tail and its vector loop differ
        big = [t.repeat(repeat) for t in tensors]
        result, expected = getattr(fm.math, name)(*big, backend="torch"), ORACLE[name](*big)
        good = identical(result, expected, 1e-6)
        assert good.all(), [
            tuple(t[i].item() for t in (*big, result, expected)) for i in (~good).nonzero().flatten()[:5]
        ]


@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "tanh", "sigmoid", "abs", "angle", "negative", "conj", "real", "imag"]
)
def test_unary_real(name):
    assert_special(name, torch.tensor(REAL))


@pytest.mark.parametrize(
    "name",
    [
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "equal",
        "not_equal",
        "less",
        "less_equal",
        "greater",
    ],
)
def test_binary_real(name):
    a, b = (t.reshape(-1) for t in torch.meshgrid(torch.tensor(REAL), torch.tensor(REAL), indexing="ij"))
    if name in ("maximum", "minimum"):  # of two zeros either sign may come
        a, b = a[~((a == 0) & (b == 0))], b[~((a == 0) & (b == 0))]
    assert_special(name, a, b)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "tanh", "abs", "angle", "negative", "conj", "real", "imag"])
def test_unary_complex(name, dtype):
    assert_special(name, torch.tensor(GRID, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "equal", "not_equal"])
def test_binary_complex(name, dtype):
    z = torch.tensor(GRID, dtype=dtype)
    assert_special(name, *(t.reshape(-1) for t in torch.meshgrid(z, z, indexing="ij")))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_branch_cuts_follow_the_sign_of_zero(dtype):
    z = torch.tensor([complex(-4, 0.0), complex(-4, -0.0)], dtype=dtype)
    for name, fn in {"log": cmath.log, "sqrt": cmath.sqrt}.items():
        expected = torch.tensor([fn(v) for v in z.tolist()], dtype=dtype)
        assert identical(getattr(fm.math, name)(z), expected, 1e-6).all()
    assert fm.math.angle(z).tolist() == pytest.approx([math.pi, -math.pi])


def test_complex_over_zero_is_never_finite():
    z = torch.tensor([1 + 2j, -3j, complex(INF, 0), 0j], dtype=torch.complex64)
    result = fm.math.divide(z, torch.zeros(4, dtype=torch.complex64))
    assert not result.isfinite().any()
    assert torch.isnan(torch.view_as_real(result[3])).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_integers_wrap(dtype):
    info = torch.iinfo(dtype)
    top, low = torch.tensor([info.max], dtype=dtype), torch.tensor([info.min], dtype=dtype)
    assert fm.math.add(top, 1).item() == info.min
    assert fm.math.subtract(low, 1).item() == info.max
    assert fm.math.multiply(top, 2).item() == -2
    assert fm.math.negative(low).item() == info.min
    assert fm.math.abs(low).item() == info.min
    assert fm.math.matmul(top, fm.math.astype(torch.tensor([2]), dtype)).item() == -2
    wide = fm.math.sum(torch.stack((top, top)))
    assert (wide.dtype, wide.item()) == (torch.int64, -2 if dtype == torch.int64 else 2 * info.max)
    assert fm.math.sum(torch.stack((top, top)), dtype=dtype).item() == -2


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_shifts_outside_the_width(dtype):
    width = 8 * dtype.itemsize
    counts = torch.tensor([-128, -1, 0, 1, width - 1, width, 127], dtype=dtype)
    for value in (5, -5):
        x = torch.full((), value, dtype=dtype)
        wrap = [0 if not 0 <= c < width else (value << c) % (1 << width) for c in counts.tolist()]
        signed = [v - (1 << width) if v >= 1 << (width - 1) else v for v in wrap]
        assert fm.math.bitwise_left_shift(x, counts).tolist() == signed
        floor = [(-1 if value < 0 else 0) if not 0 <= c < width else value >> c for c in counts.tolist()]
        assert fm.math.bitwise_right_shift(x, counts).tolist() == floor


def nearest(value, dtype):
    """The neighbour of ``value`` in a half dtype by exact integer arithmetic, ties to even."""
    base = torch.tensor([float(value)], dtype=torch.float64).to(dtype).view(torch.int16)
    candidates = [(base + d).view(dtype) for d in (-1, 0, 1)]
    exact = Fraction(value)
    ranked = sorted(candidates, key=lambda c: (abs(Fraction(c.item()) - exact), c.view(torch.int16).item() & 1))
    return ranked[0].item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_to_half_round_once_to_nearest_even(dtype):
    u = 2.0 ** -(7 if dtype == torch.bfloat16 else 10)
    ties = [1 + u / 2, 1 + 3 * u / 2, 1 + u / 2 + 2**-40, 1 + u / 2 - 2**-40, 1 + 3 * u / 2 - 2**-45]
    ties += [-t for t in ties] + [t * 2.0**-14 for t in ties]
    x = torch.tensor(ties, dtype=torch.float64)
    expected = [nearest(t, dtype) for t in ties]
    assert fm.math.astype(x, dtype).tolist() == expected
    assert ORACLE["astype"](x, dtype=dtype).tolist() == expected
    assert x.to(dtype).tolist() != expected, "torch rounds twice: the test would prove nothing"


@pytest.mark.parametrize("source", [torch.int32, torch.int64])
def test_integers_round_once_to_half(source):
    values = [256 + 1, 256 + 3, (1 << 24) + (1 << 16) + 1, (1 << 24) + (1 << 16), -((1 << 24) + (1 << 16) + 1)]
    if source == torch.int64:
        values += [
            (1 << 60) + (1 << 52),
            (1 << 60) + (1 << 52) + 1,
            -(1 << 60) - (1 << 52) - 1,
            (1 << 63) - 1,
            -(1 << 63),
        ]
    x = torch.tensor(values, dtype=source)
    expected = [nearest(v, torch.bfloat16) for v in values]
    assert fm.math.astype(x, torch.bfloat16).tolist() == expected
    assert ORACLE["astype"](x, dtype=torch.bfloat16).tolist() == expected


def test_casts_of_special_values():
    x = torch.tensor([0.0, -0.0, NAN, INF, 1e-45])
    assert fm.math.astype(x, torch.bool).tolist() == [False, False, True, True, True]
    assert fm.math.astype(torch.tensor([0j, 1j, complex(NAN, 0)]), torch.bool).tolist() == [False, True, True]
    assert fm.math.astype(torch.tensor([-2.9, 2.9]), torch.int8).tolist() == [-2, 2]
    assert fm.math.astype(torch.tensor([300, -129]), torch.int8).tolist() == [44, 127]
    assert fm.math.astype(torch.tensor([1e6, -1e6], dtype=torch.float64), torch.float16).tolist() == [INF, -INF]
    assert torch.signbit(fm.math.astype(torch.tensor([-0.0], dtype=torch.float64), torch.bfloat16)).all()
    assert fm.math.astype(torch.tensor([NAN], dtype=torch.float64), torch.bfloat16).isnan().all()


def test_reductions_propagate_nan_and_find_the_first():
    x = torch.tensor([[1.0, NAN, 5.0, NAN], [5.0, 1.0, 5.0, 1.0]])
    assert fm.math.argmax(x, axis=1).tolist() == [1, 0]
    assert fm.math.argmin(x, axis=1).tolist() == [1, 1]
    for name in ("max", "min", "sum", "mean", "prod", "logsumexp"):
        assert getattr(fm.math, name)(x, axis=1).isnan().tolist() == [True, False]
    assert fm.math.any(torch.tensor([0.0, NAN])).item()
    assert fm.math.argmax(torch.full((70,), 3, dtype=torch.int8)).item() == 0


def test_logsumexp_and_softmax_at_infinity():
    x = torch.tensor([[-INF, -INF], [-INF, 1.0], [INF, 1.0], [1e4, 1e4]])
    assert fm.math.logsumexp(x, axis=1).tolist() == [-INF, 1.0, INF, pytest.approx(1e4 + math.log(2), rel=1e-6)]
    y = fm.math.softmax(x)
    assert y.isnan().any(1).tolist() == [True, False, True, False]
    assert y[1].tolist() == [0.0, 1.0]
    assert fm.math.logsumexp(torch.full((3,), 6e4, dtype=torch.float16)).item() == 60000


def test_reductions_of_nothing():
    x = torch.ones(0, 3)
    assert fm.math.sum(x, axis=0).tolist() == [0.0] * 3
    assert fm.math.prod(x).item() == 1.0
    assert fm.math.mean(x, axis=0).isnan().all()
    assert fm.math.logsumexp(x).item() == -INF
    assert (fm.math.any(x).item(), fm.math.all(x).item()) == (False, True)
    assert fm.math.cumulative_sum(x[:, 0], include_initial=True).tolist() == [0.0]
    assert fm.math.argmax(x, axis=1).shape == (0,)
    assert fm.math.max(x, axis=1).shape == (0,)
    assert fm.math.matmul(torch.ones(2, 0), torch.ones(0, 2)).tolist() == [[0.0, 0.0]] * 2


def test_gate_ties_go_to_the_lower_index_and_nan_ranks_first():
    logits = torch.tensor([[1.0] * 64, [0.0] * 63 + [1.0]])
    assert fm.math.topk_gate(logits, 4)[1].tolist() == [[0, 1, 2, 3], [63, 0, 1, 2]]
    assert fm.math.topk_gate(torch.tensor([0.0, NAN, 2.0]), 2)[1].tolist() == [1, 2]
    bias = torch.tensor([0.0] * 60 + [1.0] * 4)
    assert fm.math.topk_gate(logits[0], 5, bias=bias)[1].tolist() == [60, 61, 62, 63, 0]


def test_gate_weights_survive_underflow():
    logits = torch.tensor([-1000.0, -1001.0, -INF])
    weights, indices = fm.math.topk_gate(logits, 2, score="sigmoid")
    assert indices.tolist() == [0, 1]
    assert weights.tolist() == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.e)], rel=1e-6)
    tensors, params = canonical("topk_gate", (logits, 2), {"score": "sigmoid"})
    assert ORACLE["topk_gate"](*tensors, **params)[0].tolist() == pytest.approx(weights.tolist(), rel=1e-6)
