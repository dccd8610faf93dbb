"""The oracle as a backend: dispatched only by explicit permission, never chosen by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fmcore.dispatch.hookspecs import hookimpl
from fmcore.dispatch.probes import Evidence, ProbeReport

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv
    from fmcore.dispatch.registrar import Registrar


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> Mapping[str, ProbeReport]:  # noqa: ARG001, FBT001 (the hook's signature)
    """Need torch and nothing else."""
    found = env.torch() is not None
    reason = "literal float64 functions, for checking" if found else "torch is not installed"
    evidence = Evidence("import torch", "found" if found else "missing", "for" if found else "against")
    return {"reference": ProbeReport(found, reason, (evidence,))}


@hookimpl
def fmcore_register_impls(registrar: Registrar, spec_version: tuple[int, int]) -> None:  # noqa: ARG001 (the hook's signature)
    """Register the literal attention; the oracles of math and MoE are called by the suite directly."""
    from fmcore.dispatch.caps import Caps
    from fmcore.reference import attention

    caps = Caps(dtypes={"float16", "bfloat16", "float32", "float64"}, capture=False)
    registrar.impl("flashmask_attention", name="literal", caps=caps, backward=attention.backward)(attention.forward)
