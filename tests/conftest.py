"""Fixtures that several folders need: little installed distributions, and plugins made on the spot."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fmcore as fm
from fmcore.dispatch import BackendMeta, hookimpl
from fmcore.dispatch.caps import Caps
from fmcore.dispatch.probes import ProbeReport


class Site:
    """A folder that looks like site-packages: little real distributions, as ``pip install --target`` leaves them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(
        self, distribution: str, files: dict[str, str | bytes], entry_points: dict[str, str], version: str = "1.0"
    ) -> None:
        """Install a distribution: its files, and a .dist-info with metadata, entry points and a record."""
        for path, content in files.items():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content if isinstance(content, bytes) else content.encode())
        info = self.root / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "INSTALLER").write_text("pip\n")
        if entry_points:
            lines = "".join(f"{name} = {value}\n" for name, value in entry_points.items())
            (info / "entry_points.txt").write_text(f"[fmcore.backends]\n{lines}")
        record = [*files, f"{info.name}/METADATA", f"{info.name}/RECORD"]
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in record))

    def plugin(self, name: str, package: str, toml: str | bytes | None, source: str, distribution: str = "") -> None:
        """Install a plugin: entry point ``name``, one package with metadata and source."""
        files: dict[str, str | bytes] = {f"{package}/__init__.py": source}
        if toml is not None:
            files[f"{package}/fmcore_backend.toml"] = toml
        self.add(distribution or f"dist-{package}".replace("_", "-"), files, {name: package})

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run ``python <command>`` with this folder on the path and no FMCORE_* variable but those given."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("FMCORE_", "PYTEST_"))}
        clean |= {"PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", **environ}
        return subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=clean,
            cwd=self.root.parent,
        )

    def fmcore(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the command line."""
        return self.run("-m", "fmcore.cli", *arguments, **environ)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return an empty site folder, one per test module."""
    return Site(tmp_path_factory.mktemp("site"))


class MadePlugin:
    """A plugin with one backend and one dense attention; it counts its calls and can be told to fail."""

    def __init__(
        self,
        name: str,
        *,
        caps: Caps | None = None,
        band: str = "native",
        vendor: str = "any",
        priority: int = 100,
        report: ProbeReport | Exception | None = None,
        fail: Exception | None = None,
        with_backward: bool = True,
    ) -> None:
        self.fmcore_metadata = (BackendMeta(name, vendor, band),)
        self.name = name
        self.caps = caps or Caps()
        self.priority = priority
        self.report = report or ProbeReport(available=True, reason="made by a test")
        self.fail = fail
        self.with_backward = with_backward
        self.forwards = 0
        self.backwards = 0

    @hookimpl
    def fmcore_probe(self) -> Any:
        if isinstance(self.report, Exception):
            raise self.report
        return {self.name: self.report}

    @hookimpl
    def fmcore_register_impls(self, registrar: Any) -> None:
        backward = self.backward if self.with_backward else None
        registrar.impl("flashmask_attention", name="dense", caps=self.caps, priority=self.priority, backward=backward)(
            self.forward
        )

    def forward(self, q: Any, k: Any, v: Any, mask: Any, *, softmax_scale: float, **_: Any) -> Any:
        self.forwards += 1
        if self.fail is not None:
            raise self.fail
        group = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * softmax_scale
        scores = scores.masked_fill(~mask.dense(q.device), -math.inf)
        lse = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - lse[..., None].nan_to_num(neginf=0.0))
        return torch.einsum("bhij,bjhd->bihd", weights, v).contiguous(), lse

    def backward(
        self, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, mask: Any, **options: Any
    ) -> Any:
        self.backwards += 1
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            calls, self.forwards = self.forwards, self.forwards
            again, again_lse = self.forward(*leaves, mask, **options)
            self.forwards = calls
            total = (again * dout).sum() + (0.0 if dlse is None else (again_lse.nan_to_num(neginf=0.0) * dlse).sum())
        return (*torch.autograd.grad(total, leaves), None)


@pytest.fixture
def plugin() -> Iterator[Callable[..., MadePlugin]]:
    """Return a function that makes and registers a plugin; afterwards all are taken out and the policy is cleared."""
    names: list[str] = []

    def make(name: str, **options: Any) -> MadePlugin:
        made = MadePlugin(name, **options)
        fm.register_backend(made)
        names.append(name)
        return made

    yield make
    fm.set_policy()
    for name in names:
        fm.unregister_backend(name)


@pytest.fixture
def alone() -> Iterator[None]:
    """Take the installed backends out, so that only made ones are candidates."""
    with fm.use(block=tuple(b.name for b in fm.backends())):
        yield


@pytest.fixture
def qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Small float32 query, key and value: batch 2, 12 rows, 4 query heads over 2."""
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(2, 12, 4, 16, generator=generator),
        torch.randn(2, 12, 2, 16, generator=generator),
        torch.randn(2, 12, 2, 16, generator=generator),
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what tests recorded as tables (the conformance suite's kill table), also under xdist."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, ()) if r.when == "call"]
    for report in reports:
        for name, text in report.user_properties:
            if name == "fmcore table":
                terminalreporter.section(report.nodeid.rsplit("::", 1)[-1])
                terminalreporter.write_line(text)
