"""Two backends: adapters for Hygon DCUs, and HML, the math library of Hygon's CPUs. Importing this loads neither."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from fmcore.dispatch import hookimpl

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv, ProbeReport


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> dict[str, ProbeReport]:  # noqa: FBT001 (the hook's signature)
    """Probe the two apart: a Hygon CPU says nothing about a DCU, and a DCU nothing about the CPU."""
    from fmcore_hygon_dcu import hml, probe

    return {"hygon_dcu": probe.probe(env, deep=deep), "hygon_hml": hml.probe(env, deep=deep)}


@hookimpl
def fmcore_doctor(backend: str) -> dict[str, str]:
    """Name the vendor's packages and the switches in force, apart for the two backends."""
    from fmcore.dispatch.probing import stack_lines

    if backend == "hygon_hml":
        return stack_lines((), ("HML_", "FLAGS_hml_dir", "FMCORE_HML_"), os.environ)
    packages = ("torch", "triton", "flash-attn", "deep-ep", "flag-gems")
    lines = stack_lines(packages, ("HIP_", "HSA_", "DTK_", "ROCM_", "MIOPEN_", "NCCL_"), os.environ)
    if "flag_gems" in sys.modules:
        lines["flag_gems"] = "is loaded: torch's own operations may be replaced in this process"
    return lines
