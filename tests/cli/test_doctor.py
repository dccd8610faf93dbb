"""``doctor`` works where nothing else does: torch missing, plugins broken, a stranger called fmcore installed."""

from __future__ import annotations

import json

import pytest

from fmcore.cli import _facts

TOML = """\
[[backend]]
name = "{0}"
vendor = "cpu"
band = "portable"
spec_version = ">=1,<2"
shallow = [{{ kind = "always" }}]
"""
NO_TORCH = "import sys\nsys.modules['torch'] = None\n"


@pytest.fixture(scope="module")
def sick(site):
    """A site with a broken plugin, one that answers the doctor wrongly, a foreign fmcore, and no torch."""
    site.plugin("boom", "fmd_boom", TOML.format("boom"), "raise RuntimeError('libboom.so is missing')\n")
    site.plugin("quack", "fmd_quack", TOML.format("quack"), (
        "from fmcore.dispatch import hookimpl\n@hookimpl\ndef fmcore_doctor(backend):\n    raise KeyError('driver')\n"
    ))  # fmt: skip
    site.add("fmcore", {"fmcore_stranger.py": ""}, {}, version="0.0.7")
    (site.root / "sitecustomize.py").write_text(NO_TORCH)
    return site


def test_everything_wrong_at_once(sick):
    done = sick.fmcore("doctor", "--json", FMCORE_BLOCK="triton", FMCORE_BAKEND="torch")
    assert done.returncode == 1, done.stderr
    data = json.loads(done.stdout)
    states = {b["name"]: b for b in data["backends"]}
    assert states["boom"]["state"] == "broken"
    assert "libboom.so is missing" in states["boom"]["traceback"]
    assert states["boom"]["distribution"] == "dist-fmd-boom 1.0"
    assert states["boom"]["location"].endswith("fmd_boom/__init__.py")
    assert states["triton"]["state"] == "blocked"
    assert states["torch"]["state"] != "available"
    assert "ModuleNotFoundError" in data["torch"]["error"]
    assert "fmcore' 0.0.7" in data["fmcore"]["foreign"]
    rows = {row["name"]: row for row in data["environment"]}
    assert rows["FMCORE_BLOCK"]["value"] == "triton"
    assert rows["FMCORE_BAKEND"]["doc"] == "not known to fmcore; ignored"
    assert rows["FMCORE_HML_LIBRARY"]["owner"] == "hygon_hml"
    problems = "\n".join(data["problems"])
    for words in (
        "backend boom is broken",
        "quack",
        "another project of the same import name",
        "torch does not import",
    ):
        assert words in problems


def test_the_same_for_people(sick):
    done = sick.fmcore("doctor")
    assert done.returncode == 1, done.stderr
    for words in (
        "Traceback of boom (dist-fmd-boom 1.0)",
        "libboom.so is missing",
        "To repair:",
        "pip uninstall fmcore",
    ):
        assert words in done.stdout


def test_what_needs_torch_says_so(sick):
    for arguments in (("list",), ("explain", "math.add")):
        done = sick.fmcore(*arguments)
        assert done.returncode == 3, done.stderr
        assert done.stderr.startswith("this needs torch, which does not import")


def test_shallow_imports_no_plugin_and_no_torch(sick):
    (sick.root / "fmd_boom" / "trace.py").write_text("")
    done = sick.run("-X", "importtime", "-m", "fmcore.cli", "doctor", "--shallow", "--json")
    data = json.loads(done.stdout)
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert not imported & {"torch", "fmd_boom", "fmd_quack", "fmcore_torch", "fmcore_cpu", "fmcore_kunlun_xpu"}
    assert {b["name"]: b["state"] for b in data["backends"]}["boom"] == "possible"


def test_a_healthy_machine(site):
    done = site.fmcore("doctor", "--json", FMCORE_PLUGINS="torch,kunlun_xpu,hygon_dcu,cuda_hopper", PYTHONPATH="")
    data = json.loads(done.stdout)
    assert done.returncode == 0, data["problems"]
    assert data["problems"] == []
    states = {b["name"]: b for b in data["backends"]}
    assert states["torch"]["state"] == "available"
    assert states["torch"]["impls"] > 50
    assert data["choice"]["name"]
    assert data["devices"][0] == {
        "device": "cpu", "vendor": "cpu", "arch": "", "name": "", "claimed_by": [], "conflict": ""
    }  # fmt: skip
    for name in ("kunlun_xpu", "hygon_dcu", "hygon_hml"):
        assert states[name]["reason"]
        assert states[name]["evidence"]


def test_nothing_available_is_exit_code_3(site):
    only = {"FMCORE_PLUGINS": "kunlun_xpu", "FMCORE_BLOCK": "reference"}
    done = site.fmcore("doctor", "--shallow", PYTHONPATH="", **only)
    assert done.returncode == 3, done.stdout


def test_problems_are_sentences_about_what_to_repair():
    facts = {
        "fmcore": {}, "torch": {}, "load_failure": {},
        "broken_impls": [{"op": "o", "backend": "b", "name": "n", "why": ""}],
        "backends": [{"name": "x", "state": "unavailable", "reason": "no card", "own_lines": {}}],
        "devices": [{"conflict": ""}, {"conflict": "device cuda:0 is claimed by several vendors"}],
    }  # fmt: skip
    assert _facts.problems(facts) == [
        "implementation n of o in b is broken",
        "device cuda:0 is claimed by several vendors",
    ]
