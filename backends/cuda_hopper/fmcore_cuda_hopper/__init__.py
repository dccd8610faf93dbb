"""Kernels for NVIDIA's Hopper generation. Importing this package imports neither torch nor a driver library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.dispatch import hookimpl

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv, ProbeReport


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> dict[str, ProbeReport]:  # noqa: FBT001 (the hook's signature)
    """Say which torch devices are NVIDIA's and whether one of them is a Hopper."""
    from fmcore_cuda_hopper.probe import probe

    return {"cuda_hopper": probe(env, deep=deep)}
