"""Made-up cells and statements."""

from __future__ import annotations

import pytest

from fmcore_conformance import environment, statement
from fmcore_conformance.model import Cell
from fmcore_conformance.selection import Selection
from fmcore_conformance.verdicts import Verdict


@pytest.fixture
def cell():
    def make(case_id="math/dtypes/add-call/float32", verdict=Verdict.PASS, **more):
        family, _, name, dtype = case_id.split("/")
        op = {"attention": "flashmask_attention", "moe": "moe.dispatch"}.get(family, f"{family}.{name.split('-')[0]}")
        return Cell(case_id, op, dtype, more.pop("level", "L1"), verdict, **more)

    return make


@pytest.fixture
def make_statement():
    def make(cells, *, backend="cpu", selection=None, emulated="", **more):
        facts = {
            "source": {"commit": "0123456789abcdef", "dirty": True},
            "distributions": {"python": "3.11"},
            "device": {"torch_device": "cpu", "name": "a chip", "arch": "x"},
            "backends": [
                {
                    "name": "cpu",
                    "vendor": "cpu",
                    "band": "native",
                    "distribution": "d 1.0",
                    "state": "available",
                    "reason": "<b>r</b>",
                }
            ],
            "switches": environment.switches(),
        }
        return statement.build(
            cells,
            backend=backend,
            selection=selection or Selection(),
            facts=facts,
            emulated=emulated,
            started="2026-01-01T00:00:00+00:00",
            seconds=1.0,
            **more,
        )

    return make
