"""Planted mistakes: each must be caught by the property that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fmcore_conformance.distributed import run_world, values
from fmcore_conformance.moe import run_properties


def accumulate_in_half(patch: Callable[..., None]) -> None:
    from fmcore_torch.moe import collective

    patch(collective, "ACCUMULATE", {**collective.ACCUMULATE, torch.bfloat16: torch.bfloat16})


def reverse_rank_order(patch: Callable[..., None]) -> None:
    from fmcore_torch.moe.collective import CollectiveRoute

    good = CollectiveRoute._sum

    def bad(self: Any, rows: torch.Tensor, bias: Any) -> torch.Tensor:
        from dataclasses import replace

        cut = self.send_counts[0]
        turned = replace(self, send_token=self.send_token.roll(-cut), send_counts=(*self.send_counts[1:], cut))
        return good(turned, rows.roll(-cut, 0), bias)

    patch(CollectiveRoute, "_sum", bad)


def bias_last(patch: Callable[..., None]) -> None:
    from fmcore_torch.moe.collective import CollectiveRoute

    good = CollectiveRoute._sum

    def bad(self: Any, rows: torch.Tensor, bias: Any) -> torch.Tensor:
        total = good(self, rows, ())
        for each in bias:
            total += each.to(total.dtype)
        return total

    patch(CollectiveRoute, "_sum", bad)


def touch_values(patch: Callable[..., None]) -> None:
    from fmcore_torch.moe import rows

    good = rows.from_bits

    def bad(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        x = good(bits, dtype)
        return x.nan_to_num() if dtype.is_floating_point and dtype.itemsize > 1 else x

    patch(rows, "from_bits", bad)


def keep_foreign_weights(patch: Callable[..., None]) -> None:
    from fmcore_torch.moe import ops

    good = ops.localise
    patch(ops, "localise", lambda idx, weights, rank, local: (good(idx, weights, rank, local)[0], weights))


def minus_one_is_expert_zero(patch: Callable[..., None]) -> None:
    from fmcore_torch.moe import ops

    good = ops.localise
    patch(ops, "localise", lambda idx, weights, rank, local: good(idx.clamp(min=0), weights, rank, local))


def copies_per_slot(patch: Callable[..., None]) -> None:
    from fmcore_torch.moe import routing

    good = routing.count_values
    patch(routing, "count_values", lambda values, n: good(values, n).clamp(max=1))


def forget_weight_gradient(patch: Callable[..., None]) -> None:
    from fmcore_torch.moe import ops

    good = ops.scatter
    patch(
        ops, "scatter", lambda route, tensors, problem=None: good(route, [*tensors[:-1], tensors[-1].detach()], problem)
    )


def raise_alone(patch: Callable[..., None]) -> None:
    from fmcore_torch.moe import collective, wire

    def silent(link: Any, facts: Any, counts: Any, problem: str, phase: str) -> Any:
        if problem:
            raise wire.InvalidInputError(f"moe.{phase}: rank {link.rank}: {problem}")
        return wire.exchange_headers(link, facts, counts, problem, phase)

    patch(collective, "exchange_headers", silent)


CASES = {
    accumulate_in_half: "C2",
    reverse_rank_order: "C2",
    bias_last: "C2",
    touch_values: "dispatch/bfloat16",
    keep_foreign_weights: "D1-D4",
    minus_one_is_expert_zero: "D1-D4",
    copies_per_slot: "L1",
    forget_weight_gradient: "A1",
    raise_alone: "R7",
}


def sabotaged(group: Any, name: str, check: str) -> str:
    """Plant a mistake in this rank and run one property. A world each: ranks part company when one of them fails."""
    globals()[name](setattr)
    try:
        return run_properties(group, (check,), "torch")[check]
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("saboteur", CASES, ids=lambda s: s.__name__)
def test_is_caught(saboteur: Callable[..., None]) -> None:
    said = values(run_world(sabotaged, 2, saboteur.__name__, CASES[saboteur], timeout=40.0, group_timeout=2.0))
    if saboteur is raise_alone:
        assert all(said)
    else:
        assert any(s.startswith("AssertionError") for s in said), said
