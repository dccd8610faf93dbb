"""The CPU backend: FlashMask attention and MoE row kernels in C++, one build for every torch, chosen by processor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fmcore.dispatch import Evidence, ProbeReport, hookimpl

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv
    from fmcore.dispatch.registrar import Registrar

MODULE = "fmcore_cpu._kernels"


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> Mapping[str, ProbeReport]:  # noqa: FBT001 (the hook's signature)
    """Look for the compiled module; deep, also load it and ask which instruction set it will use."""
    return {"cpu": _probe(env, deep=deep)}


def _probe(env: ProbeEnv, *, deep: bool) -> ProbeReport:
    from fmcore_cpu import _build

    if not env.find_spec(MODULE):
        failure = _build.failure()
        why = f"building it failed: {failure}" if failure else "this install has no compiled part"
        reason = f"{MODULE} is missing, {why}; install a C++17 compiler and pybind11, then reinstall fmcore-kernels"
        return ProbeReport(available=False, reason=reason, evidence=(Evidence(MODULE, "missing", "against"),))
    if not deep:
        return ProbeReport(available=True, reason=f"{MODULE} is there", evidence=(Evidence(MODULE, "found", "for"),))
    if env.torch() is None:
        return ProbeReport(
            available=False, reason="torch is not installed", evidence=(Evidence("import torch", "missing", "against"),)
        )
    module = env.module(MODULE)
    if module is None:
        reason = f"{MODULE} does not load on this machine; reinstall fmcore-kernels from source here"
        return ProbeReport(
            available=False, reason=reason, evidence=(Evidence(f"import {MODULE}", "failed", "against"),)
        )
    wanted = env.getenv(_build.ISA_VARIABLE) or "auto"
    try:
        module.set_isa(wanted)
    except ValueError as error:
        reason = f"{_build.ISA_VARIABLE}={wanted!r}: {error}"
        return ProbeReport(available=False, reason=reason, evidence=(Evidence(_build.ISA_VARIABLE, wanted, "against"),))
    return ProbeReport(
        available=True,
        reason=f"compiled kernels, instruction set {module.isa()}",
        evidence=(Evidence(f"import {MODULE}", "loaded", "for"), Evidence("instruction set", str(module.isa()), "for")),
    )


@hookimpl
def fmcore_register_impls(registrar: Registrar, spec_version: tuple[int, int]) -> None:  # noqa: ARG001 (the hook's signature)
    """Register attention, and MoE inside one process."""
    from fmcore_cpu import impls

    impls.register(registrar)


@hookimpl
def fmcore_doctor(backend: str) -> Mapping[str, str]:  # noqa: ARG001 (the plugin has one backend)
    """Instruction sets built in, the one in force, and the number of threads a call would use."""
    from fmcore_cpu import _build, _native

    error = _native.load_error()
    if error:
        failure = _build.failure()
        return {"kernels": error, **({"build": failure} if failure else {})}
    built = ", ".join(
        f"{name}{'' if able else ' (not of this processor)'}" for name, able in _native.kernels().isa_list()
    )
    return {"instruction sets built in": built, "in force": _native.isa(), "threads": str(_native.threads())}
