"""What this backend serves, and how well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.dispatch.caps import Caps, Range
from fmcore.masks import register_plan_builder
from fmcore_triton import attention, plan

if TYPE_CHECKING:
    from fmcore.dispatch.registrar import Registrar

FLOATS = frozenset({"float16", "bfloat16", "float32"})
HEAD_DIM = Range(8, 256, multiple_of=8)

ATTENTION = Caps(
    dtypes={"sink": FLOATS, "*": FLOATS},
    device_types={"cuda"},
    where={"head_dim": HEAD_DIM, "head_dim_v": HEAD_DIM},
)


def register(registrar: Registrar) -> None:
    """Register every implementation and the plan builder."""
    use_plan_builder()
    registrar.impl("flashmask_attention", name="tiles", caps=ATTENTION, backward=attention.backward)(attention.forward)


def use_plan_builder() -> None:
    """Let the two plan kernels build the tile lists of masks on GPUs."""
    register_plan_builder("cuda", plan.build_plan, name=plan.NAME)
