"""The kill table: every saboteur against the cases that name its fault's kind."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from fmcore_conformance.collect import collect
from fmcore_conformance.execute import execute
from fmcore_conformance.saboteurs import Saboteur, load, saboteurs
from fmcore_conformance.target import Target
from fmcore_conformance.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcore_conformance.model import Case


LONGEST = 120.0
"""Cases with a longer time-out are too long for a saboteur that holds every score."""


@dataclass(frozen=True)
class Kill:
    """What became of one saboteur: the case that caught it, or None, and how many were tried."""

    saboteur: Saboteur
    case: str | None
    reason: str
    tried: int


def hunt(saboteur: Saboteur, cases: Sequence[Case], *, attempts: int = 40) -> Kill:
    """Run cases that name the fault's kind until one fails.

    Only a wrong answer counts (``fail``): an exception would be a kill by luck.

    Args:
        saboteur: A registered saboteur with a kind.
        cases: The suite.
        attempts: Give up after so many cases.
    """
    target = Target(saboteur.name)
    families = (saboteur.family, "engine")
    named = [
        c for c in cases if c.family in families and saboteur.kind in c.kinds and c.world == 1 and c.timeout <= LONGEST
    ]
    named.sort(key=lambda c: not any(fnmatchcase(c.id, glob) for glob in saboteur.probes))
    for tried, case in enumerate(named[:attempts], 1):
        cell = execute(case, target)
        if cell.verdict is Verdict.FAIL:
            return Kill(saboteur, case.id, cell.reason, tried)
    return Kill(saboteur, None, "not caught", min(len(named), attempts))


def table(families: Sequence[str] = ("attention", "math", "moe")) -> list[Kill]:
    """Hunt every saboteur of the families."""
    load()
    cases = collect(Target())
    return [hunt(s, cases) for s in saboteurs() if s.kind is not None and s.family in families]


def as_text(kills: Sequence[Kill]) -> str:
    """The table for people."""
    lines = [f"{'saboteur':<36} {'fault kind':<22} caught by"]
    lines += [f"{k.saboteur.name:<36} {k.saboteur.kind or '':<22} {k.case or 'NOT CAUGHT'}" for k in kills]
    caught = sum(kill.case is not None for kill in kills)
    return "\n".join([*lines, f"{caught} of {len(kills)} caught"])
