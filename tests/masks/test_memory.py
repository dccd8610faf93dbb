"""Memory at one million tokens: building, converting and planning grow with the length, not with its square."""

from __future__ import annotations

import subprocess
import sys

import pytest

SIZE = 1 << 20
PROGRAM = """
import resource, sys
import torch
from fmcore import masks

torch.set_num_threads(1)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
masks.causal_document([100, 28]).plan(16, 16)
s = {size}
before = peak()
mask = masks.{build}
masks.to_startend_row_indices(mask)
mask.exact_area()
built = peak()
plan = mask.plan({tile}, {tile})
print(built - before, peak() - before, plan.visited)
"""


def measure(build, tile):
    program = PROGRAM.format(size=SIZE, build=build, tile=tile)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    built, planned, visited = (float(word) for word in done.stdout.split())
    return built, planned, int(visited)


@pytest.mark.slow
@pytest.mark.parametrize(("build", "tile"), [("causal_document([s // 64] * 64)", 256), ("causal(s)", 512)])
def test_a_million_tokens_fit_in_memory_of_their_order(build, tile):
    built, planned, visited = measure(build, tile)
    mebibyte = 1 << 20
    # Planes take 8 bytes a column; builders and areas work on a few int64 vectors at a time.
    assert built < 25 * 8 * SIZE / mebibyte
    # Dense would be 2**40 bytes. The lists take 4 bytes per visited pair, the class matrix at most one per pair.
    pairs = (SIZE // tile) ** 2
    assert planned < built + (6 * visited + pairs) / mebibyte + 120
