"""The framework rung: every op on any torch device, from torch's own operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fmcore.dispatch import Evidence, ProbeReport, hookimpl

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv
    from fmcore.dispatch.registrar import Registrar

OLDEST_TORCH = (2, 9)


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> Mapping[str, ProbeReport]:  # noqa: FBT001 (the hook's signature)
    """Accept any torch from 2.9 on, whoever built it."""
    if not deep:
        here = env.find_spec("torch")
        seen = Evidence("module torch", "installed" if here else "not found", "for" if here else "against")
        return {"torch": ProbeReport(available=here, reason="torch was looked for, not imported", evidence=(seen,))}
    torch = env.torch()
    if torch is None:
        reason = "torch is not installed; install your vendor's build, or `pip install fmcore-kernels[torch]`"
        return {
            "torch": ProbeReport(
                available=False, reason=reason, evidence=(Evidence("import torch", "missing", "against"),)
            )
        }
    version = str(torch.__version__)
    found = tuple(int(part) for part in version.split("+", maxsplit=1)[0].split(".")[:2])
    if found < OLDEST_TORCH:
        reason = f"torch {version} is older than 2.9, which fmcore needs"
        return {
            "torch": ProbeReport(
                available=False, reason=reason, evidence=(Evidence("torch.__version__", version, "against"),)
            )
        }
    return {
        "torch": ProbeReport(
            available=True, reason=f"torch {version}", evidence=(Evidence("torch.__version__", version, "for"),)
        )
    }


@hookimpl
def fmcore_register_impls(registrar: Registrar, spec_version: tuple[int, int]) -> None:  # noqa: ARG001 (the hook's signature)
    """Register attention by tiles, all of math and MoE over torch.distributed."""
    from fmcore_torch import attention, math, moe

    attention.register(registrar)
    math.register(registrar)
    moe.register(registrar)
