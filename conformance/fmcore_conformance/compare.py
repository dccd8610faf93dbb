"""Two statements of the same suite: what got worse, what got better, what vanished."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fmcore_conformance.statement import cells_of
from fmcore_conformance.verdicts import BAD, Verdict

if TYPE_CHECKING:
    from fmcore_conformance.model import Cell

LOST = 2.0
"""A cell whose headroom shrinks by more than this factor is listed, although it still passes."""


@dataclass
class Comparison:
    """Differences from an older statement to a newer one, by case id."""

    newly_failing: list[tuple[Cell | None, Cell]] = field(default_factory=list)
    newly_passing: list[tuple[Cell | None, Cell]] = field(default_factory=list)
    headroom_lost: list[tuple[Cell, Cell]] = field(default_factory=list)
    vanished: list[Cell] = field(default_factory=list)
    other: list[tuple[Cell, Cell]] = field(default_factory=list)

    @property
    def worse(self) -> bool:
        """Whether anything got worse."""
        return bool(self.newly_failing or self.headroom_lost or self.vanished)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "newly_failing": [_row(old, new) for old, new in self.newly_failing],
            "newly_passing": [_row(old, new) for old, new in self.newly_passing],
            "headroom_lost": [_row(old, new) for old, new in self.headroom_lost],
            "vanished": [cell.id for cell in self.vanished],
            "other_changes": [_row(old, new) for old, new in self.other],
        }


def _row(old: Cell | None, new: Cell) -> dict[str, Any]:
    return {
        "id": new.id,
        "from": str(old.verdict) if old else None,
        "to": str(new.verdict),
        "headroom_from": old.headroom if old else None,
        "headroom_to": new.headroom,
        "reason": new.reason,
    }


def compare(older: dict[str, Any], newer: dict[str, Any]) -> Comparison:
    """Compare two statements.

    Args:
        older: The statement to start from.
        newer: The statement to judge.

    Raises:
        ValueError: If they are of different suite versions: their cells would not mean the same.
    """
    if older["suite"] != newer["suite"]:
        raise ValueError(f"statements of suites {older['suite']} and {newer['suite']} cannot be compared cell by cell")
    before = {cell.id: cell for cell in cells_of(older)}
    after = {cell.id: cell for cell in cells_of(newer)}
    result = Comparison()
    for cell_id, new in sorted(after.items()):
        _place(result, before.get(cell_id), new)
    for cell_id, old in sorted(before.items()):
        gone = cell_id not in after or after[cell_id].verdict is Verdict.NOT_RUN
        if gone and old.verdict is not Verdict.NOT_RUN:
            result.vanished.append(old)
    return result


def _place(result: Comparison, old: Cell | None, new: Cell) -> None:
    if new.verdict in BAD:
        if old is None or old.verdict not in BAD:
            result.newly_failing.append((old, new))
        return
    if new.verdict is Verdict.PASS:
        if old is not None and old.verdict in BAD:
            result.newly_passing.append((old, new))
        elif old is not None and old.headroom and new.headroom and old.headroom > LOST * new.headroom:
            result.headroom_lost.append((old, new))
        return
    if old is not None and old.verdict is Verdict.PASS and new.verdict is not Verdict.NOT_RUN:
        result.other.append((old, new))


def as_text(result: Comparison) -> str:
    """The comparison for people."""
    lines = []
    for title, rows in (
        (
            "newly failing",
            [f"{n.id}: {o.verdict if o else 'absent'} -> {n.verdict}: {n.reason}" for o, n in result.newly_failing],
        ),
        ("newly passing", [f"{n.id}: {o.verdict if o else 'absent'} -> {n.verdict}" for o, n in result.newly_passing]),
        (
            f"headroom lost more than {LOST:g} x",
            [
                f"{n.id}: {o.headroom:.1f} x -> {n.headroom:.1f} x"
                for o, n in result.headroom_lost
                if o.headroom and n.headroom
            ],
        ),
        ("vanished", [f"{c.id} (was {c.verdict})" for c in result.vanished]),
        ("no longer a pass", [f"{n.id}: {o.verdict} -> {n.verdict}: {n.reason}" for o, n in result.other]),
    ):
        lines.append(f"{title}: {len(rows) or 'none'}")
        lines += [f"  {row}" for row in rows]
    return "\n".join(lines)
