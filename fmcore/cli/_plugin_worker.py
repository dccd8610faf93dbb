"""Runs in a process of its own: loads one plugin as the engine would, and writes down what happened."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fmcore.dispatch import hookspecs
from fmcore.dispatch.metadata import BackendMeta, read_package
from fmcore.dispatch.probes import ProbeEnv, ProbeReport

# Importing one of these takes a second or touches a device: neither may happen when a plugin is imported.
HEAVY = ("torch", "triton", "numpy", "paddle", "cupy")


class Notes:
    """What has happened so far, on disk after each step: a plugin may end the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.data: dict[str, Any] = {}

    def write(self, step: str, **facts: Any) -> None:
        """Store the facts of one step."""
        self.data[step] = facts
        self._path.write_text(json.dumps(self.data), encoding="utf-8")


def main(package: str, folder: str, out: str, until: str = "") -> None:
    """Import a package, call its hooks, and store what was seen in the file ``out``; stop after a step if told."""
    notes = Notes(Path(out))
    if folder:
        sys.path.insert(0, folder)
    metas = read_package(package)
    before = set(sys.modules)
    start = time.perf_counter()
    module = _guarded(lambda: importlib.import_module(package))
    seconds = time.perf_counter() - start
    heavy = [name for name in HEAVY if name in sys.modules and name not in before]
    notes.write("import", ms=seconds * 1e3, heavy=heavy, **module[1])
    if module[0] is None:
        return
    notes.write("hooks", **_hooks(module[0]))
    shallow = _probe(module[0], metas, deep=False)
    heavy = [name for name in HEAVY if name in sys.modules and name not in before]
    notes.write("shallow", heavy=heavy, **shallow)
    if until == "shallow":
        return
    notes.write("deep", **_probe(module[0], metas, deep=True))
    notes.write("impls", **_register(module[0], metas))


def _guarded(step: Callable[[], Any]) -> tuple[Any, dict[str, str]]:
    try:
        return step(), {}
    except Exception as error:  # noqa: BLE001 (this process exists to see what a plugin raises)
        return None, {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def _hooks(module: Any) -> dict[str, Any]:
    import pluggy

    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs.Hooks)
    known = sorted(name for name in vars(hookspecs.Hooks) if name.startswith("fmcore_"))
    marker = f"{hookspecs.PROJECT}_impl"
    functions = {name: getattr(module, name) for name in dir(module) if callable(getattr(module, name))}
    marked = sorted(name for name, function in functions.items() if hasattr(function, marker))
    unmarked = sorted(name for name in functions if name.startswith("fmcore_") and name not in marked)
    _, failure = _guarded(lambda: manager.register(module))
    return {
        "found": [name for name in marked if name in known],
        "misspelt": [name for name in marked if name not in known],
        "unmarked": unmarked,
        "known": known,
        **failure,
    }


def _call(module: Any, hook: str, **arguments: Any) -> Any:
    """Call a hook with the arguments that it names, as pluggy does."""
    function = getattr(module, hook)
    return function(**{name: arguments[name] for name in inspect.signature(function).parameters})


def _probe(module: Any, metas: tuple[BackendMeta, ...], *, deep: bool) -> dict[str, Any]:
    if not hasattr(module, "fmcore_probe"):
        return {"absent": True}
    start = time.perf_counter()
    reports, failure = _guarded(lambda: dict(_call(module, "fmcore_probe", env=ProbeEnv(), deep=deep)))
    facts: dict[str, Any] = {"ms": (time.perf_counter() - start) * 1e3, **failure}
    if reports is not None:
        facts["missing"] = [m.name for m in metas if not isinstance(reports.get(m.name), ProbeReport)]
        facts["reports"] = {name: _report(report) for name, report in reports.items()}
    return facts


def _report(report: Any) -> dict[str, Any]:
    if not isinstance(report, ProbeReport):
        return {"available": False, "reason": f"a {type(report).__name__}, not a ProbeReport", "claims": 0}
    return {"available": report.available, "reason": report.reason, "claims": len(report.claims)}


def _register(module: Any, metas: tuple[BackendMeta, ...]) -> dict[str, Any]:
    if not hasattr(module, "fmcore_register_impls"):
        return {"absent": True}
    from fmcore import ops
    from fmcore.dispatch.registrar import Registrar

    names: Mapping[str, BackendMeta] = {meta.name: meta for meta in metas}
    registrar = Registrar(names, tuple(names), ops.feature_names())
    arguments = {"registrar": registrar, "spec_version": hookspecs.SPEC_VERSION}
    _, failure = _guarded(lambda: _call(module, "fmcore_register_impls", **arguments))
    return {
        "impls": [f"{impl.id} of {impl.op}" for impl in registrar.impls],
        "broken": [{"impl": f"{b.backend}/{b.name} of {b.op}", "why": b.why} for b in registrar.broken],
        **failure,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
