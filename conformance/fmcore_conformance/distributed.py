"""Several ranks on one machine: start gloo processes, run a function in each, collect what happened, leave nobody."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

__all__ = ["Outcome", "WorldError", "run_world", "values"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank did.

    Attributes:
        rank: The rank.
        value: What the function returned, or None.
        error: Name of the exception's type; ``"lost"`` for a process that ended without a word, ``"time-out"`` for
            one that had to be ended; empty if it returned.
        message: The exception's text.
        trace: Its traceback.
        seconds: Time in the function.
    """

    rank: int
    value: Any = None
    error: str = ""
    message: str = ""
    trace: str = ""
    seconds: float = 0.0


class WorldError(RuntimeError):
    """At least one rank failed; the text has every failed rank's traceback."""


def run_world(
    fn: Callable[..., Any], ranks: int, *args: Any, timeout: float = 120.0, group_timeout: float = 60.0
) -> list[Outcome]:
    """Run ``fn(group, *args)`` in ``ranks`` processes that form a gloo group; return one outcome per rank.

    Args:
        fn: A module-level function. ``group.rank()`` says where it runs. Its value must pickle; tensors do.
        ranks: Number of processes.
        args: Passed on; must pickle.
        timeout: Seconds after which the processes that are still running are ended.
        group_timeout: The process group's own time-out.

    >>> [o.value for o in run_world(_rank_of, 2)]
    [0, 1]
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "fmcore_conformance.distributed", "fmcore.moe"])
    where = (fn.__module__, str(Path(sys.modules[fn.__module__].__file__ or "").resolve()), fn.__qualname__)
    work = pickle.dumps((where, args))
    with tempfile.TemporaryDirectory(prefix="fmcore-world-") as folder:
        pipes, processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank_main,
                args=(theirs, rank, ranks, str(Path(folder) / "store"), group_timeout, work),
                daemon=True,
            )
            with _plain_main():
                process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            deadline = time.monotonic() + timeout
            return [_collect(rank, pipe, deadline) for rank, pipe in enumerate(pipes)]
        finally:
            for process, pipe in zip(processes, pipes, strict=True):
                if process.is_alive():
                    process.join(0.5)
                if process.is_alive():
                    process.kill()
                process.join()
                process.close()
                pipe.close()


def values(outcomes: Sequence[Outcome]) -> list[Any]:
    """Return the ranks' values, or raise WorldError with the tracebacks of those that failed."""
    failed = [o for o in outcomes if o.error]
    if failed:
        raise WorldError("\n".join(f"rank {o.rank}: {o.error}: {o.message}\n{o.trace}" for o in failed))
    return [o.value for o in outcomes]


def _collect(rank: int, pipe: Connection, deadline: float) -> Outcome:
    if not pipe.poll(max(0.0, deadline - time.monotonic())):
        return Outcome(rank, error="time-out", message="the rank did not finish in time and was ended")
    try:
        outcome: Outcome = pickle.loads(pipe.recv_bytes())
    except EOFError:
        return Outcome(rank, error="lost", message="the process ended without a result")
    return outcome


class _plain_main:  # noqa: N801 (used as a statement)
    """Keep a child from running the parent's main script again: a rank needs only the function's module."""

    def __enter__(self) -> None:
        self._main = sys.modules["__main__"]
        sys.modules["__main__"] = type(sys)("__main__")

    def __exit__(self, *_: object) -> None:
        sys.modules["__main__"] = self._main


def _function(module: str, file: str, name: str) -> Callable[..., Any]:
    """Find the function, also in a module that is not on the import path (a test, an example)."""
    known = sys.modules.get(module)
    if known is None and module != "__main__" and importlib.util.find_spec(module.partition(".")[0]) is not None:
        try:
            known = importlib.import_module(module)
        except ModuleNotFoundError:
            known = None
    if known is None or module == "__main__":
        spec = importlib.util.spec_from_file_location(module if module != "__main__" else "fmcore_world_main", file)
        if spec is None or spec.loader is None:
            raise WorldError(f"cannot load {file}")
        known = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = known
        spec.loader.exec_module(known)
    found = known
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[return-value]


def _rank_main(pipe: Connection, rank: int, ranks: int, store: str, group_timeout: float, work: bytes) -> None:
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    started = time.monotonic()
    try:
        where, args = pickle.loads(work)
        fn = _function(*where)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=group_timeout),
        )
        started = time.monotonic()
        outcome = Outcome(rank, fn(dist.group.WORLD, *args), seconds=time.monotonic() - started)
        said = pickle.dumps(outcome)
    except Exception as error:  # noqa: BLE001 (process isolation: the parent reports it)
        seconds = time.monotonic() - started
        said = pickle.dumps(Outcome(rank, None, type(error).__name__, str(error), traceback.format_exc(), seconds))
    pipe.send_bytes(said)
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    if dist.is_initialized():
        # A group in which a rank is missing would wait for it here; the process ends either way.
        os._exit(0)


def _rank_of(group: Any) -> int:
    return int(group.rank())
