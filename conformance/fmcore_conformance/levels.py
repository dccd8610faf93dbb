"""Levels: read from ``levels.toml``, granted per op family, never on less than everything that they ask."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcore_conformance import SUITE_VERSION
from fmcore_conformance._toml import read_toml
from fmcore_conformance.model import FAMILIES, LEVELS
from fmcore_conformance.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fmcore_conformance.model import Cell

FILE = Path(__file__).with_name("levels.toml")


@dataclass(frozen=True)
class Gate:
    """What one level asks of one family."""

    level: str
    family: str
    must_pass: tuple[str, ...]
    may_decline: frozenset[str]
    minimum: int

    def covers(self, case_id: str) -> bool:
        """Whether the case is on the must-pass list."""
        return any(fnmatchcase(case_id, glob) for glob in self.must_pass)


@dataclass
class Grant:
    """The level that one family reached, and what stands before the next."""

    family: str
    granted: str | None
    counts: dict[str, int] = field(default_factory=dict)
    blocked_at: str | None = None
    blockers: list[str] = field(default_factory=list)


def gates(path: Path = FILE) -> list[Gate]:
    """Every gate of the level file, in level order.

    Raises:
        ValueError: If the file is of another suite version, or asks for a family that does not exist.
    """
    data = read_toml(path)
    if data.get("suite") != SUITE_VERSION:
        raise ValueError(f"{path} is of suite {data.get('suite')!r}, this is {SUITE_VERSION!r}")
    found = []
    for level in LEVELS:
        for family, body in data[level].items():
            if not isinstance(body, dict):
                continue
            if family not in FAMILIES:
                raise ValueError(f"{path}: {level}.{family} is not one of {', '.join(FAMILIES)}")
            found.append(
                Gate(level, family, tuple(body["must_pass"]), frozenset(body["may_decline"]), int(body["minimum"]))
            )
    return found


def titles(path: Path = FILE) -> dict[str, str]:
    """Level name to its one-line meaning."""
    return {level: f"{body['title']}: {body['text']}" for level, body in read_toml(path).items() if level in LEVELS}


def judge(gate: Gate, cells: Iterable[Cell]) -> list[str]:
    """What keeps a gate shut; empty when it is open.

    Args:
        gate: The level's demand on one family.
        cells: Every cell of the run, with the cases that were left out as ``not_run``.
    """
    asked = [cell for cell in cells if gate.covers(cell.id)]
    passed = sum(cell.verdict is Verdict.PASS for cell in asked)
    shut = [f"{cell.id}: {cell.verdict}" for cell in asked if not _acceptable(cell, gate)]
    if passed < gate.minimum:
        shut.append(f"{gate.family} {gate.level}: {passed} cases pass, at least {gate.minimum} must")
    return shut


def _acceptable(cell: Cell, gate: Gate) -> bool:
    if cell.verdict in (Verdict.UNSUPPORTED_DECLARED, Verdict.PASSES_UNCLAIMED):
        return bool(cell.codes) and set(cell.codes) <= gate.may_decline
    return cell.verdict is Verdict.PASS


def grant(cells: Sequence[Cell], asked: str, path: Path = FILE) -> list[Grant]:
    """The highest level of each family, each level needing those below it.

    A family without a gate at some level (the engine above L1) keeps what it has.

    Args:
        cells: Every cell, the ones that were not run included.
        asked: Highest level that the run asked for.
        path: The level file.
    """
    by_family: dict[str, list[Gate]] = {}
    for gate in gates(path):
        if LEVELS.index(gate.level) <= LEVELS.index(asked):
            by_family.setdefault(gate.family, []).append(gate)
    return [_climb(family, by_family[family], cells) for family in FAMILIES if family in by_family]


def _climb(family: str, ladder: Sequence[Gate], cells: Sequence[Cell]) -> Grant:
    counts: dict[str, int] = {}
    for cell in cells:
        if cell.family == family:
            counts[str(cell.verdict)] = counts.get(str(cell.verdict), 0) + 1
    result = Grant(family, None, counts)
    for gate in ladder:
        shut = judge(gate, cells)
        if shut:
            result.blocked_at, result.blockers = gate.level, shut
            break
        result.granted = gate.level
    return result


def summary(grants: Sequence[Grant]) -> dict[str, Any]:
    """Plain data for the statement; at most 20 blockers a family, and how many there are."""
    return {
        g.family: {
            "granted": g.granted,
            "counts": g.counts,
            "blocked_at": g.blocked_at,
            "blocked_by": g.blockers[:20],
            "blockers": len(g.blockers),
        }
        for g in grants
    }
