"""What the MoE calls require. A check returns one sentence or an empty string, so that a rank can tell the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["ACCUMULATE", "combine_problem", "dispatch_problem", "layout_problem", "no_sum_reason"]

ACCUMULATE: dict[torch.dtype, torch.dtype] = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.complex64,
    torch.complex128: torch.complex128,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
}
"""The dtype in which a combine sums, by the dtype of its rows. Integers sum exactly, modulo their width."""


def no_sum_reason(dtype: torch.dtype) -> str:
    """Say why rows of ``dtype`` cannot be combined; empty if they can.

    >>> import torch
    >>> no_sum_reason(torch.float32)
    ''
    """
    if dtype in ACCUMULATE:
        return ""
    if dtype == torch.bool:
        return "truth values have no sum; cast to int32 and compare with zero for a logical or"
    return "quantised rows have no sum without their scales; dequantise them first"


def layout_problem(topk_idx: torch.Tensor, num_experts: int, num_ranks: int) -> str:
    """Check what every rank can see alike: shapes, dtypes and E against R."""
    if topk_idx.ndim != 2:
        return f"topk_idx has shape {tuple(topk_idx.shape)}, want [T, K]"
    if topk_idx.dtype not in (torch.int32, torch.int64):
        return f"topk_idx is {topk_idx.dtype}, want torch.int32 or torch.int64"
    if not isinstance(num_experts, int) or isinstance(num_experts, bool) or num_experts < 1:
        return f"num_experts is {num_experts!r}, want a positive integer"
    if num_experts % num_ranks:
        return (
            f"num_experts = {num_experts} is not a multiple of the {num_ranks} ranks; every rank holds E / R experts: "
            f"pad the experts to {-(-num_experts // num_ranks) * num_ranks} or change the group"
        )
    return ""


def _payload_problem(tensors: Sequence[torch.Tensor], num_tokens: int) -> str:
    x = tensors[0]
    if x.ndim != 2:
        return f"x has shape {tuple(x.shape)}, want [T, H]"
    for name, tensor in zip(("x", "scales"), tensors, strict=False):
        if tensor.ndim not in (1, 2) or tensor.shape[0] != num_tokens:
            return f"{name} has shape {tuple(tensor.shape)}, want {num_tokens} rows, as many as the routing has tokens"
        if tensor.device != x.device:
            return f"{name} is on {tensor.device}, x on {x.device}"
    return ""


def dispatch_problem(
    tensors: Sequence[torch.Tensor],
    num_tokens: int,
    topk_idx: torch.Tensor | None,
    topk_weights: torch.Tensor | None,
    *,
    cached: bool,
    expert_alignment: int,
    num_worst_tokens: int,
) -> str:
    """Check the arguments of a dispatch against its layout or handle."""
    problem = _payload_problem(tensors, num_tokens)
    if problem:
        return problem
    if cached:
        if topk_idx is not None or topk_weights is not None:
            return "a dispatch with a handle takes no topk_idx and no topk_weights: the handle has the routing"
        if expert_alignment != 1 or num_worst_tokens != 0:
            return "a dispatch with a handle takes no expert_alignment and no num_worst_tokens: the handle fixes both"
        return ""
    if topk_weights is not None:
        if topk_idx is None:
            return "topk_weights without topk_idx: give both or neither"
        if not topk_weights.dtype.is_floating_point or topk_weights.shape != topk_idx.shape:
            return (
                f"topk_weights is {topk_weights.dtype} of shape {tuple(topk_weights.shape)}, "
                f"want a floating dtype and topk_idx's shape {tuple(topk_idx.shape)}"
            )
    if topk_idx is not None and (
        topk_idx.ndim != 2 or topk_idx.shape[0] != num_tokens or topk_idx.dtype not in (torch.int32, torch.int64)
    ):
        return (
            f"topk_idx is {topk_idx.dtype} of shape {tuple(topk_idx.shape)}, want int32 or int64 of [{num_tokens}, K]"
        )
    if type(expert_alignment) is not int or expert_alignment < 1:
        return f"expert_alignment is {expert_alignment!r}, want a positive integer"
    if type(num_worst_tokens) is not int or num_worst_tokens < 0:
        return f"num_worst_tokens is {num_worst_tokens!r}, want 0 (exact) or the most rows this rank can receive"
    return ""


def combine_problem(
    y: torch.Tensor,
    handle: Any,
    topk_weights: torch.Tensor | None,
    bias: Sequence[torch.Tensor],
    *,
    weighted: bool,
) -> str:
    """Check the arguments of a combine against its handle."""
    rows, topk = handle.num_rows, handle.num_topk
    dims = (2, 3) if weighted else (2,)
    if y.ndim not in dims or y.shape[0] != rows:
        shapes = f"[{rows}, H]" + (f" or [{rows}, K, H]" if weighted else "")
        return f"y has shape {tuple(y.shape)}, want {shapes}: the rows of the dispatch that made the handle"
    reason = no_sum_reason(y.dtype)
    if reason:
        return f"y of {y.dtype} cannot be combined: {reason}"
    if topk_weights is not None and (
        not topk_weights.dtype.is_floating_point or topk_weights.ndim != 2 or topk_weights.shape[0] != rows
    ):
        return (
            f"topk_weights is {topk_weights.dtype} of shape {tuple(topk_weights.shape)}, want a floating dtype "
            f"and shape [{rows}, K]"
        )
    if weighted:
        if topk_weights is None or topk is None:
            return "a weighted combine needs topk_weights and a handle from a dispatch that was given topk_idx"
        if topk_weights.shape[1] != topk or (y.ndim == 3 and y.shape[1] != topk):
            return (
                f"y of shape {tuple(y.shape)} and topk_weights of shape {tuple(topk_weights.shape)} "
                f"do not fit the handle's K = {topk}"
            )
        if not (y.dtype.is_floating_point or y.dtype.is_complex):
            return f"a weighted combine takes floating or complex rows, got {y.dtype}"
    if len(bias) > 2:
        return f"{len(bias)} biases were given, want at most two"
    for each in bias:
        if tuple(each.shape) != (handle.num_tokens, y.shape[-1]) or each.dtype != y.dtype or each.device != y.device:
            return (
                f"bias is {each.dtype} of shape {tuple(each.shape)} on {each.device}, want {y.dtype} of shape "
                f"{(handle.num_tokens, y.shape[-1])} on {y.device}"
            )
    return ""
