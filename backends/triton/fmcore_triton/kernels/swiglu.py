"""silu(gate) * up of dense tensors of one shape, and its gradient."""

# ruff: noqa: PLR0124 (branches on constants, NaN tests: the language is Triton)

import triton
import triton.language as tl

from fmcore_triton.kernels.numeric import exp_parts


@triton.jit
def _silu(g):
    """silu(g) and sigmoid(g); tiny values keep their accuracy because the powers of two come last."""
    mantissa, first, second = exp_parts(tl.where(tl.abs(g) > 150.0, -150.0, -tl.abs(g)))
    e = mantissa * first * second
    down = 1.0 + e
    sigmoid = tl.where(g >= 0, 1.0, e) / down
    silu = tl.where(g >= 0, g / down, ((g * mantissa) / down) * first * second)
    silu = tl.where(g == float("-inf"), -0.0, silu)
    nan = g != g
    return tl.where(nan, g, silu), tl.where(nan, g, sigmoid)


@triton.jit(do_not_specialize=["count"])
def swiglu_forward(gate, up, y, count: tl.int64, BLOCK: tl.constexpr):
    """Grid (ceil(count / BLOCK),)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    silu, _ = _silu(tl.load(gate + at, mask=inside, other=0.0).to(tl.float32))
    result = silu * tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, result.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def swiglu_backward(dy, gate, up, dgate, dup, count: tl.int64, BLOCK: tl.constexpr):
    """d silu = sigmoid * (1 + g * (1 - sigmoid)); grid (ceil(count / BLOCK),)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    silu, sigmoid = _silu(g)
    slope = sigmoid + silu * (1.0 - sigmoid)
    tl.store(dgate + at, (d * u * slope).to(dgate.dtype.element_ty), mask=inside)
    tl.store(dup + at, (d * silu).to(dup.dtype.element_ty), mask=inside)
