"""The matrix in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from fmcore_conformance.model import DTYPES
from fmcore_conformance.render.common import SHORT, Entry, entries, level_lines, subject
from fmcore_conformance.verdicts import BAD, SYMBOL, Verdict

if TYPE_CHECKING:
    from rich.console import Console

STYLE = {
    Verdict.PASS: "green",
    Verdict.XPASS: "yellow",
    Verdict.PASSES_UNCLAIMED: "cyan",
    Verdict.UNSUPPORTED_DECLARED: "bright_black",
    Verdict.WAIVED: "yellow",
    Verdict.NOT_RUN: "bright_black",
}


def show(statement: dict[str, Any], console: Console) -> None:
    """Print the op x dtype matrix, the counts and the levels.

    A square shows the worst verdict of its cases; a passing one shows how many ran.
    """
    table = Table(title=f"conformance {statement['suite']}: {subject(statement)}", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("op", no_wrap=True)
    columns = [dtype for dtype in DTYPES if any(dtype in row for row in entries(statement).values())]
    for dtype in columns:
        table.add_column(SHORT.get(dtype, dtype), justify="center", no_wrap=True)
    for op, row in entries(statement).items():
        table.add_row(op, *(_square(row.get(dtype)) for dtype in columns))
    console.print(table)
    used = {entry.verdict for row in entries(statement).values() for entry in row.values()}
    legend = ", ".join(f"{SYMBOL[v]} {v}" for v in SYMBOL if v in used and v is not Verdict.PASS)
    console.print(f"a number: so many cases passed; {legend}", style="dim", highlight=False)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(statement["counts"].items()))
    console.print(f"cells: {counts}", highlight=False)
    if statement["emulated"]:
        console.print(f"emulated, no level is granted: {statement['emulated']}", style="yellow", highlight=False)
    if not statement["levels"] and not statement["emulated"]:
        console.print("levels: none, because the run was narrowed by --ops, --dtypes or --cases", highlight=False)
    for family, level, blocked in level_lines(statement):
        console.print(f"level {family}: {level}" + (f" ({blocked})" if blocked else ""), highlight=False, markup=False)
    for waiver in statement["unused_waivers"]:
        console.print(f"waiver {waiver!r} matches no case", style="yellow", highlight=False)


def _square(entry: Entry | None) -> Text:
    if entry is None:
        return Text("")
    text = str(entry.ran) if entry.verdict is Verdict.PASS else SYMBOL[entry.verdict]
    return Text(text, style="bold red" if entry.verdict in BAD else STYLE[entry.verdict])
