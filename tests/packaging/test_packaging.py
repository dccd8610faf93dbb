"""The distribution: what it installs, what it requires, and that it leaves an installed torch alone."""

from __future__ import annotations

import configparser
import email
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "fmcore", "fmcore_conformance", "fmcore_cpu", "fmcore_cuda_hopper", "fmcore_hygon_dcu", "fmcore_kunlun_xpu",
    "fmcore_torch", "fmcore_triton",
}  # fmt: skip


SOURCES = ("fmcore", "backends", "conformance/fmcore_conformance")


def _installed(tracked: str) -> str:
    """Path inside the wheel of a tracked file of a package."""
    parts = tracked.split("/")
    return "/".join(parts[{"backends": 2, "conformance": 1}.get(parts[0], 0) :])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that is built from it (so that nothing needed is missing in the sdist)."""
    source = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout: the sdist is built from tracked files")
    for name in filter(None, tracked.stdout.split("\0")):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), "."], cwd=source, capture_output=True,
        text=True, env={**os.environ, "FMCORE_CPU_SKIP_BUILD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_the_wheel_holds_the_packages_and_nothing_else(built):
    names = zipfile.ZipFile(built[0]).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith((".dist-info", ".so"))} == PACKAGES
    assert not [name for name in names if "/tests/" in name or name.startswith(("tests", "backends", "conformance/"))]
    data = subprocess.run(["git", "ls-files", "--", *SOURCES], cwd=ROOT, capture_output=True, text=True, check=True)
    needed = [n for n in data.stdout.split() if n.endswith((".toml", ".json", ".j2", ".typed")) and "/tools/" not in n]
    assert len(needed) > 10
    assert [n for n in needed if _installed(n) not in names] == []


def test_torch_and_every_accelerator_package_are_extras(built):
    archive = zipfile.ZipFile(built[0])
    text = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    required = [r for r in email.message_from_string(text).get_all("Requires-Dist") if "extra ==" not in r]
    names = sorted(r.split(">")[0].split(";")[0].strip() for r in required)
    assert names == ["click", "platformdirs", "pluggy", "rich", "tomli"]
    extras = set(email.message_from_string(text).get_all("Provides-Extra"))
    assert {"torch", "cuda", "report", "test", "dev"} <= extras


def test_entry_points_are_the_same_for_everyone(built):
    archive = zipfile.ZipFile(built[0])
    parser = configparser.ConfigParser()
    parser.read_string(archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode())
    assert set(parser["fmcore.backends"].values()) == PACKAGES - {"fmcore", "fmcore_conformance"}
    assert "fmcore" in parser["console_scripts"]
    assert parser["pytest11"]["fmcore_conformance"] == "fmcore_conformance._pytest_option"


def test_the_sdist_has_sources_and_licence(built):
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for needed in (
        "LICENSE",
        "CHANGELOG.md",
        "setup.py",
        "backends/cpu/build_kernels.py",
        "fmcore/dispatch/resolve.py",
    ):
        assert needed in names
    assert [n for n in names if n.startswith("backends/cpu/csrc/")]


def _digest(folder: Path) -> str:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.parent.name.startswith("torch"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()


def test_installing_never_touches_an_installed_torch(built, tmp_path):
    """A vendor's torch, with its local version, is there before and the same after; no requirement can replace it."""
    venv.create(tmp_path / "env", with_pip=False, system_site_packages=False)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python3*")) / "site-packages"
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("__version__ = '2.9.0+das.opt1.dtk2604'\n")
    info = site / "torch-2.9.0+das.opt1.dtk2604.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0+das.opt1.dtk2604\n")
    (info / "RECORD").write_text("torch/__init__.py,,\n")
    (info / "INSTALLER").write_text("vendor\n")
    before = _digest(site)
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-index",
        "--no-deps",
        str(built[0]),
    ]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert _digest(site) == before
    shown = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    assert shown.stdout.strip() == "2.9.0+das.opt1.dtk2604"
    assert (site / "fmcore" / "__init__.py").is_file()
    assert {p.name for p in site.iterdir() if p.is_dir() and p.name.startswith("fmcore")} >= PACKAGES


def test_the_pytest_option_imports_nothing():
    code = (
        "import sys, fmcore_conformance._pytest_option\n"
        "print([m for m in sys.modules if m in ('torch', 'fmcore', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
