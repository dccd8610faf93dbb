"""The kernels themselves, compiled for targets that are not here."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("target", ["sm_90", "sm_80", "gfx90a", "gfx942"])
def test_default_configurations_compile_within_the_target(target):
    from fmcore_triton import aot

    # A spread over the tables; `make compile-all` compiles the whole of them.
    dtype = {"sm_90": "bf16", "sm_80": "fp32", "gfx90a": "fp16", "gfx942": "bf16"}[target]
    size = 128 if target == "sm_90" else 64  # the widest tiles of the tables, with the most bounds to hold
    mode = 2 if target in ("sm_90", "gfx90a") else 1
    specs = [s for s in aot.attention_specs(target, dims=(size,), dtypes=(dtype,)) if s.constants.get("MODE") == mode]
    fused = list({s.name: s for s in aot.fused_specs(dtypes=(dtype,))}.values())
    share = list(aot.TARGETS).index(target)
    chosen = specs + fused[share % 2 :: 4]
    for spec in chosen:
        report = aot.compile_spec(spec, target)
        assert not report.problem(target), f"{target} {spec}"


def test_limits_are_read_from_the_compiled_object():
    from fmcore_triton.aot import Report

    assert Report(shared=70000, spill=0, registers=10).problem("gfx942").startswith("needs 70000 bytes")
    assert "spills 4096" in Report(shared=0, spill=4096, registers=255).problem("sm_90")
    assert Report(shared=70000, spill=0, registers=255).problem("sm_90") == ""
