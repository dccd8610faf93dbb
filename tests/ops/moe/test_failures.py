"""Late, missing and dying ranks; and the harness itself."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch

import fmcore as fm
from fmcore_conformance.distributed import WorldError, run_world, values

TIMEOUT = 1.2


def dispatch_once(group: Any, timeout: float = 30.0) -> Any:
    idx = torch.arange(6).reshape(3, 2) % (2 * group.size())
    return fm.moe.dispatch(torch.ones(3, 4), fm.moe.layout(idx, 2 * group.size(), group=group), idx, timeout=timeout)


def late_rank(group: Any) -> int:
    if group.rank() == 1:
        time.sleep(1.0)
    return dispatch_once(group).x.shape[0]


def absent_rank(group: Any, how: str, phase: str) -> tuple[str, str, int | None, str]:
    sent = dispatch_once(group, TIMEOUT)
    if group.rank() == 1:
        if how == "dies":
            os._exit(3)
        time.sleep(TIMEOUT + 2.5)
        return ("", "", None, "")
    try:
        if phase == "combine":
            fm.moe.combine(sent.x, sent.handle)
        else:
            dispatch_once(group, TIMEOUT)
    except fm.errors.DistributedError as error:
        return (type(error).__name__, error.phase, error.peer, str(error))
    return ("nothing", "", None, "")


def test_a_late_rank_is_waited_for() -> None:
    assert sum(values(run_world(late_rank, 3))) == sum(values(run_world(count_rows, 3)))


def count_rows(group: Any) -> int:
    return dispatch_once(group).x.shape[0]


@pytest.mark.parametrize("how", ["dies", "sleeps"])
@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_a_missing_rank_is_named_within_the_time_out(how: str, phase: str) -> None:
    outcomes = run_world(absent_rank, 3, how, phase, timeout=30.0, group_timeout=30.0)
    for rank in (0, 2):
        outcome = outcomes[rank]
        assert outcome.error == "", outcome.trace
        kind, said_phase, peer, text = outcome.value
        assert (kind, said_phase, peer) == ("DistributedError", phase, 1), text
        assert f"rank {rank} of 3" in text
        assert "rank(s) 1 did not take part" in text
        assert outcome.seconds < TIMEOUT + 4.0
    assert outcomes[1].error == ("lost" if how == "dies" else "")


def late_and_absent(group: Any) -> str:
    """Rank 2 comes long after rank 0, rank 1 never: rank 0 must not take rank 2 for missing."""
    idx = torch.zeros(2, 1, dtype=torch.int64)
    layout = fm.moe.layout(idx, group.size(), group=group)
    if group.rank() == 1:
        time.sleep(5.2)
        return ""
    if group.rank() == 2:
        time.sleep(1.4)
    try:
        fm.moe.dispatch(torch.ones(2, 1), layout, timeout=2.4)
    except fm.errors.DistributedError as error:
        return str(error)
    return "nothing was raised"


def test_a_late_rank_is_not_called_missing() -> None:
    for said in values(run_world(late_and_absent, 3, timeout=30.0))[0::2]:
        assert "rank(s) 1 did not take part" in said


def different_calls(group: Any) -> str:
    sent = dispatch_once(group)
    try:
        if group.rank() == 0:
            fm.moe.combine(sent.x, sent.handle)
        else:
            fm.moe.dispatch(torch.ones(3, 4), sent.handle)
    except fm.errors.FmcoreError as error:
        return str(error)
    return "nothing"


def test_ranks_that_make_different_calls_are_told() -> None:
    for said in values(run_world(different_calls, 2, timeout=30.0, group_timeout=3.0)):
        assert "disagree on op: rank 0 has combine, rank 1 has dispatch with a handle" in said


def fails_on_one(group: Any, how: str) -> int:
    if group.rank() == 1:
        if how == "raise":
            raise ValueError("planted")
        if how == "exit":
            os._exit(1)
        time.sleep(60)
    return 7


@pytest.mark.parametrize(("how", "error"), [("raise", "ValueError"), ("exit", "lost"), ("sleep", "time-out")])
def test_the_harness_reports_every_end(how: str, error: str) -> None:
    outcomes = run_world(fails_on_one, 2, how, timeout=20.0 if how != "sleep" else 2.0)
    assert [o.error for o in outcomes] == ["", error]
    assert outcomes[0].value == 7
    with pytest.raises(WorldError, match=error):
        values(outcomes)
