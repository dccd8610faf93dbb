"""The engine: plugins, probes, capabilities, policy, resolution, the table. It knows no vendor and no kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmcore.dispatch.arch import Arch, ArchRange
from fmcore.dispatch.metadata import SPEC_VERSION, BackendMeta, EnvVar, ShallowRule
from fmcore.dispatch.probes import DeviceClaim, Evidence, ProbeEnv, ProbeReport

if TYPE_CHECKING:
    from fmcore.dispatch.hookspecs import hookimpl

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


def __getattr__(name: str) -> Any:
    """Give ``hookimpl`` when a plugin asks for it: pluggy is dear to import, and no plugin is imported with fmcore."""
    if name == "hookimpl":
        from fmcore.dispatch.hookspecs import hookimpl

        return hookimpl
    raise AttributeError(f"module 'fmcore.dispatch' has no attribute {name!r}; it has {', '.join(__all__)}")
