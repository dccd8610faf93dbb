"""Calls of every op for every dtype, and the comparison with the oracle that the tables' accuracy asks for."""

from __future__ import annotations

import math

import pytest
import torch

from fmcore.math._canon import canonical
from fmcore.ops.math import OPS, TORCH
from fmcore.ops.math.dtypes import COMPLEX_OF
from fmcore.reference.math import ORACLE
from fmcore.reference.math._wide import round_to, wide

U = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
U |= {torch.complex64: U[torch.float32], torch.complex128: U[torch.float64]}
LEAST = {torch.float16: -14, torch.bfloat16: -126, torch.float32: -126, torch.float64: -1022}


def values(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Varied values: around one for floats, the whole range for integers."""
    g = torch.Generator().manual_seed(seed + 17 * math.prod(shape))
    if dtype == torch.bool:
        return torch.rand(shape, generator=g) < 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, shape, generator=g, dtype=torch.int64).to(dtype)
    base = torch.randn(shape, generator=g, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    return (base * 2).to(dtype)


def _binary(dtype):
    a, b = values(dtype, 3, 4), values(dtype, 3, 4, seed=1)
    b[0] = a[0]
    pairs = [(a, b), (a, values(dtype, 4)), (a.mT, values(dtype, 4, 1)), (values(dtype), values(dtype, 0))]
    pairs += [(v, values(dtype, *v.shape, seed=4)) for v in views(dtype)]
    return [(pair, {}) for pair in pairs]


def views(dtype):
    """One matrix behind every kind of view: strided, expanded, transposed, and torch's lazy conjugate and negative."""
    x = values(dtype, 4, 6)
    found = [x[::2, ::3], x[:, :1].expand(4, 3), x.mT, x[:, 2:].mT[1:]]
    if dtype.is_complex:
        found.append(x.conj())
    if dtype in (torch.float32, torch.float64):
        found.append(values(COMPLEX_OF[dtype], 4, 6).conj().imag)
    return found


def _unary(dtype):
    return [((x,), {}) for x in (values(dtype, 3, 5), values(dtype), values(dtype, 2, 0), *views(dtype))]


def _shift(dtype):
    counts = torch.arange(-2, 8 * dtype.itemsize + 2).to(dtype)
    return [((values(dtype, 3, 1), counts), {}), ((values(dtype), counts), {})]


def _fold(dtype, *, empty=True, **more):
    x = values(dtype, 3, 4, 5)
    calls = [((x,), {"axis": a, "keepdims": k} | more) for a in (None, 0, -1, (0, 2), ()) for k in (False, True)]
    calls += [((x.permute(2, 0, 1)[::2],), {"axis": (1, -1)} | more), ((values(dtype),), dict(more))]
    calls += [((v,), {"axis": a} | more) for v in views(dtype) for a in (0, 1)]
    return calls + ([((values(dtype, 2, 0),), {"axis": 1} | more)] if empty else [])


def _arg(dtype):
    x = values(dtype, 3, 6)
    x[:, 4] = x[:, 1]
    return [((x,), {"axis": a, "keepdims": k}) for a in (None, 0, -1) for k in (False, True)] + [((values(dtype),), {})]


def _scan(dtype):
    x = values(dtype, 3, 5)
    calls = [((x,), {"axis": a, "include_initial": i}) for a in (0, -1) for i in (False, True)]
    return [*calls, ((x[1],), {}), ((values(dtype, 0, 2),), {"axis": 0, "include_initial": True})]


def _matmul(dtype):
    shapes = [
        ((3, 7), (7, 5)),
        ((7,), (7,)),
        ((7,), (2, 7, 5)),
        ((2, 1, 3, 7), (4, 7, 5)),
        ((3, 7), (7,)),
        ((3, 0), (0, 5)),
        ((0, 3), (3, 2)),
    ]
    return [((values(dtype, *a), values(dtype, *b, seed=2)), {}) for a, b in shapes] + [
        ((values(dtype, 7, 3).mT, values(dtype, 5, 7).mT), {})
    ]


def _grouped(dtype):
    x, w = values(dtype, 9, 6), values(dtype, 4, 6, 5)
    ends = [torch.tensor([2, 2, 7, 8]), torch.tensor([0, 0, 0, 0], dtype=torch.int32), torch.tensor([9, 9, 9, 9])]
    return [((x, w, e), {}) for e in ends] + [((x[:0], w, ends[1]), {})]


def _fft(dtype, name):
    lengths = [*range(2 if name == "irfft" else 1, 10), 11, 13, 16]
    calls = [((values(dtype, 2, n),), {}) for n in lengths]
    calls += [
        ((values(dtype, 5, 3),), {"axis": 0, "norm": norm, "n": n}) for norm in ("ortho", "forward") for n in (1, 4, 7)
    ]
    return calls


def _rotary(dtype):
    x = values(dtype, 2, 3, 2, 8)
    angles = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)
    calls = []
    for table in {dtype, torch.float32 if dtype.itemsize < 8 else torch.float64}:
        cos, sin = angles.cos().to(table), angles.sin().to(table)
        calls += [((x, cos[0], sin[0]), {"interleaved": i}) for i in (False, True)]
        calls += [((x, cos[..., :2], sin[..., :2]), {"interleaved": i}) for i in (False, True)]
    return calls


def _rotary_complex(dtype):
    m = 4 if dtype.is_complex else 8
    x = values(dtype, 2, 3, 2, m)
    turn = torch.polar(
        torch.ones(2, 3, 4, dtype=torch.float64), torch.arange(24.0, dtype=torch.float64).reshape(2, 3, 4)
    )
    return [
        ((x, turn[0].to(COMPLEX_OF[dtype])), {}),
        ((x.transpose(0, 1).contiguous().transpose(0, 1), turn.to(COMPLEX_OF[dtype])), {}),
    ]


def _gate(dtype):
    logits = values(dtype, 5, 8)
    logits[0] = 1
    logits[1, 3] = logits[1, 6]
    bias = torch.linspace(-1, 1, 8, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    modes = [{"score": s, "renormalize": r, "scale": 2.5} for s in ("softmax", "sigmoid") for r in (True, False)]
    return [((logits, k), m) for m in modes for k in (1, 3, 8)] + [
        ((values(dtype, 2, 3, 8), 2), m | {"bias": bias}) for m in modes
    ]


def calls(name: str, dtype: torch.dtype) -> list[tuple[tuple, dict]]:
    """Small public calls of an op whose main roles have the dtype."""
    op = OPS[name]
    special = {
        "where": lambda d: [((values(torch.bool, 3, 1), values(d, 3, 4), values(d, 4, seed=1)), {})],
        "astype": lambda d: [
            ((values(d, 3, 5), t), {}) for t in TORCH.values() if not d.is_complex or t.is_complex or t == torch.bool
        ],
        "bitwise_left_shift": _shift,
        "bitwise_right_shift": _shift,
        "argmax": _arg,
        "argmin": _arg,
        "cumulative_sum": _scan,
        "matmul": _matmul,
        "grouped_matmul": _grouped,
        "softmax": lambda d: (
            [((values(d, 3, 4, 5),), {"axis": a}) for a in (0, 1, -1)]
            + [((v,), {}) for v in (values(d, 0, 3), *views(d))]
        ),
        "log_softmax": lambda d: (
            [((values(d, 3, 4, 5),), {"axis": a}) for a in (0, 1, -1)] + [((values(d, 3, 0),), {})]
        ),
        "rms_norm": lambda d: [
            ((values(d, 3, 8),), {}),
            ((values(d, 2, 3, 8), values(d, 8)), {"eps": 1e-3}),
            ((values(d, 8, 3).mT, values(torch.float32, 8)), {}),
        ],
        "rotary": _rotary,
        "rotary_complex": _rotary_complex,
        "swiglu": _binary,
        "topk_gate": _gate,
    }
    if name in special:
        return special[name](dtype)
    if op.kind == "fft":
        return _fft(dtype, name)
    if op.kind == "reduction":
        return _fold(dtype, empty=name not in ("max", "min"))
    return _binary(dtype) if len(op.roles) == 2 else _unary(dtype)


def _spacing(reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One unit in the last place of ``dtype`` at each value."""
    exponent = torch.frexp(reference)[1].to(torch.float64)
    return torch.exp2(torch.clamp(exponent - 1, min=LEAST[dtype])) * 2 * U[dtype]


def check(name: str, result: object, reference: object, tensors: tuple, params: dict) -> None:
    """Compare with the oracle in the op's accuracy class."""
    op = OPS[name]
    results = result if op.outputs > 1 else (result,)
    references = reference if op.outputs > 1 else (reference,)
    for r, w, (shape, dtype) in zip(results, references, op.meta(*tensors, **params), strict=True):
        assert (tuple(r.shape), r.dtype, tuple(w.shape)) == (tuple(shape), dtype, tuple(shape))
        assert r.is_contiguous()
        assert not r.is_conj()
        assert not r.is_neg()
        if r.numel() == 0:
            continue
        if not (dtype.is_floating_point or dtype.is_complex):
            assert w.dtype == dtype
            assert torch.equal(r, w)
        elif op.accuracy.metric == "exact":
            expected = round_to(w, dtype)
            assert torch.equal(
                torch.view_as_real(r) if r.is_complex() else r.nan_to_num(nan=77.0),
                torch.view_as_real(expected) if r.is_complex() else expected.nan_to_num(nan=77.0),
            )
        else:
            _check_close(op, r, w, dtype, tensors, params)


def _check_close(op, r, w, dtype, tensors, params) -> None:
    got = wide(r)
    finite = w.isfinite() & round_to(w, dtype).isfinite()
    assert torch.equal(got.isnan(), w.isnan())
    assert torch.equal(got.isinf(), round_to(w, dtype).isinf())
    error = torch.where(finite, (got - w).abs(), 0.0)
    size = torch.where(finite, w.abs(), 0.0)
    if op.accuracy.metric == "pointwise" and not dtype.is_complex:
        ulps = (error / _spacing(size, dtype)).max().item()
        # This rung computes halves in float32: half an ulp, and the little that float32 was off before the rounding.
        bound = 0.5 + op.accuracy.ulp * 2.0**-12 if dtype.itemsize == 2 else max(op.accuracy.ulp, 1.0)
        assert ulps <= bound, f"{op.name} {dtype}: {ulps} ulp"
        return
    u = U[dtype]
    if op.accuracy.metric == "pointwise":
        assert (error.norm() <= 8 * u * size.norm()).all(), f"{op.name} {dtype}: {error.norm() / size.norm() / u} u"
        return
    length = op.accuracy.length(tensors, params)
    low = U[torch.float32] if dtype.itemsize == 2 else u
    rows = [-1] if error.ndim else []
    if op.name in ("sum", "mean", "logsumexp", "prod", "cumulative_sum"):
        rows = list(range(error.ndim))
    top = (
        max(
            (
                float(t.detach().abs().nan_to_num().double().max())
                if not t.is_complex()
                else float(t.abs().double().max())
                for t in tensors[:1]
                if t.numel()
            ),
            default=1.0,
        )
        if op.name in ("log_softmax", "softmax")
        else 0.0
    )
    scale = size.pow(2).sum(rows).sqrt() if rows else size
    err = error.pow(2).sum(rows).sqrt() if rows else error
    bound = (u if dtype.itemsize == 2 else 0) * scale + op.accuracy.ulp * math.sqrt(length) * low * (scale + top)
    assert bool((err <= bound + 1e-300).all()), f"{op.name} {dtype} {params}: {(err / bound).max()} of the bound"


@pytest.fixture(name="calls")
def _calls():
    return calls


@pytest.fixture(name="values")
def _values():
    return values


@pytest.fixture(name="against_oracle")
def _against_oracle():
    """Run a public call on a backend and compare it with the oracle."""
    import fmcore.math

    def run(name: str, args: tuple, kwargs: dict, backend: str | None = "torch"):
        result = getattr(fmcore.math, name)(*args, **kwargs, backend=backend)
        tensors, params = canonical(name, args, kwargs)
        check(name, result, ORACLE[name](*tensors, **params), tensors, params)
        return result

    return run


@pytest.fixture(name="check")
def _check():
    return check
