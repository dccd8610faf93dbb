"""On a machine with an NVIDIA GPU: it is NVIDIA's and nobody else's, and looking shallowly leaves it untouched."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.version.hip is not None, reason="no NVIDIA GPU on this machine"
    ),
]

FORK = """
import os, sys
import fmcore as fm
import torch
from fmcore.dispatch.probes import ProbeEnv
from fmcore_cuda_hopper.probe import probe
report = probe(ProbeEnv(), deep=False)
assert not report.claims, report
assert not torch.cuda.is_initialized()
child = os.fork()
if child == 0:
    x = torch.ones(4, device="cuda")
    total = fm.math.add(x, x).sum().item()
    os._exit(0 if total == 8 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_every_device_is_nvidias_and_nobody_elses():
    done = subprocess.run(
        [sys.executable, "-m", "fmcore.cli", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    data = json.loads(done.stdout)
    assert [p for p in data["problems"] if "claimed by several" in p] == []
    rows = [row for row in data["devices"] if row["device"].startswith("cuda:")]
    assert len(rows) == torch.cuda.device_count()
    for index, row in enumerate(rows):
        major, minor = torch.cuda.get_device_capability(index)
        assert row["vendor"] == "nvidia"
        assert "cuda_hopper" in row["claimed_by"]
        assert row["arch"] == f"nvidia sm_{major}{minor} ({major}.{minor})"
        assert row["name"] == torch.cuda.get_device_name(index)
    states = {b["name"]: b["state"] for b in data["backends"]}
    assert states["kunlun_xpu"] == states["hygon_dcu"] == "unavailable"
    hopper = any(torch.cuda.get_device_capability(i) == (9, 0) for i in range(torch.cuda.device_count()))
    assert (states["cuda_hopper"] == "available") is hopper


def test_import_and_shallow_probe_leave_the_device_alone_and_a_fork_can_use_it():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
