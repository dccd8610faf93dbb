"""The engine: plugins, probes, capabilities, policy, resolution, the table. It knows no vendor and no kernel."""

from __future__ import annotations

from fmcore.dispatch.arch import Arch, ArchRange
from fmcore.dispatch.hookspecs import SPEC_VERSION, hookimpl
from fmcore.dispatch.metadata import BackendMeta, EnvVar, ShallowRule
from fmcore.dispatch.probes import DeviceClaim, Evidence, ProbeEnv, ProbeReport

__all__ = [
    "SPEC_VERSION",
    "Arch",
    "ArchRange",
    "BackendMeta",
    "DeviceClaim",
    "EnvVar",
    "Evidence",
    "ProbeEnv",
    "ProbeReport",
    "ShallowRule",
    "hookimpl",
]
