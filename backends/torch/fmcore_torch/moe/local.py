"""One process holds every expert: rows are selected and put back, and nothing travels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fmcore.errors import InvalidInputError
from fmcore.ops.moe.checks import ACCUMULATE
from fmcore_torch.moe.rows import from_bits, to_bits


@dataclass(frozen=True, slots=True, eq=False)
class LocalRoute:
    """Where rows and tokens meet.

    Attributes:
        token_of_row: int64 [num_rows]; -1 in the tail of worst-case mode.
        row_of_token: int64 [T]; -1 for a token without an expert.
        exact: Whether every row has a token.
    """

    token_of_row: torch.Tensor
    row_of_token: torch.Tensor
    exact: bool

    def scatter(self, tensors: Sequence[torch.Tensor], problem: str | None) -> list[torch.Tensor]:
        """Select the rows that have an expert."""
        if problem:
            raise InvalidInputError(f"moe.dispatch: {problem}")
        return [from_bits(_take(to_bits(x), self.token_of_row, exact=self.exact), x.dtype) for x in tensors]

    def reduce(
        self,
        tensors: Sequence[torch.Tensor],
        dtypes: Sequence[torch.dtype],
        bias: Sequence[torch.Tensor],
        problem: str | None,
    ) -> list[torch.Tensor]:
        """Put rows back at their tokens: bias first, one rounding."""
        if problem:
            raise InvalidInputError(f"moe.combine: {problem}")
        sums = []
        for n, (rows, dtype) in enumerate(zip(tensors, dtypes, strict=True)):
            wide = ACCUMULATE[rows.dtype]
            total = torch.zeros((), dtype=wide, device=rows.device)
            for each in bias if n == 0 else ():
                total = total + each.to(wide)
            sums.append((total + _take(rows, self.row_of_token, exact=False).to(wide)).to(dtype))
        return sums


def local_route(is_token_in_rank: torch.Tensor, num_worst_tokens: int) -> LocalRoute:
    """Number the tokens that have an expert; with ``num_worst_tokens`` nothing is read on the host."""
    present = is_token_in_rank[:, 0]
    seen = present.to(torch.int64).cumsum(0)
    row_of_token = torch.where(present, seen - 1, -1)
    if num_worst_tokens == 0:
        return LocalRoute(present.nonzero()[:, 0], row_of_token, exact=True)
    # The token of row n is the first by which n + 1 tokens with an expert have been seen.
    token = torch.searchsorted(seen, torch.arange(1, num_worst_tokens + 1, device=seen.device))
    return LocalRoute(torch.where(token < present.shape[0], token, -1), row_of_token, exact=False)


def _take(x: torch.Tensor, index: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """Rows of ``x`` by ``index``; a zero row where the index is -1."""
    if exact:
        return x.index_select(0, index)
    if x.shape[0] == 0:
        return x.new_zeros((index.shape[0], *x.shape[1:]))
    rows = x.index_select(0, index.clamp(min=0))
    return rows.masked_fill_((index < 0).reshape(-1, *(1,) * (x.ndim - 1)), 0)
