"""The open end: hypothesis draws sizes, masks and shapes that nobody listed, and shrinks what it finds.

Examples follow from the run's seed, so that a finding can be reproduced; a failure's text has the smallest example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fmcore_conformance.cases import attention_close as close
from fmcore_conformance.cases import math_checks
from fmcore_conformance.cases.attention_common import BOUNDS, MAIN, attention_case
from fmcore_conformance.cases.attention_inputs import Call, normal
from fmcore_conformance.cases.attention_masks import RawMask
from fmcore_conformance.cases.math_samples import Sample, draw
from fmcore_conformance.kinds import check_kinds
from fmcore_conformance.model import Case, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcore_conformance.target import Target

EXAMPLES = 20
GROUPS = ((2, 2), (4, 2), (3, 1))
#: Exact ops of two operands, each with a dtype that every backend of the op has.
BROADCAST = {"add": "int64", "multiply": "int32", "maximum": "float32", "equal": "bfloat16", "logical_xor": "bool"}
REDUCED = {"sum": "int64", "max": "float32", "any": "bool", "logsumexp": "float32", "cumulative_sum": "int32"}


def _explore(target: Target, name: str, strategy: Any, check: Callable[[Any], list[Measurement]]) -> list[Measurement]:
    """Run the check on drawn examples; return the worst measurement of each quantity."""
    import hypothesis

    worst: dict[str, Measurement] = {}

    @hypothesis.seed(target.generator(name).initial_seed())
    @hypothesis.settings(
        max_examples=EXAMPLES, deadline=None, database=None, report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )  # fmt: skip
    @hypothesis.given(strategy)
    def examples(drawn: Any) -> None:
        for found in check(drawn):
            held = worst.get(found.what)
            if held is None or found.measured / (found.bound or 1.0) > held.measured / (held.bound or 1.0):
                worst[found.what] = found

    examples()
    return list(worst.values())


def _masks() -> Any:
    """Lengths, heads and raw bounds: swapped, touching, negative and far beyond the end."""
    from hypothesis import strategies as st

    @st.composite
    def problem(choose: Any) -> tuple[RawMask, int, tuple[int, int], int]:
        s_q, s_k = choose(st.integers(1, 150)), choose(st.integers(1, 150))
        causal = choose(st.booleans())
        n = choose(st.sampled_from((1, 2) if causal else (2, 4)))
        batch, groups = choose(st.integers(1, 2)), choose(st.sampled_from(GROUPS))
        heads = choose(st.sampled_from(sorted({1, *groups})))
        seed = choose(st.integers(0, 2**20))
        generator = torch.Generator().manual_seed(seed)
        shape = (choose(st.sampled_from((1, batch))), heads, s_k, n)
        bounds = torch.randint(-3, s_q + 4, shape, generator=generator, dtype=torch.int32)
        return RawMask(bounds, causal, s_q, s_k), batch, groups, seed

    return problem()


def _attend(target: Target, dtype: str, check: Callable[..., list[Measurement]]) -> list[Measurement]:
    def one(drawn: tuple[RawMask, int, tuple[int, int], int]) -> list[Measurement]:
        mask, batch, (h_q, h_kv), seed = drawn
        g = torch.Generator().manual_seed(seed)
        q = normal(g, batch, mask.s_q, h_q, 64, dtype=dtype)
        k, v = (normal(g, batch, mask.s_k, h_kv, 64, dtype=dtype) for _ in range(2))
        return check(target, Call(target.put(q), target.put(k), target.put(v), mask, 0.125), dtype)

    return _explore(target, f"{check.__name__} {dtype}", _masks(), one)


def attention() -> Iterator[Case]:
    """Forward and backward under drawn masks."""
    kinds = (*BOUNDS, "mask-head-map", "mask-batch-map")
    for dtype in MAIN:
        for topic, level, check in (("forward", "L2", close.forward), ("backward", "L3", close.backward)):

            def run(target: Target, dtype: str = dtype, check: Any = check) -> list[Measurement]:
                return _attend(target, dtype, check)

            yield attention_case(topic, "open-ended", dtype, level, run, kinds)


def _shapes(name: str, *, operands: int) -> Any:
    """Shapes of 0 to 4 dimensions, each operand's thinned at random so that they broadcast; and an axis."""
    from hypothesis import strategies as st

    @st.composite
    def arguments(choose: Any) -> tuple[list[tuple[int, ...]], int, int]:
        least = 0 if operands == 2 else 1
        full = choose(st.lists(st.integers(1 if name == "max" else 0, 7), min_size=least, max_size=4))
        shapes = []
        for _ in range(operands):
            thin = tuple(choose(st.sampled_from((n, 1))) for n in full) if operands == 2 else tuple(full)
            shapes.append(thin[choose(st.integers(0, len(thin))) :] if operands == 2 else thin)
        axis = choose(st.integers(-len(full), len(full) - 1)) if full else 0
        return shapes, axis, choose(st.integers(0, 2**20))

    return arguments()


def math() -> Iterator[Case]:
    """Broadcasting of two operands, and reductions over any axis, bit for bit or within the op's bound."""
    for names, operands, kinds in ((BROADCAST, 2, ("broadcast",)), (REDUCED, 1, ("axis", "empty-reduction"))):
        for name, dtype in names.items():

            def run(
                target: Target, name: str = name, dtype: str = dtype, operands: int = operands
            ) -> list[Measurement]:
                def one(drawn: tuple[list[tuple[int, ...]], int, int]) -> list[Measurement]:
                    shapes, axis, seed = drawn
                    g = torch.Generator().manual_seed(seed)
                    args = tuple(draw(g, shape, dtype) for shape in shapes)
                    kwargs = {} if operands == 2 else {"axis": axis}
                    return math_checks.check_call(target, name, Sample("drawn", args, kwargs))

                return _explore(target, f"math {name}", _shapes(name, operands=operands), one)

            yield Case(
                f"math/behaviour/open-ended-{name}/{dtype}", f"math.{name}", dtype, "L2", run, check_kinds(kinds)
            )
