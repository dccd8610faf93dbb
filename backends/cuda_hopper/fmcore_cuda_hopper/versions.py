"""Which Triton these kernels are for: Gluon is young, and renames things."""

from __future__ import annotations

import functools
import importlib.metadata
import re

OLDEST, NEWEST = (3, 6), (3, 9)


@functools.cache
def triton_problem() -> str:
    """Say why the installed Triton cannot compile the kernels; empty if it can."""
    try:
        found = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "the kernels are written in Gluon, a part of Triton, which is not installed"
    return problem_of(found)


def problem_of(version: str) -> str:
    """As `triton_problem`, for a version by name."""
    match = re.match(r"(\d+)\.(\d+)", version)
    accepted = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    if match is None:
        return f"Triton calls itself {version!r}, which is no version; the kernels need {accepted}"
    if not OLDEST <= (int(match[1]), int(match[2])) <= NEWEST:
        return f"the kernels are written in Gluon of Triton {accepted}, found {version}"
    return ""
