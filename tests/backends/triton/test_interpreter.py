"""The kernels under Triton's interpreter, against the oracle and inside their buffers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent


def interpret(*command: str) -> Any:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=HERE, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(("family", "least"), [("attention", 12), ("math", 35)])
def test_interpreted_kernels_agree_with_the_oracle_and_stay_inside_their_buffers(family, least):
    found = interpret("interpret.py", family)
    assert len(found) >= least
    bad = {name: ratios for name, ratios in found.items() if not max(ratios.values()) <= 1.0}
    assert not bad


def test_every_tile_of_every_head_is_some_program_s_work_and_far_heavier_ones_go_first():
    found = interpret("interpret_order.py")
    for name, batch, heads, tiles in (("few", 2, 4, 33), ("causal", 2, 4, 33), ("tiny", 1, 3, 3)):
        work = [tuple(item) for item in found[name]]
        assert len({item[:3] for item in work}) == len(work) == batch * heads * tiles
        assert sorted(item[:3] for item in work) == [
            (b, h, t) for b in range(batch) for h in range(heads) for t in range(tiles)
        ]
        group = heads // 2
        assert all(row == (2 * b + h // group if name == "few" else 0) for b, h, _, row in work)
    # The masks of the first batch entry: all its mask heads have tile 5, and its first one tile 30, far heavier.
    assert [item[2] for item in found["few"][:8]] == [5] * 4 + [30] * 4
    assert {item[1] for item in found["few"][:4]} == {0, 1, 2, 3}
    # A causal mask has none: a group of two heads, the heaviest tiles first.
    assert [item[1:3] for item in found["causal"][:4]] == [[0, 32], [1, 32], [0, 31], [1, 31]]
