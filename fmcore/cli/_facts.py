"""What ``doctor`` gathers. Each part is guarded by itself: a broken torch or plugin must not hide the rest."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib import metadata as importlib_metadata
from typing import Any

import fmcore
from fmcore import config
from fmcore.dispatch import api, hookspecs
from fmcore.dispatch.devices import lookup
from fmcore.dispatch.metadata import BANDS
from fmcore.dispatch.plugins import MANAGER, impls_of
from fmcore.dispatch.registry import REGISTRY, Backend
from fmcore.errors import VendorConflictError

DISTRIBUTION = "fmcore-kernels"
# Read from installed metadata, never imported: importing one of these can touch a device.
PACKAGES = ("torch", "triton", "numpy", "cupy-cuda13x", "paddlepaddle", "flash-attn", "pluggy", "click", "rich")


def gather(*, shallow: bool) -> dict[str, Any]:
    """Return everything that ``doctor`` shows, as plain data.

    Args:
        shallow: Read metadata and signs only: no plugin is imported and no device is asked.
    """
    MANAGER.discover()
    failure: dict[str, Any] = {}
    if not shallow:
        failure = _guarded(lambda: dict.fromkeys(b.name for b in api.backends()))
    found = [*REGISTRY.snapshot.backends.values(), *MANAGER.failures.values()]
    found.sort(key=lambda b: (BANDS.index(b.meta.band), b.name))
    return {
        "fmcore": _fmcore(),
        "python": {"version": platform.python_version(), "executable": sys.executable, "platform": platform.platform()},
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "torch": {} if shallow else _guarded(_torch),
        "environment": _environment(found),
        "backends": [_backend(backend) for backend in found],
        "broken_impls": [
            {"op": b.op, "backend": b.backend, "name": b.name, "why": b.why} for b in REGISTRY.snapshot.broken
        ],
        "devices": [] if shallow else _devices(found),
        "load_failure": failure if "error" in failure else {},
        "choice": {} if shallow else _guarded(lambda: api.backend().to_json()),
    }


def _version(name: str) -> str:
    try:
        return importlib_metadata.version(name)
    except importlib_metadata.PackageNotFoundError:
        return ""


def _guarded(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return part()
    except Exception as error:  # noqa: BLE001 (a doctor shows whatever is broken; it must not die of it)
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def _fmcore() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "version": fmcore.__version__,
        "distribution": f"{DISTRIBUTION} {_version(DISTRIBUTION) or 'not installed (imported from a folder)'}",
        "file": str(fmcore.__file__),
        "plugin_api": ".".join(map(str, hookspecs.SPEC_VERSION)),
    }
    stranger = _version("fmcore")
    if stranger:
        where = importlib_metadata.distribution("fmcore").locate_file("")
        facts["foreign"] = (
            f"distribution 'fmcore' {stranger} at {where} is another project of the same import name; "
            f"`pip uninstall fmcore`, then reinstall {DISTRIBUTION}"
        )
    return facts


def _torch() -> dict[str, Any]:
    torch = import_module("torch")
    cuda = getattr(torch, "cuda", None)
    return {
        "version": str(torch.__version__),
        "file": str(torch.__file__),
        "cuda": str(torch.version.cuda),
        "hip": str(getattr(torch.version, "hip", None)),
        "cuda_devices": int(cuda.device_count()) if cuda is not None else 0,
    }


def _environment(found: list[Backend]) -> list[dict[str, Any]]:
    rows = [
        {"name": v.name, "value": os.environ.get(v.name), "default": v.default, "doc": v.doc, "owner": "fmcore"}
        for v in config.VARIABLES
    ]
    rows += [
        {"name": v.name, "value": os.environ.get(v.name), "default": v.default, "doc": v.doc, "owner": backend.name}
        for backend in found
        for v in backend.meta.env
    ]
    known = {row["name"] for row in rows}
    rows += [
        {"name": name, "value": os.environ[name], "default": "", "doc": "not known to fmcore; ignored", "owner": "?"}
        for name in sorted(os.environ)
        if name.startswith("FMCORE_") and name not in known
    ]
    return rows


def _backend(backend: Backend) -> dict[str, Any]:
    impls = impls_of(backend.name)
    facts = {
        "name": backend.name,
        "state": backend.state,
        "reason": backend.reason,
        "vendor": backend.meta.vendor,
        "band": backend.meta.band,
        "impls": len(impls),
        "ops": len({impl.op for impl in impls}),
        "distribution": backend.distribution,
        "location": _file(backend.location),
        "spec_version": backend.meta.spec_version,
        "docs": backend.meta.docs,
        "evidence": [item.to_json() for item in backend.evidence],
        "traceback": backend.traceback,
    }
    facts["own_lines"] = _guarded(lambda: dict(MANAGER.doctor(backend.name)))
    return facts


def _file(location: str) -> str:
    """Return the file of a plugin that may not be loaded: its package is located, never imported."""
    if location.endswith(".py") or "." in location:
        return location
    try:
        spec = importlib.util.find_spec(location)
    except (ImportError, ValueError):
        return location
    return str(spec.origin) if spec is not None and spec.origin else location


def _devices(found: list[Backend]) -> list[dict[str, Any]]:
    places = {(c.device_type, c.index) for b in found if b.state not in ("blocked", "broken") for c in b.claims}
    torch = _guarded(_torch)
    places |= {("cuda", index) for index in range(torch.get("cuda_devices", 0))}
    return [_device(kind, index) for kind, index in [("cpu", 0), *sorted(places)]]


def _device(kind: str, index: int) -> dict[str, Any]:
    place = kind if kind == "cpu" else f"{kind}:{index}"
    try:
        info = lookup(REGISTRY.snapshot, kind, index)
    except VendorConflictError as error:
        return {"device": place, "vendor": "CONFLICT", "arch": "", "name": "", "claimed_by": [], "conflict": str(error)}
    return {
        "device": place,
        "vendor": info.vendor,
        "arch": str(info.arch) if info.arch else "",
        "name": info.name,
        "claimed_by": list(info.claimed_by),
        "conflict": "",
    }


def problems(facts: dict[str, Any]) -> list[str]:
    """Return what needs repair: each is a sentence. A backend for hardware that is not here is no problem."""
    found = [f"backend {b['name']} is broken: {b['reason']}" for b in facts["backends"] if b["state"] == "broken"]
    found += [f"implementation {b['name']} of {b['op']} in {b['backend']} is broken" for b in facts["broken_impls"]]
    found += [device["conflict"] for device in facts["devices"] if device["conflict"]]
    found += [
        f"{b['name']}: fmcore_doctor raised {b['own_lines']['error']}"
        for b in facts["backends"]
        if "error" in b["own_lines"] and b["state"] == "available"
    ]
    if "foreign" in facts["fmcore"]:
        found.append(facts["fmcore"]["foreign"])
    if facts["load_failure"]:
        found.append(f"loading stopped: {facts['load_failure']['error']}")
    if "error" in facts["torch"]:
        found.append(f"torch does not import: {facts['torch']['error']}")
    return found
