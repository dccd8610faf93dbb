"""Softmax, log-softmax and log-sum-exp over the rows of a dense matrix, any width, and their gradients.

One program per row; a row longer than a block is read twice, with a running maximum (online softmax) in the first pass.
"""

# ruff: noqa: SIM108, PLR0124 (branches on constants, NaN tests: the language is Triton)

import triton
import triton.language as tl

from fmcore_triton.kernels.numeric import exp

SOFTMAX = tl.constexpr(0)
LOG_SOFTMAX = tl.constexpr(1)
LOGSUMEXP = tl.constexpr(2)


@triton.jit
def _row_statistics(x, width, BLOCK: tl.constexpr):
    """Maximum and sum of exp(x - maximum) of a row; a NaN anywhere makes the sum NaN."""
    cols = tl.arange(0, BLOCK)
    peak = float("-inf")
    total = 0.0
    for start in tl.range(0, width, BLOCK):
        v = tl.load(x + start + cols, mask=start + cols < width, other=float("-inf")).to(tl.float32)
        peak_new = tl.maximum(peak, tl.max(tl.where(v == v, v, float("-inf")), 0))
        base = tl.where(tl.abs(peak_new) == float("inf"), 0.0, peak_new)
        total = total * exp(peak - base) + tl.sum(tl.where(v == float("inf"), float("inf"), exp(v - base)), 0)
        peak = peak_new
    return peak, total


@triton.jit(do_not_specialize=["width"])
def rows_forward(x, y, width: tl.int32, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (rows,); y is [rows, width], or [rows] for LOGSUMEXP."""
    row = tl.program_id(0).to(tl.int64)
    x += row * width
    cols = tl.arange(0, BLOCK)
    peak, total = _row_statistics(x, width, BLOCK)
    base = tl.where(tl.abs(peak) == float("inf"), 0.0, peak)
    if KIND == LOGSUMEXP:
        tl.store(y + row, (tl.log(total) + base).to(y.dtype.element_ty))
    else:
        y += row * width
        shift = tl.where(peak == float("-inf"), float("nan"), tl.log(total))
        for start in tl.range(0, width, BLOCK):
            inside = start + cols < width
            v = tl.load(x + start + cols, mask=inside, other=0.0).to(tl.float32)
            if KIND == LOG_SOFTMAX:
                result = v - base - shift
            else:
                result = tl.where(v == float("inf"), float("nan"), exp(v - base)) / total
            result = tl.where(tl.abs(peak) == float("inf"), float("nan"), result)
            tl.store(y + start + cols, result.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["width"])
def rows_backward(dy, source, dx, width: tl.int32, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (rows,).  `source` is y for SOFTMAX and x for the others, whose rounded y is too coarse to exponentiate.

    dy is [rows, width], or [rows] for LOGSUMEXP.
    """
    row = tl.program_id(0).to(tl.int64)
    source += row * width
    dx += row * width
    cols = tl.arange(0, BLOCK)
    level = 0.0
    if KIND != SOFTMAX:
        peak, total = _row_statistics(source, width, BLOCK)
        level = tl.where(tl.abs(peak) == float("inf"), 0.0, peak) + tl.log(total)
    if KIND == LOGSUMEXP:
        share = tl.load(dy + row).to(tl.float32)
    else:
        dy += row * width
        share = 0.0
        for start in tl.range(0, width, BLOCK):
            inside = start + cols < width
            g = tl.load(dy + start + cols, mask=inside, other=0.0).to(tl.float32)
            if KIND == SOFTMAX:
                g = g * tl.load(source + start + cols, mask=inside, other=0.0).to(tl.float32)
            share += tl.sum(g, 0)
    for start in tl.range(0, width, BLOCK):
        inside = start + cols < width
        v = tl.load(source + start + cols, mask=inside, other=0.0).to(tl.float32)
        if KIND == LOGSUMEXP:
            result = tl.where(level == float("-inf"), 0.0, exp(v - level)) * share
        else:
            g = tl.load(dy + start + cols, mask=inside, other=0.0).to(tl.float32)
            if KIND == SOFTMAX:
                result = v * (g - share)
            else:
                result = g - exp(v - level) * share
        tl.store(dx + start + cols, result.to(dx.dtype.element_ty), mask=inside)
