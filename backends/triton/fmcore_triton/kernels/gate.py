"""The MoE gate: the k best experts of every row and their weights, and the gradient of the weights.

Selection takes the best of what is left k times; ties go to the lower index and NaN ranks above everything, as in the
oracle.  One program per row, the experts in one block.
"""

# ruff: noqa: RET505, PLR0124, PLR5501 (branches on constants, NaN tests: the language is Triton)

import triton
import triton.language as tl

from fmcore_triton.kernels.numeric import exp, log_sigmoid

SIGMOID = tl.constexpr(1)


@triton.jit
def _log_scores(x, inside, SCORE: tl.constexpr):
    if SCORE == SIGMOID:
        return log_sigmoid(x)
    else:
        v = tl.where(inside, x, float("-inf"))
        peak = tl.max(v, 0)
        base = tl.where(tl.abs(peak) == float("inf"), 0.0, peak)
        return x - (tl.log(tl.sum(exp(v - base), 0)) + base)


@triton.jit(do_not_specialize=["experts", "k"])
def gate_forward(
    logits, bias, weights, indices, experts: tl.int32, k: tl.int32, scale, SCORE: tl.constexpr, BIASED: tl.constexpr,
    RENORMALIZE: tl.constexpr, BLOCK: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """weights [rows, k] fp32 and indices [rows, k] int64; BLOCK >= experts, TOP >= k; grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    slots = tl.arange(0, TOP)
    inside = cols < experts
    x = tl.load(logits + row * experts + cols, mask=inside, other=0.0).to(tl.float32)
    log_score = _log_scores(x, inside, SCORE)
    keys = x
    if BIASED:
        keys = exp(log_score) + tl.load(bias + cols, mask=inside, other=0.0).to(tl.float32)
    nan = keys != keys
    keys = tl.where(nan, float("inf"), keys)
    alive = inside
    chosen = tl.full([TOP], float("-inf"), tl.float32)
    where = tl.zeros([TOP], tl.int32)
    for j in tl.range(0, k):
        best = tl.max(tl.where(alive, keys, float("-inf")), 0)
        place = tl.min(tl.where(alive & (keys == best), tl.where(nan, cols, cols + BLOCK), 2 * BLOCK), 0) % BLOCK
        here = cols == place
        value = tl.sum(tl.where(here, log_score, 0.0), 0)
        chosen = tl.where(slots == j, value, chosen)
        where = tl.where(slots == j, place, where)
        alive = alive & (here == 0)
    if RENORMALIZE:
        peak = tl.max(chosen, 0)
        base = tl.where(peak == float("-inf"), 0.0, peak)
        e = exp(chosen - base)
        result = e / tl.sum(e, 0) * scale
    else:
        result = exp(chosen) * scale
    tl.store(weights + row * k + slots, result, mask=slots < k)
    tl.store(indices + row * k + slots, where.to(tl.int64), mask=slots < k)


@triton.jit(do_not_specialize=["experts", "k"])
def gate_backward(
    logits, weights, indices, dweights, dlogits, experts: tl.int32, k: tl.int32, scale, SCORE: tl.constexpr,
    RENORMALIZE: tl.constexpr, BLOCK: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """dlogits [rows, experts]; grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    slots = tl.arange(0, TOP)
    inside = cols < experts
    x = tl.load(logits + row * experts + cols, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weights + row * k + slots, mask=slots < k, other=0.0)
    g = tl.load(dweights + row * k + slots, mask=slots < k, other=0.0).to(tl.float32)
    # Gradient of the chosen log-scores: w g, less the normaliser's share where the weights were renormalised.
    if RENORMALIZE:
        share = tl.sum(w * g, 0) / tl.where(scale == 0.0, 1.0, scale)
        d = w * (g - share)
    else:
        d = w * g
    total = tl.sum(d, 0)
    result = tl.zeros([BLOCK], tl.float32)
    for j in tl.range(0, k):
        place = tl.load(indices + row * k + j).to(tl.int32)
        result += tl.where(cols == place, tl.sum(tl.where(slots == j, d, 0.0), 0), 0.0)
    if SCORE == SIGMOID:
        result = result * exp(log_sigmoid(-x))
    else:
        if RENORMALIZE == 0:
            result -= exp(_log_scores(x, inside, SCORE)) * total
    tl.store(dlogits + row * experts + cols, result.to(dlogits.dtype.element_ty), mask=inside)
