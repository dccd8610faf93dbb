"""The comparison with the oracle notices planted errors; a check that cannot fail proves nothing."""

from __future__ import annotations

import pytest
import torch

from fmcore.math._canon import canonical
from fmcore.ops.math import TORCH
from fmcore.reference.math import ORACLE
from fmcore_torch.math import IMPLS, linalg


def _low_sum(x, *, axis, dtype, keepdims):
    y = x
    for a in sorted(axis, reverse=True):
        y = y.cumsum(a).narrow(a, y.shape[a] - 1, 1) if y.dtype != torch.bfloat16 else _bf16_loop(y, a)
    return (y if keepdims else y.squeeze(tuple(axis))).to(dtype)


def _bf16_loop(x, a):
    total = torch.zeros_like(x.narrow(a, 0, 1))
    for i in range(x.shape[a]):
        total = total + x.narrow(a, i, 1)
    return total


def _truncated(fn):
    def call(*tensors, **params):
        wide = fn(*(t.float() for t in tensors), **params)
        return (wide.contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32).to(torch.bfloat16)

    return call


def _last_max(x, *, axis, keepdims):
    y = x.reshape(-1) if axis is None else x
    a = 0 if axis is None else axis
    index = y.shape[a] - 1 - y.flip(a).argmax(a)
    if not keepdims:
        return index
    return index.reshape((1,) * x.ndim) if axis is None else index.unsqueeze(a)


def _higher_tie(logits, bias, *, k, score, renormalize, scale):
    flipped = IMPLS["topk_gate"](
        logits.flip(-1), None if bias is None else bias.flip(-1), k=k, score=score, renormalize=renormalize, scale=scale
    )
    return flipped[0], logits.shape[-1] - 1 - flipped[1]


def _groups_by_start(x, w, offsets):
    starts = torch.cat((offsets.new_zeros(1), offsets[:-1]))
    return linalg.grouped_matmul(
        x, w, torch.cat((starts[1:], offsets[-1:] - (offsets[-1:] > starts[-1:]).to(offsets.dtype)))
    )


SABOTEURS = {
    "exp: one element off by 4 ulp": (
        "exp",
        "float32",
        lambda x: torch.exp(x) * (1 + 2**-21 * (torch.arange(x.numel()).reshape(x.shape) == 3)),
    ),
    "swiglu: bf16 truncated": ("swiglu", "bfloat16", _truncated(IMPLS["swiglu"])),
    "add: saturates": ("add", "int8", lambda a, b: (a.int() + b.int()).clamp(-128, 127).to(torch.int8)),
    "less: not strict": ("less", "float32", torch.le),
    "maximum: swapped": ("maximum", "int32", torch.minimum),
    "angle: sign lost": ("angle", "complex64", lambda x: torch.angle(x).abs()),
    "conj: forgotten": ("conj", "complex64", torch.clone),
    "where: inverted": ("where", "bool", lambda c, a, b: torch.where(~c, a, b)),
    "right shift: logical": (
        "bitwise_right_shift",
        "int8",
        lambda a, b: ((a.int() & 0xFF) >> b.clamp(0, 8).int()).to(torch.int8),
    ),
    "astype: rounds half up": (
        "astype",
        "float32",
        lambda x, *, dtype: (x + 0.5).floor().to(dtype) if dtype == torch.int32 else x.to(dtype),
    ),
    "sum: accumulates in bf16": ("sum", "bfloat16", _low_sum),
    "mean: wrong count": (
        "mean",
        "float32",
        lambda x, *, axis, keepdims: (
            IMPLS["sum"](x, axis=axis, dtype=x.dtype, keepdims=keepdims) / max(1, x.numel() - 1)
        ),
    ),
    "argmax: last tie": ("argmax", "int32", _last_max),
    "cumulative_sum: exclusive": (
        "cumulative_sum",
        "int64",
        lambda x, *, axis, dtype, include_initial: (
            IMPLS["cumulative_sum"](x, axis=axis, dtype=dtype, include_initial=include_initial)
            - (0 if include_initial else x)
        ),
    ),
    "matmul: TF32": (
        "matmul",
        "float32",
        lambda a, b: IMPLS["matmul"](
            *(((t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)) for t in (a, b))
        ),
    ),
    "matmul: last k dropped": (
        "matmul",
        "bfloat16",
        lambda a, b: IMPLS["matmul"](a[..., :-1], b[..., :-1, :] if b.ndim > 1 else b[:-1]),
    ),
    "grouped_matmul: a row in the wrong group": ("grouped_matmul", "float32", _groups_by_start),
    "fft: sign": ("fft", "complex64", IMPLS["ifft"]),
    "irfft: reads the imaginary part of bin 0": (
        "irfft",
        "complex64",
        lambda x, *, n, axis, norm: torch.fft.irfft(x, n=n, dim=axis, norm=norm) + x.narrow(axis, 0, 1).imag,
    ),
    "softmax: other axis": ("softmax", "float32", lambda x, *, axis: torch.softmax(x, (axis + 1) % x.ndim)),
    "rms_norm: eps outside the root": (
        "rms_norm",
        "float64",
        lambda x, w, *, eps: x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * (1 if w is None else w),
    ),
    "rotary: halves for interleaved": (
        "rotary",
        "float32",
        lambda x, c, s, *, interleaved: IMPLS["rotary"](x, c, s, interleaved=False),
    ),
    "topk_gate: higher index at ties": ("topk_gate", "float32", _higher_tie),
}


@pytest.mark.parametrize("planted", SABOTEURS)
def test_a_planted_error_is_caught(planted, calls, check):
    name, dtype, broken = SABOTEURS[planted]
    caught = 0
    for args, kwargs in calls(name, TORCH[dtype]):
        tensors, params = canonical(name, args, kwargs)
        reference = ORACLE[name](*tensors, **params)
        check(
            name,
            IMPLS[name](*tensors, **params) if name in IMPLS else linalg.grouped_matmul(*tensors),
            reference,
            tensors,
            params,
        )
        if any(t is not None and 0 in t.shape for t in tensors):
            continue
        try:
            check(name, _dense(broken(*tensors, **params)), reference, tensors, params)
        except AssertionError:
            caught += 1
    assert caught


def _dense(result):
    return tuple(r.contiguous() for r in result) if isinstance(result, tuple) else result.contiguous()
