"""What the math ops do around the numbers: promotion, empty reductions, memory, second calls, far offsets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fmcore.ops.math import OPS
from fmcore_conformance.cases import math_checks as checks
from fmcore_conformance.cases import math_samples as inputs
from fmcore_conformance.cases.math_samples import Sample
from fmcore_conformance.kinds import check_kinds
from fmcore_conformance.measure import check_bits, exact, wide
from fmcore_conformance.model import Case, Measurement, Mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcore_conformance.target import Target


def behaviour(target: Target) -> Iterator[Case]:
    """The cases of this module."""
    yield from _promotion()
    yield from _integers()
    yield from _empty()
    yield from _second_calls()
    yield from _fakes()
    if torch.device(target.device).type == "cpu":  # untouched pages of the host cost nothing; a device would hold 8 GiB
        yield _case("sum", "offsets-beyond-int32", "float32", _far, ("int32-overflow",), mandatory=True)


def _case(op: str, name: str, dtype: str, run: Callable[[Target], Any], kinds: tuple[str, ...], **more: Any) -> Case:
    return Case(f"math/behaviour/{op}-{name}/{dtype}", f"math.{op}", dtype, "L2", run, check_kinds(kinds), **more)


PROMOTIONS = (
    ("int8", "int32", "int32"),
    ("int8", "int64", "int64"),
    ("bfloat16", "float32", "float32"),
    ("float16", "float64", "float64"),
    ("float32", "complex64", "complex64"),
    ("float64", "complex64", "complex128"),
)


def _promotion() -> Iterator[Case]:
    for first, second, result in PROMOTIONS:
        for a, b in ((first, second), (second, first)):
            yield _case("add", f"promotes-{b}", a, partial(_promotes, a, b, result), ("wrong-dtype",))


def _promotes(a: str, b: str, result: str, target: Target) -> list[Measurement]:
    x, y = (target.put(torch.tensor([1, 2, 3]).to(getattr(torch, d))) for d in (a, b))
    got = target.math("add")(x, y)
    return [check_bits(got.cpu(), torch.tensor([2, 4, 6]).to(getattr(torch, result)), f"{a} + {b}")]


def _integers() -> Iterator[Case]:
    def case(
        op: str,
        name: str,
        dtype: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        want: torch.Tensor,
        kinds: tuple[str, ...],
    ) -> Case:
        return _case(op, name, dtype, partial(_literal, op, args, kwargs, want), kinds, mandatory=True)

    yield case(
        "sum", "counts-true", "bool", (torch.ones(1000, dtype=torch.bool),), {}, torch.tensor(1000), ("bool-sum",)
    )
    yield case(
        "cumulative_sum",
        "counts-true",
        "bool",
        (torch.ones(300, dtype=torch.bool),),
        {"axis": 0},
        torch.arange(1, 301),
        ("bool-sum",),
    )
    yield case(
        "sum",
        "does-not-wrap",
        "int8",
        (torch.full((1000,), 100, dtype=torch.int8),),
        {},
        torch.tensor(100_000),
        ("int-promotion",),
    )
    yield case(
        "sum",
        "does-not-wrap",
        "int32",
        (torch.full((8,), 2**30, dtype=torch.int32),),
        {},
        torch.tensor(2**33),
        ("int-promotion",),
    )
    yield case(
        "prod",
        "does-not-wrap",
        "int8",
        (torch.full((9,), 10, dtype=torch.int8),),
        {},
        torch.tensor(10**9),
        ("int-promotion",),
    )
    yield case(
        "argmax", "first-of-equals", "int32", (torch.tensor([3, 9, 9, 1, 9]),), {}, torch.tensor(1), ("tie-break",)
    )
    yield case("argmin", "first-of-equals", "int32", (torch.tensor([3, 1, 9, 1]),), {}, torch.tensor(1), ("tie-break",))
    for op, want in (
        ("less", [True, False, False]),
        ("less_equal", [True, True, False]),
        ("greater", [False, False, True]),
        ("greater_equal", [False, True, True]),
        ("equal", [False, True, False]),
        ("not_equal", [True, False, True]),
    ):
        args = (torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([2, 2, 2], dtype=torch.int32))
        yield case(op, "below-equal-above", "int32", args, {}, torch.tensor(want), ("comparison-sense",))
    big = torch.tensor([2**53 + 1, 2**53], dtype=torch.int64)
    yield case(
        "equal",
        "not-through-float64",
        "int64",
        (big, big.flip(0)),
        {},
        torch.tensor([False, False]),
        ("comparison-sense",),
    )
    yield case(
        "max", "not-through-float64", "int64", (big.flip(0),), {}, torch.tensor(2**53 + 1), ("comparison-sense",)
    )
    yield case(
        "add",
        "wraps",
        "int8",
        (torch.tensor([127, -128], dtype=torch.int8), torch.tensor([1, -1], dtype=torch.int8)),
        {},
        torch.tensor([-128, 127], dtype=torch.int8),
        (),
    )


def _literal(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any], want: torch.Tensor, target: Target
) -> list[Measurement]:
    got = target.math(op)(*(target.put(a) for a in args), **kwargs)
    return [check_bits(got.cpu(), want, op)]


def _empty() -> Iterator[Case]:
    for op, want in (
        ("sum", torch.zeros(3)),
        ("prod", torch.ones(3)),
        ("any", torch.zeros(3, dtype=torch.bool)),
        ("all", torch.ones(3, dtype=torch.bool)),
        ("logsumexp", torch.full((3,), -torch.inf)),
    ):
        yield _case(
            op,
            "over-nothing",
            "float32",
            partial(_literal, op, (torch.empty(3, 0),), {"axis": 1}, want),
            ("empty-reduction",),
        )
    yield _case(
        "matmul",
        "over-nothing",
        "float32",
        partial(_literal, "matmul", (torch.empty(3, 0), torch.empty(0, 2)), {}, torch.zeros(3, 2)),
        ("empty-reduction",),
    )


SECOND = ("add", "matmul", "sum", "softmax", "fft", "rms_norm", "grouped_matmul")


def _second_calls() -> Iterator[Case]:
    for op in SECOND:
        dtype = "float32"
        yield _case(
            op, "second-call", dtype, partial(_second, op, dtype), ("stale-cache", "output-alias", "input-written")
        )


def _second(op: str, dtype: str, target: Target) -> list[Measurement]:
    """The same tensors with other values in them, and results that do not change when the next call is made."""
    g = target.generator(f"second {op}")
    sample = checks.moved(target, inputs.samples(OPS[op], dtype, g)[0])
    first = target.math(op)(*sample.args, **sample.kwargs)
    kept = first.detach().clone()
    for tensor in checks.tensors_of(sample):
        if tensor.is_floating_point():
            tensor.copy_(tensor * -0.5 + 0.125)
    found = checks.check_call(target, op, sample)
    check_bits(first, kept, f"{op}: the first result after the second call")
    return found


def _fakes() -> Iterator[Case]:
    for op in ("add", "matmul", "sum", "argmax", "softmax", "rms_norm", "fft", "topk_gate", "astype", "abs"):
        for dtype in ("bfloat16", "float32", "complex64"):
            if OPS[op].support(dtype) is True:
                yield _case(op, "fake", dtype, partial(_fake, op, dtype), ("fake-mismatch",))


def _fake(op: str, dtype: str, target: Target) -> list[Measurement]:
    """Under FakeTensor: the shapes and dtypes that the real call gives."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    sample = checks.moved(target, inputs.samples(OPS[op], dtype, target.generator(f"{op} {dtype}"))[0])
    real = target.math(op)(*sample.args, **sample.kwargs)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        args = tuple(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in sample.args)
        fake = target.math(op)(*args, **sample.kwargs)
    for r, f in zip(
        real if isinstance(real, tuple) else (real,), fake if isinstance(fake, tuple) else (fake,), strict=True
    ):
        if (r.shape, r.dtype, r.device) != (f.shape, f.dtype, f.device):
            raise Mismatch(
                f"{op}: fake {tuple(f.shape)} {f.dtype} on {f.device}, real {tuple(r.shape)} {r.dtype} on {r.device}"
            )
    return [exact("fake")]


def _far(target: Target) -> list[Measurement]:
    """Two rows more than 2**31 elements apart; only the pages that hold values are ever touched."""
    step = 2**31 + 4096
    big = torch.empty(step + 64, dtype=torch.float32)
    x = big.as_strided((2, 64), (step, 1))
    x.copy_(inputs.draw(target.generator("far"), (2, 64), "float32", positive=True))
    got = target.math("sum")(x, axis=1)
    return checks.compare("sum", got, wide(x).sum(1), 64, "sum of far rows")


__all__ = ["Sample", "behaviour"]
