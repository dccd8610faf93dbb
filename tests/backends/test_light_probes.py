"""The vendors' plugins are light: importing and looking shallowly loads no framework, no vendor module, no driver."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PLUGINS = ("fmcore_cuda_hopper", "fmcore_kunlun_xpu", "fmcore_hygon_dcu")
LOOK = """
import builtins, ctypes, json, subprocess, sys, time
trapped = []
real_dll, real_run = ctypes.CDLL, subprocess.run
ctypes.CDLL = lambda name, *a, **k: (trapped.append(str(name)), real_dll(name, *a, **k))[1]
subprocess.run = lambda *a, **k: (trapped.append(str(a)), real_run(*a, **k))[1]
import fmcore.dispatch
from fmcore.dispatch.metadata import read_package
from fmcore.dispatch.probes import ProbeEnv
plugin = sys.argv[1]
env = ProbeEnv()
start = time.perf_counter()
metas = read_package(plugin)
for meta in metas:
    meta.look(env)
signs = time.perf_counter() - start
imported_by_signs = plugin in sys.modules
module = __import__(plugin)
reports = module.fmcore_probe(env, False)
heavy = [n for n in ("torch", "paddle", "torch_xmlir", "triton", "numpy", "cupy") if n in sys.modules]
nvidia = [line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line]
print(json.dumps({"heavy": heavy, "trapped": trapped, "cuda": nvidia, "signs": signs, "imported": imported_by_signs,
                  "names": sorted(reports), "declared": sorted(m.name for m in metas)}))
"""


@pytest.mark.parametrize("plugin", PLUGINS)
def test_signs_and_shallow_probe_are_light(plugin):
    done = subprocess.run([sys.executable, "-c", LOOK, plugin], capture_output=True, text=True, timeout=60, check=True)
    seen = json.loads(done.stdout)
    assert seen["heavy"] == []
    assert seen["cuda"] == []  # no libcuda, no libcudart: no device context
    assert not seen["imported"], "metadata and signs are read without importing the plugin"
    allowed = {"libnvidia-ml.so.1"} if plugin == "fmcore_cuda_hopper" else set()
    assert set(seen["trapped"]) <= allowed
    assert seen["signs"] < 0.2, "20 ms when quiet; ten times that on a busy machine is a defect"
    assert seen["names"] == seen["declared"]


def test_all_probes_together_claim_no_device_twice_here():
    """On whatever machine this runs: at most one vendor claims a device."""
    code = (
        "import fmcore_cuda_hopper as a, fmcore_kunlun_xpu as b, fmcore_hygon_dcu as c, json\n"
        "from fmcore.dispatch.probes import ProbeEnv\n"
        "reports = [r for m in (a, b, c) for r in m.fmcore_probe(ProbeEnv(), True).values()]\n"
        "print(json.dumps([(x.device_type, x.index, x.vendor) for r in reports for x in r.claims]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    claims = json.loads(done.stdout)
    assert len({(kind, index) for kind, index, _ in claims}) == len(claims)


def test_two_smi_tools_on_the_path_decide_nothing(machine):
    """Both vendors' tools answer: each backend says what it saw, and neither claims a device."""
    from fmcore_hygon_dcu.probe import probe as hygon
    from fmcore_kunlun_xpu.probe import probe as kunlun

    outputs = {
        "xpu-smi": "| XPU-SMI  Driver Version: 5.0.21    XPU-RT Version: 5.0.21  |",
        "hy-smi": '{"card0": {"HCU use (%)": "0.0"}}',
    }
    reports = [probe(machine(outputs=outputs), deep=True) for probe in (kunlun, hygon)]
    assert [report.claims for report in reports] == [(), ()]
    assert reports[0].reason.startswith("Kunlun device found (xpu-smi, XPU-RT 5.0.21) but")
    assert reports[1].reason.startswith("Hygon DCU found (hy-smi, 1 cards) but")
    assert reports == [probe(machine(outputs=outputs), deep=True) for probe in (kunlun, hygon)]
