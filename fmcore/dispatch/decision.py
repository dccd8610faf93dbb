"""The outcome of a resolution: every candidate, its verdict, all its reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fmcore.dispatch.reasons import Reason
from fmcore.dispatch.registry import Impl
from fmcore.dispatch.request import Request

Verdict = Literal["selected", "eligible", "not_preferred", "unsupported", "disabled", "unavailable", "broken"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation, or one backend whose implementations could not be loaded, and its verdict."""

    backend: str
    name: str
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    impl: Impl | None = None

    @property
    def id(self) -> str:
        """``backend/name``, or the backend alone."""
        return f"{self.backend}/{self.name}" if self.name else self.backend

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "backend": self.backend,
            "name": self.name,
            "verdict": self.verdict,
            "reasons": [reason.to_json() for reason in self.reasons],
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """Who serves a request, who said so, and why not the others.

    Attributes:
        request: What was asked.
        candidates: Every candidate in order of preference.
        source: Who decided: ``call``, ``use``, ``set_policy``, ``FMCORE_BACKEND``, ``rank`` or ``default``.
        fallback: Why a preferred candidate was passed over, or an empty string.
    """

    request: Request
    candidates: tuple[Candidate, ...]
    source: str
    fallback: str = ""

    @property
    def selected(self) -> Candidate | None:
        """The candidate that serves the request, or None."""
        return next((c for c in self.candidates if c.verdict == "selected"), None)

    @property
    def impl(self) -> Impl | None:
        """The selected implementation, or None."""
        chosen = self.selected
        return chosen.impl if chosen else None

    def refusal(self, asked: str) -> str:
        """Return the message for an UnsupportedError: what was asked, every candidate's reasons, what to do."""
        request = self.request
        dtypes = ", ".join(f"{role} {dtype}" for role, dtype in request.dtypes.items())
        lines = [
            (
                f"{request.op}: {asked} on {request.device_type} ({request.vendor}; {dtypes}), "
                "and no permitted implementation can serve it:"
            )
        ]
        fixes = []
        for candidate in self.candidates:
            reasons = "; ".join(reason.text for reason in candidate.reasons) or "no reason recorded"
            lines.append(f"  {candidate.id} [{candidate.verdict}]: {reasons}")
            fixes += [
                reason.fix
                for reason in candidate.reasons
                if reason.fix and candidate.verdict in ("unsupported", "disabled")
            ]
        if not self.candidates:
            lines.append("  (no backend implements this op)")
        unique = list(dict.fromkeys(fixes))[:3]
        advice = (
            "; or ".join(unique) if unique else "install or repair a backend that serves it (`fmcore doctor` shows all)"
        )
        lines.append(f"To do: {advice}.")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return plain data: the same that ``fmcore explain --json`` prints."""
        return {
            "request": self.request.to_json(),
            "source": self.source,
            "selected": self.selected.id if self.selected else None,
            "fallback": self.fallback,
            "candidates": [candidate.to_json() for candidate in self.candidates],
        }

    def __str__(self) -> str:
        chosen = self.selected
        head = f"{self.request.op}: {chosen.id if chosen else 'nobody'} (decided by {self.source})"
        rows = [f"  {c.id:<28} {c.verdict:<13} {'; '.join(map(str, c.reasons))}".rstrip() for c in self.candidates]
        return "\n".join([head, *([f"  note: {self.fallback}"] if self.fallback else []), *rows])
