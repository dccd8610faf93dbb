"""Exceptions and warnings. Every message says what was asked, what was found and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcore.dispatch.decision import Decision

__all__ = [
    "ConfigWarning",
    "DistributedError",
    "FallbackWarning",
    "FmcoreError",
    "InvalidInputError",
    "PluginError",
    "UnsupportedError",
    "VendorConflictError",
]


class FmcoreError(Exception):
    """Base of every exception that fmcore raises on purpose."""


class InvalidInputError(FmcoreError, ValueError):
    """An argument breaks the op's contract; raised before any kernel runs."""


class UnsupportedError(FmcoreError, RuntimeError):
    """No permitted implementation can serve the call.

    Attributes:
        decision: Every candidate with its verdict and all its reasons, or None where no
            resolution took place (an op that refuses a dtype for every backend).
    """

    def __init__(self, message: str, decision: Decision | None = None) -> None:
        super().__init__(message)
        self.decision = decision


class VendorConflictError(FmcoreError, RuntimeError):
    """Two vendors claim one device; fmcore refuses to guess."""


class PluginError(FmcoreError):
    """A plugin's metadata, hooks or registration are wrong."""


class DistributedError(FmcoreError, RuntimeError):
    """A collective call failed or timed out.

    Attributes:
        rank: The rank that raises.
        phase: The step of the collective that failed.
        peer: The rank that was waited for, where it is known.
    """

    def __init__(self, message: str, *, rank: int | None = None, phase: str = "", peer: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        self.phase = phase
        self.peer = peer


class FallbackWarning(UserWarning):
    """A preferred implementation declared that it cannot serve a call; another one serves it."""


class ConfigWarning(UserWarning):
    """An environment variable or a stored file was not understood and is ignored."""
