"""The same cells on an accelerator, whichever torch sees: the rung promises any device."""

from __future__ import annotations

import pytest
import torch

import fmcore as fm
from fmcore.math._canon import canonical
from fmcore.ops.math import SUPPORTED, TORCH
from fmcore.reference.math import ORACLE

CELLS = [(op, dtype) for op, row in SUPPORTED.items() for dtype, v in row.items() if v is True]


def moved(value, device):
    return value.to(device) if isinstance(value, torch.Tensor) else value


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no device that torch calls cuda")
def test_a_running_sum_is_reproducible_when_asked():
    x = torch.randn(4, 100_000, device="cuda", requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (fm.math.cumulative_sum(x, axis=1) for _ in range(2))
        first.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no device that torch calls cuda")
@pytest.mark.parametrize(("name", "dtype"), CELLS)
def test_matches_the_oracle_on_the_accelerator(name, dtype, calls, check):
    for args, kwargs in calls(name, TORCH[dtype]):
        there = {k: moved(v, "cuda") for k, v in kwargs.items()}
        result = getattr(fm.math, name)(*(moved(a, "cuda") for a in args), **there, backend="torch")
        tensors, params = canonical(name, args, kwargs)
        many = result if isinstance(result, tuple) else (result,)
        assert all(r.device.type == "cuda" for r in many)
        back = tuple(r.cpu() for r in many)
        check(name, back if isinstance(result, tuple) else back[0], ORACLE[name](*tensors, **params), tensors, params)
