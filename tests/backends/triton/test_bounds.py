"""The bounds of the device check: an honest kernel in simulation keeps them, broken ones do not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")

sys.path.insert(0, str(Path(__file__).parents[3] / "backends" / "triton" / "tools"))
try:
    from cases import Case, judge, make_mask, operands
finally:
    sys.path.pop(0)

from fmcore.reference.attention_rounding import Simulation, low_precision_simulation

CASES = [
    Case(kind="random1", b=2, s_q=200, s_k=200, h_q=12, h_kv=3, mask_heads="kv", mask_batch=True),
    Case(kind="causal_doc", s_q=300, s_k=300, d=128, dv=128, scale=-0.2),
    Case(kind="causal_doc", s_q=300, s_k=300, d=128, dv=128, magnitude=6.0),
    Case(kind="band", s_q=257, s_k=200, d=128, dv=64, softcap=5.0, sink=True, dlse=True),
    Case(kind="document", s_q=200, s_k=200, dtype="float16", dlse=True),
    Case(kind="document", s_q=200, s_k=200, dtype="float32", dlse=True),
]


def simulated(case, **changes) -> Simulation:
    x, mask = operands(case, "cpu"), make_mask(replace(case, **changes), "cpu")
    options = {"softmax_scale": x.scale, "softcap": case.softcap, "sink": x.sink, "dlse": x.dlse}
    return low_precision_simulation(x.q, x.k, x.v, x.dout, mask, **options)


def ratios(case, found: Simulation):
    judged = judge(case, operands(case, "cpu"), found.out, found.lse, (found.dq, found.dk, found.dv, None))
    return {name: value for name, value in judged.ratios.items() if name != "dsink"}  # which is not simulated


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_an_honest_kernel_keeps_the_bounds(case):
    assert max(ratios(case, simulated(case)).values()) <= 1.0


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
@pytest.mark.parametrize("case", CASES[1:3], ids=lambda c: c.name)
def test_a_gradient_off_by_a_few_percent_leaves_them(case, name):
    found = simulated(case)
    wrong = replace(found, **{name: getattr(found, name) * 1.06})
    assert ratios(case, wrong)[name] > 1.0


def test_another_mask_leaves_them():
    case = Case(kind="sliding", s_q=300, s_k=300)
    assert max(ratios(case, simulated(case)).values()) <= 1.0
    found = ratios(case, simulated(case, kind="causal"))
    assert min(found[name] for name in ("out", "dq", "dk", "dv")) > 1.0
