"""A bound attention handle: what it has validated once, it recognises by one look-up."""

from __future__ import annotations

import math
from typing import Any

import torch

from fmcore.dispatch import table, tensors as facts
from fmcore.dispatch.registry import Impl
from fmcore.ops import attention

_STATE = table.STATE
_PLAIN = facts._PLAIN  # noqa: SLF001 (one set of plain tensor types for the whole engine)
_RECENT = 64


class BoundAttention:
    """``flashmask_attention`` with its backend fixed.

    Calls with only query, key, value and mask that repeat shapes, dtypes, strides' contiguity, device and mask of a
    call that was validated go straight to its implementation; every other call takes the public function's way.
    """

    __slots__ = ("_backend", "_entries", "_seen")

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._entries: Any = None
        self._seen: dict[Any, tuple[Impl, float, Any]] = {}

    def __call__(self, query: Any, key: Any, value: Any, *args: Any, mask: Any = None, **kwargs: Any) -> Any:
        """Attend; the arguments are those of ``fmcore.flashmask_attention`` without ``backend``."""
        if args or kwargs or mask is None or type(query) not in _PLAIN or attention.special():
            return attention.flashmask_attention(query, key, value, *args, mask=mask, backend=self._backend, **kwargs)
        if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
            return attention.flashmask_attention(query, key, value, mask=mask, backend=self._backend)
        if self._entries is not _STATE.entries:
            self._entries = _STATE.entries
            self._seen = {}
        deterministic = attention.is_deterministic()
        seen = (
            query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, query.get_device(), key.get_device(),
            value.get_device(), query.is_contiguous(), key.is_contiguous(), value.is_contiguous(), id(mask), deterministic,
        )  # fmt: skip
        found = self._seen.get(seen)
        if found is None or found[2] is not mask:
            return self._first(seen, query, key, value, mask)
        impl, scale, _ = found
        return impl.fn(
            query, key, value, mask, softmax_scale=scale, softcap=0.0, sink=None, deterministic=deterministic
        )[0]

    def _first(self, seen: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        """Validate and resolve by the public function, and remember the outcome."""
        result = attention.flashmask_attention(query, key, value, mask=mask, backend=self._backend)
        if query.is_cuda:
            return result  # capture changes from call to call: the public way asks for it each time
        if len(self._seen) >= _RECENT:
            self._seen.clear()
        impl = attention.explain_call(query, key, value, mask=mask, backend=self._backend).impl
        if impl is not None:
            self._seen[seen] = (impl, 1.0 / math.sqrt(query.shape[3]), mask)
        return result
