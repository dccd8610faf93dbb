# ruff: noqa: FBT001, FBT002 (the signatures are another project's)
"""Dispatch and combine with the call shapes that programs written for DeepEP's first interface use."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from fmcore.errors import InvalidInputError
from fmcore.moe.api import combine, dispatch, layout
from fmcore.ops.moe.types import DEFAULT_TIMEOUT, Handle, Layout, group_facts

if TYPE_CHECKING:
    from fmcore.ops.moe.types import Group, Payload

__all__ = ["Buffer", "EventOverlap", "HandleTuple"]

CHANNELS = 10
"""Channels in a handle's channel matrices: half the SMs of the interface's default."""


class EventOverlap:
    """A point on a device's stream that other streams can wait for; empty on the host.

    >>> with EventOverlap():
    ...     pass

    Args:
        event: A ``torch.Event``, or None where there is nothing to wait for.
        extra_tensors: Tensors to keep alive as long as this object.
    """

    def __init__(self, event: torch.Event | None = None, extra_tensors: Sequence[torch.Tensor] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        """Let the current stream wait for the event."""
        if self.event is not None:
            self.event.wait()

    def __enter__(self) -> EventOverlap:  # noqa: PYI034 (typing.Self is younger than Python 3.10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.current_stream_wait()


class HandleTuple(tuple[torch.Tensor, ...]):  # noqa: SLOT001 (it carries one attribute beside its items)
    """The six tensors of a handle, and the handle itself as ``handle``.

    In order: rank_prefix_matrix [R, R], channel_prefix_matrix [R, C], recv_channel_prefix_matrix [R, C], recv_src_idx
    [N], is_token_in_rank [T, R], send_head [T, R] (the token's place among those sent to the rank, -1 if not sent).
    """

    handle: Handle

    @classmethod
    def of(cls, handle: Handle) -> HandleTuple:
        """Make the tuple of a handle."""
        in_rank = handle.is_token_in_rank
        place = in_rank.to(torch.int32).cumsum(0, dtype=torch.int32)
        send_head = torch.where(in_rank, place - 1, -1)
        prefix = handle.rank_prefix_matrix
        if prefix is None:
            prefix = torch.full((handle.num_ranks, handle.num_ranks), -1, dtype=torch.int32)
        made = cls(
            (
                prefix,
                _channel_prefix(place, handle.num_tokens),
                _received_prefix(handle),
                handle.src_token,
                in_rank,
                send_head,
            )
        )
        made.handle = handle
        return made


class Buffer:
    """A process group and the defaults of its calls. It owns no memory, so any number of them may be alive.

    Results and handles are independent of each other: a handle stays good after further dispatches.

    Args:
        group: A torch process group, or None for one process.
        num_nvl_bytes: Accepted for compatibility; a backend that needs memory takes it when it is first used.
        num_rdma_bytes: Likewise.
        backend: Strict choice of a backend for every call.
        timeout: Seconds to wait for other ranks.

    >>> import torch
    >>> buffer = Buffer(None)
    >>> idx = torch.tensor([[0, 1], [3, -1]])
    >>> per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, 4)
    >>> x, *_, handle, _ = buffer.dispatch(torch.ones(2, 8), num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
    ...     num_tokens_per_expert=per_expert, topk_idx=idx, topk_weights=torch.ones(2, 2))
    >>> buffer.combine(x, handle)[0].shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        group: Group | None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        *,
        backend: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.group = group
        self.rank, self.group_size = group_facts(group)
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.backend, self.timeout = backend, timeout
        self._destroyed = False

    @staticmethod
    def capture() -> EventOverlap:
        """Record an event on the current stream of the accelerator that is in use; empty on the host."""
        if not torch.accelerator.is_available():
            return EventOverlap()
        event = torch.Event(torch.accelerator.current_accelerator())
        event.record()
        return EventOverlap(event)

    def destroy(self) -> None:
        """End the buffer; calls after it raise."""
        self._destroyed = True

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, EventOverlap]:
        """Return num_tokens_per_rank [R], None, num_tokens_per_expert [E], is_token_in_rank [T, R] and an event."""
        self._begin(previous_event, async_finish, allocate_on_comm_stream)
        found = layout(topk_idx, num_experts, group=self.group, backend=self.backend)
        return (
            found.num_tokens_per_rank,
            None,
            found.num_tokens_per_expert,
            found.is_token_in_rank,
            self._event(async_finish),
        )

    def dispatch(
        self,
        x: Payload,
        handle: HandleTuple | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Any = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Payload, torch.Tensor | None, torch.Tensor | None, list[int] | None, HandleTuple | None, EventOverlap]:
        """Dispatch; see :func:`fmcore.moe.dispatch`.

        ``num_tokens_per_rdma_rank`` and ``config`` tune one transport and change no result.

        Returns:
            recv_x, recv_topk_idx, recv_topk_weights, host counts per local expert, handle, event. With a handle given:
            recv_x, None, None, None, None, event.
        """
        del num_tokens_per_rdma_rank, config
        self._begin(previous_event, async_finish, allocate_on_comm_stream)
        if handle is not None:
            target = _handle_of(handle)
            again = dispatch(x, target, topk_idx, topk_weights, backend=self.backend)
            return again.x, None, None, None, None, self._event(async_finish)
        if num_tokens_per_rank is None or is_token_in_rank is None or num_tokens_per_expert is None:
            raise InvalidInputError(
                "Buffer.dispatch without a handle needs num_tokens_per_rank, is_token_in_rank and "
                "num_tokens_per_expert, as get_dispatch_layout returns them"
            )
        experts = int(num_tokens_per_expert.numel())
        invalid = torch.zeros((), dtype=torch.int64, device=is_token_in_rank.device)
        if topk_idx is not None:
            invalid = ((topk_idx < -1) | (topk_idx >= experts)).sum()
        routes = Layout(num_tokens_per_rank, num_tokens_per_expert, is_token_in_rank, experts, self.group, invalid)
        sent = dispatch(
            x,
            routes,
            topk_idx,
            topk_weights,
            expert_alignment=expert_alignment,
            num_worst_tokens=num_worst_tokens,
            timeout=self.timeout,
            backend=self.backend,
        )
        counts = list(sent.counts_per_expert)
        return sent.x, sent.topk_idx, sent.topk_weights, counts, HandleTuple.of(sent.handle), self._event(async_finish)

    def combine(
        self,
        x: torch.Tensor,
        handle: HandleTuple,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        config: Any = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Combine without weighting; see :func:`fmcore.moe.combine`.

        Returns:
            combined_x, combined_topk_weights, event.
        """
        del config
        self._begin(previous_event, async_finish, allocate_on_comm_stream)
        biases = () if bias is None else bias
        back, weights = combine(x, _handle_of(handle), topk_weights, bias=biases, backend=self.backend)
        return back, weights, self._event(async_finish)

    def _begin(self, previous: EventOverlap | None, async_finish: bool, allocate_on_comm_stream: bool) -> None:
        if self._destroyed:
            raise InvalidInputError("this Buffer was destroyed; make another one")
        if allocate_on_comm_stream and (previous is None or not async_finish):
            raise InvalidInputError("allocate_on_comm_stream=True needs previous_event and async_finish=True")
        if previous is not None:
            previous.current_stream_wait()

    def _event(self, async_finish: bool) -> EventOverlap:
        return self.capture() if async_finish else EventOverlap()


def _handle_of(handle: Any) -> Handle:
    if not isinstance(handle, HandleTuple):
        raise InvalidInputError(
            f"handle is {type(handle).__name__}, want the object that dispatch returned; "
            "it cannot be rebuilt from its parts"
        )
    return handle.handle


def _channel_ends(num_tokens: int) -> list[int]:
    """Last token of every channel: channel c has the c-th of CHANNELS equal parts of the tokens."""
    part = -(-num_tokens // CHANNELS) if num_tokens else 0
    return [min((c + 1) * part, num_tokens) - 1 for c in range(CHANNELS)]


def _channel_prefix(place: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """int32 [R, C]: tokens sent to rank r by channels 0..c."""
    if num_tokens == 0:
        return torch.zeros((place.shape[1], CHANNELS), dtype=torch.int32, device=place.device)
    return place[torch.tensor(_channel_ends(num_tokens), device=place.device)].t().contiguous()


def _received_prefix(handle: Handle) -> torch.Tensor:
    """int32 [R, C]: rows from rank r that came before channel c's, the channels being equal parts of the rows."""
    device = handle.src_rank.device
    ranks = torch.arange(handle.num_ranks, device=device)
    counts = (handle.src_rank[:, None] == ranks).sum(0)
    channels = torch.arange(CHANNELS, device=device)
    return (counts[:, None] * channels // CHANNELS).to(torch.int32)
