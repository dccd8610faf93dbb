"""MoE properties over several gloo processes, and ranks that come late, die or sleep."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

import fmcore
from fmcore_conformance.distributed import Outcome, run_world
from fmcore_conformance.measure import exact
from fmcore_conformance.model import Measurement, Mismatch
from fmcore_conformance.moe import PROPERTIES, run_properties

if TYPE_CHECKING:
    from fmcore_conformance.target import Target

WAIT = 1.5
"""Seconds that the ranks of a failure case wait for each other."""
SLACK = 6.0
"""Seconds beyond the time-out within which every rank must have raised, on a loaded machine."""


def rank_main(
    group: Any, names: tuple[str, ...], backend: str | None, device: str, load: tuple[str, ...]
) -> dict[str, str]:
    """In every rank: register what was asked for and run the properties."""
    for module in load:
        importlib.import_module(module).load()
    found = run_properties(group, names, backend, device)
    leave_together(group)
    return found


def leave_together(group: Any) -> None:
    """Wait for the other ranks: one that ends takes its connections with it, and a slower one may still need them."""
    with contextlib.suppress(RuntimeError):  # a rank that failed may not come; what it found is reported all the same
        torch.distributed.barrier(group)


@lru_cache(maxsize=8)
def _together(ranks: int, backend: str | None, device: str, load: tuple[str, ...]) -> bool:
    """Whether all properties hold in one world: one start of the ranks in place of one for each property."""
    outcomes = run_world(rank_main, ranks, tuple(PROPERTIES), backend, device, load, timeout=120.0, group_timeout=30.0)
    return all(o.error == "" and not any(o.value.values()) for o in outcomes)


def check(name: str, ranks: int, target: Target) -> None:
    """One property in a world of ``ranks`` processes.

    Ranks part company when a property fails in one of them, so after any failure each property gets a world of its own.

    Raises:
        Mismatch: With what each rank found.
    """
    if ranks < 8 and _together(ranks, target.backend, target.device, target.load):
        return
    outcomes = run_world(
        rank_main, ranks, (name,), target.backend, target.device, target.load, timeout=60.0, group_timeout=20.0
    )
    found = [f"rank {o.rank}: {text}" for o in outcomes if (text := _finding(o, name))]
    if found:
        raise Mismatch(f"{name} over {ranks} ranks: {' | '.join(found[:3])}")


def _finding(outcome: Outcome, name: str) -> str:
    return f"{outcome.error}: {outcome.message}" if outcome.error else str(outcome.value[name])


def _once(group: Any, backend: str | None, timeout: float) -> Any:
    experts = 2 * group.size()
    idx = torch.arange(6).reshape(3, 2) % experts
    layout = fmcore.moe.layout(idx, experts, group=group, backend=backend)
    return fmcore.moe.dispatch(torch.ones(3, 4), layout, idx, timeout=timeout, backend=backend)


def late_rank(group: Any, backend: str | None, load: tuple[str, ...]) -> int:
    """Rank 1 comes a second later than the others."""
    for module in load:
        importlib.import_module(module).load()
    if group.rank() == 1:
        time.sleep(1.0)
    rows = int(_once(group, backend, 30.0).x.shape[0])
    leave_together(group)
    return rows


def missing_rank(group: Any, how: str, phase: str, backend: str | None, load: tuple[str, ...]) -> tuple[str, float]:
    """After one good dispatch rank 1 does not take part in the next call; the others say what they saw, and when."""
    for module in load:
        importlib.import_module(module).load()
    sent = _once(group, backend, WAIT)
    if group.rank() == 1:
        if how == "dies":
            os._exit(3)
        time.sleep(WAIT + SLACK)
        return "", 0.0
    start = time.monotonic()
    try:
        if phase == "combine":
            fmcore.moe.combine(sent.x, sent.handle)
        else:
            _once(group, backend, WAIT)
    except fmcore.errors.DistributedError as error:
        return f"DistributedError: {error}", time.monotonic() - start
    return "nothing was raised", time.monotonic() - start


def late(target: Target, ranks: int) -> list[Measurement]:
    """Others wait for a late rank and the call succeeds."""
    outcomes = run_world(late_rank, ranks, target.backend, target.load, timeout=60.0, group_timeout=40.0)
    for o in outcomes:
        if o.error or not o.value:
            raise Mismatch(f"rank {o.rank} did not get over a late rank: {o.error}: {o.message}")
    return [exact("late rank")]


def missing(how: str, phase: str, target: Target, ranks: int) -> list[Measurement]:
    """Every rank that is left raises DistributedError within the time-out."""
    outcomes = run_world(missing_rank, ranks, how, phase, target.backend, target.load, timeout=60.0, group_timeout=40.0)
    for o in outcomes:
        if o.rank == 1:
            continue
        if o.error:
            raise Mismatch(f"rank {o.rank}: {o.error}: {o.message}")
        said, seconds = o.value
        if not said.startswith("DistributedError"):
            raise Mismatch(f"rank {o.rank}: {said} although rank 1 {how} in {phase}")
        if seconds > WAIT + SLACK:
            raise Mismatch(f"rank {o.rank} raised after {seconds:.1f} s, the time-out is {WAIT} s")
    return [exact("missing rank")]
