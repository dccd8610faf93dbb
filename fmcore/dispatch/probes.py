"""Looking at the machine: probes give evidence, never a bare yes. Everything outside goes through ProbeEnv."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from fmcore.dispatch.arch import Arch

Verdict = Literal["for", "against", "hint", "unknown"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation: which probe looked, what it saw, and which way that points."""

    probe: str
    value: str
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dict."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """A backend's statement that a torch device is of its vendor.

    Attributes:
        device_type: torch's device type, for instance ``"cuda"`` (which several vendors use).
        index: Device index.
        vendor: Vendor tag.
        arch: Chip generation, or None where it could not be read.
        name: Product name for people.
    """

    device_type: str
    index: int
    vendor: str
    arch: Arch | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What a probe found for one backend.

    Attributes:
        available: Whether the backend can run here.
        reason: Why not, or what was recognised; always a sentence.
        evidence: Every observation in the order it was made.
        claims: Devices that are of this backend's vendor, whether or not the backend itself is available.
    """

    available: bool
    reason: str
    evidence: tuple[Evidence, ...] = ()
    claims: tuple[DeviceClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeEnv:
    """The outside world as probes may see it; tests give a fake one.

    Args:
        root: Prefix of absolute paths, for tests with fake files.
        environ: Environment variables; the process's own when None.
        modules: Fake modules by name; a name mapped to None is not installed.
        outputs: Fake command outputs by program name; with it no command is run.
        libraries: Fake libraries by name.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] | None = None
    modules: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, str | None] | None = None
    libraries: Mapping[str, Any] | None = None

    def _path(self, path: str) -> str:
        return path if self.root == Path("/") else str(self.root / path.lstrip("/"))

    def exists(self, path: str) -> bool:
        """Whether the file, folder or device node exists."""
        return os.path.lexists(self._path(path))

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Return the sorted paths that match, as seen from the root."""
        import glob

        prefix = "" if self.root == Path("/") else str(self.root)
        return tuple(sorted(found[len(prefix) :] for found in glob.glob(self._path(pattern))))  # noqa: PTH207 (absolute patterns)

    def read_text(self, path: str, limit: int = 1 << 16) -> str | None:
        """Return the first ``limit`` bytes of a file as text, or None where it cannot be read.

        Kernel files such as ``/proc/cpuinfo`` are written as they are read and grow with the machine.
        """
        try:
            with Path(self._path(path)).open("rb") as file:
                return file.read(limit).decode("utf-8", errors="replace")
        except OSError:
            return None

    def getenv(self, name: str) -> str | None:
        """Return an environment variable."""
        return (os.environ if self.environ is None else self.environ).get(name)

    def find_spec(self, name: str) -> bool:
        """Whether a top-level module is installed; nothing is imported."""
        if name in self.modules:
            return self.modules[name] is not None
        if name in sys.modules:
            return True
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False

    def loaded(self, name: str) -> bool:
        """Whether the module has been imported already by someone else."""
        return self.modules[name] is not None if name in self.modules else name in sys.modules

    def module(self, name: str) -> Any:
        """Import and return a module, or None where that fails for lack of something."""
        if name in self.modules:
            return self.modules[name]
        try:
            return importlib.import_module(name)
        except (ImportError, OSError, RuntimeError, AttributeError):
            return None

    def torch(self) -> ModuleType | Any:
        """Return torch, or None where it is not installed or does not load."""
        return self.module("torch")

    def library(self, name: str) -> Any:
        """Load a shared library by name or path, or return None."""
        if self.libraries is not None:
            return self.libraries.get(name)
        import ctypes

        try:
            return ctypes.CDLL(name)
        except OSError:
            return None

    def run(self, command: Sequence[str], timeout: float = 5.0) -> str | None:
        """Run a command and return what it printed, or None where it is missing, fails or takes too long.

        An exit code of 0 is no proof of anything: parse the text.
        """
        if self.outputs is not None:
            return self.outputs.get(command[0])
        import subprocess

        try:
            done = subprocess.run(list(command), capture_output=True, text=True, timeout=timeout, check=False)  # noqa: S603 (probes name fixed programs)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None
