"""The fused ops of fm.math on Triton: shapes, strides and launches for `kernels/{norm,swiglu,rotary,rows,gate}.py`.

Every function has the op's canonical signature; each backward takes (grads, inputs, outputs) and returns one gradient
per input, as fmcore pairs them.  Arithmetic is fp32 with one rounding at the end.
"""

# ruff: noqa: ARG001 (backwards share one signature)

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fmcore_triton.attention import device_guard
from fmcore_triton.kernels import gate as gate_kernels
from fmcore_triton.kernels import rows as row_kernels
from fmcore_triton.kernels.gate import gate_backward, gate_forward
from fmcore_triton.kernels.norm import rms_backward, rms_forward
from fmcore_triton.kernels.rotary import rotate, rotate_tables
from fmcore_triton.kernels.rows import rows_backward, rows_forward
from fmcore_triton.kernels.swiglu import swiglu_backward, swiglu_forward

Grads = tuple[Tensor | None, ...]

MAX_NORM_WIDTH = 16384
MAX_EXPERTS = 4096
MAX_TOP = 64
_POINTS = 1024  # elements per program of a pointwise kernel
_PROGRAMS = 512  # programs of a backward that sums over rows


def _block(width: int, largest: int) -> int:
    """Return the power of two that holds the width, within [16, largest]."""
    return min(largest, max(16, 1 << (max(1, width) - 1).bit_length()))


def _warps(block: int) -> int:
    """Warps for a block of that many elements: 8 of them or more to a thread."""
    return min(8, max(1, block // 256))


def rms_norm(x: Tensor, weight: Tensor | None, *, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis, of width up to `MAX_NORM_WIDTH`."""
    x = x.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        width = x.shape[-1]
        block = _block(width, MAX_NORM_WIDTH)
        per = max(1, 2048 // block)
        rows = x.numel() // width
        with device_guard(x):
            rms_forward[(-(-rows // per),)](
                x, x if weight is None else weight.contiguous(), y, rows, width, eps,
                HAS_WEIGHT=weight is not None, ROWS=per, BLOCK=block, num_warps=_warps(block * per),
            )  # fmt: skip
    return y


def rms_norm_backward(
    grads: Grads, inputs: tuple[Tensor, Tensor | None], outputs: tuple[Tensor], *, eps: float
) -> Grads:
    """Gradients of x and weight; the weight's is summed in a fixed order."""
    x, weight = inputs[0].contiguous(), inputs[1]
    dy = _present(grads[0]).contiguous()
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return dx, None if weight is None else torch.zeros_like(weight)
    width = x.shape[-1]
    rows = x.numel() // width
    block = _block(width, MAX_NORM_WIDTH)
    per = max(1, 1024 // block)
    share = -(-max(per, -(-rows // _PROGRAMS)) // per) * per
    programs = -(-rows // share)
    partial = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    with device_guard(x):
        rms_backward[(programs,)](
            x, x if weight is None else weight.contiguous(), dy, dx, partial, rows, width, share, eps,
            HAS_WEIGHT=weight is not None, ROWS=per, BLOCK=block, num_warps=_warps(block * per),
        )  # fmt: skip
    return dx, None if weight is None else partial.sum(0).to(weight.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up; shapes broadcast."""
    a, b = (t.contiguous() for t in torch.broadcast_tensors(gate, up))
    y = torch.empty(a.shape, dtype=gate.dtype, device=gate.device)
    if y.numel():
        with device_guard(y):
            swiglu_forward[(-(-y.numel() // _POINTS),)](a, b, y, y.numel(), BLOCK=_POINTS, num_warps=4)
    return y


def swiglu_backward_pair(grads: Grads, inputs: tuple[Tensor, Tensor], outputs: tuple[Tensor]) -> Grads:
    """Gradients of gate and up, summed over what was broadcast."""
    dy = _present(grads[0])
    gate, up = inputs
    a, b, d = (t.contiguous() for t in torch.broadcast_tensors(gate, up, dy))
    # What was broadcast is summed: in fp32, and rounded once.
    exact = [x.dtype if x.shape == d.shape else torch.float32 for x in inputs]
    dgate, dup = (torch.empty(d.shape, dtype=dtype, device=d.device) for dtype in exact)
    if d.numel():
        with device_guard(d):
            swiglu_backward[(-(-d.numel() // _POINTS),)](d, a, b, dgate, dup, d.numel(), BLOCK=_POINTS, num_warps=4)
    return dgate.sum_to_size(gate.shape).to(gate.dtype), dup.sum_to_size(up.shape).to(up.dtype)


def _present(grad: Tensor | None) -> Tensor:
    """Return the gradient of an only output, which is never missing in a backward."""
    if grad is None:
        raise ValueError("a backward was called without the gradient of its only output")
    return grad


class _Rotation:
    """What rotary and rotary_complex share: real pairs, strides, and the table as (cos, sin, step)."""

    def __init__(self, x: Tensor, cos: Tensor, sin: Tensor, step: int, *, interleaved: bool) -> None:
        self.x = x if x.stride(-1) == 1 else x.contiguous()
        self.cos, self.sin, self.step, self.interleaved = cos, sin, step, interleaved
        self.b, self.s, self.h, self.width = x.shape
        self.pairs = cos.shape[-1]
        self.table = (cos.stride(0) if cos.ndim == 3 and cos.shape[0] > 1 else 0, cos.stride(-2))
        self.shape = {
            "INTERLEAVED": interleaved,
            "PAIRS": max(1, 1 << (self.pairs - 1).bit_length()) if self.pairs else 1,
        }
        self.heads = max(1, min(1 << (self.h - 1).bit_length(), 2048 // self.shape["PAIRS"])) if self.h else 1

    def turn(self, x: Tensor, sign: float) -> Tensor:
        """Return x turned by the table, backwards for sign -1."""
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if y.numel():
            x = x if x.stride(-1) == 1 else x.contiguous()
            rest = self.width - 2 * self.pairs
            with device_guard(x):
                rotate[(self.b * self.s, -(-self.h // self.heads))](
                    x, self.cos, self.sin, y, *x.stride()[:3], *self.table, self.s, self.h, self.pairs, self.width,
                    sign, T_P=self.step, HEADS=self.heads, REST=_block(rest, 64) if rest else 0, num_warps=4,
                    **self.shape,
                )  # fmt: skip
        return y

    def tables(self, dy: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of cos and sin, fp32, of the table's shape."""
        dy = dy if dy.stride(-1) == 1 else dy.contiguous()
        dcos, dsin = (torch.zeros(self.b, self.s, self.pairs, dtype=torch.float32, device=dy.device) for _ in range(2))
        if dy.numel() and self.pairs:
            with device_guard(dy):
                rotate_tables[(self.b * self.s,)](
                    self.x, dy, dcos, dsin, *self.x.stride()[:3], *dy.stride()[:3], self.s, self.h, self.pairs,
                    HEADS=self.heads, num_warps=4, **self.shape,
                )  # fmt: skip
        shape = self.cos.shape
        return dcos.sum_to_size(shape) if len(shape) == 3 else dcos.sum(0), dsin.sum_to_size(shape) if len(
            shape
        ) == 3 else dsin.sum(0)


def _real_rotation(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> _Rotation:
    return _Rotation(x, cos.contiguous(), sin.contiguous(), 1, interleaved=interleaved)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Turn the first 2 * pairs features of x [b, s, h, d]; copy the rest."""
    return _real_rotation(x, cos, sin, interleaved=interleaved).turn(x, 1.0)


def rotary_backward(
    grads: Grads, inputs: tuple[Tensor, Tensor, Tensor], outputs: tuple[Tensor], *, interleaved: bool
) -> Grads:
    """Gradients of x, cos and sin."""
    x, cos, sin = inputs
    dy = _present(grads[0])
    rotation = _real_rotation(x, cos, sin, interleaved=interleaved)
    dcos, dsin = rotation.tables(dy)
    return rotation.turn(dy, -1.0), dcos.to(cos.dtype), dsin.to(sin.dtype)


def _as_pairs(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()).flatten(-2) if x.is_complex() else x


def _complex_rotation(x: Tensor, rotation: Tensor) -> _Rotation:
    table = torch.view_as_real(rotation.resolve_conj().contiguous())
    return _Rotation(_as_pairs(x), table[..., 0], table[..., 1], 2, interleaved=True)


def rotary_complex(x: Tensor, rotation: Tensor) -> Tensor:
    """Return x [b, s, h, d] times rotation; a real x is read as (re, im) pairs."""
    y = _complex_rotation(x, rotation).turn(_as_pairs(x), 1.0)
    return torch.view_as_complex(y.unflatten(-1, (-1, 2))) if x.is_complex() else y


def rotary_complex_backward(grads: Grads, inputs: tuple[Tensor, Tensor], outputs: tuple[Tensor]) -> Grads:
    """Gradients of x and rotation: products with the conjugate."""
    x, table = inputs
    dy = _as_pairs(_present(grads[0]))
    rotation = _complex_rotation(x, table)
    dx = rotation.turn(dy, -1.0)
    real, imag = rotation.tables(dy)
    return torch.view_as_complex(dx.unflatten(-1, (-1, 2))) if x.is_complex() else dx, torch.complex(real, imag)


def _rows_to_last(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return x as a dense matrix whose rows run along the axes."""
    kept = [i for i in range(x.ndim) if i not in axes]
    width = 1
    for axis in axes:
        width *= x.shape[axis]
    rows = x.numel() // width if width else math.prod(x.shape[i] for i in kept)
    return x.permute(*kept, *axes).reshape(rows, width).contiguous() if x.ndim else x.reshape(1, 1)


def _along(x: Tensor, axis: int, kind: int) -> Tensor:
    rows = _rows_to_last(x, (axis,) if x.ndim else ())
    y = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        block = _block(rows.shape[1], 4096)
        with device_guard(x):
            rows_forward[(rows.shape[0],)](rows, y, rows.shape[1], KIND=kind, BLOCK=block, num_warps=_warps(block))
    return _back(y, x, axis)


def _back(rows: Tensor, x: Tensor, axis: int) -> Tensor:
    """Undo `_rows_to_last` for one axis."""
    if not x.ndim:
        return rows.reshape(())
    shape = [n for i, n in enumerate(x.shape) if i != axis]
    return rows.reshape(*shape, x.shape[axis]).movedim(-1, axis).contiguous()


def _along_backward(grads: Grads, inputs: tuple[Tensor], outputs: tuple[Tensor], axis: int, kind: int) -> Grads:
    x = inputs[0]
    axes = (axis,) if x.ndim else ()
    source = _rows_to_last(outputs[0] if kind == row_kernels.SOFTMAX.value else x, axes)
    dy = _rows_to_last(_present(grads[0]), axes)
    dx = torch.empty(source.shape, dtype=x.dtype, device=x.device)
    if dx.numel():
        block = _block(dx.shape[1], 4096)
        with device_guard(x):
            rows_backward[(dx.shape[0],)](dy, source, dx, dx.shape[1], KIND=kind, BLOCK=block, num_warps=_warps(block))
    return (_back(dx, x, axis),)


def softmax(x: Tensor, *, axis: int) -> Tensor:
    """Return exp(x - max) / sum along an axis."""
    return _along(x, axis, row_kernels.SOFTMAX.value)


def softmax_backward(grads: Grads, inputs: tuple[Tensor], outputs: tuple[Tensor], *, axis: int) -> Grads:
    """Gradient of x."""
    return _along_backward(grads, inputs, outputs, axis, row_kernels.SOFTMAX.value)


def log_softmax(x: Tensor, *, axis: int) -> Tensor:
    """Return x - logsumexp(x) along an axis."""
    return _along(x, axis, row_kernels.LOG_SOFTMAX.value)


def log_softmax_backward(grads: Grads, inputs: tuple[Tensor], outputs: tuple[Tensor], *, axis: int) -> Grads:
    """Gradient of x."""
    return _along_backward(grads, inputs, outputs, axis, row_kernels.LOG_SOFTMAX.value)


def logsumexp(x: Tensor, *, axis: tuple[int, ...], keepdims: bool) -> Tensor:
    """Return log(sum(exp(x))) over axes; -inf of nothing."""
    axes = tuple(axis)
    rows = _rows_to_last(x, axes)
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
    y = torch.full((rows.shape[0],), float("-inf"), dtype=x.dtype, device=x.device)
    if rows.numel():
        block = _block(rows.shape[1], 4096)
        with device_guard(x):
            rows_forward[(rows.shape[0],)](
                rows, y, rows.shape[1], KIND=row_kernels.LOGSUMEXP.value, BLOCK=block, num_warps=_warps(block)
            )
    return y.reshape(shape)


def logsumexp_backward(
    grads: Grads, inputs: tuple[Tensor], outputs: tuple[Tensor], *, axis: tuple[int, ...], keepdims: bool
) -> Grads:
    """Gradient of x: softmax times the gradient."""
    x, axes = inputs[0], tuple(axis)
    rows = _rows_to_last(x, axes)
    dx = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    if dx.numel():
        block = _block(rows.shape[1], 4096)
        dy = _present(grads[0]).reshape(-1).contiguous()
        with device_guard(x):
            rows_backward[(rows.shape[0],)](
                dy, rows, dx, rows.shape[1], KIND=row_kernels.LOGSUMEXP.value, BLOCK=block, num_warps=_warps(block)
            )
    kept = [i for i in range(x.ndim) if i not in axes]
    order = [*kept, *axes]
    inverse = [order.index(i) for i in range(x.ndim)]
    return (dx.reshape([x.shape[i] for i in order]).permute(inverse).contiguous() if x.ndim else dx.reshape(()),)


def _gate_shape(logits: Tensor, k: int, score: str) -> dict[str, Any]:
    block = _block(logits.shape[-1], MAX_EXPERTS)
    score_kind = gate_kernels.SIGMOID.value if score == "sigmoid" else 0
    return {
        "SCORE": score_kind,
        "BLOCK": block,
        "TOP": max(2, 1 << (k - 1).bit_length()),
        "num_warps": max(1, min(4, block // 128)),
    }


def topk_gate(
    logits: Tensor, bias: Tensor | None, *, k: int, score: str, renormalize: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return weights (fp32) and indices (int64) of the k best experts of every row."""
    rows = logits.contiguous()
    shape = (*logits.shape[:-1], k)
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    indices = torch.empty(shape, dtype=torch.int64, device=logits.device)
    if weights.numel():
        with device_guard(rows):
            gate_forward[(weights.numel() // k,)](
                rows, rows if bias is None else bias.contiguous(), weights, indices, logits.shape[-1], k, float(scale),
                BIASED=bias is not None, RENORMALIZE=renormalize, **_gate_shape(logits, k, score),
            )  # fmt: skip
    return weights, indices


def topk_gate_backward(
    grads: Grads,
    inputs: tuple[Tensor, Tensor | None],
    outputs: tuple[Tensor, Tensor],
    *,
    k: int,
    score: str,
    renormalize: bool,
    scale: float,
) -> Grads:
    """Gradient of the logits through the weights; the bias only selects and gets none."""
    logits = inputs[0].contiguous()
    weights, indices = outputs
    dlogits = torch.zeros(logits.shape, dtype=logits.dtype, device=logits.device)
    if grads[0] is not None and weights.numel():
        with device_guard(logits):
            gate_backward[(weights.numel() // k,)](
                logits, weights.contiguous(), indices.contiguous(), grads[0].contiguous(), dlogits, logits.shape[-1], k,
                float(scale), RENORMALIZE=renormalize, **_gate_shape(logits, k, score),
            )  # fmt: skip
    return dlogits, None
