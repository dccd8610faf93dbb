"""Every property of dispatch and combine in one process and over gloo worlds of two to four ranks."""

from __future__ import annotations

from functools import cache

import pytest

from fmcore_conformance.distributed import run_world, values
from fmcore_conformance.moe import PROPERTIES, run_properties

SOME = ("L1", "D1-D4", "D6", "C1", "C2", "A1", "S1")
WORLDS = {0: tuple(PROPERTIES), 1: SOME, 2: tuple(PROPERTIES), 3: SOME, 4: (*SOME, "D5", "D7", "A2", "R7")}
"""Properties by number of ranks; zero stands for a call without a group. The conformance suite runs all with all."""


@cache
def found(ranks: int) -> list[dict[str, str]]:
    """Run a world's properties in one go."""
    if ranks == 0:
        return [run_properties(None, WORLDS[0], "torch")]
    return values(run_world(run_properties, ranks, WORLDS[ranks], "torch", timeout=120.0, group_timeout=20.0))


@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks, names in WORLDS.items() for name in names])
def test_property(ranks: int, name: str) -> None:
    failures = {rank: result[name] for rank, result in enumerate(found(ranks)) if result[name]}
    assert not failures
