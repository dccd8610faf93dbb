"""The suite under pytest, one test per case: ``pytest --pyargs fmcore_conformance --fmcore-backend NAME``."""

from __future__ import annotations

import pytest

from fmcore_conformance.collect import collect
from fmcore_conformance.execute import execute
from fmcore_conformance.model import Case
from fmcore_conformance.selection import Selection, parse_dtypes, parse_fraction, parse_globs, parse_level, split
from fmcore_conformance.target import Target
from fmcore_conformance.verdicts import Verdict

REFUSED = (Verdict.UNSUPPORTED_DECLARED, Verdict.PASSES_UNCLAIMED)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise with the cases that the options ask for."""
    if "conformance_case" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    selection = Selection(
        parse_level(option("--fmcore-level")),
        parse_globs(option("--fmcore-ops")),
        parse_dtypes(option("--fmcore-dtypes")),
        fraction=parse_fraction(option("--fmcore-fraction")),
    )
    chosen, _ = split(collect(Target(option("--fmcore-backend"))), selection)
    metafunc.parametrize("conformance_case", chosen, ids=[case.id for case in chosen])


def test_conformance(conformance_case: Case, request: pytest.FixtureRequest) -> None:
    """A declared refusal is a skip with its reason; everything that is no pass fails."""
    cell = execute(conformance_case, Target(request.config.getoption("--fmcore-backend")))
    if cell.verdict in REFUSED:
        pytest.skip(f"{cell.verdict}: {cell.reason}")
    if cell.verdict is not Verdict.PASS:
        pytest.fail(f"{cell.verdict}: {cell.reason}", pytrace=False)
