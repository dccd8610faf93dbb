"""Accumulation and large operands: where low precision or a wrong algorithm would show."""

from __future__ import annotations

import pytest
import torch

import fmcore as fm
from fmcore_torch.math import linalg, reductions

U = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["sum", "mean", "logsumexp"])
def test_a_long_axis(name, dtype):
    x = torch.rand(2, 40000, generator=torch.Generator().manual_seed(0)).to(dtype)
    got = getattr(fm.math, name)(x, axis=1).double()
    want = getattr(fm.math, name)(x.double(), axis=1)
    assert ((got - want).abs() <= max(U[dtype], 200 * 2.0**-24) * want.abs()).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_running_sum_in_half_does_not_stall(dtype):
    x = torch.ones(6000, dtype=dtype)
    got = fm.math.cumulative_sum(x).double()
    assert ((got - torch.arange(1.0, 6001)).abs() <= U[dtype] * got).all()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 13])
def test_the_scan_of_fixed_order(size):
    x = torch.randn(2, size, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    assert torch.allclose(reductions.doubling_scan(x, 1), x.cumsum(1), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", ["sum", "prod", "cumulative_sum"])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.bool, torch.int8),
        (torch.bool, torch.float32),
        (torch.int8, torch.int8),
        (torch.int64, torch.int32),
        (torch.int32, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float64),
        (torch.float64, torch.bfloat16),
        (torch.float32, torch.complex64),
        (torch.complex64, torch.complex128),
    ],
)
def test_an_asked_dtype(name, source, target, against_oracle):
    x = (torch.arange(24).reshape(4, 6) % 5 - 2).to(source)
    result = against_oracle(name, (x,), {"axis": 1, "dtype": target})
    assert result.dtype == target


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_matmul_accumulates_wider_than_half(dtype):
    g = torch.Generator().manual_seed(1)
    a, b = torch.randn(8, 4096, generator=g).to(dtype), torch.randn(4096, 8, generator=g).to(dtype)
    want = a.double() @ b.double()
    bound = U[dtype] + 4 * 64 * 2.0**-24
    pairs = [(fm.math.matmul(a, b), want), (fm.math.matmul(a[0], b), want[0]), (fm.math.matmul(a, b[:, 0]), want[:, 0])]
    grouped = fm.math.grouped_matmul(a, torch.stack((b, b)), torch.tensor([3, 8]))
    for got, reference in (*pairs, (grouped, want)):
        assert (got.double() - reference).norm() <= bound * reference.norm()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize("shapes", [((3, 50), (50, 4)), ((50,), (50, 4)), ((2, 3, 50), (50,)), ((2, 0), (0, 3))])
def test_integer_products_by_limbs_are_exact(dtype, shapes):
    info = torch.iinfo(dtype)
    g = torch.Generator().manual_seed(2)
    a, b = (torch.randint(info.min, info.max, s, generator=g).to(dtype) for s in shapes)
    for x in (a, b):
        if x.numel():
            x.view(-1)[0], x.view(-1)[1] = info.min, info.max
    assert torch.equal(linalg.limb_matmul(a, b), torch.matmul(a, b))


def test_limbs_are_summed_in_exact_pieces(monkeypatch):
    monkeypatch.setattr(linalg, "EXACT_TERMS", 7)
    a, b = torch.full((2, 30), -(1 << 31), dtype=torch.int32), torch.full((30, 2), (1 << 31) - 1, dtype=torch.int32)
    assert torch.equal(linalg.limb_matmul(a, b), torch.matmul(a, b))


@pytest.mark.parametrize("n", [61, 97, 127, 128, 1009])
def test_fourier_of_longer_primes(n, against_oracle):
    z = torch.randn(n, dtype=torch.complex64, generator=torch.Generator().manual_seed(n))
    if n < 200:
        against_oracle("fft", (z,), {})
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    assert torch.allclose(fm.math.irfft(fm.math.rfft(x), n=n), x, atol=1e-5)
