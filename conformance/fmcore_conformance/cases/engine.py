"""Engine cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcore_conformance.model import Case
    from fmcore_conformance.target import Target


def cases(target: Target) -> Iterator[Case]:
    yield from ()
