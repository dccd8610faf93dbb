"""The way with half factors and float32 sums, whose product this machine's CPU does not have: emulated here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fmcore import masks
from fmcore_torch.attention import arithmetic as module
from fmcore_torch.attention.arithmetic import arithmetic, sums_half_products

CPU = torch.device("cpu")
REAL_BMM = torch.bmm


@pytest.fixture(autouse=True)
def _ask_again() -> Iterator[None]:
    sums_half_products.cache_clear()
    yield
    sums_half_products.cache_clear()


def wide_bmm(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """What a device does that multiplies half numbers with float32 sums."""
    if out_dtype is None:
        return REAL_BMM(a, b)
    assert a.dtype == b.dtype
    assert a.dtype in (torch.float16, torch.bfloat16)
    return REAL_BMM(a.float(), b.float()).to(out_dtype)


def lossy_bmm(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """Claims float32 sums but rounds to the input's dtype on the way."""
    return REAL_BMM(a, b).to(out_dtype)


def absent_bmm(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    raise NotImplementedError("no kernel")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("bmm", "able"), [(wide_bmm, True), (lossy_bmm, False), (absent_bmm, False)])
def test_a_device_is_asked_by_a_sum_that_rounding_would_spoil(
    bmm: Any, able: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.torch, "bmm", bmm)
    assert sums_half_products(CPU, dtype) is able


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"softcap": 1.5, "sink": True}])
def test_half_factors_keep_the_bounds(
    options: dict[str, Any], dtype: torch.dtype, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.torch, "bmm", wide_bmm)
    call = make(masks.causal_document([30, 1, 60, 2, 107]), dtype=dtype, **options)
    call.how = dataclasses.replace(call.how, operand=dtype)
    call.check()


def test_the_cpu_multiplies_in_the_dtype_of_the_sums() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert arithmetic(dtype, CPU).operand == torch.float32
    assert arithmetic(torch.float64, CPU).sums == torch.float64
