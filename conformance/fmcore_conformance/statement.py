"""The statement: who was tested, with what, under which switches, and every cell; with a checksum over the cells."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from fmcore_conformance import SCHEMA_VERSION, SUITE_VERSION
from fmcore_conformance.levels import grant, summary, titles
from fmcore_conformance.model import Cell
from fmcore_conformance.verdicts import BAD, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fmcore_conformance.selection import Selection


def checksum(cells: Sequence[dict[str, Any]]) -> str:
    """SHA-256 of the cells in canonical JSON; a cell that was edited by hand no longer matches."""
    text = json.dumps(list(cells), sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()


def build(
    cells: Sequence[Cell],
    *,
    backend: str | None,
    selection: Selection,
    facts: dict[str, Any],
    emulated: str,
    unused_waivers: Sequence[str] = (),
    started: str,
    seconds: float,
    interrupted: bool = False,
) -> dict[str, Any]:
    """A statement as plain data.

    Args:
        cells: Every cell that was asked for, those left out as ``not_run``.
        backend: Backend under test; None for the whole stack.
        selection: What the run asked for.
        facts: Source state, distributions, device, backends and switches.
        emulated: Why this is not the real thing; empty otherwise. An emulated run grants no level.
        unused_waivers: Waivers that matched no case.
        started: ISO time.
        seconds: Wall time.
        interrupted: Whether the run was cut short.
    """
    ordered = [cell.to_json() for cell in sorted(cells, key=lambda c: c.id)]
    grants = [] if emulated or selection.narrowed else grant(cells, selection.level)
    return {
        "schema": SCHEMA_VERSION,
        "suite": SUITE_VERSION,
        "kind": "forced" if backend else "automatic",
        "backend": backend,
        "emulated": emulated,
        "level_asked": selection.level,
        "levels": summary(grants),
        "level_titles": titles(),
        "selection": {
            "ops": list(selection.ops),
            "dtypes": list(selection.dtypes),
            "cases": list(selection.cases),
            "fraction": str(selection.fraction),
            "seed": selection.seed,
        },
        "interrupted": interrupted,
        "started": started,
        "seconds": round(seconds, 1),
        **facts,
        "unused_waivers": list(unused_waivers),
        "counts": dict(Counter(str(cell.verdict) for cell in cells)),
        "cells": ordered,
        "sha256": checksum(ordered),
    }


def write(statement: dict[str, Any], path: Path) -> None:
    """Write a statement as indented JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(statement, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """Read a statement and check its checksum.

    Raises:
        ValueError: If it is no statement, of an unknown schema, or if its cells do not match the checksum.
    """
    try:
        statement = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(statement, dict) or "cells" not in statement:
        raise ValueError(f"{path} is not a conformance statement: it has no cells")
    if statement.get("schema") != SCHEMA_VERSION:
        raise ValueError(f"{path} has schema {statement.get('schema')!r}, this suite reads {SCHEMA_VERSION}")
    if checksum(statement["cells"]) != statement.get("sha256"):
        raise ValueError(f"{path}: the cells do not match their checksum; the file was changed after it was written")
    return statement


def cells_of(statement: dict[str, Any]) -> list[Cell]:
    """The cells of a statement."""
    return [Cell.from_json(data) for data in statement["cells"]]


def failed(cells: Sequence[Cell]) -> list[Cell]:
    """Cells that make a run end with a non-zero status."""
    return [cell for cell in cells if cell.verdict in BAD]


def matrix(cells: Sequence[Cell]) -> dict[str, dict[str, list[Cell]]]:
    """Cells by op and dtype, ops in family order."""
    table: dict[str, dict[str, list[Cell]]] = {}
    order = {"attention": 0, "moe": 1, "math": 2, "engine": 3}
    for cell in sorted(cells, key=lambda c: (order.get(c.family, 9), c.op)):
        table.setdefault(cell.op, {}).setdefault(cell.dtype, []).append(cell)
    return table


def tightest(cells: Sequence[Cell]) -> float | None:
    """Least headroom among passing cells with an inexact bound."""
    found = [c.headroom for c in cells if c.headroom is not None and c.verdict in (Verdict.PASS, Verdict.XPASS)]
    return min(found) if found else None
