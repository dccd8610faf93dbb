"""All cases of the suite for one target, in one list with unique ids."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    for case in (*_own(target), *_of_plugins()):
        if case.id in found:
            raise ValueError(f"two cases are called {case.id}")
        found[case.id] = case
    return list(found.values())


def _own(target: Target) -> Iterator[Case]:
    for module in MODULES:
        yield from import_module(f"fmcore_conformance.cases.{module}").cases(target)


def _of_plugins() -> Iterator[Case]:
    """Further cases of the plugins' own, from their hook ``fmcore_conformance_cases``: added, never removed."""
    from fmcore import ops
    from fmcore.dispatch.plugins import MANAGER

    MANAGER.load_all()
    for plugin in MANAGER.plugins:
        hook = getattr(plugin.module, "fmcore_conformance_cases", None)
        if hook is not None:
            for op in ops.specs():
                yield from hook(op=op, profile="full") or ()
