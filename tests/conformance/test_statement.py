"""Statements: checksum, comparison, renderers; a plugin's text is text."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from fmcore_conformance import compare, statement
from fmcore_conformance.render import html, junit, markdown
from fmcore_conformance.verdicts import Verdict

EVIL = "</p><script>alert('x')</script> | & \x07 `code`"


@pytest.fixture
def made(make_statement, cell):
    cells = [
        cell(measured=1.0, bound=4.0, unit="u", what="out", headroom=4.0, ms=1.5),
        cell("math/dtypes/add-call/bool", Verdict.UNSUPPORTED_DECLARED, reason="no", codes=["dtype"]),
        cell("attention/probe/count-causal/bfloat16", Verdict.FAIL, reason=EVIL, kinds=["key-dropped"]),
        cell("moe/local/C1/any", Verdict.CRASH, reason="died"),
        cell("math/exact/add-1/int8", Verdict.NOT_RUN, reason="left out"),
    ]
    return make_statement(cells)


def test_written_read_and_tampered_with(made, tmp_path):
    path = tmp_path / "statement.json"
    statement.write(made, path)
    assert statement.read(path)["sha256"] == made["sha256"]
    changed = json.loads(path.read_text())
    next(c for c in changed["cells"] if c["verdict"] == "fail")["verdict"] = "pass"
    path.write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="do not match their checksum"):
        statement.read(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="no cells"):
        statement.read(path)


def test_html_escapes_and_needs_nothing_from_elsewhere(made):
    page = html.render(made)
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    assert "<b>r</b>" not in page
    assert 'src="' not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "fmcore conform run --backend cpu --level L1 --cases attention/probe/count-causal/bfloat16" in page
    assert "key-dropped" in page


def test_junit_says_what_was_skipped_and_parses(made):
    root = ET.fromstring(junit.render(made))
    suites = {suite.get("name"): suite for suite in root}
    assert suites["math"].get("tests") == "3"
    assert suites["math"].get("skipped") == "2"
    assert suites["attention"].get("failures") == "1"
    assert suites["moe"].get("errors") == "1"
    assert "alert" in suites["attention"].find(".//failure").get("message")


def test_markdown_cannot_be_broken_by_text(made):
    page = markdown.render(made)
    assert "<script>" not in page.replace("\\<script\\>", "")
    assert "\\| &" in page
    assert "with local changes" in page


def test_comparison(make_statement, cell):
    def one(verdict, headroom=8.0, name="a"):
        return cell(f"math/exact/add-{name}/float32", verdict, headroom=headroom)

    older = make_statement(
        [
            one(Verdict.PASS),
            one(Verdict.PASS, name="b"),
            one(Verdict.FAIL, name="c"),
            one(Verdict.PASS, name="d"),
            one(Verdict.PASS, name="e"),
        ]
    )
    newer = make_statement(
        [
            one(Verdict.FAIL),
            one(Verdict.PASS, 3.9, name="b"),
            one(Verdict.PASS, name="c"),
            one(Verdict.PASS, 4.1, name="e"),
        ]
    )
    found = compare.compare(older, newer)
    assert [n.id for _, n in found.newly_failing] == ["math/exact/add-a/float32"]
    assert [n.id for _, n in found.headroom_lost] == ["math/exact/add-b/float32"]
    assert [n.id for _, n in found.newly_passing] == ["math/exact/add-c/float32"]
    assert [c.id for c in found.vanished] == ["math/exact/add-d/float32"]
    assert found.worse
    assert not compare.compare(newer, newer).worse
    assert "newly failing: 1" in compare.as_text(found)
    with pytest.raises(ValueError, match="cannot be compared"):
        compare.compare(older, {**newer, "suite": "2027.1"})


def test_counts_and_standing(made):
    assert made["counts"] == {"pass": 1, "unsupported_declared": 1, "fail": 1, "crash": 1, "not_run": 1}
    assert len(statement.failed(statement.cells_of(made))) == 2
