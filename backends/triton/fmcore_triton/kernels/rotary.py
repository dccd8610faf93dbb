"""Rotary embedding as products with (cos, sin) pairs; complex tables and complex activations are read as real pairs."""

# ruff: noqa: RET505 (branches on constants, NaN tests: the language is Triton)

import triton
import triton.language as tl


@triton.jit
def _pair(PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, pairs):
    i = tl.arange(0, PAIRS)
    if INTERLEAVED:
        return 2 * i, 2 * i + 1
    else:
        return i, i + pairs


@triton.jit(do_not_specialize=["x_b", "x_s", "x_h", "t_b", "t_s", "seq", "heads", "pairs", "width"])
def rotate(
    x, cos, sin, y, x_b: tl.int64, x_s: tl.int64, x_h: tl.int64, t_b: tl.int64, t_s: tl.int64, seq: tl.int32,
    heads: tl.int32, pairs: tl.int32, width: tl.int32, sign, T_P: tl.constexpr, INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """y [b, seq, heads, width] dense; sign -1 turns backwards (the gradient); grid (b * seq, ceil(heads / HEADS)).

    REST > 0 copies the features past the turned ones, REST at a time.
    """
    token = tl.program_id(0).to(tl.int64)
    b = token // seq
    s = token % seq
    h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    i = tl.arange(0, PAIRS)
    inside = (h < heads)[:, None] & (i < pairs)[None, :]
    first, second = _pair(PAIRS, INTERLEAVED, pairs)
    x += b * x_b + s * x_s
    y += token * heads * width
    table = b * t_b + s * t_s + i * T_P
    c = tl.load(cos + table, mask=i < pairs, other=0.0).to(tl.float32)[None, :]
    n = tl.load(sin + table, mask=i < pairs, other=0.0).to(tl.float32)[None, :] * sign
    source = h.to(tl.int64)[:, None] * x_h
    target = h[:, None] * width
    u = tl.load(x + source + first[None, :], mask=inside, other=0.0).to(tl.float32)
    v = tl.load(x + source + second[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(y + target + first[None, :], (u * c - v * n).to(y.dtype.element_ty), mask=inside)
    tl.store(y + target + second[None, :], (u * n + v * c).to(y.dtype.element_ty), mask=inside)
    if REST > 0:
        for start in tl.range(2 * pairs, width, REST):
            j = start + tl.arange(0, REST)
            keep = (h < heads)[:, None] & (j < width)[None, :]
            tl.store(y + target + j[None, :], tl.load(x + source + j[None, :], mask=keep, other=0.0), mask=keep)


@triton.jit(
    do_not_specialize=["x_b", "x_s", "x_h", "d_b", "d_s", "d_h", "seq", "heads", "pairs"],
)
def rotate_tables(
    x, dy, dcos, dsin, x_b: tl.int64, x_s: tl.int64, x_h: tl.int64, d_b: tl.int64, d_s: tl.int64, d_h: tl.int64,
    seq: tl.int32, heads: tl.int32, pairs: tl.int32,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """dcos and dsin [b, seq, pairs] fp32, summed over the heads in order; grid (b * seq,)."""
    token = tl.program_id(0).to(tl.int64)
    b = token // seq
    s = token % seq
    i = tl.arange(0, PAIRS)
    first, second = _pair(PAIRS, INTERLEAVED, pairs)
    x += b * x_b + s * x_s
    dy += b * d_b + s * d_s
    along = tl.zeros([PAIRS], tl.float32)
    across = tl.zeros([PAIRS], tl.float32)
    for start in tl.range(0, heads, HEADS):
        h = start + tl.arange(0, HEADS)
        inside = (h < heads)[:, None] & (i < pairs)[None, :]
        source = h.to(tl.int64)[:, None] * x_h
        target = h.to(tl.int64)[:, None] * d_h
        u = tl.load(x + source + first[None, :], mask=inside, other=0.0).to(tl.float32)
        v = tl.load(x + source + second[None, :], mask=inside, other=0.0).to(tl.float32)
        p = tl.load(dy + target + first[None, :], mask=inside, other=0.0).to(tl.float32)
        q = tl.load(dy + target + second[None, :], mask=inside, other=0.0).to(tl.float32)
        along += tl.sum(p * u + q * v, 0)
        across += tl.sum(q * u - p * v, 0)
    tl.store(dcos + token * pairs + i, along, mask=i < pairs)
    tl.store(dsin + token * pairs + i, across, mask=i < pairs)
