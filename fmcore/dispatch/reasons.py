"""Why a candidate was not taken, as data: the same object feeds exceptions, ``explain``, JSON and HTML."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason against one candidate.

    Attributes:
        code: A stable word for programs: ``dtype``, ``device``, ``vendor``, ``arch``, ``grad``,
            ``determinism``, ``capture``, ``world``, a feature's name, ``predicate``, ``blocked``,
            ``unavailable``, ``broken``, ``permission``.
        text: One sentence for people.
        have: What the request has.
        want: What the candidate needs.
        fix: What the caller can do about it.
    """

    code: str
    text: str
    have: str = ""
    want: str = ""
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dict."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.text} ({self.fix})" if self.fix else self.text
