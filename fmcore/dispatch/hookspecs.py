"""The hooks of the plugin API. Spec version 1; the compatibility policy is in docs/plugins.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from fmcore.dispatch.metadata import SPEC_VERSION

if TYPE_CHECKING:
    from fmcore.dispatch.decision import Decision
    from fmcore.dispatch.probes import ProbeEnv, ProbeReport
    from fmcore.dispatch.registrar import Registrar

__all__ = ["PROJECT", "SPEC_VERSION", "Hooks", "hookimpl"]

PROJECT = "fmcore"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Hooks:
    """What a plugin may implement; it implements as many of them as it needs."""

    @hookspec
    def fmcore_probe(self, env: ProbeEnv, deep: bool) -> Mapping[str, ProbeReport]:  # type: ignore[empty-body]
        """Look at the machine and report, by backend name, whether it can run here.

        Args:
            env: The only window to files, modules, libraries, commands and variables.
            deep: False forbids importing a framework or touching a device; True allows both.

        Returns:
            A report for each backend that the plugin's metadata declares.
        """

    @hookspec
    def fmcore_register_impls(self, registrar: Registrar, spec_version: tuple[int, int]) -> None:
        """Register implementations with ``registrar.impl(...)``; called once, before the first call of an op."""

    @hookspec
    def fmcore_doctor(self, backend: str) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Return extra lines for ``fmcore doctor``: versions, switches in force, limits."""

    @hookspec
    def fmcore_on_decision(self, decision: Decision) -> None:
        """See a decision when it is made (on a cache miss only)."""

    @hookspec
    def fmcore_conformance_cases(self, op: str, profile: str) -> Any:
        """Return further conformance cases for an op; cases can be added, never removed."""
