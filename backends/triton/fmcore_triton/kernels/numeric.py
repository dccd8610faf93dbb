"""Scalar functions that Triton's own fast forms lack in accuracy."""

import triton
import triton.language as tl

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2_HIGH = tl.constexpr(0.693359375)
_LN2_LOW = tl.constexpr(-2.12194440054690583e-4)


@triton.jit
def exp_parts(x):
    """exp(x) as three factors: a mantissa near 1 and two powers of two, each in range where exp(x) is not.

    Cody and Waite's reduction; exp2 alone loses |x| units in the last place to the rounding of x * log2(e).
    """
    n = tl.floor(x * _LOG2E + 0.5)
    n = tl.minimum(tl.maximum(n, -252.0), 252.0)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    half = tl.floor(n * 0.5)
    return tl.exp2(r * _LOG2E), tl.exp2(half), tl.exp2(n - half)


@triton.jit
def exp(x):
    """exp(x) in fp32 within a few units in the last place; 0 for -inf, NaN for NaN."""
    # A comparison lets NaN through where tl.maximum would swallow it.
    mantissa, first, second = exp_parts(tl.where(x < -200.0, -200.0, x))
    return mantissa * first * second


@triton.jit
def log_sigmoid(x):
    """min(x, 0) - log(1 + exp(-|x|))."""
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))
