"""The three calls. Every rank of the group makes the same call in the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fmcore.errors import InvalidInputError
from fmcore.ops._call import call, check_tensors
from fmcore.ops.moe import COMBINE, DISPATCH, LAYOUT
from fmcore.ops.moe.types import DEFAULT_TIMEOUT, Dispatched, Group, Handle, Layout, group_facts

if TYPE_CHECKING:
    from fmcore.ops._spec import OpSpec
    from fmcore.ops.moe.types import Payload


def layout(
    topk_idx: torch.Tensor, num_experts: int, *, group: Group | None = None, backend: str | None = None
) -> Layout:
    """Count where this rank's tokens go. Local: nothing is sent.

    Args:
        topk_idx: [T, K] int32 or int64 expert numbers; -1 for a slot without an expert. T may be 0 and may differ
            between ranks.
        num_experts: E, a multiple of the number of ranks; expert e lives on rank ``e // (E / R)``.
        group: A torch process group, or None for one process.
        backend: Strict choice of a backend.

    Returns:
        The layout, for ``dispatch``.

    Raises:
        InvalidInputError: Wrong shape or dtype, or E is not a multiple of R (then on every rank). Indices outside
            [-1, E) raise here in one process on the host; otherwise ``dispatch`` raises for them on every rank.
    """
    found: Layout = _run(LAYOUT, _layout(topk_idx, num_experts, group=group, backend=backend))
    return found


def dispatch(
    x: Payload,
    layout_or_handle: Layout | Handle,
    topk_idx: torch.Tensor | None = None,
    topk_weights: torch.Tensor | None = None,
    *,
    expert_alignment: int = 1,
    num_worst_tokens: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    backend: str | None = None,
) -> Dispatched:
    """Send every token once to each rank that holds at least one of its experts.

    The rows' bits are copied and never interpreted: any dtype and any H can travel. Gradients flow to ``x`` and
    ``topk_weights``; the backward of a dispatch is a combine.

    Args:
        x: [T, H], or a pair ``(q, scales)`` with scales [T] or [T, S]; any strides.
        layout_or_handle: A layout, or the handle of an earlier dispatch to send other rows along the same routes
            (then without ``topk_idx`` and ``topk_weights``).
        topk_idx: [T, K], the indices that the layout was made from.
        topk_weights: [T, K] in a floating dtype.
        expert_alignment: Host counts per expert are rounded up to a multiple of it.
        num_worst_tokens: 0 for exactly the rows received; otherwise the most rows that this rank can receive, and
            the result has that many, the tail being zero with ``topk_idx`` -1.
        timeout: Seconds to wait for other ranks, here and in every use of the handle, where the host waits.
        backend: Strict choice of a backend.

    Returns:
        The rows by (source rank, source token), local expert numbers, weights, counts and the handle.

    Raises:
        InvalidInputError: On every rank, with the same text, if one rank's arguments are wrong, an index lies
            outside [-1, E), more rows come than ``num_worst_tokens``, or the ranks disagree on dtypes and widths.
        DistributedError: A rank is missing beyond ``timeout``.
    """
    made = _dispatch(
        x,
        layout_or_handle,
        topk_idx,
        topk_weights,
        expert_alignment=expert_alignment,
        num_worst_tokens=num_worst_tokens,
        timeout=timeout,
        backend=backend,
    )
    sent: Dispatched = _run(DISPATCH, made)
    return sent


def combine(
    y: torch.Tensor,
    handle: Handle,
    topk_weights: torch.Tensor | None = None,
    *,
    weighted: bool = False,
    bias: torch.Tensor | Sequence[torch.Tensor] = (),
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sum the rows of a dispatch back at their tokens.

    ``out[t] = round(bias0[t] + bias1[t] + sum over ranks r, ascending, of y[row of t on r])`` with the sum in fp32 for
    fp16, bf16 and fp32, in double precision for fp64, by components for complex, exact for int32 and int64, and one
    rounding. A token that was sent nowhere gives 0 or its bias. Nothing is multiplied by weights unless ``weighted``.

    Args:
        y: [N, H], the rows of ``dispatch(...).x`` after the experts; with ``weighted`` also [N, K, H], a row per slot.
        handle: Of that dispatch. It can be used again.
        topk_weights: [N, K], summed back per slot into the second result.
        weighted: Let row n count as ``sum over local slots k, ascending, of topk_weights[n, k] * y[n, k]`` in the
            accumulator's dtype (a [N, H] row stands for each of its slots).
        bias: None, one or two tensors [T, H] of y's dtype, added first.
        backend: Must name the backend that made the handle, if given.

    Returns:
        ``(x [T, H] in y's dtype, topk_weights [T, K] or None)``.

    Raises:
        InvalidInputError: On every rank if one rank's arguments are wrong (on accelerators: on that rank; the others
            run into the library's time-out).
        UnsupportedError: Rows that have no sum: bool, int8, uint8, fp8.
        DistributedError: A rank is missing beyond the handle's time-out.
    """
    made = _combine(y, handle, topk_weights, weighted=weighted, bias=bias, backend=backend)
    summed: tuple[torch.Tensor, torch.Tensor | None] = _run(COMBINE, made)
    return summed


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call in the form that implementations see."""

    tensors: tuple[torch.Tensor | None, ...]
    params: Mapping[str, Any]
    backend: str | None
    world_size: int


def prepare(op: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Prepared:
    """Bring the arguments of ``moe.layout``, ``moe.dispatch`` or ``moe.combine`` into that form; nothing is run."""
    if op == LAYOUT.name:
        return _layout(*args, **kwargs)
    return _dispatch(*args, **kwargs) if op == DISPATCH.name else _combine(*args, **kwargs)


def _run(spec: OpSpec, made: Prepared) -> Any:
    return call(spec, made.tensors, made.params, made.backend, world_size=made.world_size)


def _layout(
    topk_idx: torch.Tensor, num_experts: int, *, group: Group | None = None, backend: str | None = None
) -> Prepared:
    check_tensors("moe.layout", LAYOUT.roles, (topk_idx,))
    return Prepared((topk_idx,), {"num_experts": num_experts, "group": group}, backend, group_facts(group)[1])


def _dispatch(
    x: Payload,
    layout_or_handle: Layout | Handle,
    topk_idx: torch.Tensor | None = None,
    topk_weights: torch.Tensor | None = None,
    *,
    expert_alignment: int = 1,
    num_worst_tokens: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    backend: str | None = None,
) -> Prepared:
    if isinstance(x, tuple) and len(x) != 2:
        raise InvalidInputError(f"moe.dispatch: x is a tuple of {len(x)}, want a tensor or (q, scales)")
    payload = x if isinstance(x, tuple) else (x, None)
    optional = ("topk_idx", "topk_weights") if isinstance(x, tuple) else DISPATCH.optional
    tensors = (*payload, topk_idx, topk_weights)
    check_tensors("moe.dispatch", DISPATCH.roles, tensors, optional)
    if not isinstance(layout_or_handle, (Layout, Handle)):
        raise InvalidInputError(
            f"moe.dispatch: the second argument is {type(layout_or_handle).__name__}, want the Layout of fm.moe.layout "
            "or the handle of an earlier dispatch"
        )
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InvalidInputError(f"moe.dispatch: timeout is {timeout!r}, want a positive number of seconds")
    params = {
        "target": layout_or_handle,
        "expert_alignment": expert_alignment,
        "num_worst_tokens": num_worst_tokens,
        "timeout": timeout,
    }
    if isinstance(layout_or_handle, Handle):
        backend = _maker(layout_or_handle, backend, "dispatch")
    return Prepared(tensors, params, backend, layout_or_handle.num_ranks)


def _combine(
    y: torch.Tensor,
    handle: Handle,
    topk_weights: torch.Tensor | None = None,
    *,
    weighted: bool = False,
    bias: torch.Tensor | Sequence[torch.Tensor] = (),
    backend: str | None = None,
) -> Prepared:
    if not isinstance(handle, Handle):
        raise InvalidInputError(f"moe.combine: handle is {type(handle).__name__}, want the handle of a dispatch")
    biases = (bias,) if isinstance(bias, torch.Tensor) else tuple(bias)
    if len(biases) > 2:
        raise InvalidInputError(f"moe.combine: {len(biases)} biases were given, want at most two")
    tensors = (y, topk_weights, *biases, *(None,) * (2 - len(biases)))
    check_tensors("moe.combine", COMBINE.roles, tensors, COMBINE.optional)
    params = {"handle": handle, "weighted": weighted}
    return Prepared(tensors, params, _maker(handle, backend, "combine"), handle.num_ranks)


def _maker(handle: Handle, backend: str | None, op: str) -> str:
    """Return the implementation that made the handle: only that one can read it."""
    if backend is not None and backend not in (handle.impl, handle.impl.partition("/")[0]):
        raise InvalidInputError(
            f"moe.{op}: backend={backend!r} was asked for, but the handle was made by {handle.impl!r}; "
            "dispatch with that backend first"
        )
    return handle.impl
