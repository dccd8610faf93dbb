"""The command and the pytest way in."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from fmcore.cli.conform import command
from fmcore_conformance import statement
from fmcore_conformance.selection import Selection, parse_dtypes, parse_fraction, parse_level, split
from fmcore_conformance.verdicts import Verdict


def invoke(*arguments):
    return CliRunner().invoke(command, list(arguments))


def test_kinds_and_list():
    found = json.loads(invoke("kinds", "--json").output)
    assert {row["kind"] for row in found} >= {"key-dropped", "lse-base-2", "token-lost", "bf16-truncation"}
    assert "cases" in invoke("kinds").output
    rows = json.loads(invoke("list", "--json", "--ops", "math.add", "--dtypes", "bool,c64").output)
    assert {row["dtype"] for row in rows} == {"bool", "complex64"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--level", "L9"), "not one of L0, L1"),
        (("--dtypes", "int7"), "unknown dtype int7"),
        (("--cases", "nothing/*"), "no case matches"),
    ],
)
def test_a_wrong_question_is_refused(arguments, words):
    result = invoke("list", *arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_report_and_compare(tmp_path, make_statement, cell):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    statement.write(make_statement([cell()]), good)
    statement.write(make_statement([cell(verdict=Verdict.FAIL)]), bad)
    page = tmp_path / "page.html"
    assert invoke("report", str(good), "--html", str(page), "--junit", str(tmp_path / "j.xml")).exit_code == 0
    assert page.read_text().startswith("<!doctype html>")
    assert "math.add" in invoke("report", str(good)).output
    assert invoke("compare", str(good), str(bad)).exit_code == 1
    assert invoke("compare", str(bad), str(good)).exit_code == 0
    assert invoke("report", str(page)).exit_code == 2


def test_selection():
    assert parse_level("l2") == "L2"
    assert parse_dtypes("bool, bf16,complex64") == ("bool", "bfloat16", "complex64")
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        parse_fraction("2")
    from fmcore_conformance.collect import collect
    from fmcore_conformance.target import Target

    cases = collect(Target())
    chosen, left = split(cases, Selection(fraction=parse_fraction("1/8")))
    assert {c.id for c in chosen} >= {c.id for c in cases if c.mandatory and c.level != "L4"}
    assert 0.05 < sum(not c.mandatory for c in chosen) / sum(not c.mandatory for c in [*chosen, *left]) < 0.2
    again, _ = split(cases, Selection(fraction=parse_fraction("1/8")))
    assert [c.id for c in again] == [c.id for c in chosen]


def test_under_pytest(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-p",
            "no:cacheprovider",
            "--pyargs",
            "fmcore_conformance",
            "--fmcore-backend",
            "torch",
            "--fmcore-ops",
            "math.conj",
            "--fmcore-dtypes",
            "bool,complex64",
            "--fmcore-level",
            "L2",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unsupported_declared" in done.stdout
    assert " passed, 1 skipped" in done.stdout
