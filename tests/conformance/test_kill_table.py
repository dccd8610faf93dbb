"""Every planted fault is caught by a case that names its kind, and the honest twin passes the very same case."""

from __future__ import annotations

import pytest

from fmcore_conformance import kill
from fmcore_conformance.collect import collect
from fmcore_conformance.execute import execute
from fmcore_conformance.kinds import KINDS
from fmcore_conformance.saboteurs import load, saboteurs, unload
from fmcore_conformance.target import Target
from fmcore_conformance.verdicts import Verdict

# What cannot be planted in a backend of this process: the engine's own tests hold it, or the MoE tests over ranks do.
ELSEWHERE = {
    ("engine", "import-side-effect"): "needs an installed distribution: tests/dispatch",
    ("engine", "probe-silent"): "tests/dispatch",
    ("engine", "claim-unparsable"): "tests/dispatch",
    ("engine", "silent-fallback"): "tests/dispatch",
    ("moe", "one-sided-error"): "needs two ranks: tests/ops/moe/test_saboteurs.py",
}


@pytest.fixture(scope="module")
def cases():
    load()
    yield collect(Target())
    unload()


@pytest.mark.parametrize("family", ["attention", "math", "moe"])
def test_every_saboteur_is_caught(family, cases, record_property):
    faulty = [s for s in saboteurs() if s.family == family and s.kind is not None]
    kills = [kill.hunt(s, cases) for s in faulty]
    record_property("fmcore table", kill.as_text(kills))
    assert not [k.saboteur.name for k in kills if k.case is None]
    by_id = {case.id: case for case in cases}
    honest = Target(f"honest_{family}")
    for case_id in sorted({k.case for k in kills}):
        cell = execute(by_id[case_id], honest)
        assert cell.verdict is Verdict.PASS, f"the honest twin fails {case_id}: {cell.reason}"


def test_every_kind_has_a_saboteur_in_every_family_it_applies_to():
    planted = {(s.family, s.kind) for s in saboteurs()}
    missing = [
        (f, k)
        for k, about in KINDS.items()
        for f in about.families
        if (f, k) not in planted and (f, k) not in ELSEWHERE
    ]
    assert not missing


def test_every_kind_is_named_by_a_case_of_its_family(cases):
    named = {(case.family, kind) for case in cases for kind in case.kinds}
    missing = [
        (f, k)
        for k, about in KINDS.items()
        for f in about.families
        if (f, k) not in named and ("engine", k) not in named
    ]
    assert not missing


def test_ids_have_four_parts_and_levels_cover_them(cases):
    from fmcore_conformance.levels import gates

    ladder = gates()
    for case in cases:
        assert len(case.id.split("/")) == 4, case.id
        covering = [gate for gate in ladder if gate.family == case.family and gate.covers(case.id)]
        assert [gate.level for gate in covering] == [case.level], case.id
