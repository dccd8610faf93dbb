"""Discovery is cheap and honours the allow-list; nothing is imported before it is needed."""

from __future__ import annotations

import json

import pytest

TOML = """\
[[backend]]
name = "{name}"
vendor = "cpu"
band = "portable"
spec_version = ">=1,<2"
shallow = [{{ kind = "always" }}]
"""
COUNT = """
import collections, importlib.metadata as im, json, sys, time
import pluggy, platformdirs  # what fmcore needs anyway is not part of the scan
counts = collections.Counter()
real = im.PathDistribution.read_text
def counted(self, filename):
    if filename == "entry_points.txt":
        counts[str(self._path)] += 1
    return real(self, filename)
im.PathDistribution.read_text = counted
start = time.perf_counter()
import fmcore
seconds = time.perf_counter() - start
from fmcore.dispatch.registry import REGISTRY
fmcore.dispatch.api.select_shallow()
print(json.dumps({
    "seconds": seconds, "reads": max(counts.values()), "read": len(counts), "torch": "torch" in sys.modules,
    "mine": {n: b.state for n, b in REGISTRY.snapshot.backends.items() if n.startswith("scan_")},
    "reasons": {n: b.reason for n, b in REGISTRY.snapshot.backends.items()},
    "imported": sorted(m for m in sys.modules if m.startswith("fms_"))}))
"""


@pytest.fixture(scope="module")
def crowded(site):
    """500 installed distributions, five of them plugins."""
    for number in range(495):
        site.add(f"crowd-{number}", {f"crowd_{number}.py": ""}, {})
    for number in range(5):
        source = "raise RuntimeError('imported by the scan')\n"
        site.plugin(f"scan_{number}", f"fms_{number}", TOML.format(name=f"scan_{number}"), source)
    return site


def look(site, **environ):
    done = site.run("-c", COUNT, **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_distribution_is_read_once(crowded):
    seen = look(crowded)
    assert seen["read"] >= 500
    assert seen["reads"] == 1
    assert seen["imported"] == []
    assert not seen["torch"]
    assert seen["mine"] == dict.fromkeys([f"scan_{n}" for n in range(5)], "possible")
    assert seen["seconds"] < 5, "a fraction of a second when quiet"


def test_allow_list(crowded):
    seen = look(crowded, FMCORE_PLUGINS="scan_1,torch")
    states = seen["mine"]
    assert states.pop("scan_1") == "possible"
    assert set(states.values()) == {"blocked"}
    assert seen["reasons"]["scan_0"] == "plugin 'scan_0' is not in FMCORE_PLUGINS='scan_1,torch'"


def test_an_empty_allow_list_allows_none(crowded):
    assert set(look(crowded, FMCORE_PLUGINS="")["mine"].values()) == {"blocked"}


def test_no_autoload_reads_no_metadata(crowded):
    done = crowded.run(
        "-c",
        "import importlib.metadata as im\n"
        "def trap(*a, **k): raise AssertionError('entry points were read')\n"
        "im.entry_points = trap\n"
        "import fmcore\n"
        "from fmcore.dispatch.registry import REGISTRY\n"
        "print(sorted(REGISTRY.snapshot.backends))",
        FMCORE_PLUGIN_AUTOLOAD="0",
    )
    assert done.returncode == 0, done.stderr
    assert "scan_0" not in done.stdout
    assert "torch" not in done.stdout


def test_block_list(crowded):
    assert look(crowded, FMCORE_BLOCK="scan_2")["mine"]["scan_2"] == "blocked"
