"""Two backends: adapters for Hygon DCUs, and HML, the math library of Hygon's CPUs. Importing this loads neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.dispatch import hookimpl

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv, ProbeReport


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> dict[str, ProbeReport]:  # noqa: FBT001 (the hook's signature)
    """Probe the two apart: a Hygon CPU says nothing about a DCU, and a DCU nothing about the CPU."""
    from fmcore_hygon_dcu import hml, probe

    return {"hygon_dcu": probe.probe(env, deep=deep), "hygon_hml": hml.probe(env, deep=deep)}
