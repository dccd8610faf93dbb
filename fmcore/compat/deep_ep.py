# ruff: noqa: FBT001, FBT002 (the signatures are another project's)
"""DeepEP's first interface over fmcore: programs written for it change their import.

``from fmcore.compat import deep_ep`` instead of ``import deep_ep``. Names, signatures and the number and order of what
is returned are those of DeepEP V1; the work is done by whichever backend fmcore chooses. It is wider in this:

* any H, any K, any number of ranks; bf16, fp16, fp32, fp64 and complex rows combine; any dtype travels;
* handles can be used again and in any order; results own their memory, so any number of low-latency results may live;
* without a peer-to-peer backend ``async_finish`` is accepted and the work runs on the current stream, and a receive
  hook has nothing left to do when it is called.

What cannot be honoured raises instead of being ignored: the lossy ``use_logfmt`` wire format, UE8M0-packed scales,
waiting-cost statistics and the exclusion of dead ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fmcore.errors import InvalidInputError, UnsupportedError
from fmcore.moe.buffer import Buffer as _Buffer
from fmcore.moe.buffer import EventOverlap
from fmcore.moe.low_latency import ExpertRows, expert_combine, expert_dispatch, quantise_fp8

__all__ = ["Buffer", "Config", "EventOverlap", "topk_idx_t"]

topk_idx_t = torch.int64
"""Default dtype of expert indices; int32 works as well."""

_DISPATCH_CHUNKS = {2: 24, 4: 6, 8: 6}
_COMBINE_CHUNKS = {2: 10, 4: 9, 8: 4}


@dataclass(frozen=True, slots=True)
class Config:
    """Tuning of the original's transport; accepted everywhere, and it changes no result.

    >>> Config(20, 6, 256).get_nvl_buffer_size_hint(7168 * 2, 8)
    0
    """

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 128

    def __post_init__(self) -> None:
        if self.num_sms < 2 or self.num_sms % 2:
            raise InvalidInputError(f"num_sms = {self.num_sms}, want a positive even number")
        if self.num_max_nvl_chunked_send_tokens >= self.num_max_nvl_chunked_recv_tokens:
            raise InvalidInputError("the send chunk must be smaller than the receive chunk")

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes to reserve beforehand: none, results own their memory."""
        _positive(hidden_bytes=hidden_bytes, num_ranks=num_ranks)
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes to reserve beforehand: none."""
        _positive(hidden_bytes=hidden_bytes, num_ranks=num_ranks)
        return 0


class LowLatencyHandle(tuple[Any, ...]):  # noqa: SLOT001 (it carries one attribute beside its items)
    """``(src_info [Le, C], layout_range [Le, R], M, H, E)`` and, as ``rows``, what combine needs."""

    rows: ExpertRows


class Buffer(_Buffer):
    """A process group with DeepEP V1's methods. Only ``group`` matters; the sizes are accepted and reserve nothing.

    >>> Buffer(None).get_dispatch_layout(torch.tensor([[0, 1]]), 2)[0]
    tensor([1], dtype=torch.int32)
    """

    num_sms: int = 20

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        use_fabric: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
    ) -> None:
        if comm is not None:
            raise UnsupportedError("comm= (an mpi4py communicator) is not served; pass a torch process group as group=")
        if enable_shrink:
            raise UnsupportedError(
                "enable_shrink=True (going on without dead ranks) is not served; a missing rank raises DistributedError"
            )
        super().__init__(group, num_nvl_bytes, num_rdma_bytes)
        self.low_latency_mode, self.explicitly_destroy = low_latency_mode, explicitly_destroy
        self.num_qps_per_rank = num_qps_per_rank
        self.transport = (allow_nvlink_for_low_latency_mode, allow_mnnvl, use_fabric)

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether fp8 payloads are served."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Record how many SMs normal calls should use; a hint."""
        if new_num_sms < 2 or new_num_sms % 2:
            raise InvalidInputError(f"num_sms = {new_num_sms}, want a positive even number")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """Return the dispatch tuning for a number of ranks."""
        return Config(Buffer.num_sms, _DISPATCH_CHUNKS.get(num_ranks, 6), 256, 6, 128)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """Return the combine tuning for a number of ranks."""
        return Config(Buffer.num_sms, _COMBINE_CHUNKS.get(num_ranks, 4), 256, 6, 128)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes to reserve beforehand: none, results own their memory."""
        _positive(tokens=num_max_dispatch_tokens_per_rank, hidden=hidden, num_ranks=num_ranks, num_experts=num_experts)
        return 0

    def get_comm_stream(self) -> Any:
        """Return the stream that communication runs on: the current one, None on the host."""
        return torch.accelerator.current_stream() if torch.accelerator.is_available() else None

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing is shared between calls, so there is nothing to clean."""
        _positive(tokens=num_max_dispatch_tokens_per_rank, hidden=hidden, num_experts=num_experts)
        self._begin(None, False, False)

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        dispatch_wait_recv_cost_stats: torch.Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Any, torch.Tensor, LowLatencyHandle, EventOverlap, Callable[[], None]]:
        """Dispatch by expert.

        Returns:
            recv_x [Le, R * M, H] (or ``(fp8, scales [Le, R * M, H / 128])``), recv_count int32 [Le], handle, event,
            hook.
        """
        self._low_latency(async_finish, return_recv_hook, dispatch_wait_recv_cost_stats)
        if use_ue8m0:
            raise UnsupportedError(
                "use_ue8m0=True (packed scales) is not served; use round_scale=True for power-of-two scales in fp32"
            )
        rows = expert_dispatch(
            quantise_fp8(x, power_of_two=round_scale) if use_fp8 else x,
            topk_idx,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            group=self.group,
            timeout=self.timeout,
            backend=self.backend,
        )
        if cumulative_local_expert_recv_stats is not None:
            cumulative_local_expert_recv_stats += rows.counts
        handle = LowLatencyHandle(
            (rows.src_token, rows.ranges, num_max_dispatch_tokens_per_rank, x.shape[1], num_experts)
        )
        handle.rows = rows
        received = rows.x if rows.scales is None else (rows.x, rows.scales)
        return received, rows.counts, handle, self._event(async_finish), _nothing_left

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: LowLatencyHandle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        combine_wait_recv_cost_stats: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, EventOverlap, Callable[[], None]]:
        """Sum experts' rows with the tokens' weights; ``zero_copy`` only says where ``x`` lies.

        Returns:
            combined_x [T, H], event, hook.
        """
        del zero_copy
        self._low_latency(async_finish, return_recv_hook, combine_wait_recv_cost_stats)
        if use_logfmt:
            raise UnsupportedError("use_logfmt=True (a lossy 10-bit wire format) is not served; pass use_logfmt=False")
        if not isinstance(handle, LowLatencyHandle):
            raise InvalidInputError(
                f"handle is {type(handle).__name__}, want the object that low_latency_dispatch returned"
            )
        back = expert_combine(x, handle.rows, topk_idx, topk_weights)
        if out is not None:
            back = out.copy_(back)
        return back, self._event(async_finish), _nothing_left

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> torch.Tensor:
        """Return a tensor [Le, R * M, H] in bf16 to write the experts' rows into."""
        rows = handle.rows.x
        return torch.zeros(rows.shape, dtype=torch.bfloat16, device=rows.device)

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Excluding ranks is not served: raises."""
        raise UnsupportedError(
            f"cannot exclude rank {rank_to_mask} (mask={mask}): a missing rank raises DistributedError; "
            "make a new group without it"
        )

    def _low_latency(self, async_finish: bool, return_recv_hook: bool, cost_stats: torch.Tensor | None) -> None:
        self._begin(None, False, False)
        if not self.low_latency_mode:
            raise InvalidInputError("low-latency calls need Buffer(..., low_latency_mode=True)")
        if async_finish and return_recv_hook:
            raise InvalidInputError("async_finish and return_recv_hook exclude each other")
        if cost_stats is not None:
            raise UnsupportedError("waiting-cost statistics are not kept; pass None")


def _positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise InvalidInputError(f"{name} = {value}, want a positive number")


def _nothing_left() -> None:
    """Stand for a receive hook: the rows are already there."""
