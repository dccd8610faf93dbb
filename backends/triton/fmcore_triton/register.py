"""What this backend serves, and how well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.dispatch.caps import Caps, Range
from fmcore.masks import register_plan_builder
from fmcore_triton import attention, fused, plan

if TYPE_CHECKING:
    from fmcore.dispatch.registrar import Registrar

FLOATS = frozenset({"float16", "bfloat16", "float32"})
HEAD_DIM = Range(8, 256, multiple_of=8)

ATTENTION = Caps(
    dtypes={"sink": FLOATS, "*": FLOATS},
    device_types={"cuda"},
    where={"head_dim": HEAD_DIM, "head_dim_v": HEAD_DIM},
)
COMPLEX = frozenset({"complex64"})
GPU = frozenset({"cuda"})


def _math_caps() -> dict[str, tuple[Caps, str, str]]:
    """By op: what it takes, and the names of its forward and backward in `fused`."""
    plain = Caps(dtypes=FLOATS, device_types=GPU)
    norm = Caps(dtypes=FLOATS, device_types=GPU, where={"width": Range(1, fused.MAX_NORM_WIDTH)})
    turn = Caps(dtypes={"rotation": COMPLEX, "x": FLOATS | COMPLEX}, device_types=GPU)
    gate = Caps(
        dtypes=FLOATS,
        device_types=GPU,
        where={"experts": Range(1, fused.MAX_EXPERTS), "k": Range(1, fused.MAX_TOP)},
    )
    return {
        "rms_norm": (norm, "rms_norm", "rms_norm_backward"),
        "swiglu": (plain, "swiglu", "swiglu_backward_pair"),
        "rotary": (plain, "rotary", "rotary_backward"),
        "rotary_complex": (turn, "rotary_complex", "rotary_complex_backward"),
        "softmax": (plain, "softmax", "softmax_backward"),
        "log_softmax": (plain, "log_softmax", "log_softmax_backward"),
        "logsumexp": (plain, "logsumexp", "logsumexp_backward"),
        "topk_gate": (gate, "topk_gate", "topk_gate_backward"),
    }


def register(registrar: Registrar) -> None:
    """Register every implementation and the plan builder."""
    use_plan_builder()
    registrar.impl("flashmask_attention", name="tiles", caps=ATTENTION, backward=attention.backward)(attention.forward)
    for op, (caps, forward, backward) in _math_caps().items():
        registrar.impl(f"math.{op}", name="fused", caps=caps, backward=getattr(fused, backward))(
            getattr(fused, forward)
        )


def use_plan_builder() -> None:
    """Let the two plan kernels build the tile lists of masks on GPUs."""
    register_plan_builder("cuda", plan.build_plan, name=plan.NAME)
