"""Small parts that device probes share: PCI functions, versions, the user's own word. No vendor is named here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from fmcore.dispatch.probes import Evidence, ProbeEnv, Verdict

MINIMUM_TORCH = (2, 9)
_VERSION = re.compile(r"^\s*v?(\d+(?:\.\d+)*)")


class Notebook:
    """Collects evidence in the order in which it is seen.

    >>> notes = Notebook()
    >>> notes.write("/dev/acme0", "exists", "for")
    >>> notes.evidence[0].verdict
    'for'
    """

    def __init__(self) -> None:
        self._items: list[Evidence] = []

    def write(self, probe: str, value: object, verdict: Verdict) -> None:
        """Add one observation."""
        self._items.append(Evidence(probe, str(value), verdict))

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Everything seen so far."""
        return tuple(self._items)


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One PCI function as sysfs lists it; the ids are lower-case hexadecimal with ``0x``."""

    address: str
    vendor: str
    device: str
    class_code: int

    @property
    def base_class(self) -> int:
        """Upper byte of the class code: 0x03 is a display controller, 0x06 a bridge, 0x12 an accelerator."""
        return self.class_code >> 16


def pci_functions(env: ProbeEnv, vendor: str) -> tuple[PciFunction, ...]:
    """Return the PCI functions of one vendor id, such as ``"0x10de"``, in the order of their addresses."""
    found = []
    for path in env.glob("/sys/bus/pci/devices/*/vendor"):
        if (env.read_text(path) or "").strip().lower() == vendor:
            folder = path.rpartition("/")[0]
            device, code = ((env.read_text(f"{folder}/{name}") or "").strip().lower() for name in ("device", "class"))
            found.append(PciFunction(folder.rpartition("/")[2], vendor, device, _hexadecimal(code)))
    return tuple(found)


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def first_choice(env: ProbeEnv) -> str:
    """Return the backend that FMCORE_BACKEND prefers for every op, or an empty string.

    It is the user's own word on what the machine is: ``"a,b; moe.*=c"`` gives ``"a"``.
    """
    for part in (env.getenv("FMCORE_BACKEND") or "").split(";"):
        if part.strip() and "=" not in part:
            return part.split(",")[0].strip()
    return ""


def blocked(env: ProbeEnv) -> frozenset[str]:
    """Return the backends that FMCORE_BLOCK names."""
    return frozenset(name.strip() for name in (env.getenv("FMCORE_BLOCK") or "").split(","))


def parse_version(text: object) -> tuple[int, ...] | None:
    """Return the leading numbers of a version, or None where it is not one.

    A build without a feature may carry the text ``'False'``, which is truthy: versions are parsed, never tested.

    >>> parse_version("2.9.0+local"), parse_version("False")
    ((2, 9, 0), None)
    """
    match = _VERSION.match(text) if isinstance(text, str) else None
    return tuple(int(part) for part in match.group(1).split(".")) if match else None


def torch_problem(torch: Any) -> str:
    """Return why this torch cannot be used, as part of a sentence, or an empty string."""
    if torch is None:
        return "torch is not importable"
    found = parse_version(str(getattr(torch, "__version__", "")))
    if found is None or found[:2] < MINIMUM_TORCH:
        least = ".".join(map(str, MINIMUM_TORCH))
        return f"torch {getattr(torch, '__version__', 'of unknown version')} is too old, torch >= {least} is needed"
    return ""


def ask(module: Any, path: str, *arguments: Any) -> tuple[Any, str]:
    """Call ``module.<path>(*arguments)``; return its answer and, where it is missing or raised, None and the error.

    A stack that is half installed lacks such functions, or raises from one that is documented to return a bool.
    """
    try:
        found = module
        for name in path.split("."):
            found = getattr(found, name)
        return found(*arguments), ""
    except (RuntimeError, OSError, AttributeError, TypeError, ValueError, ImportError, AssertionError) as error:
        return None, f"{type(error).__name__}: {error}"


def stack_lines(packages: Iterable[str], prefixes: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a report on a vendor's stack should record: package versions and the switches in force.

    Args:
        packages: Names of distributions; nothing is imported.
        prefixes: Beginnings of the names of environment variables that change what the stack computes.
        environ: The environment.

    >>> stack_lines((), ("ACME_",), {"ACME_TF32": "1", "HOME": "/root"})
    {'switches': 'ACME_TF32=1'}
    """
    versions = [f"{name} {version}" for name in packages if (version := _version(name))]
    switches = [f"{name}={value}" for name, value in sorted(environ.items()) if name.startswith(prefixes)]
    found = {"packages": ", ".join(versions), "switches": ", ".join(switches)}
    return {name: text for name, text in found.items() if text}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
