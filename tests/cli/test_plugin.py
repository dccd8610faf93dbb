"""``plugin new`` writes what ``plugin check`` accepts; each mutation of it is found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fmcore.cli import _plugin_check, _plugin_new, _plugin_worker, main

EXAMPLE = Path(__file__).parents[2] / "examples" / "vendor_plugin"


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def verdicts(place):
    result = run("plugin", "check", str(place), "--json")
    return result.exit_code, json.loads(result.stdout)["checks"]


def test_the_example_is_what_new_writes():
    for path, text in _plugin_new.render("acme").items():
        assert (EXAMPLE / path).read_text() == text


def test_the_example_is_small():
    lines = [line for path in _plugin_new.render("acme") for line in (EXAMPLE / path).read_text().splitlines()]
    assert len(lines) < 80


def test_new_then_check(tmp_path):
    result = run("plugin", "new", "zeta_1", "--dir", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "fmcore plugin check" in result.output
    code, lines = verdicts(tmp_path / "out")
    assert code == 0, lines
    assert {line["verdict"] for line in lines} == {"ok"}
    assert lines[-1]["text"] == "zeta_1/one_copy of math.rms_norm"


@pytest.mark.parametrize("name", ["Bad", "9lives", "has-dash", "", "a.b"])
def test_new_refuses_names_that_are_no_package(tmp_path, name):
    result = run("plugin", "new", name, "--dir", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "cannot be a package" in result.output


def test_new_overwrites_nothing(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    result = run("plugin", "new", "acme", "--dir", str(tmp_path))
    assert result.exit_code == 2
    assert "not an empty folder" in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


SOURCE = "fmcore_acme/__init__.py"
META = "fmcore_acme/fmcore_backend.toml"
TOP = "from typing import Any\n"


def mutated(folder, path, old, new):
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    target = folder / path
    assert old in target.read_text()
    target.write_text(target.read_text().replace(old, new, 1))
    return folder


def failures(lines, check):
    return " | ".join(line["text"] for line in lines if line["check"] == check and line["verdict"] == "failed")


def test_everything_wrong_with_an_import(tmp_path):
    bad = f"{TOP}import time, numpy\nprint('hi')\ntime.sleep(0.2)\n"
    target = _plugin_check.find(str(mutated(tmp_path / "plugin", SOURCE, TOP, bad)))
    lines = [line.to_json() for line in _plugin_check._import(*_plugin_check._run(target, "shallow"))]
    text = failures(lines, "import")
    assert "importing the package imports numpy; import it inside the hooks" in text
    assert "the limit is 100 ms" in text
    assert "the plugin prints: 'hi" in text


@pytest.mark.parametrize(
    ("bad", "words"),
    [("1 / 0\n", "ZeroDivisionError"), ("import os\nos._exit(7)\n", "the process ended with code 7")],
)
def test_an_import_that_fails(tmp_path, bad, words):
    code, lines = verdicts(mutated(tmp_path / "plugin", SOURCE, TOP, TOP + bad))
    assert code == 1
    assert words in failures(lines, "import")


def test_a_shallow_probe_that_imports_a_framework(tmp_path):
    place = mutated(tmp_path / "plugin", SOURCE, "env.torch() if deep else None", 'env.module("numpy")')
    notes, _ = _plugin_check._run(_plugin_check.find(str(place)), "shallow")
    lines = [line.to_json() for line in _plugin_check._shallow(notes)]
    assert failures(lines, "shallow probe") == "it imports numpy, which deep=False forbids"


@pytest.fixture
def in_process(monkeypatch, tmp_path):
    """Run the worker in this process, which has torch already: for what does not depend on a fresh one."""

    def run_here(target, until=""):
        monkeypatch.syspath_prepend(target.folder)
        before = set(sys.modules)
        try:
            _plugin_worker.main(target.package, "", str(tmp_path / "notes.json"), until)
        finally:
            for name in set(sys.modules) - before:
                if name.startswith(target.package):
                    del sys.modules[name]
        return {**json.loads((tmp_path / "notes.json").read_text()), "ending": ""}, ""

    monkeypatch.setattr(_plugin_check, "_run", run_here)


MUTATIONS = {
    "misspelt": (SOURCE, "def fmcore_probe", "def fmcore_prob", "hooks", "fmcore_prob is marked as a hook"),
    "unmarked": (SOURCE, "@hookimpl\ndef fmcore_probe", "def fmcore_probe", "hooks", "but no @hookimpl"),
    "arguments": (SOURCE, "(registrar: Any)", "(registry: Any)", "hooks", "registry"),
    "no report": (SOURCE, 'return {"acme"', 'return {"acne"', "deep probe", "no ProbeReport for 'acme'"),
    "raising probe": (SOURCE, "    torch = env", "    1 / 0\n    torch = env", "deep probe", "ZeroDivisionError"),
    "no reason": (SOURCE, "host tensors of torch", "", "deep probe", "acme gives no reason"),
    "unknown op": (SOURCE, '"math.rms_norm"', '"math.rms_nrm"', "implementations", "math.rms_nrm"),
    "unknown feature": (SOURCE, '"width"', '"girth"', "implementations", "girth"),
    "no backward": (SOURCE, ', autograd="native"', "", "implementations", "has no backward"),
    "raising hook": (SOURCE, "    import torch\n", "    import torch\n    1 / 0\n", "implementations", "ZeroDivision"),
    "other api": (META, ">=1,<2", ">=2", "spec_version", "does not accept plugin API 1.0"),
    "no toml": (META, "[[backend]]", "[[backend", "metadata", "is not valid TOML"),
    "taken name": (META, 'name = "acme"', 'name = "torch"', "name", "is declared by installed plugin 'torch' too"),
    "packaging": ("pyproject.toml", '"*.toml"', '"*.json"', "packaging", "will be missing from wheels"),
}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_mutation_is_found(tmp_path, mutation):
    path, old, new, check, words = MUTATIONS[mutation]
    code, lines = verdicts(mutated(tmp_path / "plugin", path, old, new))
    assert code == 1, lines
    assert words in failures(lines, check), lines


@pytest.mark.usefixtures("in_process")
def test_without_mutation_nothing_is_found():
    code, lines = verdicts(EXAMPLE)
    assert (code, {line["verdict"] for line in lines}) == (0, {"ok"})


@pytest.mark.usefixtures("in_process")
def test_a_vendor_library_that_is_missing_here_is_no_failure(tmp_path):
    place = mutated(tmp_path / "plugin", SOURCE, "    import torch\n", "    import acme_runtime\n    import torch\n")
    source = place / SOURCE
    source.write_text(source.read_text().replace("available=torch is not None", "available=False"))
    code, lines = verdicts(place)
    assert code == 0
    assert lines[-1]["verdict"] == "warning"
    assert "acme_runtime" in lines[-1]["text"]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("name", ["kunlun_xpu", "fmcore_hygon_dcu"])
def test_installed_plugins_by_entry_point_or_package(name):
    code, lines = verdicts(name)
    assert code == 0, lines


def test_unknown_place():
    result = run("plugin", "check", "no_such_plugin")
    assert result.exit_code == 2
    assert "the installed plugins are" in result.output


def test_a_folder_that_is_no_plugin(tmp_path):
    assert run("plugin", "check", str(tmp_path)).exit_code == 2
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    result = run("plugin", "check", str(tmp_path))
    assert result.exit_code == 2
    assert "has 0 entry points" in result.output


@pytest.mark.usefixtures("in_process")
def test_verdict_lines_for_people():
    result = run("plugin", "check", str(EXAMPLE))
    assert result.exit_code == 0
    assert "ok      import:" in result.stdout
    assert "0 failed" in result.stdout


USE = """
import torch, fmcore as fm
assert fm.backends()
x = torch.randn(5, 64, dtype=torch.float64, requires_grad=True)
w = torch.randn(64, dtype=torch.float64, requires_grad=True)
ours = fm.math.rms_norm(x, w, backend="acme")
theirs = fm.math.rms_norm(x, w, backend="torch")
torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
assert torch.autograd.gradcheck(lambda a, b: fm.math.rms_norm(a, b, backend="acme"), (x, w))
assert fm.explain("math.rms_norm", x, w).impl.id == "acme/one_copy", fm.explain("math.rms_norm", x, w)
half = torch.randn(5, 64, dtype=torch.bfloat16)
assert fm.explain("math.rms_norm", half, None).impl.backend != "acme"
with fm.use("torch"):
    assert fm.explain("math.rms_norm", x, w).impl.backend == "torch"
print("served")
"""


def test_the_example_installed_by_pip_serves_calls(site, tmp_path):
    """A real wheel, built without the network and installed to a folder of its own."""
    source = tmp_path / "source"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index",
               "--disable-pip-version-check", "--target", str(site.root), str(source)]  # fmt: skip
    done = subprocess.run(install, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (site.root / META).is_file()
    done = site.run("-W", "error", "-c", USE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "served\n"
