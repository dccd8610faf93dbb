"""The kernels themselves: under the interpreter against the oracle, and compiled for targets that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(("family", "least"), [("attention", 22), ("math", 50)])
def test_interpreted_kernels_agree_with_the_oracle_and_stay_inside_their_buffers(family, least):
    command = [sys.executable, str(HERE / "interpret.py"), family]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found) >= least
    bad = {name: ratios for name, ratios in found.items() if not max(ratios.values()) <= 1.0}
    assert not bad


@pytest.mark.parametrize("target", ["sm_90", "sm_80", "gfx90a", "gfx942"])
def test_default_configurations_compile_within_the_target(target):
    from fmcore_triton import aot

    dtype = {"sm_90": "bf16", "sm_80": "fp32", "gfx90a": "fp16", "gfx942": "bf16"}[target]
    specs = [s for s in aot.attention_specs(target, dims=(64,), dtypes=(dtype,)) if s.constants.get("MODE", 1) == 1]
    if target == "sm_90":  # the widest tiles of the tables, with the most bounds to hold
        wide = aot.attention_specs(target, dims=(128,), dtypes=(dtype,))
        specs = [s for s in wide if s.constants.get("MODE") == 2] + specs[:2]
    fused = {s.name: s for s in aot.fused_specs(dtypes=(dtype,))}
    chosen = list(fused.values())[::2] + specs
    for spec in chosen:
        report = aot.compile_spec(spec, target)
        assert not report.problem(target), f"{target} {spec}"


def test_limits_are_read_from_the_compiled_object():
    from fmcore_triton.aot import Report

    assert Report(shared=70000, spill=0, registers=10).problem("gfx942").startswith("needs 70000 bytes")
    assert "spills 4096" in Report(shared=0, spill=4096, registers=255).problem("sm_90")
    assert Report(shared=70000, spill=0, registers=255).problem("sm_90") == ""
