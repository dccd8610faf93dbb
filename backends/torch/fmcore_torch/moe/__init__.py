"""MoE over torch alone: inside one process, and over any collective library that torch.distributed speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcore.dispatch.registrar import Registrar
    from fmcore.dispatch.request import Request

from fmcore.dispatch.caps import Caps, Range, Reason
from fmcore_torch.moe import ops, routing

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_INDICES = frozenset({"int32", "int64"})
_SUMS = _FLOATS | {"complex64", "complex128", "int32", "int64"}
_MANY = Range(2, 1 << 20)


def _exact_needs_host(request: Request) -> Reason | None:
    if request["capturing"] and not (request["worst_case"] or request["cached"]):
        return Reason(
            "capture", "exact row counts are read on the host", "num_worst_tokens = 0", "num_worst_tokens > 0",
            "give num_worst_tokens, or use a handle made before the capture",
        )  # fmt: skip
    return None


def register(registrar: Registrar) -> None:
    """Register layout, dispatch and combine."""
    registrar.impl("moe.layout", name="local", caps=Caps(dtypes=_INDICES, grad=False))(routing.layout)
    dispatched = {"topk_idx": _INDICES, "topk_weights": _FLOATS}
    reads = ("capturing", "worst_case", "cached")
    one = Caps(dtypes=dispatched, world_size=Range(1, 1), predicate=_exact_needs_host, reads=reads)
    registrar.impl("moe.dispatch", name="local", autograd="native", caps=one)(ops.dispatch_local)
    registrar.impl(
        "moe.dispatch",
        name="collective",
        autograd="native",
        # No dtypes are named: one rank alone would be refused, where the header lets all of them raise.
        caps=Caps(world_size=_MANY, capture=False),
    )(ops.dispatch_collective)
    summed = {"topk_weights": _FLOATS, "*": _SUMS}
    registrar.impl("moe.combine", name="local", autograd="native", caps=Caps(dtypes=summed, world_size=Range(1, 1)))(
        ops.combine
    )
    registrar.impl(
        "moe.combine", name="collective", autograd="native", caps=Caps(dtypes=summed, world_size=_MANY, capture=False)
    )(ops.combine)
