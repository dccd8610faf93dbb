"""HML, the math library of Hygon's CPUs: finding it, loading it, saying which of its functions are there."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from fmcore.dispatch.probes import ProbeEnv, ProbeReport
from fmcore.dispatch.probing import Notebook

FILE = "libhml_rt.so"
VARIABLE = "FMCORE_HML_LIBRARY"
_FOLDERS = ("HML_DIR", "FLAGS_hml_dir")
_BLAS = ("gemm", "gemm_batch", "axpy", "copy", "gemv", "trsm")
_VECTOR = ("Add", "Sub", "Mul", "Div", "Exp", "Sqr", "Powx", "Inv")
THREADS = ("hml_blas_set_num_threads", "hml_blas_get_num_threads")
# The 50 functions of HML's C interface: the names, and the meaning of the arguments, are those of CBLAS and VML.
SYMBOLS = (
    *(f"cblas_{letter}{name}" for letter, name in itertools.product("sdcz", _BLAS)),
    *(f"cblas_{letter}{name}" for letter, name in itertools.product("sd", ("dot", "asum", "scal"))),
    "cblas_isamax",
    "cblas_idamax",
    *(f"v{letter}{name}" for letter, name in itertools.product("sd", _VECTOR)),
    *THREADS,
)


@dataclass(frozen=True, slots=True)
class Hml:
    """A loaded library.

    Attributes:
        path: Name or file by which it was loaded.
        library: The ctypes handle.
        missing: Functions of the interface that it lacks.
    """

    path: str
    library: Any
    missing: tuple[str, ...]

    def has(self, symbol: str) -> bool:
        """Whether a function of the interface is there."""
        return symbol in SYMBOLS and symbol not in self.missing


def places(env: ProbeEnv) -> tuple[str, ...]:
    """Return what is tried in order: a named file alone, or the folders of the variables, then the loader's path."""
    named = env.getenv(VARIABLE)
    if named:
        return (named,)
    folders = [folder.rstrip("/") for name in _FOLDERS if (folder := env.getenv(name))]
    inside = [f"{folder}{sub}/{FILE}" for folder in folders for sub in ("", "/lib", "/lib64")]
    return (*(path for path in inside if env.exists(path)), FILE)


def load(env: ProbeEnv) -> Hml | None:
    """Load the first library that is there, or return None."""
    for path in places(env):
        library = env.library(path)
        if library is not None:
            return Hml(path, library, tuple(name for name in SYMBOLS if not hasattr(library, name)))
    return None


def probe(env: ProbeEnv, *, deep: bool) -> ProbeReport:
    """Look for a Hygon CPU and for the library. It claims no device: host tensors are the CPU's.

    Args:
        env: The machine.
        deep: Whether the library may be loaded.
    """
    notes = Notebook()
    named = env.getenv(VARIABLE)
    if named:
        notes.write(VARIABLE, named, "for")
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", env.read_text("/proc/cpuinfo", 4096) or "", re.MULTILINE)
    maker = vendor.group(1) if vendor else "unknown"
    hygon = maker == "HygonGenuine"
    notes.write("/proc/cpuinfo vendor_id", maker, "for" if hygon else "against")
    if not hygon and not named:
        reason = f"HML is for Hygon's CPUs, this one is {maker}; {VARIABLE} names a library to use all the same"
        return ProbeReport(available=False, reason=reason, evidence=notes.evidence)
    if not deep:
        return ProbeReport(
            available=False, reason="the library was not loaded, this look was shallow", evidence=notes.evidence
        )
    hml = load(env)
    if hml is None:
        tried = ", ".join(places(env))
        notes.write(FILE, f"not loaded; tried {tried}", "against")
        reason = f"HML's library does not load (tried {tried}); set HML_DIR to its folder, or {VARIABLE} to its file"
        return ProbeReport(available=False, reason=reason, evidence=notes.evidence)
    present = len(SYMBOLS) - len(hml.missing)
    listed = f", without {', '.join(hml.missing)}" if 0 < len(hml.missing) <= 4 else ""
    notes.write(hml.path, f"{present} of {len(SYMBOLS)} functions{listed}", "for" if present else "against")
    if not present:
        return ProbeReport(available=False, reason=f"{hml.path} has none of HML's functions", evidence=notes.evidence)
    return ProbeReport(
        available=True,
        reason=f"{hml.path} with {present} of {len(SYMBOLS)} functions on a {maker} CPU",
        evidence=notes.evidence,
    )
