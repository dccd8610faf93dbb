"""Adapters for Kunlun XPUs. Importing this package imports no framework and no vendor module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.dispatch import hookimpl

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv, ProbeReport


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> dict[str, ProbeReport]:  # noqa: FBT001 (the hook's signature)
    """Say whether the torch devices are Kunlun's and whether their torch runtime works."""
    from fmcore_kunlun_xpu.probe import probe

    return {"kunlun_xpu": probe(env, deep=deep)}
