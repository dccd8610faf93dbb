"""The kernels compiled for sm_90a without a GPU: no serialised products, few spills, within shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton.experimental.gluon")

SHARED = 227 * 1024
SPILL = {
    ("flashmask_forward", 128): 0,
    ("flashmask_forward", 64): 0,
    ("flashmask_backward", 128): 160,  # outside the inner loops, but for one reload in mode 2
    ("flashmask_backward", 64): 0,
}
PRODUCTS = ["wgmma.mma_async", "cp.async.bulk.tensor", "setmaxnreg"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "dtype", "kind"),
    [(128, "bfloat16", "causal_document"), (128, "bfloat16", "global_sliding"), (64, "float16", "global_sliding")],
)
def test_what_the_assembler_says(d, dtype, kind):
    command = [sys.executable, str(Path(__file__).with_name("compile_all.py")), str(d), dtype, kind]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        command, env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"flashmask_forward", "flashmask_backward", "before_backward", "after_backward"}
    for name in ("flashmask_forward", "flashmask_backward"):
        entry = found[name]
        assert entry["notes"] == [], f"{name}: products are serialised"
        assert entry["shared"] <= SHARED, name
        assert entry["spill"] <= SPILL[name, d], name
        assert entry["instructions"][:3] == PRODUCTS, name
    assert "red.relaxed.gpu.global.add.v4.f32" in found["flashmask_backward"]["instructions"]
