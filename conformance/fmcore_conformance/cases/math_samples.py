"""Inputs of the math ops: for every op and dtype, public calls that mean something for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Generator, Tensor

    from fmcore.ops.math import MathOp

FP8 = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Sample:
    """Arguments of one public call."""

    label: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def draw(g: Generator, shape: tuple[int, ...], dtype: str, *, positive: bool = False) -> Tensor:
    """Values of a dtype: bits for bool, all of int8, small integers otherwise, normal values rounded to a float."""
    kind = getattr(torch, dtype)
    if kind == torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if not (kind.is_floating_point or kind.is_complex):
        low, high = (-128, 128) if kind == torch.int8 else (-1000, 1000)
        return torch.randint(low, high, shape, generator=g).to(kind)
    x = torch.randn(shape, generator=g, dtype=torch.float64)
    if positive:
        x = x.abs() + 0.25
    if kind.is_complex:
        return torch.complex(x, torch.randn(shape, generator=g, dtype=torch.float64)).to(kind)
    if dtype in FP8:
        return x.to(torch.float32).to(kind)
    return x.to(kind)


def samples(op: MathOp, dtype: str, g: Generator) -> list[Sample]:
    """Calls of one op in one dtype: the plain one first, then other shapes and parameters."""
    special = _SPECIAL.get(op.name)
    if special is not None:
        return special(dtype, g)
    if op.kind == "reduction":
        return _reduction(op.name, dtype, g)
    if op.kind == "fft":
        return _fft(op.name, dtype, g)
    if len(op.roles) == 2:
        return _binary(op.name, dtype, g)
    positive = op.name in ("log", "sqrt") and dtype not in ("complex64", "complex128")
    return [
        Sample("2d", (draw(g, (9, 37), dtype, positive=positive),)),
        Sample("0-d", (draw(g, (), dtype, positive=positive),)),
        Sample("empty", (draw(g, (0, 5), dtype),)),
    ]


def _binary(name: str, dtype: str, g: Generator) -> list[Sample]:
    def second(shape: tuple[int, ...]) -> Tensor:
        if name.startswith("bitwise_") and name.endswith("_shift"):
            width = getattr(torch, dtype).itemsize * 8
            return torch.randint(-1, width + 1, shape, generator=g).to(getattr(torch, dtype))
        return draw(g, shape, dtype)

    x, y = draw(g, (9, 37), dtype), second((9, 37))
    if not name.startswith("bitwise_"):  # comparisons need equal values among the pairs
        y[::2, ::3] = x[::2, ::3]
    return [
        Sample("2d", (x, y)),
        Sample("broadcast", (draw(g, (4, 1, 13), dtype), second((5, 1)))),
        Sample("0-d", (draw(g, (3, 4), dtype), second(()))),
        Sample("empty", (draw(g, (0, 5), dtype), second((1, 5)))),
    ]


def _where(dtype: str, g: Generator) -> list[Sample]:
    c = draw(g, (9, 37), "bool")
    return [
        Sample("2d", (c, draw(g, (9, 37), dtype), draw(g, (9, 37), dtype))),
        Sample("broadcast", (draw(g, (9, 1), "bool"), draw(g, (37,), dtype), draw(g, (1, 1), dtype))),
    ]


def _astype(dtype: str, g: Generator) -> list[Sample]:
    x = draw(g, (9, 37), dtype)
    targets = ["complex64", "complex128", "bool"]
    if not dtype.startswith("complex"):
        targets += ["float32", "float16", "bfloat16", "float64", "int32", "int64"]
    return [Sample(f"to-{t}", (x, getattr(torch, t))) for t in targets]


def _reduction(name: str, dtype: str, g: Generator) -> list[Sample]:
    exact = dtype == "bool" or dtype.startswith("int")
    x = draw(g, (5, 37, 11), dtype, positive=not exact)
    if name == "prod":
        x = draw(g, (3, 9, 11), dtype, positive=True)
    if name in ("argmax", "argmin", "max", "min"):
        x = draw(g, (3, 17, 5), dtype)
        if not x.is_complex() and dtype != "bool":
            x[0, 3] = x[0, 9]
    if name in ("any", "all"):
        x = draw(g, (5, 17, 11), dtype)
        x[0], x[1] = torch.zeros((), dtype=x.dtype), torch.ones((), dtype=x.dtype)
    if name in ("cumulative_sum", "softmax", "log_softmax"):
        return [Sample(f"axis{a}", (x,), {"axis": a}) for a in (-1, 1, 0)]
    found = [
        Sample("all-axes", (x,)),
        Sample("axis1", (x,), {"axis": 1}),
        Sample("axis-1-keepdims", (x,), {"axis": -1, "keepdims": True}),
    ]
    if name not in ("argmax", "argmin"):
        found.append(Sample("axes02", (x,), {"axis": (0, 2)}))
    return found


def _softmax(dtype: str, g: Generator) -> list[Sample]:
    return _reduction("softmax", dtype, g)


def _log_softmax(dtype: str, g: Generator) -> list[Sample]:
    return _reduction("log_softmax", dtype, g)


def _matmul(dtype: str, g: Generator) -> list[Sample]:
    return [
        Sample("2d", (draw(g, (17, 33), dtype), draw(g, (33, 21), dtype))),
        Sample("batched", (draw(g, (2, 1, 5, 33), dtype), draw(g, (3, 33, 4), dtype))),
        Sample("vector-matrix", (draw(g, (33,), dtype), draw(g, (33, 9), dtype))),
        Sample("matrix-vector", (draw(g, (9, 33), dtype), draw(g, (33,), dtype))),
        Sample("no-terms", (draw(g, (3, 0), dtype), draw(g, (0, 4), dtype))),
    ]


def _grouped(dtype: str, g: Generator) -> list[Sample]:
    x, w = draw(g, (40, 33), dtype), draw(g, (4, 33, 21), dtype)
    return [
        Sample("empty-group-and-tail", (x, w, torch.tensor([7, 7, 30, 36], dtype=torch.int32))),
        Sample("int64-offsets", (x, w, torch.tensor([1, 20, 39, 40]))),
        Sample("nothing", (draw(g, (0, 33), dtype), w, torch.tensor([0, 0, 0, 0]))),
    ]


def _fft(name: str, dtype: str, g: Generator) -> list[Sample]:
    x = draw(g, (3, 12), dtype)
    found = [Sample(f"n12-{norm}", (x,), {"norm": norm}) for norm in ("backward", "ortho", "forward")]
    for n in (*range(1, 10), 11, 13, 17, 31, 97, 16, 64, 256, 1024):
        length = n // 2 + 1 if name == "irfft" else n
        found.append(Sample(f"n{n}", (draw(g, (2, length), dtype),), {"n": n}))
    return [
        *found,
        Sample("axis0", (x,), {"axis": 0}),
        Sample("n-shorter", (x,), {"n": 7}),
        Sample("n-longer", (x,), {"n": 15}),
    ]


def _rms_norm(dtype: str, g: Generator) -> list[Sample]:
    x = draw(g, (4, 3, 65), dtype)
    small = (
        x
        if dtype == "bool" or dtype.startswith("int")
        else (x.to(torch.complex128 if x.is_complex() else torch.float64) * 2.0**-7).to(x.dtype)
    )
    return [
        Sample("weight", (x, draw(g, (65,), dtype))),
        Sample("plain", (x,)),
        Sample("eps", (small, draw(g, (65,), dtype)), {"eps": 1e-2}),
    ]


def _tables(s: int, pairs: int, dtype: str) -> tuple[Tensor, Tensor]:
    angle = torch.arange(s, dtype=torch.float64).unsqueeze(1) * 10000.0 ** (
        -torch.arange(pairs, dtype=torch.float64) / pairs
    )
    kind = torch.float64 if dtype == "float64" else torch.float32
    return angle.cos().to(kind), angle.sin().to(kind)


def _rotary(dtype: str, g: Generator) -> list[Sample]:
    x = draw(g, (2, 7, 3, 16), dtype)
    return [
        Sample("halves", (x, *_tables(7, 8, dtype))),
        Sample("interleaved", (x, *_tables(7, 8, dtype)), {"interleaved": True}),
        Sample("partial", (x, *_tables(7, 4, dtype))),
    ]


def _rotary_complex(dtype: str, g: Generator) -> list[Sample]:
    wide = dtype in ("float64", "complex128")
    cos, sin = _tables(7, 8, "float64")
    rotation = torch.complex(cos, sin).to(torch.complex128 if wide else torch.complex64)
    width = 8 if dtype.startswith("complex") else 16
    return [Sample("turn", (draw(g, (2, 7, 3, width), dtype), rotation))]


def _swiglu(dtype: str, g: Generator) -> list[Sample]:
    return [Sample("2d", (draw(g, (9, 37), dtype), draw(g, (9, 37), dtype)))]


def _gate(dtype: str, g: Generator) -> list[Sample]:
    x = draw(g, (11, 16), dtype)
    return [
        Sample("softmax", (x, 4)),
        Sample("sigmoid", (x, 2), {"score": "sigmoid"}),
        Sample("raw", (x, 3), {"renormalize": False}),
    ]


_SPECIAL: dict[str, Callable[[str, Generator], list[Sample]]] = {
    "where": _where,
    "astype": _astype,
    "matmul": _matmul,
    "grouped_matmul": _grouped,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "rms_norm": _rms_norm,
    "rotary": _rotary,
    "rotary_complex": _rotary_complex,
    "swiglu": _swiglu,
    "topk_gate": _gate,
}


def all_halves(dtype: str) -> Tensor:
    """Every one of the 65536 bit patterns."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype))


def sweep(g: Generator, dtype: str, *, low: int = -30, high: int = 30, count: int = 4096) -> Tensor:
    """Both signs, significands and exponents drawn evenly."""
    exponent = torch.rand(count, generator=g, dtype=torch.float64) * (high - low) + low
    sign = torch.randint(0, 2, (count,), generator=g) * 2.0 - 1
    return (sign * torch.exp2(exponent)).to(getattr(torch, dtype))


PI = math.pi
INF, NAN = math.inf, math.nan

#: op, inputs, expected: exact for zeros (with their sign), infinities and NaN; within the op's bound otherwise.
REAL_SPECIALS: tuple[tuple[str, tuple[list[float], ...], list[float]], ...] = (
    ("exp", ([INF, -INF, NAN, 0.0, -0.0],), [INF, 0.0, NAN, 1.0, 1.0]),
    ("log", ([0.0, -0.0, 1.0, INF, -1.0, NAN],), [-INF, -INF, 0.0, INF, NAN, NAN]),
    ("sqrt", ([0.0, -0.0, INF, -1.0, NAN, 4.0],), [0.0, -0.0, INF, NAN, NAN, 2.0]),
    ("tanh", ([INF, -INF, -0.0, NAN],), [1.0, -1.0, -0.0, NAN]),
    ("sigmoid", ([INF, -INF, 0.0, NAN],), [1.0, 0.0, 0.5, NAN]),
    ("abs", ([-0.0, -INF, NAN, -1.5],), [0.0, INF, NAN, 1.5]),
    ("negative", ([0.0, -0.0, INF, NAN],), [-0.0, 0.0, -INF, NAN]),
    ("angle", ([-1.0, 1.0, -INF, NAN],), [PI, 0.0, PI, NAN]),
    ("add", ([INF, -0.0, 0.0, NAN], [-INF, -0.0, -0.0, 1.0]), [NAN, -0.0, 0.0, NAN]),
    ("subtract", ([INF, 0.0, -0.0], [INF, 0.0, 0.0]), [NAN, 0.0, -0.0]),
    ("multiply", ([0.0, -0.0, -2.0, INF], [INF, 1.0, 0.0, -1.0]), [NAN, -0.0, -0.0, -INF]),
    ("divide", ([1.0, 1.0, 0.0, -0.0, INF], [0.0, -0.0, 0.0, 1.0, INF]), [INF, -INF, NAN, -0.0, NAN]),
    ("maximum", ([NAN, 1.0, INF, -INF], [1.0, NAN, -INF, 2.0]), [NAN, NAN, INF, 2.0]),
    ("minimum", ([NAN, 1.0, INF, -INF], [1.0, NAN, -INF, 2.0]), [NAN, NAN, -INF, -INF]),
)

#: op, input, expected, on and beside the branch cuts.
COMPLEX_SPECIALS: tuple[tuple[str, list[complex], list[complex]], ...] = (
    (
        "log",
        [complex(-1, 0.0), complex(-1, -0.0), complex(1, -0.0), complex(0, 1)],
        [complex(0, PI), complex(0, -PI), complex(0, -0.0), complex(0, PI / 2)],
    ),
    ("sqrt", [complex(-4, 0.0), complex(-4, -0.0), complex(0, 2)], [complex(0, 2), complex(0, -2), complex(1, 1)]),
    ("angle", [complex(-1, 0.0), complex(-1, -0.0), complex(0, -1)], [PI, -PI, -PI / 2]),
    (
        "conj",
        [complex(1, 0.0), complex(1, -0.0), complex(NAN, 2), complex(-0.0, INF)],
        [complex(1, -0.0), complex(1, 0.0), complex(NAN, -2), complex(-0.0, -INF)],
    ),
    ("abs", [complex(3, 4), complex(INF, NAN), complex(-0.0, -0.0)], [5.0, INF, 0.0]),
    ("negative", [complex(0.0, -0.0)], [complex(-0.0, 0.0)]),
    ("exp", [complex(0, PI), complex(0, 0), complex(-INF, 0)], [complex(-1, 0), complex(1, 0), complex(0, 0)]),
)
