"""The portable rung: plain Triton kernels (the language as of 3.3) for any GPU that Triton compiles for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fmcore.dispatch import hookimpl

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv, ProbeReport
    from fmcore.dispatch.registrar import Registrar


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> Mapping[str, ProbeReport]:  # noqa: FBT001 (the hook's signature)
    """Accept a GPU that both torch and Triton can use."""
    from fmcore_triton.probe import probe

    return {"triton": probe(env, deep=deep)}


@hookimpl
def fmcore_register_impls(registrar: Registrar, spec_version: tuple[int, int]) -> None:  # noqa: ARG001 (the hook's signature)
    """Register attention, the fused kernels of fm.math, and the plan builder for GPUs."""
    if registrar.serves("triton"):
        from fmcore_triton.register import register

        register(registrar)


@hookimpl
def fmcore_doctor(backend: str) -> Mapping[str, str]:
    """Say which Triton compiles for what, and which launch tables are used."""
    if backend != "triton":
        return {}
    from fmcore_triton.probe import doctor

    return doctor()
