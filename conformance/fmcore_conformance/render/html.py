"""A statement as one self-contained HTML page: nothing from elsewhere, and every text from a plugin escaped."""

from __future__ import annotations

import math
from typing import Any

from fmcore_conformance.model import DTYPES
from fmcore_conformance.render.common import SHORT, Entry, entries, facts, level_lines, reproduce, subject
from fmcore_conformance.statement import cells_of
from fmcore_conformance.verdicts import BAD, MEANING, SYMBOL, Verdict


def shade(entry: Entry) -> str:
    """CSS class of a square. Passing ones are coloured by headroom, on a logarithmic scale."""
    if entry.verdict in BAD:
        return "bad"
    if entry.verdict is not Verdict.PASS:
        return f"v-{entry.verdict}"
    if entry.headroom is None:
        return "exact"
    return f"h{min(5, max(0, int(math.log2(max(entry.headroom, 1.0)))))}"


def _row(statement: dict[str, Any], cell: Any) -> dict[str, Any]:
    return {
        "id": cell.id,
        "op": cell.op,
        "dtype": cell.dtype,
        "level": cell.level,
        "family": cell.family,
        "verdict": str(cell.verdict),
        "bad": cell.verdict in BAD,
        "measure": _measure(cell),
        "headroom": f"{cell.headroom:.1f}x" if cell.headroom is not None else ("exact" if cell.unit == "exact" else ""),
        "ms": f"{cell.ms:.1f}" if cell.ms is not None else "",
        "reason": cell.reason,
        "kinds": ", ".join(cell.kinds),
        "command": reproduce(statement, cell),
    }


def _measure(cell: Any) -> str:
    if cell.measured is None:
        return ""
    if cell.unit == "exact":
        return f"{cell.what} exact"
    return f"{cell.what} {cell.measured:.3g} of {cell.bound:.3g} {cell.unit}"


def render(statement: dict[str, Any]) -> str:
    """The page.

    Raises:
        ModuleNotFoundError: If Jinja2 is missing; it comes with the extra ``report``.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the HTML report needs Jinja2: pip install 'fmcore-kernels[report]'", name=error.name
        ) from error
    environment = Environment(
        loader=PackageLoader("fmcore_conformance"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    table = entries(statement)
    columns = [dtype for dtype in DTYPES if any(dtype in row for row in table.values())]
    rows = [
        {
            "op": op,
            "family": next(iter(row.values())).cells[0].family,
            "squares": [_square(row.get(dtype)) for dtype in columns],
        }
        for op, row in table.items()
    ]
    cells = cells_of(statement)
    present = [v for v in Verdict if str(v) in statement["counts"]]
    return environment.get_template("page.html.j2").render(
        statement=statement,
        subject=subject(statement),
        facts=facts(statement),
        levels=level_lines(statement),
        columns=[SHORT.get(d, d) for d in columns],
        rows=rows,
        cells=[_row(statement, cell) for cell in cells],
        counts=[(str(v), statement["counts"][str(v)], MEANING[v], v in BAD) for v in present],
        families=sorted({cell.family for cell in cells}),
        bad=sum(cell.verdict in BAD for cell in cells),
        backends=statement["backends"],
        switches=statement["switches"],
    )


def _square(entry: Entry | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    if entry.verdict is Verdict.PASS:
        label = "exact" if entry.headroom is None else f"{entry.headroom:.1f}x" if entry.headroom < 99.5 else ">99x"
    else:
        label = SYMBOL[entry.verdict]
    return {
        "op": entry.op,
        "dtype": entry.dtype,
        "shade": shade(entry),
        "label": label,
        "title": f"{entry.op} {entry.dtype}: {entry.verdict}, {entry.ran} of {len(entry.cells)} cases run",
    }
