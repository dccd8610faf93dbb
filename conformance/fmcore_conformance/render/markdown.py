"""A statement as Markdown, for a repository or a merge request."""

from __future__ import annotations

from typing import Any

from fmcore_conformance.model import DTYPES
from fmcore_conformance.render.common import SHORT, Entry, entries, facts, level_lines, reproduce, subject
from fmcore_conformance.statement import cells_of, failed
from fmcore_conformance.verdicts import MEANING, SYMBOL, Verdict


def escape(text: str) -> str:
    """Text that cannot break a table or become markup."""
    cleaned = " ".join(str(text).split())
    return "".join(f"\\{char}" if char in "\\`*_{}[]<>()#|!~" else char for char in cleaned)


def render(statement: dict[str, Any]) -> str:
    """The whole page."""
    lines = [f"# Conformance {statement['suite']}: {escape(subject(statement))}", ""]
    lines += [f"- {name}: {escape(value)}" for name, value in facts(statement)]
    lines += ["", "## Levels", ""]
    if statement["emulated"]:
        lines.append("No level: the run was emulated.")
    else:
        lines += ["| family | level | next |", "|---|---|---|"]
        lines += [f"| {family} | {level} | {escape(blocked)} |" for family, level, blocked in level_lines(statement)]
    lines += ["", "## Matrix", "", *_matrix(statement), ""]
    lines += [f"- `{SYMBOL[v]}` {v}: {MEANING[v]}" for v in Verdict if str(v) in statement["counts"]]
    lines += ["", "## Findings", ""]
    bad = failed(cells_of(statement))
    for cell in bad:
        lines += [f"- **{cell.verdict}** {escape(cell.id)}: {escape(cell.reason)}", f"  `{reproduce(statement, cell)}`"]
    if not bad:
        lines.append("None.")
    return "\n".join(lines) + "\n"


def _matrix(statement: dict[str, Any]) -> list[str]:
    table = entries(statement)
    columns = [dtype for dtype in DTYPES if any(dtype in row for row in table.values())]
    lines = [
        "| op | " + " | ".join(SHORT.get(d, d) for d in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    lines += [
        f"| {escape(op)} | " + " | ".join(_square(row.get(d)) for d in columns) + " |" for op, row in table.items()
    ]
    return lines


def _square(entry: Entry | None) -> str:
    if entry is None:
        return ""
    if entry.verdict is not Verdict.PASS:
        return SYMBOL[entry.verdict]
    return f"{entry.ran}" if entry.headroom is None else f"{entry.ran} ({entry.headroom:.1f}x)"
