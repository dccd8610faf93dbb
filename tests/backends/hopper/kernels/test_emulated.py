"""The kernel source on an emulated multiprocessor: right for every kind of mask, and a planted fault shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton.experimental.gluon")

HERE = Path(__file__).parent


def emulate(what: str) -> dict[str, Any]:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "emulate.py"), what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_forward_and_backward_agree_with_the_oracle():
    found = emulate("cases")
    assert len(found) == 15
    bad = {name: ratios for name, ratios in found.items() if not max(ratios.values()) <= 1.0}
    assert not bad


@pytest.mark.slow
def test_planted_synchronisation_faults_are_caught():
    found = emulate("faults")
    sound = found.pop("none")
    assert not sound["shown"], "the kernels as they are must pass the case that the faults fail"
    assert len(found) == 14
    assert all(entry["planted"] for entry in found.values()), "the sources have moved on: plant the fault anew"
    assert not [name for name, entry in found.items() if not entry["shown"]]
