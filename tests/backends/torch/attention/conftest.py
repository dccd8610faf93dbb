"""Inputs, masks and the yardstick for the framework rung of attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fmcore import masks
from fmcore.reference import attention as oracle
from fmcore_torch.attention import tiles
from fmcore_torch.attention.arithmetic import Arithmetic, arithmetic

UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.float64: 2.0**-53}


@dataclasses.dataclass
class Call:
    """One call with everything it needs; ``how`` picks small tiles, so that small inputs have many."""

    q: Any
    k: Any
    v: Any
    dout: Any
    dlse: Any
    mask: Any
    options: dict[str, Any]
    how: Arithmetic | None = None

    def run(self) -> tuple[Any, ...]:
        """out, lse, dq, dk, dv, dsink."""
        out, lse = tiles.forward(self.q, self.k, self.v, self.mask, how=self.how, **self.options)
        arguments = self.dout, self.dlse, self.q, self.k, self.v, out, lse, self.mask
        return out, lse, *tiles.backward(*arguments, how=self.how, **self.options)

    def check(self) -> tuple[Any, ...]:
        """Hold every result to the oracle: 2 u (half) or 64 u for out, 4 u or 256 u for gradients, over the floors."""
        found = self.run()
        out, lse, dq, dk, dv, dsink = found
        dtype = self.q.dtype
        half = dtype in (torch.float16, torch.bfloat16)
        want, want_lse = oracle.exact_forward(self.q, self.k, self.v, self.mask, **self.options)
        grads = oracle.exact_backward(self.dout, self.dlse, self.q, self.k, self.v, self.mask, **self.options)
        floors = oracle.gradient_floors(self.q, self.k, self.v, self.dout, self.mask, dlse=self.dlse, **self.options)
        assert (out.dtype, out.shape) == (dtype, want.shape)
        assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        terms, _ = oracle.exact_forward(self.q, self.k, self.v.abs(), self.mask, **self.options)  # what may cancel
        worst(out, want, terms.norm(dim=-1), 2 if half else 64, dtype, "out")
        assert torch.equal(lse.isinf(), want_lse.isinf())
        close = lse.nan_to_num(neginf=0.0).double(), want_lse.nan_to_num(neginf=0.0)
        torch.testing.assert_close(*close, rtol=0, atol=1e-12 if dtype == torch.float64 else 2e-5)
        for name, got, grad, floor in zip(("dq", "dk", "dv"), (dq, dk, dv), grads, floors, strict=False):
            assert (got.dtype, got.shape) == (dtype, grad.shape), name
            worst(got, grad, grad.norm(dim=-1) + floor, 4 if half else 256, dtype, name)
        assert (dsink is None) == (self.options.get("sink") is None)
        if dsink is not None:
            assert dsink.dtype == self.options["sink"].dtype
            scale = float(grads[3].abs().max()) + 1.0
            torch.testing.assert_close(
                dsink.double(), grads[3].double(), rtol=0, atol=200 * scale * max(UNIT[dtype], UNIT[dsink.dtype])
            )
        return found


def worst(got: Any, want: Any, size: Any, units: float, dtype: torch.dtype, name: str) -> None:
    """Row-wise L2 error within ``units`` of u; a row of size 0 must be exactly 0."""
    assert not got.isnan().any(), name
    error = (got.double() - want).norm(dim=-1)
    assert not error[size == 0].any(), name
    ratio = (error / (size + 1e-30) / UNIT[dtype]).flatten()
    if ratio.numel():
        assert float(ratio.max()) <= units, f"{name}: {float(ratio.max()):.1f} u in row {int(ratio.argmax())}"


SMALL = {"block_q": 16, "block_k": 16, "width": 48, "pairs": 16 * 48 * 4}


@pytest.fixture
def make() -> Callable[..., Call]:
    """Build a call: sizes, dtype, mask, and options of the op."""

    def build(
        mask: Any = None,
        *,
        b: int = 2,
        s_q: int = 100,
        s_k: int = 100,
        h_q: int = 4,
        h_kv: int = 2,
        d: int = 16,
        dv: int = 24,
        dtype: torch.dtype = torch.float32,
        small: bool = True,
        sink: bool = False,
        dlse: bool = True,
        **options: Any,
    ) -> Call:
        g = torch.Generator().manual_seed(7)
        mask = mask or masks.causal(s_q, s_k)
        s_q, s_k = mask.s_q, mask.s_k

        def normal(*shape: int) -> Any:
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        tensors = [normal(b, s_q, h_q, d), normal(b, s_k, h_kv, d), normal(b, s_k, h_kv, dv), normal(b, s_q, h_q, dv)]
        options = {"softmax_scale": d**-0.5, "softcap": 0.0, **options}
        options["sink"] = normal(h_q).float() if sink else None
        own = normal(b, h_q, s_q).to(torch.float64 if dtype == torch.float64 else torch.float32) if dlse else None
        how = dataclasses.replace(arithmetic(dtype, torch.device("cpu")), **SMALL) if small else None
        return Call(*(t.to(dtype) for t in tensors), own, mask, options, how)

    return build
