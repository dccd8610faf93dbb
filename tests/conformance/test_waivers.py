"""Waivers excuse for a while, with a reason, and never help a level."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from fmcore_conformance.verdicts import Verdict
from fmcore_conformance.waivers import WaiverError, apply, load, parse, version_matches

TODAY = date(2026, 3, 1)


def table(**changes):
    made = {
        "id": "math/exact/*",
        "url": "https://example.org/1",
        "owner": "someone",
        "reason": "a known defect",
        "versions": ">=1.0,<2",
        "expires": TODAY + timedelta(days=30),
    }
    return {**made, **changes}


def judged(cell, today=TODAY, version="1.5"):
    cells, unused = apply([cell], [parse(table(), TODAY)], backend="cpu", version=version, today=today)
    return cells[0], unused


def test_a_failure_is_waived_until_the_day(cell):
    failing = cell("math/exact/add-1/bool", Verdict.FAIL, reason="wrong")
    found, unused = judged(failing)
    assert found.verdict is Verdict.WAIVED
    assert "example.org" in found.reason
    assert "wrong" in found.reason
    assert not unused
    assert judged(failing, today=TODAY + timedelta(days=31))[0].verdict is Verdict.WAIVER_EXPIRED


def test_a_passing_waived_case_is_reported(cell):
    assert judged(cell("math/exact/add-1/bool"))[0].verdict is Verdict.XPASS


def test_other_versions_and_ids_are_not_covered(cell):
    failing = cell("math/exact/add-1/bool", Verdict.FAIL)
    assert judged(failing, version="2.0")[0].verdict is Verdict.FAIL
    found, unused = judged(cell("math/fft/fft-1/bool", Verdict.FAIL))
    assert found.verdict is Verdict.FAIL
    assert len(unused) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": ""}, "lacks url"),
        ({"expires": TODAY + timedelta(days=181)}, "more than 180 days"),
        ({"expires": "soon"}, "must be a TOML date"),
        ({"versions": "1.x"}, "must start with"),
        ({"nonsense": 1}, "unknown fields nonsense"),
    ],
)
def test_a_bad_waiver_is_refused(changes, words):
    with pytest.raises(WaiverError, match=words):
        parse(table(**changes), TODAY)


def test_the_file(tmp_path):
    path = tmp_path / "waivers.toml"
    path.write_text('[[waiver]]\nid = "a"\nurl = "u"\nowner = "o"\nreason = "r"\nversions = ""\nexpires = 2026-03-05\n')
    with pytest.raises(WaiverError, match="lacks versions"):
        load(path, TODAY)
    path.write_text(path.read_text().replace('versions = ""', 'versions = ">=0"'))
    assert load(path, TODAY)[0].expires == date(2026, 3, 5)


def test_versions():
    assert version_matches("1.10.0", ">=1.9,!=1.11,<2")
    assert not version_matches("1.9", ">=1.10")
    assert version_matches("2.0", "==2")
