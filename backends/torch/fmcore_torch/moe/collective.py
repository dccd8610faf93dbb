"""Rows over any collective library: one gather of rows, one all-to-all; the way back sums in rank order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fmcore.errors import InvalidInputError
from fmcore.ops.moe.checks import ACCUMULATE
from fmcore_torch.moe.rows import bundles, join, split, to_bits
from fmcore_torch.moe.wire import OPS, Link, all_to_all, exchange_headers, facts_of

_BLOCK_ROWS = 256
"""Rows widened to the accumulator's dtype at a time, so that the copy stays in cache."""


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveRoute:
    """The routes of one dispatch between the ranks of a group.

    Attributes:
        link: The group.
        num_tokens: T, tokens of this rank.
        num_rows: Rows of a dispatched tensor; those beyond the received ones are zero.
        num_experts: E; the ranks check that they mean the same routing.
        send_token: int64 [S]; my tokens by (destination rank, token).
        send_counts: Rows to each rank.
        recv_counts: Rows from each rank.
    """

    link: Link
    num_tokens: int
    num_rows: int
    num_experts: int
    send_token: torch.Tensor
    send_counts: tuple[int, ...]
    recv_counts: tuple[int, ...]

    @property
    def num_received(self) -> int:
        """N."""
        return sum(self.recv_counts)

    def scatter(self, tensors: Sequence[torch.Tensor], problem: str | None) -> list[torch.Tensor]:
        """Send rows to the ranks that they are routed to."""
        return self._exchange(tensors, lambda t: to_bits(t).index_select(0, self.send_token), problem, back=False)

    def reduce(
        self,
        tensors: Sequence[torch.Tensor],
        dtypes: Sequence[torch.dtype],
        bias: Sequence[torch.Tensor],
        problem: str | None,
    ) -> list[torch.Tensor]:
        """Send rows back to where they came from and sum them there: bias, then ranks ascending, one rounding."""
        received = self._exchange(tensors, lambda t: to_bits(t)[: self.num_received].contiguous(), problem, back=True)
        return [
            self._sum(rows, bias if n == 0 else ()).to(dtype)
            for n, (rows, dtype) in enumerate(zip(received, dtypes, strict=True))
        ]

    def _exchange(
        self,
        tensors: Sequence[torch.Tensor],
        pack: Callable[[torch.Tensor], torch.Tensor],
        problem: str | None,
        *,
        back: bool,
    ) -> list[torch.Tensor]:
        """Send the packed rows of all tensors at once, wait, and return what came in the tensors' order."""
        op = 2 if back else 1
        verdict = self._announce(tensors, problem, op)
        messages = (
            [] if problem else [(bundle, join([pack(tensors[n]) for n in bundle])) for bundle in bundles(tensors)]
        )
        # Rows of unlike sizes end the process in some libraries: none leaves before all ranks make the same call.
        verdict()
        counts = (self.send_counts, self.recv_counts) if back else (self.recv_counts, self.send_counts)
        received = sum(counts[0])
        started = []
        for bundle, given in messages:
            width = given.shape[1]
            out = given.new_empty((received if back else self.num_rows, width))
            out[received:] = 0
            into, outof = ([n * width for n in side] for side in counts)
            flat = out.view(-1)[: received * width]
            started.append((bundle, out, all_to_all(self.link, flat, given.view(-1), into, outof, OPS[op])))
        for _, _, transfer in started:
            transfer.wait()
        found: dict[int, torch.Tensor] = {}
        for bundle, out, _ in started:
            found.update(zip(bundle, split(out, [tensors[n] for n in bundle]), strict=True))
        return [found[n] for n in range(len(tensors))]

    def _announce(self, tensors: Sequence[torch.Tensor], problem: str | None, op: int) -> Callable[[], object]:
        """Start a header on its way while the rows are packed; return what waits for those of all ranks, and raises.

        It is left out on devices, where reading it would stall the queue, and where no rank can have a complaint of
        its own (``problem`` is None): in a dispatch that has just exchanged its header, and in a backward.
        """
        if problem is not None and self.link.on_host:
            facts = () if problem else facts_of(op, self.num_experts, len(tensors), tensors[:2])
            return exchange_headers(self.link, facts, (), problem, OPS[op])
        if problem:
            raise InvalidInputError(f"moe.{OPS[op]}: rank {self.link.rank}: {problem}")
        return tuple

    def _sum(self, rows: torch.Tensor, bias: Sequence[torch.Tensor]) -> torch.Tensor:
        wide = ACCUMULATE[rows.dtype]
        total = torch.zeros((self.num_tokens, *rows.shape[1:]), dtype=wide, device=rows.device)
        for each in bias:
            total += each.to(wide)
        start = 0
        for count in self.send_counts:
            # Inside one rank's rows every token occurs once, so the order of the sum is the order of the ranks.
            block = max(count, 1) if rows.dtype == wide else _BLOCK_ROWS
            for low in range(start, start + count, block):
                high = min(low + block, start + count)
                total.index_add_(0, self.send_token[low:high], rows[low:high].to(wide))
            start += count
        return total
