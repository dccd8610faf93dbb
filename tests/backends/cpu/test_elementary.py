"""The kernels' own exponential and tanh, in units in the last place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fmcore_cpu import _native

pytestmark = pytest.mark.usefixtures("kernels")


def apply(name: str, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    getattr(_native.kernels(), name)(x.data_ptr(), y.data_ptr(), x.numel())
    return y


def ulps(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest error in units in the last place of the correctly rounded float32 result."""
    near = want.float().abs()
    step = torch.nextafter(near, torch.full_like(near, torch.inf)) - near
    return ((got.double() - want).abs() / step.double()).max().item()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(
    ("name", "function", "low", "high", "bound"),
    [
        ("exp2_f32", torch.exp2, -126.0, 0.0, 1.5),
        ("exp2_f32", torch.exp2, 0.0, 126.0, 1.5),
        ("exp2_f32", torch.exp2, -1.0, 1.0, 1.5),
        ("tanh_f32", torch.tanh, -1.0, 1.0, 2.5),
        ("tanh_f32", torch.tanh, -20.0, 20.0, 2.5),
        ("tanh_f32", torch.tanh, -1e-3, 1e-3, 2.5),
    ],
)
def test_error(
    name: str, function: Callable[[torch.Tensor], torch.Tensor], low: float, high: float, bound: float
) -> None:
    x = torch.linspace(low, high, 200_001)
    assert ulps(apply(name, x), function(x.double())) <= bound


@pytest.mark.usefixtures("isa")
def test_special_values() -> None:
    inf, nan = torch.inf, torch.nan
    got = apply("exp2_f32", torch.tensor([-inf, -1e30, -127.0, 0.0, -0.0, nan, 1e30]))
    assert got[:5].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert got[5].isnan()
    assert got[6] == 2.0**127
    got = apply("tanh_f32", torch.tensor([-inf, inf, 0.0, -0.0, nan]))
    assert got[:4].tolist() == [-1.0, 1.0, 0.0, 0.0]
    assert got[4].isnan()
