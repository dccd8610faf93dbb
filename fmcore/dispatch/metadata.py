"""``fmcore_backend.toml``: what a plugin says of its backends, read without importing it."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmcore.dispatch.probes import Evidence, ProbeEnv
from fmcore.errors import PluginError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SPEC_VERSION = (1, 0)  # of the plugin API: docs/plugins.md has the compatibility policy
FILE_NAME = "fmcore_backend.toml"
BANDS = ("native", "portable", "framework", "reference")
SHALLOW_KINDS = ("file", "module", "env", "platform", "always")
_CLAUSE = re.compile(r"^(>=|<=|==|<|>)\s*(\d+)(?:\.(\d+))?$")


@dataclass(frozen=True, slots=True)
class ShallowRule:
    """One sign that a backend may be usable; any rule that holds is enough to look deeper.

    Attributes:
        kind: ``file`` (path or pattern exists), ``module`` (top-level module is installed), ``env``
            (variable is set), ``platform`` (``sys.platform`` starts with it), ``always``.
        any: Names of which one must hold.
        contains: For ``file``: a regular expression that the file's text must also match.
    """

    kind: str
    any: tuple[str, ...] = ()
    contains: str = ""

    def look(self, env: ProbeEnv) -> Evidence:
        """Return what this rule saw; the verdict is ``for`` or ``against``."""
        if self.kind == "always":
            return Evidence("always", "needs no device", "for")
        for name in self.any:
            found = self._find(env, name)
            if found is not None:
                return Evidence(f"{self.kind} {name}", found, "for")
        matching = f" matching {self.contains!r}" if self.contains else ""
        return Evidence(f"{self.kind} {', '.join(self.any)}{matching}", "not found", "against")

    def _find(self, env: ProbeEnv, name: str) -> str | None:
        if self.kind == "module":
            return "installed" if env.find_spec(name) else None
        if self.kind == "env":
            return env.getenv(name) or None
        if self.kind == "platform":
            return sys.platform if sys.platform.startswith(name) else None
        for path in env.glob(name):
            if not self.contains:
                return path
            match = re.search(self.contains, env.read_text(path) or "")
            if match:
                return match.group(0)
        return None


@dataclass(frozen=True, slots=True)
class EnvVar:
    """An FMCORE_* variable that a plugin reads."""

    name: str
    type: str = "str"
    default: str = ""
    doc: str = ""


@dataclass(frozen=True, slots=True)
class BackendMeta:
    """One backend's metadata.

    Attributes:
        name: Unique name, the word used in policies.
        vendor: Vendor tag of the devices it serves; ``"any"`` for backends that are not bound to one.
        band: ``native``, ``portable`` or ``framework``.
        spec_version: Range of plugin API versions it was written for, such as ``">=1,<2"``.
        shallow: Signs of usability that need no import; any one is enough.
        env: The FMCORE_* variables it reads.
        docs: Where its documentation is.
    """

    name: str
    vendor: str = "any"
    band: str = "native"
    spec_version: str = ">=1,<2"
    shallow: tuple[ShallowRule, ...] = (ShallowRule("always"),)
    env: tuple[EnvVar, ...] = ()
    docs: str = ""

    @property
    def band_rank(self) -> int:
        """Position of the band: 0 is preferred."""
        return BANDS.index(self.band)

    def accepts_spec(self) -> bool:
        """Whether this fmcore's plugin API version lies in the declared range."""
        return all(_clause_holds(clause.strip()) for clause in self.spec_version.split(","))

    def look(self, env: ProbeEnv) -> tuple[bool, tuple[Evidence, ...]]:
        """Run the shallow rules: whether any holds, and all that was seen."""
        seen = tuple(rule.look(env) for rule in self.shallow)
        return any(item.verdict == "for" for item in seen), seen


def _clause_holds(clause: str) -> bool:
    match = _CLAUSE.match(clause)
    if match is None:
        raise PluginError(f"spec_version clause {clause!r} is not of the form '>=1' or '<2.1'")
    sign, major, minor = match.groups()
    want = (int(major), int(minor or 0))
    have = SPEC_VERSION if minor is not None or sign != "==" else (SPEC_VERSION[0], 0)
    return {
        ">=": have >= want,
        "<=": have <= want,
        "==": have == want,
        "<": have < want,
        ">": have > want,
    }[sign]


def parse(text: str, where: str) -> tuple[BackendMeta, ...]:
    """Parse the file's text.

    Args:
        text: TOML with one ``[[backend]]`` table per backend.
        where: The file's path, for messages.

    Raises:
        PluginError: It is not TOML, a field is missing, unknown or of a wrong kind.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PluginError(f"{where} is not valid TOML: {error}") from error
    tables = data.get("backend")
    if not isinstance(tables, list) or not tables:
        raise PluginError(f"{where} has no [[backend]] table; give one per backend")
    return tuple(_backend(table, where) for table in tables)


def _backend(table: Any, where: str) -> BackendMeta:
    if not isinstance(table, Mapping):
        raise PluginError(f"{where}: backend = {table!r} is no table; write [[backend]] and its fields below")
    known = {"name", "vendor", "band", "spec_version", "shallow", "env", "docs"}
    for name in ("name", "vendor", "band", "spec_version", "shallow"):
        if name not in table:
            raise PluginError(
                f"{where}: a [[backend]] table has no {name!r}; it needs name, vendor, band, spec_version and shallow"
            )
    unknown = sorted(set(table) - known)
    if unknown:
        raise PluginError(
            f"{where}: [[backend]] {table['name']!r} has unknown fields {unknown}; known are {sorted(known)}"
        )
    for name in ("name", "vendor", "band", "spec_version", "docs"):
        if not isinstance(table.get(name, ""), str):
            raise PluginError(f"{where}: {name} = {table[name]!r} must be text")
    for name in ("shallow", "env"):
        entries = table.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise PluginError(f"{where}: {name} = {entries!r} must be a list of tables")
    if table["band"] not in BANDS[:3]:
        raise PluginError(f"{where}: band {table['band']!r} is none of {', '.join(BANDS[:3])}")
    rules = tuple(_rule(rule, where) for rule in table["shallow"])
    if not rules:
        raise PluginError(f'{where}: shallow is empty; use [{{kind = "always"}}] for a backend that needs no device')
    variables = tuple(_variable(variable, where) for variable in table.get("env", ()))
    meta = BackendMeta(
        table["name"], table["vendor"], table["band"], table["spec_version"], rules, variables, table.get("docs", "")
    )
    meta.accepts_spec()
    return meta


def _variable(entry: Mapping[str, Any], where: str) -> EnvVar:
    unknown = sorted(set(entry) - {"name", "type", "default", "doc"})
    if unknown or not str(entry.get("name", "")).startswith("FMCORE_"):
        raise PluginError(
            f"{where}: env entry {dict(entry)} is not understood; it has a name that starts with FMCORE_, "
            "and may have type, default and doc"
        )
    return EnvVar(**{name: str(value) for name, value in entry.items()})


def _rule(rule: Mapping[str, Any], where: str) -> ShallowRule:
    kind = rule.get("kind")
    if kind not in SHALLOW_KINDS or set(rule) - {"kind", "any", "contains"}:
        raise PluginError(
            f"{where}: shallow rule {dict(rule)} is not understood; "
            f"kinds are {', '.join(SHALLOW_KINDS)}, fields any and contains"
        )
    names = rule.get("any", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PluginError(f"{where}: shallow rule {dict(rule)}: 'any' must be a list of texts")
    if kind != "always" and not names:
        raise PluginError(f"{where}: shallow rule {dict(rule)} needs a non-empty list 'any'")
    try:
        re.compile(str(rule.get("contains", "")))
    except re.error as error:
        raise PluginError(
            f"{where}: shallow rule {dict(rule)}: 'contains' is no regular expression: {error}"
        ) from error
    return ShallowRule(str(kind), tuple(rule.get("any", ())), str(rule.get("contains", "")))


def read_package(package: str) -> tuple[BackendMeta, ...]:
    """Find a top-level package without importing it and parse its metadata.

    Raises:
        PluginError: The package is not installed, is a dotted name, or has no valid ``fmcore_backend.toml``.
    """
    if "." in package:
        raise PluginError(
            f"entry point value {package!r} is dotted; name a top-level package, so that nothing is imported to find it"
        )
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:
        raise PluginError(f"package {package!r} cannot be located: {error}") from error
    if spec is None or not spec.submodule_search_locations:
        raise PluginError(f"package {package!r} is not installed as a package folder; reinstall the plugin")
    for folder in spec.submodule_search_locations:
        path = Path(folder) / FILE_NAME
        if path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise PluginError(f"{path} is not UTF-8: {error}") from error
            return parse(text, str(path))
    raise PluginError(
        f"package {package!r} has no {FILE_NAME}; add it as package data with one [[backend]] table per backend"
    )
