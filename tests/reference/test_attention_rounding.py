"""The simulated kernels keep the bounds that they calibrate, and broken ones do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fmcore import masks
from fmcore.reference import attention as oracle
from fmcore.reference.attention_rounding import UNIT, low_precision_simulation, measure

GRADIENT = {torch.bfloat16: 1.0, torch.float16: 2.0, torch.float32: 128.0}
"""c of docs/numerics.md, with floors by terms."""


@pytest.mark.parametrize("dtype", GRADIENT, ids=str)
def test_honest_kernels_keep_the_bounds(dtype: torch.dtype) -> None:
    found = measure(dtype, length=128, seeds=1)
    assert max(found[n] for n in ("dq", "dk", "dv")) <= GRADIENT[dtype]
    assert found["lse"] <= 4.0
    assert found["out"] <= (2.0 if dtype != torch.float32 else 256.0)


def test_low_accumulation_is_told_apart() -> None:
    """A kernel that sums in bfloat16 leaves the forward bound of those that sum in float32."""
    assert measure(torch.bfloat16, low=True, length=128, seeds=1)["out"] > 2.0


def case(dtype: torch.dtype) -> tuple[list[Any], masks.Mask]:
    g = torch.Generator().manual_seed(4)
    tensors = [torch.randn(1, 200, h, 32, generator=g, dtype=torch.float64).to(dtype) for h in (4, 2, 2, 4)]
    return tensors, masks.causal_document([1, 2, 60, 3, 134])


@pytest.mark.parametrize("dtype", GRADIENT, ids=str)
@pytest.mark.parametrize("broken", ["nothing", "delta", "dlse", "scale", "one-key", "head"])
def test_broken_gradients_leave_the_bounds(broken: str, dtype: torch.dtype) -> None:
    (q, k, v, dout), mask = case(dtype)
    dlse = torch.randn(1, 4, 200, generator=torch.Generator().manual_seed(5))
    options: dict[str, Any] = {"softmax_scale": 32**-0.5}
    want = oracle.exact_backward(dout, dlse, q, k, v, mask, **options)[:3]
    floors = oracle.gradient_floors(q, k, v, dout, mask, dlse=dlse, by_terms=True, **options)
    wrong: Any = {"dlse": dlse}
    if broken == "delta":  # delta enters as dlse does, with the other sign
        out, _ = oracle.exact_forward(q, k, v, mask, **options)
        wrong["dlse"] = dlse + (dout.double() * out).sum(-1).transpose(1, 2).float()
    elif broken == "dlse":
        wrong["dlse"] = None
    elif broken == "one-key":
        mask = masks.causal_document([1, 2, 60, 2, 135])
    got = low_precision_simulation(q, k, v, dout, mask, **options, **wrong)
    grads = [got.dq, got.dk, got.dv]
    if broken == "scale":
        grads[0] = grads[0] * 1.05
    elif broken == "head":
        grads[1] = grads[1].flip(2)
    worst = 0.0
    for g, w, floor in zip(grads, want, floors, strict=True):
        error = (g.double() - w).norm(dim=-1) / (w.norm(dim=-1) + floor + 1e-30) / UNIT[dtype]
        worst = max(worst, float(error.max()))
    assert (worst > GRADIENT[dtype]) == (broken != "nothing")
