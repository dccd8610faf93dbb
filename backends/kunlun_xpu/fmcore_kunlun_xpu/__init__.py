"""Adapters for Kunlun XPUs. Importing this package imports no framework and no vendor module."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from fmcore.dispatch import hookimpl

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv, ProbeReport


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> dict[str, ProbeReport]:  # noqa: FBT001 (the hook's signature)
    """Say whether the torch devices are Kunlun's and whether their torch runtime works."""
    from fmcore_kunlun_xpu.probe import probe

    return {"kunlun_xpu": probe(env, deep=deep)}


@hookimpl
def fmcore_doctor(backend: str) -> dict[str, str]:  # noqa: ARG001 (the hook's signature)
    """Name the vendor's packages and the switches that change precision, fallback or graph capture."""
    from fmcore.dispatch.probing import stack_lines

    packages = (
        "torch",
        "torch-xmlir",
        "torch-plugin",
        "kunlun-ops",
        "xspeedgate-ops",
        "cocopod",
        "flag-gems",
        "triton",
    )
    lines = stack_lines(packages, ("XPU", "XMLIR_", "KUNLUN_", "BKCL_"), os.environ)
    if "flag_gems" in sys.modules:
        lines["flag_gems"] = "is loaded: torch's own operations may be replaced in this process"
    return lines
