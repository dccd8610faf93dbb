"""A statement as JUnit XML, one test case per cell; a refusal is a skip with its reason, never a pass."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from fmcore_conformance.render.common import reproduce, subject
from fmcore_conformance.statement import cells_of
from fmcore_conformance.verdicts import BAD, Verdict

ERRORS = frozenset({Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT})


def render(statement: dict[str, Any]) -> str:
    """The XML document."""
    root = ET.Element("testsuites", name=f"fmcore conformance {statement['suite']}: {subject(statement)}")
    suites: dict[str, ET.Element] = {}
    for cell in cells_of(statement):
        family = cell.family
        if family not in suites:
            suites[family] = ET.SubElement(
                root, "testsuite", name=family, tests="0", failures="0", errors="0", skipped="0"
            )
        suite = suites[family]
        _bump(suite, "tests")
        case = ET.SubElement(
            suite, "testcase", classname=f"{family}.{cell.op}", name=cell.id, time=f"{(cell.ms or 0) / 1e3:.4f}"
        )
        if cell.verdict in BAD:
            tag, counter = ("error", "errors") if cell.verdict in ERRORS else ("failure", "failures")
            _bump(suite, counter)
            note = ET.SubElement(case, tag, type=str(cell.verdict), message=_clean(cell.reason))
            note.text = reproduce(statement, cell)
        elif cell.verdict is not Verdict.PASS:
            _bump(suite, "skipped")
            ET.SubElement(case, "skipped", message=f"{cell.verdict}: {_clean(cell.reason)}")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _bump(suite: ET.Element, counter: str) -> None:
    suite.set(counter, str(int(suite.get(counter, "0")) + 1))


def _clean(text: str) -> str:
    """XML 1.0 forbids control characters, and a plugin's message may contain any."""
    return "".join(char if char >= " " or char in "\t\n" else "?" for char in text)
