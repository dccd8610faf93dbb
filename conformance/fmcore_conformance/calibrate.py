"""Where the attention constants come from: ``python -m fmcore_conformance.calibrate`` measures honest recipes.

Each recipe is what a good kernel does, written out on whole matrices: products accumulated in fp32 (float64 for
float64), the probabilities and their gradients rounded to the inputs' dtype before they enter a product (as matrix
units need them) or kept wide, results rounded once, ``delta`` taken from the rounded output. The backward bounds are a
power of two of at least twice the worst value measured here over masks, head dims and seeds (bfloat16: the policy's
own), because kernels sum in other orders than a matrix library does.
"""

# ruff: noqa: T201 (this module is a program)

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import torch

from fmcore_conformance.cases import attention_inputs as inputs
from fmcore_conformance.cases import attention_masks, attention_oracle
from fmcore_conformance.measure import row_guard, wide
from fmcore_conformance.target import Target
from fmcore_conformance.tolerances import ATTENTION_BACKWARD, ATTENTION_FORWARD, UNIT, score_floor

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Worst:
    """Largest error seen, in u over (row norm + floor), by quantity."""

    units: dict[str, float] = field(default_factory=dict)

    def see(self, name: str, got: Tensor, want: Tensor, floor: Tensor, dtype: str) -> None:
        size = want.norm(dim=-1) + floor + row_guard(dtype, want.shape[-1])
        error = (wide(got) - want).norm(dim=-1) / size / UNIT[dtype]
        self.units[name] = max(self.units.get(name, 0.0), float(error.max()))


def recipe(call: inputs.Call, dout: Tensor, *, rounded: bool) -> tuple[Tensor, ...]:
    """One honest forward and backward pass; returns out, dq, dk, dv."""
    dtype = call.q.dtype
    accumulate = torch.float64 if dtype == torch.float64 else torch.float32
    seen = call.visible()
    Q, K, V, dO = (x.to(accumulate).transpose(1, 2) for x in (call.q, call.k, call.v, dout))

    def entering(x: Tensor) -> Tensor:
        return x.to(dtype).to(accumulate) if rounded else x

    s = (call.scale * (Q @ K.transpose(-1, -2))).masked_fill(~seen, -torch.inf)
    top = s.amax(-1, keepdim=True).masked_fill(~seen.any(-1, keepdim=True), 0.0)
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True)
    safe = total.masked_fill(total == 0, 1.0)
    out = (entering(e) @ V / safe).to(dtype)
    p = e / safe
    delta = (dO * out.to(accumulate)).sum(-1, keepdim=True)
    ds = p * (dO @ V.transpose(-1, -2) - delta)
    dq = call.scale * (entering(ds) @ K)
    dk = call.scale * (entering(ds).transpose(-1, -2) @ Q)
    dv = entering(p).transpose(-1, -2) @ dO
    return tuple(x.to(dtype).transpose(1, 2) for x in (out, dq, dk, dv))


def measure(dtype: str, seeds: int) -> Worst:
    """The worst of every mask, three head dims and ``seeds`` seeds, with and without the intermediate rounding."""
    worst = Worst()
    for seed, mask, d, rounded in product(range(seeds), attention_masks.BY_NAME, (32, 64, 128), (False, True)):
        target = Target(seed=seed)
        call = inputs.make(target, f"calibrate {mask} {d}", mask, inputs.Size(s_q=120, s_k=120, d=d), dtype)
        dout = inputs.normal(target.generator("dout"), *call.q.shape, dtype=dtype)
        out, dq, dk, dv = recipe(call, dout, rounded=rounded)
        ref = attention_oracle.forward(call.q, call.k, call.v, call.visible(), scale=call.scale)
        back = attention_oracle.backward(ref, call.q, call.k, call.v, dout, dtype=dtype)
        scores = score_floor(dtype) * ref.out.norm(dim=-1) * ref.max_terms.transpose(1, 2)
        worst.see("out", out, ref.out, scores, dtype)
        worst.see("dq", dq, back.dq, back.floor_q, dtype)
        worst.see("dk", dk, back.dk, back.floor_k, dtype)
        worst.see("dv", dv, back.dv, back.floor_v, dtype)
    return worst


def main() -> None:
    """Print the table of docs/conformance.md."""
    parser = argparse.ArgumentParser(description="Measure the honest recipes behind the attention bounds.")
    parser.add_argument("--seeds", type=int, default=1)
    seeds = parser.parse_args().seeds
    print("| dtype | out | bound | dq | dk | dv | bound |\n|---|---|---|---|---|---|---|")
    for dtype, bound in ATTENTION_FORWARD.items():
        u = measure(dtype, seeds).units
        errors = " | ".join(f"{u[name]:.3g}" for name in ("dq", "dk", "dv"))
        print(f"| {dtype} | {u['out']:.3g} | {bound:g} | {errors} | {ATTENTION_BACKWARD[dtype]:g} |", flush=True)


if __name__ == "__main__":
    main()
