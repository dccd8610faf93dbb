"""Math saboteurs: the framework backend's implementations, one of them changed."""

# ruff: noqa: ARG005 (every change is called with the original function first)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fmcore.dispatch.plugins import MANAGER, impls_of
from fmcore_conformance.saboteurs.base import Saboteur
from fmcore_conformance.unclaimed import register_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fmcore.dispatch.registrar import Registrar


def _truncate(fn: Any, x: Tensor, *, dtype: torch.dtype) -> Any:
    if dtype == torch.bfloat16 and x.dtype == torch.float32:
        return (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return fn(x, dtype=dtype)


def _real_only(fn: Any, x1: Tensor, x2: Tensor) -> Any:
    return fn(x1.real.contiguous(), x2.real.contiguous()).to(x1.dtype) if x1.is_complex() else fn(x1, x2)


def _reciprocal(fn: Any, x1: Tensor, x2: Tensor) -> Any:
    return x1 * (1 / x2).to(torch.bfloat16).to(x2.dtype) if x2.is_floating_point() else fn(x1, x2)


def _bad_broadcast(fn: Any, x1: Tensor, x2: Tensor) -> Any:
    return fn(x1, x2.roll(1, 0) if x2.dim() and x1.shape != x2.shape else x2)


def _half_sum(fn: Any, x: Tensor, **params: Any) -> Any:
    if x.dtype not in (torch.float16, torch.bfloat16) or x.shape[-1] < 2048 or tuple(params["axis"]) != (x.dim() - 1,):
        return fn(x, **params)
    total = torch.zeros(x.shape[:-1], dtype=x.dtype)
    for at in range(0, x.shape[-1], 8):
        total = total + x[..., at : at + 8].sum(-1)
    return total


def _half_matmul(fn: Any, x1: Tensor, x2: Tensor) -> Any:
    if x1.dtype not in (torch.float16, torch.bfloat16) or x1.shape[-1] < 2048:
        return fn(x1, x2)
    total = torch.zeros(*x1.shape[:-1], x2.shape[-1], dtype=x1.dtype)
    for at in range(0, x1.shape[-1], 32):
        total = total + fn(x1[..., at : at + 32], x2[..., at : at + 32, :])
    return total


class _Stale:
    """Results kept by address and shape."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def __call__(self, fn: Any, *tensors: Tensor, **params: Any) -> Any:
        key = tuple((t.data_ptr(), tuple(t.shape)) for t in tensors)
        if key not in self._kept:
            self._kept[key] = fn(*tensors, **params)
        return self._kept[key].clone()


def _scratch(fn: Any, x: Tensor) -> Any:
    result = fn(x)
    if x.is_floating_point() and x.is_contiguous():
        x.detach().mul_(0.5)
    return result


def _as_if_contiguous(fn: Any, x: Tensor, **params: Any) -> Any:
    return fn(torch.as_strided(x, x.shape, _plain_strides(x), x.storage_offset()).clone() if _fits(x) else x, **params)


def _plain_strides(x: Tensor) -> tuple[int, ...]:
    return tuple(torch.empty(x.shape, device="meta").stride())


def _fits(x: Tensor) -> bool:
    return (
        not x.is_contiguous()
        and not x.is_complex()
        and x.storage_offset() + x.numel() <= x.untyped_storage().nbytes() // x.element_size()
    )


def _wrapped_offsets(fn: Any, x: Tensor, **params: Any) -> Any:
    far = x.dim() > 1 and x.stride(0) * (x.shape[0] - 1) >= 2**31
    return fn(x[:1].expand(x.shape) if far else x, **params)


def _last_of_equals(fn: Any, x: Tensor, *, axis: int | None, keepdims: bool) -> Any:
    if axis is None and x.dim() != 1:
        return fn(x, axis=axis, keepdims=keepdims)
    dim = 0 if axis is None else axis
    return x.shape[dim] - 1 - fn(x.flip(dim), axis=dim, keepdims=keepdims)


def _boundary(fn: Any, x: Tensor, w: Tensor, offsets: Tensor) -> Any:
    return fn(x, w, torch.where(offsets < x.shape[0], (offsets + (offsets > 0)).clamp(max=x.shape[0]), offsets))


#: name, kind, op, change(original, *tensors, **params), globs of the cases that are enough to find it.
FAULTS: tuple[tuple[str, str, str, Callable[..., Any], str], ...] = (
    ("conj_dropped", "conj-dropped", "conj", lambda fn, x: x.clone(), "math/*/conj-*"),
    ("matmul_real_only", "complex-real-only", "matmul", _real_only, "math/reduce/matmul-imaginary/*"),
    ("multiply_real_only", "complex-real-only", "multiply", _real_only, "math/reduce/multiply-imaginary/*"),
    ("ifft_unnormalised", "fft-normalisation", "ifft", lambda fn, x, **p: fn(x, **p) * p["n"], "math/*/ifft-*"),
    ("fft_sign", "fft-sign", "fft", lambda fn, x, **p: fn(x.conj(), **p).conj().resolve_conj().clone(), "math/*/fft-*"),
    (
        "bool_sum_saturates",
        "bool-sum",
        "sum",
        lambda fn, x, **p: fn(x, **p).clamp(max=255) if x.dtype == torch.bool else fn(x, **p),
        "math/behaviour/sum-counts*",
    ),
    (
        "int8_sum_wraps",
        "int-promotion",
        "sum",
        lambda fn, x, **p: fn(x, **p).to(torch.int8).to(torch.int64) if x.dtype == torch.int8 else fn(x, **p),
        "math/behaviour/sum-does*",
    ),
    ("bf16_truncated", "bf16-truncation", "astype", _truncate, "math/pointwise/astype-all*"),
    ("maximum_swallows_nan", "nan-swallowed", "maximum", lambda fn, a, b: torch.fmax(a, b), "math/special/maximum-*"),
    (
        "max_swallows_nan",
        "nan-swallowed",
        "max",
        lambda fn, x, **p: fn(torch.nan_to_num(x, nan=-torch.inf), **p),
        "math/special/max-nan*",
    ),
    ("negative_loses_sign_of_zero", "signed-zero", "negative", lambda fn, x: 0 - x, "math/special/negative-*"),
    (
        "log_wrong_side_of_cut",
        "branch-cut",
        "log",
        lambda fn, x: fn(torch.complex(x.real, x.imag + 0.0)) if x.is_complex() else fn(x),
        "math/special/log-complex*",
    ),
    ("broadcast_period", "broadcast", "add", _bad_broadcast, "math/exact/add-shapes/*"),
    (
        "empty_product",
        "empty-reduction",
        "prod",
        lambda fn, x, **p: fn(x, **p) if x.numel() else fn(x, **p) * 0,
        "math/behaviour/prod-over*",
    ),
    ("argmax_last", "tie-break", "argmax", _last_of_equals, "math/behaviour/argmax-first*"),
    ("group_boundary", "group-offsets", "grouped_matmul", _boundary, "math/dtypes/grouped_matmul*"),
    ("eps_dropped", "eps-dropped", "rms_norm", lambda fn, x, w, *, eps: fn(x, w, eps=0.0), "math/fused/rms_norm-*"),
    (
        "rotation_reversed",
        "rotation-sign",
        "rotary",
        lambda fn, x, c, s, **p: fn(x, c, -s, **p),
        "math/dtypes/rotary-*",
    ),
    ("gate_swapped", "gate-swapped", "swiglu", lambda fn, a, b: fn(b, a), "math/dtypes/swiglu-*"),
    ("less_is_less_equal", "comparison-sense", "less", lambda fn, a, b: a <= b, "math/*/less-*"),
    ("divide_by_reciprocal", "divide-rounding", "divide", _reciprocal, "math/pointwise/divide-*"),
    (
        "softmax_axis",
        "axis",
        "softmax",
        lambda fn, x, *, axis: fn(x, axis=(axis + 1) % x.dim()),
        "math/dtypes/softmax-*",
    ),
    ("sum_in_half", "low-accumulation", "sum", _half_sum, "math/reduce/sum-4096*"),
    ("matmul_in_half", "low-accumulation", "matmul", _half_matmul, "math/reduce/matmul-4096*"),
    (
        "logsumexp_overflows",
        "large-logits",
        "logsumexp",
        lambda fn, x, *, axis, keepdims: x.exp().sum(tuple(axis), keepdim=keepdims).log(),
        "math/reduce/logsumexp-large*",
    ),
    ("matmul_stale", "stale-cache", "matmul", _Stale(), "math/behaviour/matmul-second*"),
    (
        "add_returns_input",
        "output-alias",
        "add",
        lambda fn, a, b: a.copy_(fn(a, b)) if a.shape == b.shape else fn(a, b),
        "math/behaviour/add-second*",
    ),
    ("exp_scales_in_place", "input-written", "exp", _scratch, "math/dtypes/exp-*"),
    ("exp_ignores_strides", "swapped-strides", "exp", _as_if_contiguous, "math/layout/exp-*"),
    ("mean_in_float32", "wrong-dtype", "mean", lambda fn, x, **p: fn(x, **p).to(torch.float32), "math/dtypes/mean-*"),
    ("sum_offsets_wrap", "int32-overflow", "sum", _wrapped_offsets, "math/behaviour/sum-offsets*"),
)


def saboteurs() -> list[Saboteur]:
    """One for each row of ``FAULTS``, and the honest framework backend under another name."""
    found = [Saboteur("honest_math", None, "math", _registration("", None))]
    found += [
        Saboteur(f"sabotage_{name}", kind, "math", _registration(f"math.{op}", change), (globs,))
        for name, kind, op, change, globs in FAULTS
    ]
    return found


def _registration(op: str, change: Callable[..., Any] | None) -> Callable[[Registrar], None]:
    def register(registrar: Registrar) -> None:
        MANAGER.load_all()
        for impl in impls_of("torch"):
            if not impl.op.startswith("math."):
                continue
            if impl.op == op and change is not None:
                register_again(registrar, impl, fn=_changed(impl.fn, change))
            else:
                register_again(registrar, impl)

    return register


def _changed(original: Callable[..., Any], change: Callable[..., Any]) -> Callable[..., Any]:
    def fn(*tensors: Any, **params: Any) -> Any:
        return change(original, *tensors, **params)

    return fn
