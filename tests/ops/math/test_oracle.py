"""Every op of the framework rung against the oracle, for every dtype it takes."""

from __future__ import annotations

import pytest

from fmcore.ops.math import SUPPORTED, TORCH

CELLS = [(op, dtype) for op, row in SUPPORTED.items() for dtype, v in row.items() if v is True]


@pytest.mark.parametrize(("name", "dtype"), CELLS)
def test_matches_the_oracle(name, dtype, calls, against_oracle):
    for args, kwargs in calls(name, TORCH[dtype]):
        against_oracle(name, args, kwargs)
