"""``flashmask_attention``: the public function and its tuned way to an implementation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fmcore import masks
from fmcore.dispatch import policy, table
from fmcore.dispatch import tensors as facts
from fmcore.dispatch.registry import Impl
from fmcore.dispatch.request import Request
from fmcore.ops import _attention_args as arguments
from fmcore.ops import _attention_ops as registered
from fmcore.ops._attention_spec import SPEC, SPECS, features

if TYPE_CHECKING:
    from fmcore.dispatch.decision import Decision
    from fmcore.masks import Mask

__all__ = ["SPEC", "SPECS", "define", "explain_call", "flashmask_attention"]

_PLAIN = facts._PLAIN  # noqa: SLF001 (one set of plain tensor types for the whole engine)
_STATE = table.STATE
_FLOATS = arguments.FLOATS
_STRIDED = torch.strided
_CPU = torch.device("cpu")
_RECENT = 4096
_grad_enabled = torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled  # noqa: SLF001 (no public way that costs less than the device's name)
_deterministic = torch.are_deterministic_algorithms_enabled
_compiling = torch.compiler.is_compiling
_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 (see dispatch.tensors)
_functorch = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 (see dispatch.tensors)
_current_policy = policy.current_id
_plain_mask = arguments.plain_mask
_Mask = masks.Mask


def flashmask_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    startend_row_indices: torch.Tensor | None = None,
    *,
    mask: Mask | None = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    window_size: int | tuple[int, int] | None = None,
    softcap: float = 0.0,
    sink: torch.Tensor | None = None,
    return_softmax_lse: bool = False,
    deterministic: bool | None = None,
    backend: str | None = None,
) -> Any:
    """Scaled dot-product attention under a column-wise sparse mask (FlashMask, arXiv 2410.01359).

    Args:
        query: ``[batch, s_q, h_q, head_dim]``; float16, bfloat16, float32 or float64.
        key: ``[batch, s_k, h_kv, head_dim]``; ``h_q`` is a multiple of ``h_kv``, query head h reads head
            ``h // (h_q // h_kv)``.
        value: ``[batch, s_k, h_kv, head_dim_v]``.
        startend_row_indices: int32 ``[batch or 1, 1 or h_kv or h_q, s_k, n]``: which query rows each key is hidden
            from, n = 1 or 2 with ``causal``, 2 or 4 without (docs/masks.md has the table).
        mask: A Mask in place of raw bounds; its plan is kept, and shared by layers and passes.
        causal: Hide key j from row i where ``j > i + (s_k - s_q)`` (bottom-right alignment).
        softmax_scale: Factor of the scores; ``head_dim ** -0.5`` by default.
        window_size: w or ``(left, right)``: row i, aligned bottom-right, sees keys ``i - left`` to ``i + right``
            (``left + 1`` keys with ``causal``); -1 is unlimited.
        softcap: c > 0 turns a score s into ``c * tanh(s / c)``.
        sink: ``[h_q]``: a logit per head that takes part in the softmax's denominator without a value.
        return_softmax_lse: Return ``(out, lse)``.
        deterministic: Demand bitwise reproducible results; None follows
            ``torch.are_deterministic_algorithms_enabled()``.
        backend: Name of a backend, or ``backend/implementation``: strict.

    Returns:
        ``out`` ``[batch, s_q, h_q, head_dim_v]`` in the query's dtype; with ``return_softmax_lse`` also ``lse``
        ``[batch, h_q, s_q]``, natural logarithm, float32 (float64 for float64 inputs). A row that sees no key gives
        out 0 and lse -inf (the sink's value where there is one). Both outputs are differentiable.

    Raises:
        InvalidInputError: The arguments break the contract; raised before any kernel runs.
        UnsupportedError: No permitted backend serves the call; the message has every candidate's reasons.

    Example:
        >>> import torch, fmcore as fm
        >>> q = k = v = torch.randn(1, 8, 2, 16)
        >>> fm.flashmask_attention(q, k, v, mask=fm.masks.causal_document([5, 3])).shape
        torch.Size([1, 8, 2, 16])
    """
    if _compiling() or type(query) not in _PLAIN or type(key) not in _PLAIN or type(value) not in _PLAIN:
        return _through_torch(
            query, key, value, startend_row_indices, mask, causal, softmax_scale, window_size, softcap, sink,
            return_softmax_lse, deterministic, backend,
        )  # fmt: skip
    if _modes() or _functorch() is not None or _any_autocast():
        return _through_torch(
            query, key, value, startend_row_indices, mask, causal, softmax_scale, window_size, softcap, sink,
            return_softmax_lse, deterministic, backend,
        )  # fmt: skip
    dtype, device = query.dtype, query.device
    q_shape, k_shape, v_shape = query.shape, key.shape, value.shape
    needs_grad = _grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad or getattr(sink, "requires_grad", False)
    )
    if deterministic is None:
        deterministic = _deterministic()
    number = _current_policy()
    recent, memory = None, _STATE.recent  # the memory of this table: a registry change meanwhile brings a new one
    if (
        type(mask) is _Mask and startend_row_indices is None and window_size is None and sink is None
        and softmax_scale is None and not (needs_grad or causal or softcap) and device == _CPU
        and key.dtype is dtype and value.dtype is dtype and key.device == device and value.device == device
        and query.layout is _STRIDED and key.layout is _STRIDED and value.layout is _STRIDED
        and query.is_contiguous() and key.is_contiguous() and value.is_contiguous()
    ):  # fmt: skip
        recent = (q_shape, k_shape, v_shape, dtype, mask.signature, number, deterministic, backend)
        found = memory.get(recent)
        if found is not None:
            out, lse = found[0](
                query, key, value, mask, softmax_scale=found[1], softcap=0.0, sink=None, deterministic=deterministic
            )
            return (out, lse) if return_softmax_lse else out
    if (
        len(q_shape) != 4 or len(k_shape) != 4 or len(v_shape) != 4
        or k_shape[:3] != v_shape[:3] or q_shape[0] != k_shape[0] or q_shape[3] != k_shape[3]
        or key.dtype != dtype or value.dtype != dtype or dtype not in _FLOATS or not q_shape[3] or not v_shape[3]
        or not k_shape[2] or not q_shape[2] or q_shape[2] % k_shape[2]
        or key.device != device or value.device != device
        or query.layout is not _STRIDED or key.layout is not _STRIDED or value.layout is not _STRIDED
    ):  # fmt: skip
        arguments.check_tensors(query, key, value)
    b, s_q, h_q, d = q_shape
    _, s_k, h_kv, dv = v_shape
    if softcap or sink is not None or softmax_scale is not None:
        arguments.check_scalars(query, softmax_scale, softcap, sink)
    if mask is None or startend_row_indices is not None or window_size is not None or causal:
        mask = arguments.as_mask(
            s_q, s_k, startend_row_indices, mask, causal=causal, window_size=window_size,
            b=b, h_q=h_q, h_kv=h_kv, device=query.device,
        )  # fmt: skip
    elif (
        type(mask) is not _Mask
        or mask.s_q != s_q
        or mask.s_k != s_k
        or mask.batch not in (1, b)
        or mask.heads not in (1, h_kv, h_q)
    ):
        arguments.check_mask(mask, b, s_q, s_k, h_q, h_kv)
    capturing = query.is_cuda and facts.capturing("cuda")
    contiguous = query.is_contiguous() and key.is_contiguous() and value.is_contiguous()
    table_key = (
        number, backend, dtype, device, d, dv, h_q // h_kv, mask.mode, mask.kind,
        mask.heads if mask.heads == 1 else mask.heads == h_kv, mask.block_mask is None, softcap > 0,
        sink if sink is None else sink.dtype, needs_grad, deterministic, capturing, contiguous, not (b and s_q and s_k),
    )  # fmt: skip
    impl = _STATE.entries.get(table_key)
    if impl is None:
        impl = _miss(
            table_key, query, key, value, sink, mask, softcap, backend, number,
            needs_grad=needs_grad, deterministic=deterministic, capturing=capturing,
        )  # fmt: skip
    if recent is not None and mask.signature >= 0:
        if len(memory) >= _RECENT:
            memory.clear()
        memory[recent] = (impl.fn, 1.0 / math.sqrt(d))
    scale = 1.0 / math.sqrt(d) if softmax_scale is None else float(softmax_scale)
    if needs_grad and impl.backward is not None:
        out, lse = registered.Paired.apply(impl, mask, scale, softcap, deterministic, query, key, value, sink)  # type: ignore[no-untyped-call]
    else:
        out, lse = impl.fn(
            query, key, value, mask, softmax_scale=scale, softcap=softcap, sink=sink, deterministic=deterministic
        )
    return (out, lse) if return_softmax_lse else out


def _through_torch(
    q: Any, k: Any, v: Any, bounds: Any, mask: Any, causal: bool, scale: Any, window: Any, softcap: Any, sink: Any,
    lse: bool, deterministic: bool | None, backend: str | None,
) -> Any:  # fmt: skip
    """Go through the registered torch ops: compile, export, fake tensors, dispatch modes, functorch, autocast."""
    if not torch.compiler.is_compiling():
        arguments.check_tensors(q, k, v)
    q, k, v = registered.autocast(q, k, v)
    pair = None if window is None else list(arguments.window_pair(window))
    planes = block = None
    mode, kind = 0, ""
    if mask is not None:
        arguments.check_mask(mask, q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2])
        mode, kind, block = mask.mode, mask.kind, mask.block_mask
        if not (mask.is_full or mask.is_causal_only) or block is not None:
            planes = mask.planes
    result = registered.outer()(
        q, k, v, bounds, planes, block, sink, mode, kind, causal, pair,
        None if scale is None else float(scale), float(softcap), deterministic, backend,
    )  # fmt: skip
    return (result[0], result[1]) if lse else result[0]


def _miss(
    table_key: Any,
    q: Any,
    k: Any,
    v: Any,
    sink: Any,
    mask: Any,
    softcap: float,
    backend: str | None,
    number: int,
    **modes: Any,
) -> Impl:
    return table.miss(table_key, lambda: _request(q, k, v, sink, mask, softcap, **modes), backend, number)


def _request(q: Any, k: Any, v: Any, sink: Any, mask: Any, softcap: float, **modes: Any) -> Request:
    from fmcore.ops._call import build_request

    return build_request(SPEC, q.device, (q, k, v, sink), features(q, k, v, sink, mask, softcap), **modes)


def explain_call(
    query: Any, key: Any, value: Any, startend_row_indices: Any = None, *, mask: Any = None, causal: bool = False,
    softmax_scale: Any = None, window_size: Any = None, softcap: float = 0.0, sink: Any = None,
    return_softmax_lse: bool = False, deterministic: bool | None = None, backend: str | None = None,  # noqa: ARG001 (lse is always computed)
) -> Decision:  # fmt: skip
    """Return who would serve the same call of ``flashmask_attention``."""
    arguments.check_tensors(query, key, value)
    arguments.check_scalars(query, softmax_scale, softcap, sink)
    b, s_q, h_q, _ = query.shape
    s_k, h_kv = key.shape[1:3]
    mask = arguments.as_mask(
        s_q,
        s_k,
        startend_row_indices,
        mask,
        causal=causal,
        window_size=window_size,
        b=b,
        h_q=h_q,
        h_kv=h_kv,
        device=query.device,
    )
    demanded = _deterministic() if deterministic is None else deterministic
    needs_grad = facts.wants_grad((query, key, value, sink))
    return table.decide(
        lambda: _request(
            query, key, value, sink, mask, softcap, needs_grad=needs_grad, deterministic=demanded, capturing=False
        ),
        backend,
    )


def define() -> None:
    """Register the torch ops."""
    registered.define()
