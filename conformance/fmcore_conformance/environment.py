"""What a statement says about the machine, the software and the switches under which it was made."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import fmcore

SWITCHES = (
    "FMCORE_",
    "OMP_",
    "MKL_",
    "CUDA_",
    "CUBLAS_",
    "NVIDIA_TF32",
    "TRITON_",
    "HIP_",
    "HSA_",
    "XPU",
    "BKCL_",
    "NCCL_",
    "TORCH_",
)


def source_state() -> dict[str, Any]:
    """Commit and dirty flag of the source tree that fmcore is imported from.

    A copy without its history is told its commit by SOURCE_COMMIT, and then does not know whether it is dirty; an
    installed wheel knows neither.
    """
    folder = Path(fmcore.__file__).parent
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return {"commit": os.environ.get("SOURCE_COMMIT"), "dirty": None}
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def distributions() -> dict[str, str]:
    """Versions of the packages that decide numbers."""
    found = {"python": platform.python_version()}
    for name in ("fmcore-kernels", "torch", "numpy", "triton", "pluggy", "cupy-cuda13x", "paddlepaddle"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # noqa: PERF203 (each package may be missing by itself)
            continue
    return found


def switches() -> dict[str, str]:
    """Environment variables that change what a kernel does."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(SWITCHES)}


def device_facts(device: str) -> dict[str, Any]:
    """Name, architecture and driver of the device under test."""
    import torch

    facts: dict[str, Any] = {"torch_device": device, "host": platform.machine(), "os": platform.platform()}
    kind = torch.device(device).type
    if kind == "cpu":
        facts["name"] = _cpu_model()
        facts["arch"] = torch.backends.cpu.get_cpu_capability()
        facts["cores"] = os.cpu_count()
        return facts
    module = getattr(torch, kind, None)
    if module is not None and hasattr(module, "get_device_name"):
        facts["name"] = module.get_device_name(device)
    if kind == "cuda":
        facts["arch"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
        facts["runtime"] = torch.version.cuda or torch.version.hip
        facts["driver"] = _driver()
    return facts


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    return text.splitlines()[0].strip()


def backend_facts() -> list[dict[str, Any]]:
    """Every backend with its state, reason and distribution."""
    return [
        {
            "name": backend.name,
            "vendor": backend.meta.vendor,
            "band": backend.meta.band,
            "distribution": backend.distribution,
            "state": backend.state,
            "reason": backend.reason,
        }
        for backend in fmcore.backends()
    ]


def version_of(backend: str | None, facts: list[dict[str, Any]]) -> str:
    """Version of the distribution that brings a backend, for waivers; fmcore's own under automatic selection."""
    row = next((fact for fact in facts if fact["name"] == backend), None)
    text = row["distribution"].rsplit(" ", 1)[-1] if row else ""
    return text if text[:1].isdigit() else distributions().get("fmcore-kernels", "0")


def emulation(backend: str | None, loaded: tuple[str, ...]) -> str:
    """Why this run does not exercise a vendor's own library or device; empty for a real run.

    A plugin says so with evidence whose probe is named ``emulated``; a module given to ``--load`` with an attribute
    ``EMULATED``; and kernels under Triton's interpreter run on no device at all.
    """
    reasons = []
    interpreted = os.environ.get("TRITON_INTERPRET", "").lower() not in ("", "0", "false", "off")
    if interpreted and backend == "triton":
        reasons.append("TRITON_INTERPRET is set: kernels run in the interpreter")
    for found in fmcore.backends():
        if backend is not None and found.name != backend:
            continue
        reasons += [f"{found.name}: {item.value}" for item in found.evidence if item.probe == "emulated"]
    for name in loaded:
        text = getattr(sys.modules.get(name), "EMULATED", "")
        if text:
            reasons.append(str(text))
    return "; ".join(reasons)
