"""What every renderer shows: the heading facts, the matrix entries and how to reproduce a cell."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fmcore_conformance.model import DTYPES
from fmcore_conformance.statement import cells_of, matrix, tightest
from fmcore_conformance.verdicts import Verdict, worst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcore_conformance.model import Cell

SHORT = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "complex64": "c64",
    "complex128": "c128",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}


@dataclass(frozen=True)
class Entry:
    """One square of the op x dtype matrix."""

    op: str
    dtype: str
    verdict: Verdict
    cells: tuple[Cell, ...]
    headroom: float | None

    @property
    def ran(self) -> int:
        """Cases that were run."""
        return sum(cell.verdict is not Verdict.NOT_RUN for cell in self.cells)


def subject(statement: dict[str, Any]) -> str:
    """What the statement is about, in words."""
    if statement["kind"] == "forced":
        return f"backend {statement['backend']}"
    return "whole stack, automatic selection"


def entries(statement: dict[str, Any]) -> dict[str, dict[str, Entry]]:
    """The matrix: op to dtype to entry. A square with no case at all is absent."""
    table = matrix(cells_of(statement))
    return {
        op: {dtype: _entry(op, dtype, row[dtype]) for dtype in row}
        for op, row in table.items()
        if any(dtype in DTYPES for dtype in row)
    }


def _entry(op: str, dtype: str, cells: Sequence[Cell]) -> Entry:
    return Entry(op, dtype, _standing(cells), tuple(cells), tightest(cells))


def _standing(cells: Sequence[Cell]) -> Verdict:
    """The worst verdict of a square; its dtype probe decides between supported and refused."""
    ran = [cell.verdict for cell in cells if cell.verdict is not Verdict.NOT_RUN]
    return worst(ran)


def reproduce(statement: dict[str, Any], cell: Cell) -> str:
    """One shell line that runs this cell again."""
    words = ["fmcore", "conform", "run"]
    if statement["backend"]:
        words += ["--backend", statement["backend"]]
    device = statement["device"]["torch_device"]
    if device != "cpu":
        words += ["--device", device]
    if statement["selection"]["seed"]:
        words += ["--seed", str(statement["selection"]["seed"])]
    return shlex.join([*words, "--level", cell.level, "--cases", cell.id])


def facts(statement: dict[str, Any]) -> list[tuple[str, str]]:
    """Heading facts as pairs."""
    device, source = statement["device"], statement["source"]
    commit = source["commit"]
    state = (
        f"{commit[:12]}{' with local changes' if source['dirty'] else ''}" if commit else "an installed distribution"
    )
    rows = [
        ("subject", subject(statement)),
        ("suite", statement["suite"]),
        ("device", f"{device.get('name', device['torch_device'])} ({device.get('arch', '?')})"),
        ("source", state),
        ("software", ", ".join(f"{name} {version}" for name, version in statement["distributions"].items())),
        ("run", f"{statement['started']}, {statement['seconds']:.0f} s, seed {statement['selection']['seed']}"),
    ]
    if statement["selection"]["fraction"] != "1":
        rows.append(
            (
                "fraction",
                f"{statement['selection']['fraction']} of the cases; a level needs all of its own",
            )
        )
    if statement["emulated"]:
        rows.append(("emulated", f"{statement['emulated']}: grants no level"))
    if statement["interrupted"]:
        rows.append(("interrupted", "the run was cut short"))
    return rows


def level_lines(statement: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Family, granted level and what blocks the next."""
    lines = []
    for family, row in statement["levels"].items():
        blocked = ""
        if row["blocked_at"]:
            first = row["blocked_by"][0] if row["blocked_by"] else ""
            more = f" and {row['blockers'] - 1} more" if row["blockers"] > 1 else ""
            blocked = f"{row['blocked_at']} needs {first}{more}"
        lines.append((family, row["granted"] or "none", blocked))
    return lines
