"""What the probe says where there is no compiled module, where it does not load, and where a wish cannot be met."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import fmcore_cpu
from fmcore.dispatch.probes import ProbeEnv
from fmcore_cpu import _build

NAME = "fmcore_cpu._kernels"


def fake(isa: str = "avx2") -> SimpleNamespace:
    def set_isa(wanted: str) -> None:
        if wanted not in ("auto", isa):
            raise ValueError(f"instruction set '{wanted}' is not built in")

    return SimpleNamespace(set_isa=set_isa, isa=lambda: isa)


def probe(**options: object) -> object:
    return fmcore_cpu.fmcore_probe(ProbeEnv(**options), True)["cpu"]


def test_found_and_loaded() -> None:
    report = probe(modules={NAME: fake(), "torch": SimpleNamespace()}, environ={})
    assert report.available
    assert "avx2" in report.reason


def test_missing_says_what_to_do_and_what_the_compiler_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = probe(modules={NAME: None}, environ={})
    assert not report.available
    assert "C++17 compiler" in report.reason
    monkeypatch.setattr(_build, "__file__", str(tmp_path / "_build.py"))
    (tmp_path / _build.FAILURE_FILE).write_text("CompileError: no g++\n")
    assert "CompileError: no g++" in probe(modules={NAME: None}, environ={}).reason


def test_a_wish_that_cannot_be_met() -> None:
    report = probe(modules={NAME: fake(), "torch": SimpleNamespace()}, environ={_build.ISA_VARIABLE: "avx1024"})
    assert not report.available
    assert "FMCORE_CPU_ISA='avx1024'" in report.reason


def test_no_torch() -> None:
    assert not probe(modules={NAME: fake(), "torch": None}, environ={}).available


@pytest.mark.usefixtures("kernels")
def test_the_variable_chooses_the_instruction_set() -> None:
    code = "from fmcore_cpu import _native; import sys; sys.stdout.write(_native.isa())"
    environ = {"FMCORE_CPU_ISA": "baseline", "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == "baseline"


def test_an_install_without_a_compiler_goes_on(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(tmp_path),
        "--build-temp",
        str(tmp_path / "t"),
    ]
    environ = {"FMCORE_CPU_SKIP_BUILD": "1", "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, cwd=root)
    assert done.returncode == 0, done.stderr
    note = (tmp_path / "fmcore_cpu" / _build.FAILURE_FILE).read_text()
    assert "FMCORE_CPU_SKIP_BUILD" in note
    missing = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=root, env={"PATH": "", "CC": "none", "CXX": "none"}
    )
    assert missing.returncode == 0, missing.stderr
    assert "none" in (tmp_path / "fmcore_cpu" / _build.FAILURE_FILE).read_text()
