"""Judges one plugin: finds it, reads its metadata, loads it in another process, and says what is right and wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata as importlib_metadata
from pathlib import Path
from typing import Any, Literal

from fmcore.dispatch import hookspecs
from fmcore.dispatch.metadata import FILE_NAME, BackendMeta, parse, read_package
from fmcore.dispatch.plugins import GROUP
from fmcore.errors import InvalidInputError, PluginError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

IMPORT_LIMIT_MS = 100.0
SHALLOW_LIMIT_MS = 20.0
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Line:
    """One verdict: ``ok``, ``warning`` or ``failed``."""

    check: str
    verdict: Literal["ok", "warning", "failed"]
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dict."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a plugin is.

    Attributes:
        package: Its import name.
        folder: What must be on ``sys.path``; empty for an installed one.
        pyproject: Its project file, parsed; empty where there is none.
    """

    package: str
    folder: str
    pyproject: Mapping[str, Any]


def find(place: str) -> Target:
    """Find a plugin by folder, entry-point name or package name.

    Raises:
        InvalidInputError: There is no such plugin.
    """
    path = Path(place)
    if path.is_dir():
        return _in_folder(path.resolve())
    points = {point.name: point.value for point in importlib_metadata.entry_points(group=GROUP)}
    if place in points:
        return Target(points[place], "", {})
    if place in points.values():
        return Target(place, "", {})
    raise InvalidInputError(
        f"no plugin {place!r}: it is no folder, and the installed plugins are {', '.join(sorted(points)) or 'none'}"
    )


def _in_folder(folder: Path) -> Target:
    if (folder / FILE_NAME).is_file():
        return Target(folder.name, str(folder.parent), {})
    project = folder / "pyproject.toml"
    if not project.is_file():
        raise InvalidInputError(f"{folder} holds neither pyproject.toml nor {FILE_NAME}; give the plugin's own folder")
    try:
        data = tomllib.loads(project.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(f"{project} is not valid TOML: {error}") from error
    points = data.get("project", {}).get("entry-points", {}).get(GROUP, {})
    if len(points) != 1:
        raise InvalidInputError(
            f'{project} has {len(points)} entry points in [project.entry-points."{GROUP}"]; a plugin has one, '
            "whose value is its package"
        )
    package = next(iter(points.values()))
    root = next((r for r in (folder, folder / "src") if (r / package).is_dir()), None)
    if root is None:
        raise InvalidInputError(f"{project} names package {package!r}, which is neither in {folder} nor in its src")
    return Target(package, str(root), data)


def check(target: Target) -> list[Line]:
    """Return a verdict per check; the later checks are left out where an earlier failure makes them impossible."""
    try:
        metas = _metadata(target)
    except PluginError as error:
        return [Line("metadata", "failed", str(error))]
    names = ", ".join(meta.name for meta in metas)
    lines = [Line("metadata", "ok", f"{FILE_NAME} declares {names}")]
    lines += _spec_version(metas)
    lines += _names(target, metas)
    lines += _packaging(target)
    first, printed = _run(target)
    # The first run may have compiled bytecode: the second one is what users meet.
    second, _ = _run(target, "shallow") if "import" in first else (first, "")
    for step in ("import", "shallow"):
        if "ms" in first.get(step, {}) and "ms" in second.get(step, {}):
            first[step]["ms"] = min(first[step]["ms"], second[step]["ms"])
    lines += _import(first, printed)
    for step, judge in _STEPS:
        if step in first:
            lines += judge(first)
    return lines


def _metadata(target: Target) -> tuple[BackendMeta, ...]:
    if not target.folder:
        return read_package(target.package)
    path = Path(target.folder) / target.package / FILE_NAME
    if not path.is_file():
        raise PluginError(f"{path} does not exist; it says what the plugin brings, with one [[backend]] table each")
    return parse(path.read_text(encoding="utf-8"), str(path))


def _spec_version(metas: tuple[BackendMeta, ...]) -> Iterator[Line]:
    have = ".".join(map(str, hookspecs.SPEC_VERSION))
    for meta in metas:
        if meta.accepts_spec():
            yield Line("spec_version", "ok", f"{meta.name}: {meta.spec_version} accepts plugin API {have}")
        else:
            text = f"{meta.name}: {meta.spec_version} does not accept plugin API {have}; it would be left out"
            yield Line("spec_version", "failed", text)


def _names(target: Target, metas: tuple[BackendMeta, ...]) -> Iterator[Line]:
    for point in importlib_metadata.entry_points(group=GROUP):
        if point.value == target.package:
            continue
        try:
            others = {meta.name for meta in read_package(point.value)}
        except (PluginError, OSError):
            continue
        for meta in metas:
            if meta.name in others:
                yield Line(
                    "name", "failed", f"backend {meta.name!r} is declared by installed plugin {point.name!r} too"
                )


def _packaging(target: Target) -> Iterator[Line]:
    """Setuptools leaves a TOML file out of a wheel unless told; the plugin then works in its own folder only."""
    build = str(target.pyproject.get("build-system", {}).get("build-backend", ""))
    if not build.startswith("setuptools"):
        return
    data = target.pyproject.get("tool", {}).get("setuptools", {}).get("package-data", {})
    patterns = [str(pattern) for group in data.values() for pattern in group]
    if any(Path(FILE_NAME).match(pattern) for pattern in patterns):
        yield Line("packaging", "ok", f"{FILE_NAME} is package data")
    else:
        text = (
            f'{FILE_NAME} is no package data and will be missing from wheels; add package-data = {{ "*" = ["*.toml"] }}'
        )
        yield Line("packaging", "failed", text)


def _run(target: Target, until: str = "") -> tuple[dict[str, Any], str]:
    """Load the plugin in a fresh process; return the worker's notes and everything that was printed."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "notes.json"
        command = [sys.executable, "-m", "fmcore.cli._plugin_worker", target.package, target.folder, str(out), until]
        environ = {**os.environ, "FMCORE_PLUGIN_AUTOLOAD": "0"}
        try:
            done = subprocess.run(  # noqa: S603 (our own interpreter and module)
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environ
            )
            printed, ending = done.stdout + done.stderr, f"the process ended with code {done.returncode}"
        except subprocess.TimeoutExpired:
            printed, ending = "", f"the process was still running after {TIMEOUT_S:.0f} s"
        notes = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
        notes["ending"] = ending
        return notes, printed


def _import(first: dict[str, Any], printed: str) -> Iterator[Line]:
    if "import" not in first:
        yield Line("import", "failed", f"{first['ending']} while the package was imported: {printed.strip()[-400:]}")
        return
    facts = first["import"]
    if "error" in facts:
        yield Line("import", "failed", f"importing raises {facts['error']}\n{facts['traceback']}")
        return
    milliseconds = facts["ms"]
    if facts["heavy"]:
        text = f"importing the package imports {', '.join(facts['heavy'])}; import it inside the hooks"
        yield Line("import", "failed", text)
    if milliseconds > IMPORT_LIMIT_MS:
        yield Line("import", "failed", f"takes {milliseconds:.0f} ms, the limit is {IMPORT_LIMIT_MS:.0f} ms")
    if printed.strip():
        yield Line("import", "failed", f"the plugin prints: {printed.strip()[:200]!r}; use logging.getLogger")
    if not facts["heavy"] and milliseconds <= IMPORT_LIMIT_MS and not printed.strip():
        yield Line("import", "ok", f"{milliseconds:.1f} ms, no framework, nothing printed")
    if "impls" not in first and "hooks" in first:
        yield Line("hooks", "failed", f"{first['ending']} while the hooks were called")


def _hooks(notes: dict[str, Any]) -> Iterator[Line]:
    facts = notes["hooks"]
    for name in facts["misspelt"]:
        yield Line(
            "hooks",
            "failed",
            f"{name} is marked as a hook, but there is none; the hooks are {', '.join(facts['known'])}",
        )
    for name in facts["unmarked"]:
        yield Line("hooks", "failed", f"{name} has a hook's prefix, but no @hookimpl: it would never be called")
    if "error" in facts:
        yield Line("hooks", "failed", facts["error"])
    elif not facts["found"]:
        yield Line("hooks", "failed", f"the package implements none of {', '.join(facts['known'])}")
    elif not facts["misspelt"] and not facts["unmarked"]:
        yield Line("hooks", "ok", ", ".join(facts["found"]))


def _shallow(notes: dict[str, Any]) -> Iterator[Line]:
    facts = notes["shallow"]
    if facts.get("absent"):
        yield Line(
            "shallow probe", "warning", "no fmcore_probe: the backend counts as available wherever its signs are"
        )
        return
    yield from _probe_failures("shallow probe", facts)
    if facts.get("heavy"):
        yield Line("shallow probe", "failed", f"it imports {', '.join(facts['heavy'])}, which deep=False forbids")
    elif facts["ms"] > SHALLOW_LIMIT_MS:
        yield Line("shallow probe", "warning", f"takes {facts['ms']:.0f} ms, {SHALLOW_LIMIT_MS:.0f} ms are the aim")
    elif "error" not in facts and not facts["missing"]:
        yield Line("shallow probe", "ok", f"{facts['ms']:.1f} ms, no framework imported")


def _deep(notes: dict[str, Any]) -> Iterator[Line]:
    facts = notes["deep"]
    if facts.get("absent"):
        return
    yield from _probe_failures("deep probe", facts)
    for name, report in facts.get("reports", {}).items():
        state = "available" if report["available"] else "unavailable"
        text = f"{name} is {state} here: {report['reason']}; it claims {report['claims']} devices"
        yield Line(
            "deep probe",
            "ok" if report["reason"] else "failed",
            text if report["reason"] else f"{name} gives no reason",
        )


def _probe_failures(name: str, facts: dict[str, Any]) -> Iterator[Line]:
    if "error" in facts:
        yield Line(name, "failed", f"raises {facts['error']}\n{facts['traceback']}")
    for backend in facts.get("missing", ()):
        yield Line(name, "failed", f"gives no ProbeReport for {backend!r}, which the metadata declares")


def _impls(notes: dict[str, Any]) -> Iterator[Line]:
    facts = notes["impls"]
    if facts.get("absent"):
        yield Line("implementations", "warning", "no fmcore_register_impls: the plugin serves no op")
        return
    reports = notes.get("deep", {}).get("reports", {})
    here = any(report["available"] for report in reports.values()) or not reports
    for item in facts["broken"]:
        yield Line("implementations", "failed", f"{item['impl']} is wrong:\n{item['why']}")
    if "error" in facts and not here and facts["error"].startswith(("ImportError", "ModuleNotFoundError", "OSError")):
        yield Line("implementations", "warning", f"not judged: the backend is unavailable here and {facts['error']}")
    elif "error" in facts:
        yield Line("implementations", "failed", f"registering raises {facts['error']}\n{facts['traceback']}")
    elif not facts["impls"]:
        yield Line("implementations", "warning", "none is registered")
    else:
        yield Line("implementations", "ok", "; ".join(facts["impls"]))


_STEPS: tuple[tuple[str, Callable[[dict[str, Any]], Iterator[Line]]], ...] = (
    ("hooks", _hooks),
    ("shallow", _shallow),
    ("deep", _deep),
    ("impls", _impls),
)
