"""Builders of simple masks: from sizes, a window, or lengths of documents. All return a :class:`fmcore.masks.Mask`.

Lengths are documents in order along the sequence. A flat list is one sequence shared by the whole batch
(``[3000, 1200, 3992]``); a list of lists gives every sequence of the batch its own documents. Where the documents end
before ``s`` the rest is padding: its rows see nothing and nobody sees its columns.
"""

from __future__ import annotations

import torch

from fmcore.masks._canonical import check_int, check_length
from fmcore.masks._columns import HOST, Device, Lengths, bounds_of, default_device, from_columns, sides_of
from fmcore.masks.canonical import plain
from fmcore.masks.mask import Mask, indexed

__all__ = [
    "all_masked",
    "causal",
    "causal_document",
    "document",
    "full",
    "global_sliding",
    "single_column",
    "sliding_window",
]

_PLAIN: dict[tuple[int, int, bool, torch.device], Mask] = {}
_PLAIN_KEPT = 16


def full(s_q: int, s_k: int | None = None, *, device: Device = None) -> Mask:
    """Every row sees every column."""
    return _plain(s_q, s_q if s_k is None else s_k, is_causal=False, device=device)


def causal(s_q: int, s_k: int | None = None, *, device: Device = None) -> Mask:
    """Row i sees columns up to i + s_k - s_q (aligned at the bottom right).

    Example:
        >>> causal(2, 3).dense().int()[0, 0].tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    return _plain(s_q, s_q if s_k is None else s_k, is_causal=True, device=device)


def _plain(s_q: int, s_k: int, *, is_causal: bool, device: Device) -> Mask:
    """The newest few are kept, so that a call per layer costs a look-up and all of them share one plan."""
    check_length("s_q", s_q)  # before the look-up, where 2.0 would be 2
    check_length("s_k", s_k)
    where = indexed(default_device() if device is None else device)  # not "cuda", which changes its meaning
    if torch.compiler.is_compiling() or isinstance(s_q + s_k, torch.SymInt):
        return plain(s_q, s_k, causal=is_causal, device=where)
    key = (s_q, s_k, is_causal, where)
    mask = _PLAIN.get(key)
    if mask is None:
        mask = plain(s_q, s_k, causal=is_causal, device=where)
        if type(mask.planes) is torch.Tensor and not mask.captured:  # not fake ones, nor a graph's
            while len(_PLAIN) >= _PLAIN_KEPT:
                _PLAIN.pop(next(iter(_PLAIN)), None)
            _PLAIN[key] = mask
    return mask


def all_masked(s_q: int, s_k: int | None = None, *, device: Device = None) -> Mask:
    """No row sees any column: out is 0 and lse -inf everywhere."""
    s_k = s_q if s_k is None else s_k
    check_length("s_k", s_k)
    zero = torch.zeros(s_k, dtype=torch.int32, device=HOST)
    return from_columns((zero, zero), s_q=s_q, causal=False, kind="all_masked", device=device)


def single_column(s_q: int, s_k: int | None = None, *, column: int = 0, device: Device = None) -> Mask:
    """Every row sees ``column`` and nothing else."""
    s_k = s_q if s_k is None else s_k
    check_length("s_k", s_k)
    check_int("column", column, 0, s_k - 1)
    end = torch.zeros(s_k, dtype=torch.int32, device=HOST)
    end[column] = s_q
    return from_columns((end, torch.zeros_like(end)), s_q=s_q, causal=False, kind="single_column", device=device)


def sliding_window(
    s_q: int, s_k: int | None = None, *, window: int, causal: bool = True, device: Device = None
) -> Mask:
    """Row i sees ``window`` keys: its own (at i + s_k - s_q) and those just before it; without causal as many after it.

    This counts all keys that are seen. The ``window_size`` of attention calls, like Paddle's, counts the keys *besides*
    the row's own: ``window_size=w`` is ``window=w + 1``; see :func:`fmcore.masks.from_window`.

    Example:
        >>> sliding_window(3, window=2).dense().int()[0, 0].tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    window = check_int("window (keys that a row sees, its own included)", window, 1)
    s_k = s_q if s_k is None else s_k
    check_length("s_q", s_q)
    check_length("s_k", s_k)
    window = min(window, s_q + s_k + 1)
    own = torch.arange(s_k, dtype=torch.int64, device=HOST) - (s_k - s_q)
    first = own if causal else own - (window - 1)
    return from_columns((own + window, first), s_q=s_q, causal=False, kind="sliding_window", device=device)


def global_sliding(s: int, *, global_tokens: int, window_size: int | tuple[int, int], device: Device = None) -> Mask:
    """The first ``global_tokens`` see all and are seen by all; the others see a window besides.

    Args:
        s: Rows and columns.
        global_tokens: How many tokens at the start are global.
        window_size: Keys to the left and to the right that a row sees besides its own; one number for both.
        device: Where the mask shall lie.
    """
    check_length("s", s)
    left, right = (min(side, s) for side in sides_of(window_size, least=0))
    global_tokens = min(check_int("global_tokens", global_tokens), s)
    column = torch.arange(s, dtype=torch.int64, device=HOST)
    is_global = column < global_tokens
    start_low = (column + left + 1).masked_fill(is_global, s)
    end_low = torch.full_like(column, s)
    start_up = torch.full_like(column, min(global_tokens, s))
    end_up = (column - right).masked_fill(is_global, 0)
    vectors = (start_low, end_low, start_up, torch.maximum(start_up, end_up))
    return from_columns(vectors, s_q=s, causal=False, kind="global_sliding", device=device)


def document(lengths: Lengths, *, s: int | None = None, device: Device = None) -> Mask:
    """Every document sees itself, in both directions: block-diagonal."""
    start, end = bounds_of(lengths, s)
    return from_columns((end, start), s_q=start.shape[-1], causal=False, kind="document", device=device)


def causal_document(lengths: Lengths, *, s: int | None = None, device: Device = None) -> Mask:
    """Every document sees itself, causally: packed sequences.

    Example:
        >>> causal_document([1, 2]).dense().int()[0, 0].tolist()
        [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    """
    _, end = bounds_of(lengths, s)
    return from_columns((end,), s_q=end.shape[-1], causal=True, kind="causal_document", device=device)
