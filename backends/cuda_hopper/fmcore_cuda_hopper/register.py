"""What this backend serves, and how well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmcore.dispatch.caps import ArchRange, Caps, OneOf
from fmcore.dispatch.reasons import Reason
from fmcore_cuda_hopper.versions import triton_problem

if TYPE_CHECKING:
    from fmcore.dispatch.registrar import Registrar
    from fmcore.dispatch.request import Request

HEAD_DIMS = (64, 128)


def limits(request: Request) -> tuple[Reason, ...]:
    """Reasons that no single feature gives."""
    reasons = []
    problem = triton_problem()
    if problem:
        reasons.append(Reason("triton", problem, fix="install one of these Triton versions"))
    d, dv = request["head_dim"], request["head_dim_v"]
    if d != dv:
        reasons.append(
            Reason("head_dim_v", f"values must be as wide as keys, got {dv} and {d}", str(dv), f"head_dim_v = {d}")
        )
    if request["deterministic"] and request["needs_grad"]:
        reasons.append(
            Reason(
                "determinism",
                "the backward sums dq in no fixed order, so its last bits vary (the forward is deterministic)",
                "asked, with a gradient",
                "not asked, or no gradient",
                "pass deterministic=False",
            )
        )
    return tuple(reasons)


ATTENTION = Caps(
    dtypes={"bfloat16", "float16"},
    device_types={"cuda"},
    vendors={"nvidia"},
    arch=ArchRange("nvidia", (9, 0), (9, 0)),
    where={
        "head_dim": OneOf(*HEAD_DIMS),
        "softcap": OneOf(False),
        "sink": OneOf(False),
        "empty": OneOf(False),
    },
    predicate=limits,
    reads=("head_dim", "head_dim_v", "deterministic", "needs_grad"),
)


def forward(*args: Any, **kwargs: Any) -> Any:
    """Run `attention.forward`; the first call imports the kernels, and with them Triton."""
    from fmcore_cuda_hopper import attention

    return attention.forward(*args, **kwargs)


def backward(*args: Any, **kwargs: Any) -> Any:
    """Run `attention.backward`."""
    from fmcore_cuda_hopper import attention

    return attention.backward(*args, **kwargs)


def register(registrar: Registrar) -> None:
    """Register attention."""
    registrar.impl("flashmask_attention", name="warpgroups", caps=ATTENTION, backward=backward)(forward)
