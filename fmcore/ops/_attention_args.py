"""Attention's arguments: what is wrong with them, in the caller's own shapes, and the one Mask that they amount to."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any

import torch

from fmcore import masks
from fmcore.dispatch.tensors import dtype_name, traced
from fmcore.errors import InvalidInputError

if TYPE_CHECKING:
    from fmcore.masks import Mask

OP = "flashmask_attention"
FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_FLOAT_NAMES = "float16, bfloat16, float32 or float64"


def check_tensors(q: Any, k: Any, v: Any) -> None:
    """Raise InvalidInputError for whatever is wrong with query, key and value."""
    for name, tensor in (("query", q), ("key", k), ("value", v)):
        if not isinstance(tensor, torch.Tensor):
            raise InvalidInputError(f"{OP}: {name} must be a torch tensor, got {type(tensor).__name__}")
        if tensor.ndim != 4:
            raise InvalidInputError(
                f"{OP}: {name} must be [batch, seq, heads, head_dim], "
                f"got shape {tuple(tensor.shape)} of {tensor.ndim} dimensions"
            )
        if tensor.layout != torch.strided:
            raise InvalidInputError(
                f"{OP}: {name} must be a dense strided tensor, got layout {tensor.layout}; "
                "masks.from_nested converts jagged ones"
            )
        if tensor.dtype not in FLOATS:
            raise InvalidInputError(f"{OP}: {name} is of dtype {dtype_name(tensor.dtype)}; it takes {_FLOAT_NAMES}")
    shapes = f"query {tuple(q.shape)}, key {tuple(k.shape)}, value {tuple(v.shape)}"
    if not q.dtype == k.dtype == v.dtype:
        found = ", ".join(dtype_name(t.dtype) for t in (q, k, v))
        raise InvalidInputError(f"{OP}: query, key and value must have one dtype, got {found}; cast them to one")
    if not q.device == k.device == v.device:
        raise InvalidInputError(
            f"{OP}: query, key and value must be on one device, got {q.device}, {k.device}, {v.device}"
        )
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise InvalidInputError(f"{OP}: batch sizes differ: {shapes}")
    if k.shape[1] != v.shape[1]:
        raise InvalidInputError(f"{OP}: key and value lengths differ ({k.shape[1]} and {v.shape[1]}): {shapes}")
    if k.shape[2] != v.shape[2]:
        raise InvalidInputError(f"{OP}: key and value head counts differ ({k.shape[2]} and {v.shape[2]}): {shapes}")
    if q.shape[3] != k.shape[3]:
        raise InvalidInputError(f"{OP}: query and key head_dim differ ({q.shape[3]} and {k.shape[3]}): {shapes}")
    if q.shape[3] == 0 or v.shape[3] == 0:
        raise InvalidInputError(f"{OP}: head_dim must be at least 1: {shapes}")
    if k.shape[2] == 0 or q.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise InvalidInputError(
            f"{OP}: {q.shape[2]} query heads cannot be shared out over {k.shape[2]} key/value heads; "
            f"the number of query heads must be a positive multiple: {shapes}"
        )


def check_scalars(q: Any, softmax_scale: Any, softcap: Any, sink: Any) -> None:
    """Raise InvalidInputError for a wrong scale, softcap or sink."""
    if softmax_scale is not None and not (isinstance(softmax_scale, (int, float)) and math.isfinite(softmax_scale)):
        raise InvalidInputError(
            f"{OP}: softmax_scale must be a finite number or None (head_dim ** -0.5), got {softmax_scale!r}"
        )
    if not (isinstance(softcap, (int, float)) and math.isfinite(softcap) and softcap >= 0):
        raise InvalidInputError(f"{OP}: softcap must be a finite number >= 0 (0 turns it off), got {softcap!r}")
    if sink is None:
        return
    if not isinstance(sink, torch.Tensor) or tuple(sink.shape) != (q.shape[2],):
        found = tuple(sink.shape) if isinstance(sink, torch.Tensor) else type(sink).__name__
        raise InvalidInputError(f"{OP}: sink must be a tensor of shape [query heads] = ({q.shape[2]},), got {found}")
    if sink.dtype not in (torch.float32, q.dtype):
        raise InvalidInputError(
            f"{OP}: sink must be of dtype float32 or the query's {dtype_name(q.dtype)}, got {dtype_name(sink.dtype)}"
        )
    if sink.device != q.device:
        raise InvalidInputError(f"{OP}: sink is on {sink.device}, the query on {q.device}; move it there")


def check_mask(mask: Any, b: int, s_q: int, s_k: int, h_q: int, h_kv: int) -> None:
    """Raise InvalidInputError unless the mask fits the tensors."""
    if not isinstance(mask, masks.Mask):
        raise InvalidInputError(
            f"{OP}: mask must be an fmcore.masks.Mask, got {type(mask).__name__}; "
            "fmcore.masks has builders and converters (from_dense for a bool tensor)"
        )
    if (mask.s_q, mask.s_k) != (s_q, s_k):
        raise InvalidInputError(
            f"{OP}: the mask is for {mask.s_q} queries and {mask.s_k} keys, the tensors have {s_q} and {s_k}"
        )
    if mask.batch not in (1, b):
        raise InvalidInputError(f"{OP}: the mask has batch size {mask.batch}, the tensors {b}; it must be 1 or {b}")
    if mask.heads not in (1, h_kv, h_q):
        raise InvalidInputError(
            f"{OP}: the mask has {mask.heads} heads; "
            f"it must have 1, {h_kv} (one per key/value head) or {h_q} (one per query head)"
        )


def _kept(build: Callable[..., Mask]) -> Callable[..., Mask]:
    """Keep one mask per shape, so that its plan is kept; but none that was built of a trace's fake tensors."""
    keep = lru_cache(maxsize=256)(build)

    @wraps(build)
    def choose(*shape: int, causal: bool) -> Mask:
        return build(*shape, causal=causal) if traced() else keep(*shape, causal=causal)

    return choose


@_kept
def plain_mask(s_q: int, s_k: int, *, causal: bool) -> Mask:
    """Return the full or the causal mask."""
    # On the host whatever the default device: the kept mask also serves calls made under another one.
    return masks.causal(s_q, s_k, device="cpu") if causal else masks.full(s_q, s_k, device="cpu")


@_kept
def window_mask(s_q: int, s_k: int, left: int, right: int, *, causal: bool) -> Mask:
    """Return the mask of a ``window_size``."""
    return masks.from_window((left, right), s_q, s_k, causal=causal, device="cpu")


def window_pair(window_size: Any) -> tuple[int, int]:
    """Return ``(left, right)`` for a window given as a number or a pair; -1 is unlimited."""
    pair = (window_size, window_size) if isinstance(window_size, int) else window_size
    good = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(w, int) and w >= -1 for w in pair)
    if not good or isinstance(window_size, bool):
        raise InvalidInputError(
            f"{OP}: window_size must be an integer >= -1 or a pair of them (-1 is unlimited), got {window_size!r}"
        )
    return int(pair[0]), int(pair[1])


def as_mask(
    s_q: int, s_k: int, startend_row_indices: Any, mask: Any, *, causal: bool, window_size: Any,
    b: int, h_q: int, h_kv: int, device: torch.device,
) -> Mask:  # fmt: skip
    """Return the one Mask that bounds, causal flag and window amount to.

    Raises:
        InvalidInputError: More than one of them says what is visible, or the bounds are malformed.
    """
    given = [
        name
        for name, value in (
            ("startend_row_indices", startend_row_indices),
            ("mask", mask),
            ("window_size", window_size),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise InvalidInputError(
            f"{OP}: {' and '.join(given)} exclude each other; give one (a Mask can hold all that is needed)"
        )
    if mask is not None:
        if causal and not getattr(mask, "is_causal_only", False):
            raise InvalidInputError(
                f"{OP}: causal=True beside mask= is ambiguous; a Mask says itself what is visible: build a causal one "
                "(masks.causal, masks.causal_document, masks.canonicalize(..., causal=True))"
            )
        check_mask(mask, b, s_q, s_k, h_q, h_kv)
        return mask  # type: ignore[no-any-return]
    if window_size is not None:
        left, right = window_pair(window_size)
        return window_mask(int(s_q), int(s_k), left, right, causal=causal)
    if startend_row_indices is None:
        return plain_mask(s_q, s_k, causal=causal)
    built = check_bounds(startend_row_indices, s_q, s_k, causal=causal, b=b, h_q=h_q, h_kv=h_kv, device=device)
    check_mask(built, b, s_q, s_k, h_q, h_kv)
    return built


def check_bounds(
    bounds: Any, s_q: int, s_k: int, *, causal: bool, b: int, h_q: int, h_kv: int, device: torch.device
) -> Mask:
    """Validate raw bounds against the tensors and return their Mask."""
    where = f"{OP}: startend_row_indices"
    if not isinstance(bounds, torch.Tensor):
        raise InvalidInputError(f"{where} must be an int32 tensor [batch, heads, keys, n], got {type(bounds).__name__}")
    if bounds.dtype != torch.int32:
        raise InvalidInputError(f"{where} must be of dtype int32, got {dtype_name(bounds.dtype)}; cast it")
    if bounds.ndim != 4:
        raise InvalidInputError(f"{where} must be [batch, heads, keys, n], got shape {tuple(bounds.shape)}")
    allowed = (1, 2) if causal else (2, 4)
    if bounds.shape[3] not in allowed:
        raise InvalidInputError(
            f"{where} has {bounds.shape[3]} bounds per key; with causal={causal} it takes {allowed[0]} or {allowed[1]}"
        )
    if bounds.shape[2] != s_k:
        raise InvalidInputError(
            f"{where} is for {bounds.shape[2]} keys, key has {s_k}: its shape is {tuple(bounds.shape)}"
        )
    if bounds.shape[0] not in (1, b):
        raise InvalidInputError(
            f"{where} has batch size {bounds.shape[0]}, the tensors {b}: its shape is {tuple(bounds.shape)}"
        )
    if bounds.shape[1] not in (1, h_kv, h_q):
        raise InvalidInputError(
            f"{where} has {bounds.shape[1]} heads; it takes 1, {h_kv} (key/value heads) or {h_q} (query heads)"
        )
    if bounds.device != device:
        raise InvalidInputError(f"{where} is on {bounds.device}, query on {device}; move it there")
    return masks.canonicalize(bounds, s_q=s_q, s_k=s_k, causal=causal)
