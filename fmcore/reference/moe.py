"""The MoE oracle: every rank's tokens in one process, literal loops, the contract's own summation recipe.

``combine`` sums as the contract says (bias first, then ranks in ascending order, in fp32 for 16-bit and fp32 rows, one
rounding at the end), because implementations are held to it bit for bit; ``exact=True`` sums in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["ReferenceRank", "combine", "dispatch", "layout"]

_ACCUMULATE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceRank:
    """What one rank received.

    Attributes:
        x: [N, ...] rows, by (source rank, source token).
        topk_idx: [N, K] local expert numbers, -1 elsewhere.
        topk_weights: [N, K], 0 where ``topk_idx`` is -1, or None.
        counts_per_expert: Le integers, rounded up to the alignment.
        src: ``(source rank, source token)`` of each row.
    """

    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor | None
    counts_per_expert: tuple[int, ...]
    src: tuple[tuple[int, int], ...]


def layout(topk_idx: torch.Tensor, num_experts: int, num_ranks: int) -> tuple[list[int], list[int], list[list[bool]]]:
    """Return tokens per rank (each once), pairs per expert, and the token-to-rank map of a rank's ``topk_idx`` [T, K].

    >>> import torch
    >>> layout(torch.tensor([[0, 1], [3, -1]]), num_experts=4, num_ranks=2)
    ([1, 1], [1, 1, 0, 1], [[True, False], [False, True]])
    """
    local = num_experts // num_ranks
    per_rank, per_expert = [0] * num_ranks, [0] * num_experts
    in_rank = []
    for row in topk_idx.tolist():
        seen = [False] * num_ranks
        for expert in row:
            if expert >= 0:
                per_expert[expert] += 1
                seen[expert // local] = True
        for rank in range(num_ranks):
            per_rank[rank] += seen[rank]
        in_rank.append(seen)
    return per_rank, per_expert, in_rank


def dispatch(
    xs: Sequence[torch.Tensor],
    topk_idxs: Sequence[torch.Tensor],
    topk_weights: Sequence[torch.Tensor] | None,
    num_experts: int,
    *,
    expert_alignment: int = 1,
) -> list[ReferenceRank]:
    """Dispatch all ranks' rows ``xs[r]`` [T_r, ...] by ``topk_idxs[r]`` [T_r, K]; one result per rank."""
    ranks = len(xs)
    local = num_experts // ranks
    topk = topk_idxs[0].shape[1]
    results = []
    for me in range(ranks):
        rows, src, idx, weight = [], [], [], []
        counts = [0] * local
        for rank in range(ranks):
            for token, experts in enumerate(topk_idxs[rank].tolist()):
                mine = [e - me * local if e >= 0 and e // local == me else -1 for e in experts]
                if all(e < 0 for e in mine):
                    continue
                rows.append(xs[rank][token])
                src.append((rank, token))
                idx.append(mine)
                if topk_weights is not None:
                    given = topk_weights[rank][token]
                    weight.append(
                        torch.stack([w if e >= 0 else torch.zeros_like(w) for w, e in zip(given, mine, strict=True)])
                    )
                for e in mine:
                    if e >= 0:
                        counts[e] += 1
        results.append(
            ReferenceRank(
                torch.stack(rows) if rows else xs[me].new_empty((0, *xs[me].shape[1:])),
                torch.tensor(idx, dtype=topk_idxs[me].dtype).reshape(len(rows), topk),
                None
                if topk_weights is None
                else (torch.stack(weight) if weight else topk_weights[me].new_empty((0, topk))),
                tuple(-(-c // expert_alignment) * expert_alignment for c in counts),
                tuple(src),
            )
        )
    return results


def combine(
    ys: Sequence[torch.Tensor],
    received: Sequence[ReferenceRank],
    num_tokens: Sequence[int],
    *,
    topk_weights: Sequence[torch.Tensor] | None = None,
    bias: Sequence[Sequence[torch.Tensor]] | None = None,
    exact: bool = False,
) -> list[torch.Tensor]:
    """Sum the rows back: one tensor [T_r, H] per rank.

    Args:
        ys: Per rank the rows [N, H], or [N, K, H] with ``topk_weights``.
        received: What ``dispatch`` returned.
        num_tokens: T of every rank.
        topk_weights: If given the combine is weighted: row n counts as ``sum_k w[n, k] * y[n, k]`` over the slots that
            are local, k ascending; an [N, H] row stands for every slot.
        bias: Per rank none, one or two tensors [T, H], added first.
        exact: Sum in double precision instead of by the recipe, and return that.
    """
    ranks = len(ys)
    dtype, hidden = ys[0].dtype, ys[0].shape[-1]
    wide = torch.complex128 if dtype.is_complex else torch.float64
    acc_dtype = wide if exact else _ACCUMULATE.get(dtype, dtype)
    scalar = torch.float64 if acc_dtype in (torch.float64, torch.complex128) else torch.float32
    where = [{pair: n for n, pair in enumerate(r.src)} for r in received]
    outputs = []
    for me in range(ranks):
        out = torch.zeros(num_tokens[me], hidden, dtype=acc_dtype)
        for each in () if bias is None else bias[me]:
            out += each.to(acc_dtype)
        for token in range(num_tokens[me]):
            for rank in range(ranks):
                n = where[rank].get((me, token))
                if n is None:
                    continue
                if topk_weights is None:
                    out[token] += ys[rank][n].to(acc_dtype)
                    continue
                row = torch.zeros(hidden, dtype=acc_dtype)
                for k, expert in enumerate(received[rank].topk_idx[n].tolist()):
                    if expert >= 0:
                        slot = ys[rank][n, k] if ys[rank].ndim == 3 else ys[rank][n]
                        row += slot.to(acc_dtype) * topk_weights[rank][n, k].to(scalar)
                out[token] += row
        outputs.append(out if exact else out.to(dtype))
    return outputs
