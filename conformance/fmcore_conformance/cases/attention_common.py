"""What attention cases are made with: sizes, dtypes, and a check bound to inputs that are made when the case runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmcore_conformance.cases import attention_inputs as inputs
from fmcore_conformance.kinds import check_kinds
from fmcore_conformance.model import Case, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcore_conformance.cases.attention_inputs import Size
    from fmcore_conformance.target import Target

OP = "flashmask_attention"
FLOATS = ("bfloat16", "float16", "float32", "float64")
MAIN = ("bfloat16", "float32")
#: Queries of a key/value head: powers of two and others.
GROUPS = ((4, 4), (4, 2), (4, 1), (6, 2), (5, 1), (9, 3))
HEAD_DIMS = (32, 64, 80, 96, 128, 192, 256)
BOUNDS = ("mask-upper-start", "mask-upper-end", "mask-lower-start", "mask-lower-end")


def attention_case(
    topic: str,
    name: str,
    dtype: str,
    level: str,
    run: Callable[[Target], Any],
    kinds: tuple[str, ...],
    **more: Any,
) -> Case:
    return Case(f"attention/{topic}/{name}/{dtype}", OP, dtype, level, run, check_kinds(kinds), **more)


def on_call(
    check: Callable[..., Any],
    name: str,
    mask: str,
    size: Size,
    dtype: str,
    *args: Any,
    call: dict[str, Any] | None = None,
    **kw: Any,
) -> Callable[[Target], Any]:
    """The check on a call that is made when the case runs."""

    def run(target: Target) -> list[Measurement]:
        made = inputs.make(target, name, mask, size, dtype, **(call or {}))
        found: list[Measurement] = check(target, made, *args, **kw)
        return found

    return run
