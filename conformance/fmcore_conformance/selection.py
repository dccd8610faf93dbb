"""Which cases a run takes: by level, op, dtype and fraction. What a fraction leaves out is reported as not run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import TYPE_CHECKING

from fmcore_conformance.model import ALIASES, DTYPES, LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcore_conformance.model import Case


@dataclass(frozen=True)
class Selection:
    """What a run was asked for.

    Attributes:
        level: Highest level whose cases are taken.
        ops: Globs over op names; a case is taken if one matches.
        dtypes: Dtype names; empty means all.
        cases: Globs over case ids.
        fraction: Share of the cases, by a hash of (seed, id): the same cases on every machine.
        seed: Seed of the fraction and of every random input.
    """

    level: str = "L3"
    ops: tuple[str, ...] = ("*",)
    dtypes: tuple[str, ...] = ()
    cases: tuple[str, ...] = ("*",)
    fraction: Fraction = Fraction(1)
    seed: int = 0

    def asks_for(self, case: Case) -> bool:
        """Whether the case is within level, ops, dtypes and ids, whatever the fraction."""
        return (
            LEVELS.index(case.level) <= LEVELS.index(self.level)
            and any(fnmatchcase(case.op, glob) for glob in self.ops)
            and (not self.dtypes or case.dtype in self.dtypes or case.dtype == "any")
            and any(fnmatchcase(case.id, glob) for glob in self.cases)
        )

    def takes(self, case: Case) -> bool:
        """Whether the fraction keeps a case that is asked for."""
        if case.mandatory or self.fraction >= 1:
            return True
        digest = hashlib.sha256(f"{self.seed}:{case.id}".encode()).digest()
        return Fraction(int.from_bytes(digest[:8], "big"), 2**64) < self.fraction

    @property
    def narrowed(self) -> bool:
        """Whether cases were kept out in a way that leaves no trace as ``not_run``: such a run grants no level."""
        return self.ops != ("*",) or self.cases != ("*",) or bool(self.dtypes)


def parse_level(text: str) -> str:
    """A level name.

    Raises:
        ValueError: If it is none of L0 to L4.
    """
    name = text.strip().upper()
    if name not in LEVELS:
        raise ValueError(f"level {text!r} is not one of {', '.join(LEVELS)}")
    return name


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Comma-separated dtype names or short forms, as full names.

    Raises:
        ValueError: On a name that is no column of the matrix.
    """
    names = tuple(ALIASES.get(part.strip().lower(), part.strip().lower()) for part in text.split(",") if part.strip())
    unknown = [name for name in names if name not in DTYPES]
    if unknown:
        short = ", ".join(f"{a} = {n}" for a, n in ALIASES.items())
        raise ValueError(f"unknown dtype {', '.join(unknown)}; the suite knows {', '.join(DTYPES)} ({short})")
    return names


def parse_globs(text: str) -> tuple[str, ...]:
    """Comma-separated globs; empty text means everything."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) or ("*",)


def parse_fraction(text: str) -> Fraction:
    """A share such as ``1/8`` or ``0.25``.

    Raises:
        ValueError: If it is not above 0 and at most 1.
    """
    try:
        value = Fraction(text.strip())
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"fraction {text!r} is not a number such as 1/8 or 0.25") from error
    if not 0 < value <= 1:
        raise ValueError(f"fraction {text!r} must be above 0 and at most 1")
    return value


def split(cases: Sequence[Case], selection: Selection) -> tuple[list[Case], list[Case]]:
    """The cases to run, and those that are asked for but left out by the fraction.

    Raises:
        ValueError: If nothing is asked for: a run of nothing must not look like a pass.
    """
    asked = [case for case in cases if selection.asks_for(case)]
    if not asked:
        raise ValueError(
            f"no case matches level {selection.level}, ops {','.join(selection.ops)}, "
            f"dtypes {','.join(selection.dtypes) or 'all'}, cases {','.join(selection.cases)}"
        )
    return [c for c in asked if selection.takes(c)], [c for c in asked if not selection.takes(c)]
