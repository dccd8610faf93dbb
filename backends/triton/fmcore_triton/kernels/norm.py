"""RMS normalisation of dense rows: x / sqrt(mean(x^2) + eps) * weight, statistics in fp32, one rounding at the end."""

# ruff: noqa: SIM108 (branches on constants, NaN tests: the language is Triton)

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "width"])
def rms_forward(
    x,
    weight,
    y,
    rows: tl.int32,
    width: tl.int32,
    eps,
    HAS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """ROWS rows per program; grid (ceil(rows / ROWS),)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (cols < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + cols[None, :]
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    result = v / tl.sqrt(tl.sum(v * v, 1) / width + eps)[:, None]
    if HAS_WEIGHT:
        result = result * tl.load(weight + cols, mask=cols < width, other=0.0).to(tl.float32)[None, :]
    tl.store(y + at, result.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "width", "share"])
def rms_backward(
    x,
    weight,
    dy,
    dx,
    partial,
    rows: tl.int32,
    width: tl.int32,
    share: tl.int32,
    eps,
    HAS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`share` rows per program, in order, so that the weight's gradient is the same every time; grid (programs,).

    `partial` is [programs, width] fp32: each program's sum of dy * x / rms over its rows.
    """
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    wide = cols < width
    if HAS_WEIGHT:
        w = tl.load(weight + cols, mask=wide, other=0.0).to(tl.float32)
    else:
        w = tl.full([BLOCK], 1.0, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(program * share, tl.minimum((program + 1) * share, rows), ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < tl.minimum((program + 1) * share, rows))[:, None] & wide[None, :]
        at = row.to(tl.int64)[:, None] * width + cols[None, :]
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        inverse = (1.0 / tl.sqrt(tl.sum(v * v, 1) / width + eps))[:, None]
        unit = tl.where(inside, v * inverse, 0.0)
        scaled = g * w[None, :]
        result = inverse * (scaled - unit * (tl.sum(scaled * unit, 1) / width)[:, None])
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=inside)
        total += tl.sum(g * unit, 0)
    if HAS_WEIGHT:
        tl.store(partial + program.to(tl.int64) * width + cols, total, mask=wide)
