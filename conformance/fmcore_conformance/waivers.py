"""Known failures, each with an owner, a public reason and a date at which it stops being an excuse.

A waiver file is TOML: ``[[waiver]]`` tables with ``id`` (a glob over case ids), ``backend`` (a glob), ``url``,
``owner``, ``reason``, ``versions`` (a specifier such as ``">=1.2,<1.4"`` over the plugin's version) and ``expires``
(a date at most 180 days ahead). An expired waiver is a failure; a passing waived case is ``xpass``; a waiver that
matches no case is reported. A waived cell never counts towards a level.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from fmcore_conformance._toml import read_toml
from fmcore_conformance.verdicts import BAD, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fmcore_conformance.model import Cell

LONGEST = timedelta(days=180)
FIELDS = ("id", "url", "owner", "reason", "versions", "expires")


class WaiverError(ValueError):
    """A waiver file that cannot be honoured as written."""


@dataclass(frozen=True)
class Waiver:
    """One accepted failure, until ``expires``."""

    id: str
    url: str
    owner: str
    reason: str
    versions: str
    expires: date
    backend: str = "*"

    def covers(self, case_id: str, backend: str, version: str) -> bool:
        """Whether this waiver speaks about the case, on this backend, at this plugin version."""
        return (
            fnmatchcase(case_id, self.id)
            and fnmatchcase(backend, self.backend)
            and version_matches(version, self.versions)
        )


def _release(text: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(?:\.\d+)*", text.strip())
    if numbers is None:
        raise WaiverError(f"not a version: {text!r} (expected digits and dots, such as 1.4.0)")
    return tuple(int(part) for part in numbers.group().split("."))


def _padded(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    width = max(len(left), len(right))
    return left + (0,) * (width - len(left)), right + (0,) * (width - len(right))


def version_matches(version: str, specifier: str) -> bool:
    """Whether a release satisfies every clause of ``specifier``.

    Args:
        version: Release such as ``"1.4.0"``; suffixes after the digits are ignored.
        specifier: Clauses joined by commas, each one of ``== != >= <= > <`` and a release.

    Raises:
        WaiverError: On a clause that is none of these.
    """
    for clause in filter(None, (part.strip() for part in specifier.split(","))):
        parts = re.match(r"(==|!=|>=|<=|>|<)\s*(.+)", clause)
        if parts is None:
            raise WaiverError(f"version clause {clause!r} must start with ==, !=, >=, <=, > or <")
        have, want = _padded(_release(version), _release(parts.group(2)))
        verdict = {
            "==": have == want,
            "!=": have != want,
            ">=": have >= want,
            "<=": have <= want,
            ">": have > want,
            "<": have < want,
        }[parts.group(1)]
        if not verdict:
            return False
    return True


def parse(table: dict[str, Any], today: date) -> Waiver:
    """One checked waiver.

    Raises:
        WaiverError: On a missing or empty field, an unknown one, or an expiry more than 180 days ahead.
    """
    missing = [name for name in FIELDS if not table.get(name)]
    if missing:
        raise WaiverError(f"waiver {table.get('id', '?')!r} lacks {', '.join(missing)}; every field is required")
    unknown = sorted(set(table) - {*FIELDS, "backend"})
    if unknown:
        raise WaiverError(f"waiver {table['id']!r} has unknown fields {', '.join(unknown)}")
    expires = table["expires"]
    if not isinstance(expires, date):
        raise WaiverError(f"waiver {table['id']!r}: expires = {expires!r} must be a TOML date such as 2026-12-31")
    if expires - today > LONGEST:
        raise WaiverError(f"waiver {table['id']!r} expires {expires}, more than {LONGEST.days} days after {today}")
    version_matches("0", table["versions"])
    return Waiver(**table)


def _today() -> date:
    return datetime.now(timezone.utc).date()


def load(path: Path, today: date | None = None) -> list[Waiver]:
    """Read a waiver file.

    Raises:
        WaiverError: If any entry is not acceptable.
    """
    return [parse(table, today or _today()) for table in read_toml(path).get("waiver", [])]


def apply(
    cells: Sequence[Cell], waivers: Sequence[Waiver], *, backend: str, version: str, today: date | None = None
) -> tuple[list[Cell], list[Waiver]]:
    """Turn verdicts into waived, waiver_expired and xpass where a waiver speaks.

    Returns:
        The cells, and the waivers that matched none of them.
    """
    now = today or _today()
    used: set[int] = set()
    judged = []
    for cell in cells:
        match = next((i for i, w in enumerate(waivers) if w.covers(cell.id, backend, version)), None)
        if match is not None:
            used.add(match)
            cell = _judge(cell, waivers[match], now)  # noqa: PLW2901 (the cell of this turn, as judged)
        judged.append(cell)
    return judged, [w for i, w in enumerate(waivers) if i not in used]


def _judge(cell: Cell, waiver: Waiver, now: date) -> Cell:
    note = f"waived until {waiver.expires} by {waiver.owner}: {waiver.reason} ({waiver.url})"
    if cell.verdict is Verdict.PASS:
        return replace(cell, verdict=Verdict.XPASS, reason=f"passes although {note}")
    if cell.verdict not in BAD:
        return cell
    verdict = Verdict.WAIVER_EXPIRED if now > waiver.expires else Verdict.WAIVED
    return replace(cell, verdict=verdict, reason=f"{note}; {cell.verdict}: {cell.reason}")
