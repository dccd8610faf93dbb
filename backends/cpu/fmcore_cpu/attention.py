"""FlashMask attention by the compiled tile kernels: forward and backward in O(s) memory beyond inputs and outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from fmcore.masks import Mask
from fmcore_cpu._native import DTYPES, address, compute_dtype, kernels, rows_of, threads

__all__ = ["backward", "forward"]


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    deterministic: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention of validated ``[batch, seq, heads, dim]`` tensors under ``mask``.

    The sums of each row run over its key tiles in ascending order, so the bits do not depend on the number of threads;
    ``deterministic`` therefore changes nothing.

    Args:
        q: ``[b, s_q, h_q, d]`` in float32, float64, bfloat16 or float16.
        k: ``[b, s_k, h_kv, d]``.
        v: ``[b, s_k, h_kv, dv]``.
        mask: What is visible.
        softmax_scale: Factor of the scores.
        softcap: Where positive, scores become ``softcap * tanh(score / softcap)``.
        sink: None, or ``[h_q]``: a logit without a value in each row's softmax.
        deterministic: Always honoured.

    Returns:
        out ``[b, s_q, h_q, dv]`` in q's dtype; the natural-log lse ``[b, h_q, s_q]`` in float32 (float64 for float64).
    """
    del deterministic
    q, k, v = rows_of(q), rows_of(k), rows_of(v)
    sums = compute_dtype(q.dtype)
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=sums)
    sink = None if sink is None else sink.to(sums).contiguous()
    bounds = _bounds(mask)
    kernels().forward(
        _shape(q, k, v),
        DTYPES[q.dtype],
        [_strided(t) for t in (q, k, v, out)],
        address(lse),
        address(sink),
        bounds,
        softmax_scale,
        softcap,
        threads(),
    )
    return out, lse


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Mask,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    deterministic: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v and the sink; the gradient of lse is honoured.

    One pass over the visible tiles: keys own dk and dv, dq is summed in a fixed order. For bfloat16 and float16 dq is
    summed in one float32 buffer of q's size.

    Returns:
        ``(dq, dk, dv, dsink)`` in the dtypes of q, k, v and the sink; dsink is None without a sink.
    """
    del deterministic
    q, k, v, out, dout = rows_of(q), rows_of(k), rows_of(v), rows_of(out), rows_of(dout)
    sums = compute_dtype(q.dtype)
    dq, dk, dv = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
    dq_sum = dq if q.dtype == sums else torch.empty_like(dq, dtype=sums)
    lse = lse.to(sums).contiguous()
    dlse = None if dlse is None else dlse.to(sums).contiguous()
    wide_sink = None if sink is None else sink.to(sums).contiguous()
    dsink = None if wide_sink is None else torch.zeros_like(wide_sink)
    bounds = _bounds(mask)
    kernels().backward(
        _shape(q, k, v),
        DTYPES[q.dtype],
        [_strided(t) for t in (q, k, v, out, dout, dq, dk, dv, dq_sum)],
        address(lse),
        address(dlse),
        address(wide_sink),
        address(dsink),
        bounds,
        softmax_scale,
        softcap,
        threads(),
    )
    return dq, dk, dv, None if sink is None or dsink is None else dsink.to(sink.dtype)


def _shape(q: Tensor, k: Tensor, v: Tensor) -> list[int]:
    return [q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]]


def _strided(t: Tensor) -> list[int]:
    return [t.data_ptr(), t.stride(0), t.stride(1), t.stride(2)]


def _bounds(mask: Mask) -> list[int]:
    """What the kernels read of a mask; the mask, which the caller holds, owns the memory."""
    planes = mask.planes_on("cpu")
    keep = mask.block_mask_on("cpu")
    if mask.is_full:
        return [0, 0, 1, 1, 0]
    return [mask.mode, address(planes), mask.batch, mask.heads, address(keep)]
