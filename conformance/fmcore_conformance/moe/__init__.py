"""Properties of MoE dispatch and combine, each a function ``check(group, backend, device)`` that every rank runs.

A check raises AssertionError with the first difference. ``group`` is a process group, or None for one process. Ids are
those of the property list: L layout, D dispatch, C combine, A adjoint, S shapes, R robustness, T dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fmcore.errors import FmcoreError
from fmcore_conformance.moe import combining, dispatching, dtypes, robustness, shapes
from fmcore_conformance.moe.checking import PROPERTIES

__all__ = ["PROPERTIES", "combining", "dispatching", "dtypes", "robustness", "run_properties", "shapes"]


def run_properties(
    group: Any, names: tuple[str, ...] = (), backend: str | None = None, device: str = "cpu"
) -> dict[str, str]:
    """Run the named properties (all, if none are named) on this rank; return each one's failure, or ``""``."""
    return {n: _failure(partial(PROPERTIES[n], group, backend, device)) for n in names or tuple(PROPERTIES)}


def _failure(check: Callable[[], None]) -> str:
    try:
        check()
    except (AssertionError, FmcoreError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
