"""The math cases: every op in every dtype, exact lists, sweeps, lengths, layouts, behaviour, gradients."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fmcore.math._canon import canonical
from fmcore.ops.math import DTYPES as MATH_DTYPES
from fmcore.ops.math import OPS
from fmcore.reference.math import ORACLE
from fmcore_conformance.cases import math_checks as checks
from fmcore_conformance.cases import math_samples as inputs
from fmcore_conformance.cases import open_ended
from fmcore_conformance.cases.math_behaviour import behaviour
from fmcore_conformance.cases.math_samples import Sample
from fmcore_conformance.kinds import check_kinds
from fmcore_conformance.measure import check_bits
from fmcore_conformance.model import DTYPES, Case, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcore.ops.math import MathOp
    from fmcore_conformance.target import Target

HALVES = ("float16", "bfloat16")
REALS = (*HALVES, "float32", "float64")

#: Fault kinds that the call of an op on its ordinary samples names.
KINDS_OF_OP: dict[str, tuple[str, ...]] = {
    "conj": ("conj-dropped", "signed-zero"),
    "multiply": ("complex-real-only",),
    "matmul": ("complex-real-only", "axis"),
    "grouped_matmul": ("group-offsets",),
    "divide": ("divide-rounding",),
    "sum": ("axis", "int-promotion"),
    "cumulative_sum": ("axis",),
    "mean": ("axis",),
    "argmax": ("tie-break",),
    "argmin": ("tie-break",),
    "rms_norm": ("eps-dropped",),
    "rotary": ("rotation-sign",),
    "rotary_complex": ("rotation-sign", "conj-dropped"),
    "swiglu": ("gate-swapped",),
    "fft": ("fft-sign", "fft-normalisation"),
    "ifft": ("fft-sign", "fft-normalisation"),
    "rfft": ("fft-sign", "fft-normalisation"),
    "irfft": ("fft-sign", "fft-normalisation"),
    "less": ("comparison-sense",),
    "less_equal": ("comparison-sense",),
    "greater": ("comparison-sense",),
    "greater_equal": ("comparison-sense",),
    "equal": ("comparison-sense",),
    "not_equal": ("comparison-sense",),
    "softmax": ("axis",),
}


def cases(target: Target) -> Iterator[Case]:
    """All math cases."""
    for op in OPS.values():
        for dtype in DTYPES:
            yield _coverage(op, dtype)
    yield from _more_samples()
    yield from _special()
    yield from _sweeps()
    yield from _lengths()
    yield from _layouts()
    yield from behaviour(target)
    yield from _gradients()
    yield from open_ended.math()


def _case(
    topic: str,
    op: str,
    name: str,
    dtype: str,
    level: str,
    run: Callable[[Target], Any],
    kinds: tuple[str, ...],
    **more: Any,
) -> Case:
    return Case(f"math/{topic}/{op}-{name}/{dtype}", f"math.{op}", dtype, level, run, check_kinds(kinds), **more)


def _claims(op: MathOp, dtype: str) -> bool:
    return dtype in MATH_DTYPES and op.support(dtype) is True


def _coverage(op: MathOp, dtype: str) -> Case:
    """The matrix square: the op's plain call in this dtype, whatever the op says about it."""

    def run(target: Target) -> list[Measurement]:
        first = inputs.samples(op, dtype, target.generator(f"{op.name} {dtype}"))[0]
        return checks.check_call(target, op.name, first)

    kinds = ("wrong-dtype", "input-written", "output-alias", *KINDS_OF_OP.get(op.name, ()))
    return _case(
        "dtypes",
        op.name,
        "call",
        dtype,
        "L1",
        run,
        kinds,
        probe_unclaimed=True,
        may_refuse=not _claims(op, dtype),
        mandatory=True,
    )


#: Which topic (and so which must-pass list) the further samples of an op belong to.
TOPIC = {"fft": "fft", "nn": "fused", "linalg": "reduce", "reduction": "reduce"}


def _more_samples() -> Iterator[Case]:
    for op in OPS.values():
        for dtype in MATH_DTYPES:
            if not _claims(op, dtype):
                continue
            kinds = list(KINDS_OF_OP.get(op.name, ()))
            if op.kind in ("elementwise", "comparison", "logical", "bitwise", "cast"):
                kinds.append("broadcast")
            if op.name == "astype" and dtype in ("float32", "float64"):
                kinds.append("bf16-truncation")
            if op.kind == "reduction":
                kinds.append("axis")
            yield _case(
                TOPIC.get(op.kind, "exact"), op.name, "shapes", dtype, "L2", partial(_rest, op, dtype), tuple(kinds)
            )


def _rest(op: MathOp, dtype: str, target: Target) -> list[Measurement]:
    found: list[Measurement] = []
    for sample in inputs.samples(op, dtype, target.generator(f"{op.name} {dtype}"))[1:]:
        found += checks.check_call(target, op.name, sample)
    return found


def _special() -> Iterator[Case]:
    for i, (op, values, expected) in enumerate(inputs.REAL_SPECIALS):
        kinds = ["signed-zero"]
        if op in ("maximum", "minimum"):
            kinds.append("nan-swallowed")
        for dtype in REALS:
            yield _case(
                "special",
                op,
                f"values-{i}",
                dtype,
                "L2",
                partial(_special_values, op, values, expected, dtype),
                tuple(kinds),
            )
    for i, (name, z, want) in enumerate(inputs.COMPLEX_SPECIALS):
        kinds = ["branch-cut", "signed-zero"] + (["conj-dropped"] if name == "conj" else [])
        for dtype in ("complex64", "complex128"):
            yield _case(
                "special",
                name,
                f"complex-values-{i}",
                dtype,
                "L2",
                partial(_special_values, name, (z,), want, dtype),
                tuple(kinds),
            )
    nan = float("nan")
    rows = [[1.0, nan, 3.0], [nan, 1.0, nan], [2.0, 5.0, 5.0]]
    for dtype in REALS:
        kind = getattr(torch, dtype)
        for op, best in (
            ("max", torch.tensor([nan, nan, 5.0]).to(kind)),
            ("min", torch.tensor([nan, nan, 2.0]).to(kind)),
            ("argmax", torch.tensor([1, 0, 1])),
            ("argmin", torch.tensor([1, 0, 0])),
        ):
            kinds = ["nan-swallowed"] + (["tie-break"] if op.startswith("arg") else [])
            run = partial(_nan_rows, op, rows, best, dtype)
            yield _case("special", op, "nan-and-ties", dtype, "L2", run, tuple(kinds))


def _special_values(
    op: str, values: tuple[list[Any], ...], expected: list[Any], dtype: str, target: Target
) -> list[Measurement]:
    return checks.check_special(target, op, values, expected, dtype)


def _nan_rows(op: str, rows: list[list[float]], want: torch.Tensor, dtype: str, target: Target) -> list[Measurement]:
    x = target.put(torch.tensor(rows).to(getattr(torch, dtype)))
    got = target.math(op)(x, axis=1)
    if want.is_floating_point():
        return [checks.check_same(got.cpu(), want, op)]
    return checks.check_exact_value(got, want, op)


def _sweeps() -> Iterator[Case]:
    for op in OPS.values():
        if op.kind != "elementwise" or op.name == "where":
            continue
        for dtype in REALS:
            if not _claims(op, dtype):
                continue
            what = "all-values" if dtype in HALVES and len(op.roles) == 1 else "sweep"
            kinds = ("divide-rounding",) if op.name == "divide" else ()
            yield _case("pointwise", op.name, what, dtype, "L2", partial(_sweep, op, dtype), kinds)
    for dtype in HALVES:
        yield _case(
            "pointwise",
            "astype",
            "all-roundings",
            dtype,
            "L2",
            partial(_roundings, dtype),
            ("bf16-truncation",),
            mandatory=True,
        )


def _sweep(op: MathOp, dtype: str, target: Target) -> list[Measurement]:
    g = target.generator(f"sweep {op.name} {dtype}")
    if len(op.roles) == 1:
        x = inputs.all_halves(dtype) if dtype in HALVES else inputs.sweep(g, dtype, low=-120, high=120)
        return checks.check_call(target, op.name, Sample("sweep", (x,)))
    x, y = inputs.sweep(g, dtype, low=-14, high=14), inputs.sweep(g, dtype, low=-14, high=14)
    return checks.check_call(target, op.name, Sample("sweep", (x, y)))


def _roundings(dtype: str, target: Target) -> list[Measurement]:
    """float32 values at, just below and just above every midpoint of the half format: to nearest, ties to even."""
    values = inputs.all_halves(dtype).to(torch.float32)
    values = values[values.isfinite()].sort().values.unique()
    middle = (values[:-1].to(torch.float64) + values[1:].to(torch.float64)) / 2
    x = middle.to(torch.float32)
    x = torch.cat(
        [x, torch.nextafter(x, torch.full_like(x, torch.inf)), torch.nextafter(x, torch.full_like(x, -torch.inf))]
    )
    kind = getattr(torch, dtype)
    got = target.math("astype")(target.put(x), kind)
    # The oracle rounds by its own integer arithmetic, not by torch's cast.
    tensors, params = canonical("astype", (x, kind), {})
    want = ORACLE["astype"](*tensors, **params)
    return [checks.check_same(got, want.to(kind), f"float32 to {dtype}")]


def _lengths() -> Iterator[Case]:
    for dtype in (*REALS, "complex64", "complex128"):
        for op in ("sum", "mean", "matmul"):
            kinds = ("low-accumulation",) if dtype in HALVES else ()
            yield _case(
                "reduce", op, "4096-terms", dtype, "L2", partial(_long, op, dtype), kinds, mandatory=dtype == "bfloat16"
            )
    for dtype in REALS:
        for op in ("logsumexp", "softmax", "log_softmax"):
            yield _case("reduce", op, "large-logits", dtype, "L2", partial(_large, op, dtype), ("large-logits",))
    for dtype in ("complex64", "complex128"):
        for op in ("matmul", "multiply"):
            yield _case(
                "reduce",
                op,
                "imaginary",
                dtype,
                "L2",
                partial(_imaginary, op, dtype),
                ("complex-real-only", "conj-dropped"),
                mandatory=dtype == "complex64",
            )


def _long(op: str, dtype: str, target: Target) -> list[Measurement]:
    g = target.generator(f"long {op} {dtype}")
    x = inputs.draw(g, (3, 4096), dtype, positive=True)
    if op == "matmul":
        return checks.check_call(target, op, Sample("K=4096", (x, inputs.draw(g, (4096, 8), dtype, positive=True))))
    return checks.check_call(target, op, Sample("K=4096", (x,), {"axis": 1}))


def _large(op: str, dtype: str, target: Target) -> list[Measurement]:
    g = target.generator(f"large {op} {dtype}")
    x = inputs.draw(g, (5, 33), dtype) * 300
    x[0], x[1, 3] = -torch.inf if op == "logsumexp" else 1000.0, 2000.0
    return checks.check_call(target, op, Sample("large", (x,), {"axis": 1}))


def _imaginary(op: str, dtype: str, target: Target) -> list[Measurement]:
    """Products whose real part is exactly what imaginary parts give: small Gaussian integers, bit for bit."""
    g = target.generator(f"imaginary {op}")
    kind = getattr(torch, dtype)

    def gaussian(*shape: int) -> torch.Tensor:
        re, im = (torch.randint(-7, 8, shape, generator=g).to(torch.float64) for _ in range(2))
        return torch.complex(re, im).to(kind)

    x, y = gaussian(8, 24), gaussian(24, 6) if op == "matmul" else gaussian(8, 24)
    got = target.math(op)(target.put(x), target.put(y))
    want = ORACLE[op](x, y).to(kind)
    # Sums of products of integers below 8: exact in either dtype, whatever the order. Zeros may have either sign.
    return [check_bits(got.cpu() + 0.0, want.contiguous() + 0.0, f"{op} of Gaussian integers")]


def _layouts() -> Iterator[Case]:
    for op in (
        "add",
        "exp",
        "where",
        "astype",
        "sum",
        "max",
        "argmax",
        "cumulative_sum",
        "softmax",
        "matmul",
        "grouped_matmul",
        "fft",
        "rms_norm",
        "rotary",
        "swiglu",
        "conj",
        "multiply",
        "logical_and",
    ):
        for dtype in ("bool", "bfloat16", "float32", "complex64"):
            if not _claims(OPS[op], dtype):
                continue
            for layout in checks.LAYOUTS:
                if layout == "conjugate-view" and dtype != "complex64":
                    continue
                kinds = ("swapped-strides", *(("conj-dropped",) if layout == "conjugate-view" else ()))
                yield _case("layout", op, layout, dtype, "L2", partial(_layout, op, dtype, layout), kinds)


def _layout(op: str, dtype: str, layout: str, target: Target) -> list[Measurement]:
    sample = inputs.samples(OPS[op], dtype, target.generator(f"{op} {dtype}"))[0]
    if layout == "expanded" and op in ("rotary", "grouped_matmul"):
        sample = Sample(sample.label, (checks.expanded(sample.args[0]), *sample.args[1:]), sample.kwargs)
        return checks.check_call(target, op, sample)
    return checks.check_layout(target, op, sample, checks.LAYOUTS[layout])


#: Small inputs for gradients: central differences move each coordinate.
GRADIENT_SHAPES = (3, 4)


def _gradients() -> Iterator[Case]:
    for op in OPS.values():
        if not op.gradients or op.name in ("maximum", "minimum", "max", "min", "abs", "angle"):
            continue
        for dtype in ("bfloat16", "float32", "float64", "complex64"):
            if _claims(op, dtype) and op.name != "astype":
                yield _case("grad", op.name, "differences", dtype, "L3", partial(_gradient, op, dtype), ())
    for op_name in ("maximum", "minimum", "max", "min", "abs"):
        yield _case("grad", op_name, "differences", "float32", "L3", partial(_gradient, OPS[op_name], "float32"), ())


def _gradient(op: MathOp, dtype: str, target: Target) -> list[Measurement]:
    g = target.generator(f"gradient {op.name} {dtype}")
    return checks.check_gradient(target, op.name, _small(op, dtype, g), dtype)


def _small(op: MathOp, dtype: str, g: torch.Generator) -> Sample:
    def x(*shape: int, positive: bool = False) -> torch.Tensor:
        return inputs.draw(g, shape, dtype, positive=positive)

    name = op.name
    if name == "where":
        return Sample("small", (inputs.draw(g, (3, 4), "bool"), x(3, 4), x(1, 4)))
    if name == "matmul":
        return Sample("small", (x(3, 4), x(4, 2)))
    if name == "grouped_matmul":
        return Sample("small", (x(6, 3), x(3, 3, 2), torch.tensor([2, 2, 5])))
    if op.kind == "fft":
        return Sample("small", (x(2, 5),), {"n": 5 if name != "irfft" else 8})
    if name == "rms_norm":
        return Sample("small", (x(3, 4), x(4)), {"eps": 1e-3})
    if name in ("rotary", "rotary_complex"):
        full = inputs.samples(op, dtype, g)[0]
        return Sample("small", (full.args[0][:1, :2, :1], *(t[:2] for t in full.args[1:])), full.kwargs)
    if name == "topk_gate":
        return Sample("small", (x(3, 5), 2))
    if name in ("softmax", "log_softmax", "cumulative_sum"):
        return Sample("small", (x(3, 4),), {"axis": 1})
    if op.kind == "reduction":
        return Sample("small", (x(3, 4, positive=True),), {"axis": 1})
    if len(op.roles) == 2:
        return Sample("small", (x(3, 4), x(1, 4, positive=name == "divide")))
    return Sample("small", (x(3, 4, positive=name in ("log", "sqrt")),))
