"""Math saboteurs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcore_conformance.saboteurs.base import Saboteur


def saboteurs() -> list[Saboteur]:
    return []
