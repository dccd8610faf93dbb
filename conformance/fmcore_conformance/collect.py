"""All cases of the suite for one target, in one list with unique ids."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcore_conformance.model import Case
    from fmcore_conformance.target import Target

MODULES = ("engine", "attention", "moe", "math")


def collect(target: Target) -> list[Case]:
    """Every case. No tensor is made here: a case builds its inputs when it runs.

    Args:
        target: The backend under test; a plugin's own additional cases come with it.

    Raises:
        ValueError: If two cases share an id.
    """
    found: dict[str, Case] = {}
    for module in MODULES:
        for case in import_module(f"fmcore_conformance.cases.{module}").cases(target):
            if case.id in found:
                raise ValueError(f"two cases are called {case.id}")
            found[case.id] = case
    return list(found.values())
