"""The values that cross the MoE boundary: layout, handle and the result of a dispatch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, Union

import torch

from fmcore.errors import InvalidInputError

__all__ = ["DEFAULT_TIMEOUT", "Dispatched", "Group", "Handle", "Layout", "Payload", "group_facts"]

Payload = Union[torch.Tensor, "tuple[torch.Tensor, torch.Tensor]"]

DEFAULT_TIMEOUT = 100.0
"""Seconds that a rank waits for the others before it raises."""


class Group(Protocol):
    """What is asked of a process group; ``torch.distributed.ProcessGroup`` fits."""

    def rank(self) -> int:
        """This process's rank in the group."""
        ...

    def size(self) -> int:
        """Number of ranks."""
        ...


def group_facts(group: Group | None) -> tuple[int, int]:
    """Return ``(rank, size)`` of ``group``; None is one process by itself.

    Raises:
        InvalidInputError: This process is no member of the group, or the object is no group.
    """
    if group is None:
        return 0, 1
    if not (callable(getattr(group, "rank", None)) and callable(getattr(group, "size", None))):
        raise InvalidInputError(
            f"group is {type(group).__name__}, want a torch.distributed process group "
            "(torch.distributed.group.WORLD for the default one) or None for one process"
        )
    rank, size = int(group.rank()), int(group.size())
    if rank < 0 or size < 1:
        raise InvalidInputError(f"this process is not in the group (rank {rank} of {size}); call on its members only")
    return rank, size


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where this rank's tokens go: counts and the token-to-rank map. Local, no communication.

    Attributes:
        num_tokens_per_rank: int32 [R]; tokens of mine with at least one expert on rank r, each counted once.
        num_tokens_per_expert: int32 [E]; (token, slot) pairs, not deduplicated.
        is_token_in_rank: bool [T, R].
        num_experts: E; expert e lives on rank ``e // (E / R)``.
        group: The process group, or None.
        num_invalid: int64 []; indices outside [-1, E). They route nowhere; ``dispatch`` raises on every rank
            if there are any.
        problem: What else is wrong on this rank; ``dispatch`` raises it on every rank.
    """

    num_tokens_per_rank: torch.Tensor
    num_tokens_per_expert: torch.Tensor
    is_token_in_rank: torch.Tensor
    num_experts: int
    group: Any
    num_invalid: torch.Tensor
    problem: str = ""

    @property
    def num_tokens(self) -> int:
        """T, tokens on this rank."""
        return int(self.is_token_in_rank.shape[0])

    @property
    def num_ranks(self) -> int:
        """R."""
        return int(self.is_token_in_rank.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """How the rows of one dispatch travelled; immutable, usable any number of times and in any order.

    Attributes:
        impl: ``backend/name`` of the implementation that made it; only that one can use it.
        group: The process group, or None.
        rank: This rank.
        num_ranks: R.
        num_experts: E.
        num_tokens: T, tokens of this rank.
        num_rows: Rows of the dispatched tensors: those received, or the worst case that was asked for.
        src_rank: int32 [num_rows]; the rank that row n came from, -1 for rows beyond those received.
        src_token: int32 [num_rows]; its token number there, -1 likewise. Pairs ascend strictly.
        topk_idx: [num_rows, K] local expert numbers, -1 where the slot is elsewhere; None if none were sent.
        is_token_in_rank: bool [T, R], the map that was followed.
        rank_prefix_matrix: int32 [R, R] on the host; ``[i, j]`` = rows from ranks 0..i to rank j. None where the
            implementation does not read counts on the host.
        timeout: Seconds to wait for the other ranks.
        state: The implementation's own data.
    """

    impl: str
    group: Any
    rank: int
    num_ranks: int
    num_experts: int
    num_tokens: int
    num_rows: int
    src_rank: torch.Tensor
    src_token: torch.Tensor
    topk_idx: torch.Tensor | None
    is_token_in_rank: torch.Tensor
    rank_prefix_matrix: torch.Tensor | None
    timeout: float
    state: Any = field(repr=False)

    @property
    def num_topk(self) -> int | None:
        """K, or None where no indices were sent."""
        return None if self.topk_idx is None else int(self.topk_idx.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Dispatched:
    """What a rank received, ordered by (source rank, source token); one row per (token, this rank).

    Attributes:
        x: [N, H] in the dtype that was sent, or ``(q, scales)`` if a pair was sent.
        topk_idx: [N, K] local expert numbers 0..Le-1, -1 where the slot is on another rank; None if not sent.
        topk_weights: [N, K]; 0 where ``topk_idx`` is -1; None if not sent.
        counts_per_expert: Le host integers, each rounded up to ``expert_alignment``; empty in worst-case mode.
        tokens_per_expert: int32 [Le] on the device, exact; None after a cached dispatch.
        handle: For ``combine`` and for further dispatches along the same routes.
    """

    x: Payload
    topk_idx: torch.Tensor | None
    topk_weights: torch.Tensor | None
    counts_per_expert: tuple[int, ...]
    tokens_per_expert: torch.Tensor | None
    handle: Handle
