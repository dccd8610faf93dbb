"""Kernels for NVIDIA's Hopper generation. Importing this package imports neither torch nor a driver library."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fmcore.dispatch import hookimpl

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv, ProbeReport
    from fmcore.dispatch.registrar import Registrar


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> dict[str, ProbeReport]:  # noqa: FBT001 (the hook's signature)
    """Say which torch devices are NVIDIA's and whether one of them is a Hopper."""
    from fmcore_cuda_hopper.probe import probe

    return {"cuda_hopper": probe(env, deep=deep)}


@hookimpl
def fmcore_register_impls(registrar: Registrar, spec_version: tuple[int, int]) -> None:  # noqa: ARG001 (the hook's signature)
    """Register attention; its kernels are imported by the first call."""
    if registrar.serves("cuda_hopper"):
        from fmcore_cuda_hopper.register import register

        register(registrar)


@hookimpl
def fmcore_doctor(backend: str) -> dict[str, str]:  # noqa: ARG001 (the hook's signature)
    """Name the packages that the kernels build on and the switches in force."""
    from fmcore.dispatch.probing import stack_lines

    return stack_lines(("torch", "triton", "cupy-cuda13x"), ("CUDA_", "NVIDIA_TF32_OVERRIDE", "NCCL_"), os.environ)
