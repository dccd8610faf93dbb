"""A level is granted on nothing less than its whole must-pass list."""

from __future__ import annotations

import pytest

from fmcore_conformance.levels import Gate, gates, grant, judge
from fmcore_conformance.selection import Selection
from fmcore_conformance.verdicts import Verdict

GATE = Gate("L2", "math", ("math/exact/*",), frozenset({"dtype"}), 2)


@pytest.fixture
def passing(cell):
    return [cell(f"math/exact/add-{i}/float32") for i in range(3)]


def test_all_passing_opens_the_gate(passing):
    assert judge(GATE, passing) == []


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.PASS])
def test_nothing_but_a_pass_or_an_accepted_refusal_counts(passing, cell, verdict):
    assert judge(GATE, [*passing, cell("math/exact/other-1/bool", verdict)]) != []


def test_a_refusal_counts_only_for_accepted_reasons(passing, cell):
    declined = cell("math/exact/other-1/bool", Verdict.UNSUPPORTED_DECLARED, codes=["dtype"])
    assert judge(GATE, [*passing, declined]) == []
    declined.codes = ["dtype", "layout"]
    assert judge(GATE, [*passing, declined]) == ["math/exact/other-1/bool: unsupported_declared"]


def test_an_empty_list_or_one_of_refusals_grants_nothing(cell):
    assert judge(GATE, []) == ["math L2: 0 cases pass, at least 2 must"]
    refused = [cell(f"math/exact/a-{i}/bool", Verdict.UNSUPPORTED_DECLARED, codes=["dtype"]) for i in range(9)]
    assert judge(GATE, refused) == ["math L2: 0 cases pass, at least 2 must"]


def test_levels_build_on_one_another(cell):
    cells = [cell(f"math/exact/a-{i}/float32", level="L2") for i in range(200)]
    found = {g.family: g for g in grant(cells, "L4")}
    assert found["math"].granted is None
    assert found["math"].blocked_at == "L1"


def test_the_level_file_covers_every_family():
    assert {(g.level, g.family) for g in gates()} >= {
        ("L0", "engine"),
        ("L1", "engine"),
        ("L1", "math"),
        ("L2", "attention"),
        ("L3", "attention"),
        ("L4", "moe"),
    }


@pytest.mark.parametrize(
    "why",
    [{"emulated": "stand-ins"}, {"selection": Selection(dtypes=("bool",))}, {"selection": Selection(ops=("math.*",))}],
)
def test_emulated_and_narrowed_runs_grant_nothing(make_statement, cell, why):
    assert make_statement([cell()], **why)["levels"] == {}
    assert make_statement([cell()])["levels"] != {}
