"""Inputs for the MoE properties: routings of every awkward kind and payloads whose bits say where they come from.

Every rank can make every other rank's input, so each compares what it received with the oracle by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["DTYPES", "ROUTINGS", "Routing", "bits", "coded", "normal", "routing"]

DTYPES: dict[str, torch.dtype] = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
        torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    )
}  # fmt: skip
"""Payload dtypes by name."""

ROUTINGS = ("uniform", "holes", "one_rank", "to_self", "nowhere", "same_rank", "first_rank_idle")
"""Kinds of routing: top-k without replacement; with -1 in a third of the slots; all to the last rank; all to the own
rank; all -1; all slots of a token on one rank; and rank 0 having no tokens at all."""

_WORD = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_FLOAT32 = (0x7FC0_1234, 0x7F80_0001, 0x7F80_0000, 0xFF80_0000, 0x8000_0000, 1)
_FLOAT64 = (0x7FF8_0000_0000_1234, 0x7FF0_0000_0000_0001, 0x7FF0 << 48, -0x10 << 48, -1 << 63, 1)
_SPECIAL: dict[torch.dtype, tuple[int, ...]] = {
    torch.bfloat16: tuple(word >> 16 for word in (0x7FC1_0000, 0x7F81_0000, *_FLOAT32[2:5], 1 << 16)),
    torch.float16: (0x7E01, 0x7C01, 0x7C00, 0xFC00, 0x8000, 1),
    torch.float32: _FLOAT32,
    torch.float64: _FLOAT64,
    torch.complex64: tuple(word << 32 | 0x7F80_0001 for word in (0x7FC0_1234, 0x7F80_0001, 0x7F80_0000, 1)),
    torch.complex128: _FLOAT64,
    torch.float8_e4m3fn: (0x7F, 0xFF, 0x80, 0x01),
    torch.float8_e5m2: (0x7E, 0x7D, 0x7C, 0xFC, 0x80, 0x01),
}
"""Bits of values that arithmetic would change."""


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """All ranks' indices and weights.

    Attributes:
        num_experts: E.
        idx: Per rank int64 [T_r, K].
        weights: Per rank fp32 [T_r, K]; powers of two.
    """

    num_experts: int
    idx: tuple[torch.Tensor, ...]
    weights: tuple[torch.Tensor, ...]

    @property
    def ranks(self) -> int:
        """R."""
        return len(self.idx)

    @property
    def tokens(self) -> tuple[int, ...]:
        """T of every rank."""
        return tuple(int(i.shape[0]) for i in self.idx)


def routing(
    kind: str, ranks: int, *, tokens: int = 13, topk: int = 4, local_experts: int = 3, seed: int = 0
) -> Routing:
    """Make a routing of one of :data:`ROUTINGS`; rank r has ``tokens - r`` tokens (at least one, if ``tokens`` is)."""
    generator = torch.Generator().manual_seed(seed * 1000 + len(kind) + ranks)
    experts = ranks * local_experts
    idx, weights = [], []
    for rank in range(ranks):
        count = max(min(tokens, 1), tokens - rank)
        if kind == "first_rank_idle" and rank == 0:
            count = 0
        if kind in ("one_rank", "to_self", "same_rank"):
            home = torch.full((count, 1), ranks - 1 if kind == "one_rank" else rank)
            if kind == "same_rank":
                home = torch.randint(0, ranks, (count, 1), generator=generator)
            rows = home * local_experts + torch.randint(0, local_experts, (count, topk), generator=generator)
        else:
            # A permutation per token, repeated where K exceeds E.
            order = torch.rand(count, experts, generator=generator).argsort(1)
            rows = order.repeat(1, -(-topk // experts))[:, :topk]
        if kind == "holes":
            rows = torch.where(torch.rand(count, topk, generator=generator) < 0.34, -1, rows)
            rows[: count // 6] = -1
        if kind == "nowhere":
            rows = torch.full_like(rows, -1)
        idx.append(rows.contiguous())
        weights.append(2.0 ** torch.randint(-4, 3, (count, topk), generator=generator).float())
    return Routing(experts, tuple(idx), tuple(weights))


def coded(dtype: torch.dtype, tokens: int, hidden: int, rank: int, salt: int = 0) -> torch.Tensor:
    """Make [tokens, hidden] of arbitrary bit patterns that rank, token and column determine.

    With two columns or more every row of a floating dtype has one of: quiet NaN with a payload, signalling NaN,
    infinities, minus zero, the smallest subnormal.
    """
    row = torch.arange(tokens, dtype=torch.int64)[:, None] + 100_003 * rank + 7_000_003 * salt
    words = (
        row * 2_654_435_761 + torch.arange(hidden, dtype=torch.int64) * 40_503 + 12_345
    ) * 6_364_136_223_846_793_005
    words = words ^ (words >> 29)
    if dtype == torch.bool:
        return (words & 1).bool()
    if dtype in _SPECIAL and hidden > 1:
        place = (row[:, 0] % hidden)[:, None]
        special = torch.tensor(_SPECIAL[dtype], dtype=torch.int64)
        words = words.scatter(1, place, special[row[:, 0] % len(special)][:, None])
    if dtype == torch.complex128:
        return torch.view_as_complex(torch.stack((words, words ^ 0x5DEECE66D), -1).view(torch.float64))
    size = torch.empty((), dtype=dtype).element_size()
    if size < 8:
        words = words & ((1 << 8 * size) - 1)
        words = torch.where(words >= 1 << (8 * size - 1), words - (1 << 8 * size), words) if size > 1 else words
    return words.to(_WORD[size]).view(dtype)


def normal(dtype: torch.dtype, *shape: int, seed: int) -> torch.Tensor:
    """Make ordinary numbers: normal for floating and complex dtypes, small integers for the others."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex or dtype.is_floating_point:
        wide = dtype if dtype.itemsize >= 4 else torch.float32
        return torch.randn(*shape, generator=generator, dtype=wide).to(dtype)
    return torch.randint(-50, 50, shape, generator=generator).to(dtype)


def bits(x: torch.Tensor) -> Any:
    """Return a contiguous copy as bytes, for exact comparison."""
    x = torch.view_as_real(x.resolve_conj()) if x.dtype.is_complex else x
    return x.clone(memory_format=torch.contiguous_format).view(torch.uint8)
