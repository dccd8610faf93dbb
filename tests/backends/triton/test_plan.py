"""The Triton plan: equal to the torch builder's under the interpreter; compiled for NVIDIA and AMD without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

HERE = Path(__file__).parent


@pytest.mark.slow
def test_equals_the_torch_plan_under_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "interpret_plan.py"], cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["classes"] == [0, 1, 2]
    assert len(report["differences"]) == 8
    assert {name: wrong for name, wrong in report["differences"].items() if wrong} == {}


def compiled(kernel, constants, pointers, target):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    targets = {"sm_90": GPUTarget("cuda", 90, 32), "gfx90a": GPUTarget("hip", "gfx90a", 64)}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names}
    keyed = {(names.index(name),): value for name, value in constants.items()}
    return triton.compile(ASTSource(kernel, signature, keyed), target=targets[target], options={"num_warps": 4}).asm


COUNTS = dict.fromkeys(("q_partial", "q_full", "k_partial", "k_full"), "*i32")


@pytest.mark.parametrize("target", ["sm_90", "gfx90a"])
@pytest.mark.parametrize(("mode", "spans"), [(1, 1), (2, 2)])
def test_classes_compile_ahead_of_time(target, mode, spans):
    from fmcore_triton.kernels.plan import plan_classes

    constants = {"MODE": mode, "KEEP": spans > 1, "SPANS": spans, "QUERIES": 64, "COLUMNS": 64}
    asm = compiled(plan_classes, constants, {**COUNTS, "planes": "*i32", "keep": "*i32", "classes": "*u8"}, target)
    assert "ptx" in asm or "amdgcn" in asm


@pytest.mark.parametrize("target", ["sm_90", "gfx90a"])
@pytest.mark.parametrize("lists", ["*i16", "*i32"])
def test_lists_compile_ahead_of_time(target, lists):
    from fmcore_triton.kernels.plan import plan_lists

    orders = dict.fromkeys(("q_order", "k_order"), "*i32")
    pointers = {**COUNTS, **orders, "classes": "*u8", "q_tiles": lists, "k_tiles": lists}
    asm = compiled(plan_lists, {"CHUNK": 1024}, pointers, target)
    assert "ptx" in asm or "amdgcn" in asm
