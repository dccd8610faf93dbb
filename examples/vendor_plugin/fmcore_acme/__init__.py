"""Backend "acme": an RMS norm for host tensors that makes no squared copy of its input."""

from __future__ import annotations

from typing import Any

from fmcore.dispatch import Evidence, ProbeEnv, ProbeReport, hookimpl
from fmcore.dispatch.caps import Caps, Range


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> dict[str, ProbeReport]:  # noqa: FBT001 (the hook's signature)
    """Look at the machine through ``env`` alone; ``deep`` permits to import a framework and to touch a device."""
    torch = env.torch() if deep else None
    seen = Evidence("torch", torch.__version__ if torch else "not asked or not there", "for" if torch else "unknown")
    return {"acme": ProbeReport(available=torch is not None, reason="host tensors of torch", evidence=(seen,))}


@hookimpl
def fmcore_register_impls(registrar: Any) -> None:
    """Register each kernel with what it supports; kernels are imported here, not at the top of the file."""
    import torch

    real = {"float32", "float64"}
    caps = Caps(dtypes={"x": real, "weight": real}, device_types={"cpu"}, where={"width": Range(1, 1 << 20)})

    @registrar.impl("math.rms_norm", name="one_copy", priority=10, caps=caps, autograd="native")
    def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, *, eps: float) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scaled = x * torch.rsqrt(norm * norm / x.shape[-1] + eps)
        return scaled if weight is None else (scaled * weight).to(x.dtype)
