"""Checks of the math ops against the float64 oracle, against literal values, and of their behaviour."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcore.math._canon import canonical
from fmcore.ops.math import OPS
from fmcore.reference.math import ORACLE
from fmcore_conformance.cases.math_samples import Sample
from fmcore_conformance.measure import (
    Untouched,
    check_bits,
    check_form,
    check_no_alias,
    check_rows,
    check_ulp,
    dtype_name,
    exact,
    wide,
)
from fmcore_conformance.model import Measurement, Mismatch
from fmcore_conformance.tolerances import COMPLEX_NORM_UNITS, MAX_OVER_L2, UNIT, pointwise_ulp, reduction_units

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fmcore_conformance.target import Target


def moved(target: Target, sample: Sample) -> Sample:
    """The sample on the device under test."""
    args = tuple(target.put(a) if isinstance(a, torch.Tensor) else a for a in sample.args)
    return Sample(sample.label, args, sample.kwargs)


def tensors_of(sample: Sample) -> list[Tensor]:
    """Tensor arguments of a sample."""
    return [a for a in sample.args if isinstance(a, torch.Tensor)]


def check_call(target: Target, name: str, sample: Sample) -> list[Measurement]:
    """One public call against the oracle: shape, dtype, memory, values."""
    op = OPS[name]
    sample = moved(target, sample)
    inputs = tensors_of(sample)
    host = Sample(
        sample.label, tuple(a.cpu() if isinstance(a, torch.Tensor) else a for a in sample.args), sample.kwargs
    )
    try:
        tensors, params = canonical(name, host.args, host.kwargs)
    except RuntimeError:
        # The op's contract refuses the dtype: the public call must say so, too.
        target.math(name)(*sample.args, **sample.kwargs)
        raise
    watch = Untouched(*inputs)
    got = target.math(name)(*sample.args, **sample.kwargs)
    watch.check(name)
    results = got if isinstance(got, tuple) else (got,)
    check_no_alias(results, inputs, name)
    oracle = oracle_of(name, tensors, params)
    wanted = oracle if isinstance(oracle, tuple) else (oracle,)
    found: list[Measurement] = []
    length = op.accuracy.length(tensors, params) if op.accuracy.length else 1
    for i, ((shape, dtype), result, want) in enumerate(zip(op.meta(*tensors, **params), results, wanted, strict=True)):
        what = f"{name} ({sample.label})" + (f" output {i}" if len(results) > 1 else "")
        check_form(result, shape, dtype, what)
        found += compare(name, result, want, length, what, from_complex=inputs[0].is_complex())
    return found


def oracle_of(name: str, tensors: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """The literal oracle; for transforms beyond 64 points NumPy's in complex128, whose error grows with log n only."""
    if OPS[name].kind != "fft" or params["n"] <= 64:
        return ORACLE[name](*tensors, **params)
    result = getattr(np.fft, name)(wide(tensors[0]).numpy(), n=params["n"], axis=params["axis"], norm=params["norm"])
    return torch.from_numpy(result)


def compare(
    name: str, got: Tensor, want: Tensor, length: int, what: str, *, from_complex: bool = False
) -> list[Measurement]:
    """Values against the wide oracle, by the op's accuracy class; bool and integers always bit for bit."""
    op = OPS[name]
    if not (got.is_floating_point() or got.is_complex()):
        return [check_bits(got.cpu(), want.to(got.dtype).contiguous(), what)]
    if op.accuracy.metric == "exact":
        return [check_same(got, want.to(got.dtype), what)]
    dtype = dtype_name(got.dtype)
    if op.accuracy.metric == "contraction":
        half_in = max(length, 1)
        return check_rows(got, want, units=reduction_units(dtype, half_in), dtype=dtype, what=what)
    if got.is_complex():
        return [check_norm(got, want, what)]
    bound = pointwise_ulp(name, dtype, from_complex=from_complex)
    if bound == 0:
        return [check_same(got, want.to(got.dtype), what)]
    return [check_ulp(*decided(got, want), bound, what)]


def check_same(got: Tensor, want: Tensor, what: str) -> Measurement:
    """Bit equality, any NaN for a NaN."""
    g, w = (torch.view_as_real(x.resolve_conj().cpu()) if x.is_complex() else x.detach().cpu() for x in (got, want))
    both = g.isnan() & w.isnan()
    return check_bits(g.masked_fill(both, 0.0).contiguous(), w.masked_fill(both, 0.0).contiguous(), what)


def decided(got: Tensor, want: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the elements zeroed whose reference lies at the overflow threshold: either answer is right there."""
    largest = torch.finfo(got.dtype).max
    edge = (want.abs() > largest * (1 - 2**-7)) & (want.abs() < largest * (1 + 2**-7))
    return got.detach().cpu().masked_fill(edge, 0.0), want.masked_fill(edge, 0.0)


def check_norm(got: Tensor, want: Tensor, what: str) -> Measurement:
    """Complex results: distance in the plane over the modulus, in u."""
    dtype = dtype_name(got.dtype)
    finite = torch.view_as_real(want).isfinite().all(-1)
    distance = torch.where(finite, wide(got) - want, torch.zeros((), dtype=want.dtype)).abs()
    tiny = torch.finfo(torch.float32 if got.dtype == torch.complex64 else torch.float64).tiny
    units = distance / want.abs().clamp_min(tiny) / UNIT[dtype]
    worst = float(units.max()) if units.numel() else 0.0
    measurement = Measurement(worst, COMPLEX_NORM_UNITS, "u", what)
    if not worst <= COMPLEX_NORM_UNITS:
        flat = int(units.reshape(-1).argmax())
        raise Mismatch(
            f"{what}: {worst:.3g} u off: {wide(got).reshape(-1)[flat].item()}, "
            f"expected {want.reshape(-1)[flat].item()}",
            measurement,
        )
    return measurement


def check_special(
    target: Target, name: str, inputs: tuple[list[Any], ...], expected: list[Any], dtype: str
) -> list[Measurement]:
    """Literal special values: NaN, infinities and signed zeros exactly, the rest within the op's bound."""
    kind = getattr(torch, dtype)
    args = tuple(
        target.put(torch.tensor(v, dtype=torch.complex128 if kind.is_complex else torch.float64).to(kind))
        for v in inputs
    )
    got = target.math(name)(*args).detach().cpu().resolve_conj().resolve_neg()
    want = torch.tensor(expected, dtype=torch.complex128 if got.is_complex() else torch.float64)
    g, w = (torch.view_as_real(x).reshape(-1) if x.is_complex() else x for x in (wide(got), want))
    scale = (
        torch.view_as_real(torch.nan_to_num(want)).abs().amax(-1).repeat_interleave(2)
        if want.is_complex()
        else want.abs()
    )
    part = (
        torch.float32 if got.dtype == torch.complex64 else torch.float64 if got.dtype == torch.complex128 else got.dtype
    )
    room = 16 * torch.finfo(part).eps * scale.clamp(max=1e300)
    # A zero part of a non-zero complex number may be a rounding residue, except where the op only moves bits.
    strict = (scale == 0) | torch.tensor(not want.is_complex() or name in ("conj", "negative"))
    for i, (a, b) in enumerate(zip(g.tolist(), w.tolist(), strict=True)):
        if not _special_matches(a, b, float(room[i]), strict=bool(strict[i])):
            at = i // 2 if want.is_complex() else i
            raise Mismatch(
                f"{name}({', '.join(str(v[at]) for v in inputs)}) = {got[at].item()}, expected {expected[at]} ({dtype})"
            )
    return [exact(f"{name} special values")]


def _special_matches(got: float, want: float, room: float, *, strict: bool) -> bool:
    if math.isnan(want) or math.isnan(got):
        return math.isnan(want) and math.isnan(got)
    if math.isinf(want) or math.isinf(got):
        return got == want
    if want == 0 and strict:
        return got == 0 and math.copysign(1, got) == math.copysign(1, want)
    return abs(got - want) <= room


def check_exact_value(got: Any, want: Any, what: str) -> list[Measurement]:
    """A literal expected tensor, bit for bit."""
    if isinstance(want, torch.Tensor):
        return [check_bits(got.cpu(), want, what)]
    if got != want:
        raise Mismatch(f"{what}: {got!r}, expected {want!r}")
    return [exact(what)]


def check_layout(target: Target, name: str, sample: Sample, change: Callable[[Tensor], Tensor]) -> list[Measurement]:
    """The same values in other memory: exactly what the contiguous call gives, or within the bound of the oracle."""
    changed = Sample(
        sample.label,
        tuple(change(target.put(a)) if isinstance(a, torch.Tensor) else a for a in sample.args),
        sample.kwargs,
    )
    return check_call(target, name, changed)


def check_gradient(target: Target, name: str, sample: Sample, dtype: str) -> list[Measurement]:
    """Gradients of every differentiable input against central differences of the float64 oracle.

    Independent of the backend's own forward pass and of autograd: each real coordinate of each input is moved.
    """
    op = OPS[name]
    sample = moved(target, sample)
    tensors, params = canonical(
        name, tuple(a.cpu() if isinstance(a, torch.Tensor) else a for a in sample.args), sample.kwargs
    )
    wanted = [
        i for i, (role, t) in enumerate(zip(op.roles, tensors, strict=True)) if role in op.gradients and t is not None
    ]
    leaves = {i: target.put(tensors[i]).detach().clone().requires_grad_() for i in wanted}
    call = [leaves.get(i, target.put(t) if isinstance(t, torch.Tensor) else t) for i, t in enumerate(tensors)]
    got = _canonical_call(target, name, call, params)
    results = [r for r in (got if isinstance(got, tuple) else (got,)) if r.is_floating_point() or r.is_complex()]
    g = target.generator(f"gradient {name}")
    weights = [_draw_like(g, r) for r in results]
    grads = torch.autograd.grad(results, list(leaves.values()), [target.put(w) for w in weights], allow_unused=True)

    def loss(*changed: Any) -> float:
        out = ORACLE[name](*changed, **params)
        parts = [r for r in (out if isinstance(out, tuple) else (out,)) if r.is_floating_point() or r.is_complex()]
        return sum(
            float((wide(w).conj() * r).real.sum() if r.is_complex() else (wide(w) * r).sum())
            for w, r in zip(weights, parts, strict=True)
        )

    found: list[Measurement] = []
    for (i, leaf), grad in zip(leaves.items(), grads, strict=True):
        role = op.roles[i]
        if grad is None:
            raise Mismatch(f"{name}: no gradient reaches {role}")
        check_form(grad, leaf.shape, leaf.dtype, f"gradient of {role}")
        want = _differences(
            loss,
            [
                wide(t) if isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex()) else t
                for t in tensors
            ],
            i,
        )
        found += _compare_gradient(name, role, grad, want, dtype)
    return found


def _canonical_call(target: Target, name: str, tensors: list[Any], params: dict[str, Any]) -> Any:
    from fmcore.ops._call import call

    return call(OPS[name].spec, tuple(tensors), params, target.backend)


def _draw_like(g: torch.Generator, r: Tensor) -> Tensor:
    x = torch.randn(r.shape, generator=g, dtype=torch.float64)
    return (
        torch.complex(x, torch.randn(r.shape, generator=g, dtype=torch.float64)).to(r.dtype)
        if r.is_complex()
        else x.to(r.dtype)
    )


def _differences(loss: Callable[..., float], tensors: list[Any], which: int, step: float = 1e-6) -> Tensor:
    x = tensors[which]
    flat = torch.view_as_real(x.clone()).reshape(-1) if x.is_complex() else x.clone().reshape(-1)
    out = torch.empty(flat.shape, dtype=torch.float64)
    for j in range(flat.numel()):
        values = []
        for h in (step, -step):
            moved_flat = flat.clone()
            moved_flat[j] += h
            y = (
                torch.view_as_complex(moved_flat.reshape(*x.shape, 2))
                if x.is_complex()
                else moved_flat.reshape(x.shape)
            )
            values.append(loss(*tensors[:which], y, *tensors[which + 1 :]))
        out[j] = (values[0] - values[1]) / (2 * step)
    return torch.view_as_complex(out.reshape(*x.shape, 2)) if x.is_complex() else out.reshape(x.shape)


def _compare_gradient(name: str, role: str, got: Tensor, want: Tensor, dtype: str) -> list[Measurement]:
    """Half precision: 8 u of the whole gradient's size; wider dtypes: what central differences resolve, 1e-7."""
    size = max(float(want.norm()) / max(want.numel(), 1) ** 0.5, 1e-12)
    error = float((wide(got) - want).abs().max()) / size if want.numel() else 0.0
    bound = max(MAX_OVER_L2 * 8 * UNIT[dtype], 2e-7)
    measurement = Measurement(error, bound, "abs", f"gradient of {role}")
    if not error <= bound:
        flat = int((wide(got) - want).abs().reshape(-1).argmax())
        raise Mismatch(
            f"{name}: gradient of {role} off by {error:.3g} of its rms at element {flat}: "
            f"{wide(got).reshape(-1)[flat].item()}, expected {want.reshape(-1)[flat].item()}, "
            f"at most {bound:.3g} allowed",
            measurement,
        )
    return [measurement]


def transposed(x: Tensor) -> Tensor:
    """The same values, the last two dimensions stored the other way round."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() >= 2 else x


def strided(x: Tensor) -> Tensor:
    """Every other element of a buffer that is filled with something else."""
    if x.dim() == 0:
        return x
    big = torch.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype, device=x.device)
    big[..., 1::2] = x[..., :1] if x.shape[-1] else 0
    big[..., ::2] = x
    return big[..., ::2]


def offset(x: Tensor) -> Tensor:
    """A view that begins inside its storage."""
    big = torch.zeros(x.numel() + 7, dtype=x.dtype, device=x.device)
    big[5 : 5 + x.numel()] = x.reshape(-1)
    return big[5 : 5 + x.numel()].view(x.shape)


def expanded(x: Tensor) -> Tensor:
    """The first row repeated with stride 0."""
    return x[:1].expand(x.shape) if x.dim() >= 2 and x.shape[0] else x


def lazily_conjugated(x: Tensor) -> Tensor:
    """Complex values whose conjugation is only marked; other dtypes as they are."""
    return x.conj().resolve_conj().conj() if x.is_complex() else x


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": transposed,
    "strided": strided,
    "offset": offset,
    "expanded": expanded,
    "conjugate-view": lazily_conjugated,
}
