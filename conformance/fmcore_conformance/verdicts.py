"""What can be said about one cell, and which of it counts."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Verdict(str, Enum):
    """The outcome of one case. Nothing is skipped in silence: what was not exercised has a verdict of its own."""

    PASS = "pass"
    FAIL = "fail"
    XPASS = "xpass"
    PASSES_UNCLAIMED = "passes_unclaimed"
    UNSUPPORTED_DECLARED = "unsupported_declared"
    UNSUPPORTED_UNDECLARED = "unsupported_undeclared"
    WAIVED = "waived"
    WAIVER_EXPIRED = "waiver_expired"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    NOT_RUN = "not_run"

    def __str__(self) -> str:
        return self.value


MEANING: dict[Verdict, str] = {
    Verdict.PASS: "claimed, exercised, within the bound",
    Verdict.FAIL: "claimed, exercised, outside the bound or not exact where it must be",
    Verdict.XPASS: "waived, yet it passes: the waiver is stale",
    Verdict.PASSES_UNCLAIMED: "not claimed, yet the kernel gives the right answer when forced",
    Verdict.UNSUPPORTED_DECLARED: "refused before any kernel ran, with reasons",
    Verdict.UNSUPPORTED_UNDECLARED: "claimed, but the kernel says that it cannot",
    Verdict.WAIVED: "fails, and a valid waiver says why and until when",
    Verdict.WAIVER_EXPIRED: "fails, and its waiver has run out",
    Verdict.ERROR: "an unexpected exception",
    Verdict.CRASH: "the process died",
    Verdict.TIMEOUT: "no answer within the time allowed",
    Verdict.NOT_RUN: "selected by the level, left out of this run",
}

BAD = frozenset(
    {
        Verdict.FAIL,
        Verdict.UNSUPPORTED_UNDECLARED,
        Verdict.WAIVER_EXPIRED,
        Verdict.ERROR,
        Verdict.CRASH,
        Verdict.TIMEOUT,
    }
)
"""Verdicts that make a run end with a non-zero exit status."""

#: Worst first: a cell of the op x dtype matrix shows its worst case.
SEVERITY: tuple[Verdict, ...] = (
    Verdict.CRASH,
    Verdict.TIMEOUT,
    Verdict.ERROR,
    Verdict.FAIL,
    Verdict.UNSUPPORTED_UNDECLARED,
    Verdict.WAIVER_EXPIRED,
    Verdict.WAIVED,
    Verdict.XPASS,
    Verdict.PASS,
    Verdict.PASSES_UNCLAIMED,
    Verdict.UNSUPPORTED_DECLARED,
    Verdict.NOT_RUN,
)

SYMBOL: dict[Verdict, str] = {
    Verdict.PASS: "ok",
    Verdict.FAIL: "FAIL",
    Verdict.XPASS: "xpass",
    Verdict.PASSES_UNCLAIMED: "(ok)",
    Verdict.UNSUPPORTED_DECLARED: "-",
    Verdict.UNSUPPORTED_UNDECLARED: "UNDECL",
    Verdict.WAIVED: "waived",
    Verdict.WAIVER_EXPIRED: "EXPIRED",
    Verdict.ERROR: "ERROR",
    Verdict.CRASH: "CRASH",
    Verdict.TIMEOUT: "HANG",
    Verdict.NOT_RUN: ".",
}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that stands for a group: bad ones first, then passes, then declared refusals.

    Args:
        verdicts: Verdicts of the cells of one group.

    Returns:
        The most severe one, or ``NOT_RUN`` for an empty group.
    """
    found = set(verdicts)
    return next((v for v in SEVERITY if v in found), Verdict.NOT_RUN)
