"""Runs groups of cases in child processes; a crash, a hang or a device fault is a verdict and the run goes on."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from fmcore_conformance.model import Cell, cell_of
from fmcore_conformance.verdicts import Verdict
from fmcore_conformance.worker import FAULT_STATUS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from fmcore_conformance.model import Case

START_TIMEOUT = 180.0


@dataclass(frozen=True)
class Setup:
    """How children are made.

    Attributes:
        backend: Backend under test, or None for automatic selection.
        device: torch device of the inputs.
        seed: Seed of every input.
        load: Modules whose ``load()`` registers further backends in the child.
        jobs: Children at a time. An accelerator has one, because children would share its memory.
        time_scale: Factor on every case's time-out.
    """

    backend: str | None = None
    device: str = "cpu"
    seed: int = 0
    load: tuple[str, ...] = ()
    jobs: int = 1
    time_scale: float = 1.0

    def arguments(self) -> str:
        """The child's argument."""
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        return json.dumps(
            {
                "backend": self.backend,
                "device": self.device,
                "seed": self.seed,
                "load": list(self.load),
                "threads": threads,
            }
        )


@dataclass
class Child:
    """One worker process and the queue of its events."""

    process: subprocess.Popen[str]
    log: IO[str]
    events: queue.Queue[dict[str, Any] | None] = field(default_factory=queue.Queue)
    reader: threading.Thread | None = None

    @classmethod
    def start(cls, setup: Setup, log_path: Path) -> Child:
        """Start a worker in its own session, its standard error going to a file."""
        log = log_path.open("w+", encoding="utf-8", errors="replace")
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "fmcore_conformance.worker", setup.arguments()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        child = cls(process, log)
        child.reader = threading.Thread(target=child._read, daemon=True)
        child.reader.start()
        return child

    def _read(self) -> None:
        if self.process.stdout is None:
            raise RuntimeError("the worker was started without a pipe")
        for line in self.process.stdout:
            try:
                self.events.put(json.loads(line))
            except json.JSONDecodeError:  # noqa: PERF203 (a crash cuts off one line)
                continue  # cut off by a crash; the exit status tells
        self.events.put(None)

    def ask(self, ids: Sequence[str]) -> bool:
        """Send a group. False if the child is gone already."""
        if self.process.stdin is None:
            raise RuntimeError("the worker was started without a pipe")
        try:
            self.process.stdin.write(json.dumps(list(ids)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def event(self, timeout: float) -> dict[str, Any] | None:
        """Next event, or None when the child has ended.

        Raises:
            queue.Empty: If nothing came in time.
        """
        return self.events.get(timeout=timeout)

    def kill(self) -> None:
        """End the child with everything that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Let an idle child end by itself, or make it."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
        if self.reader is not None:
            self.reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()

    def last_words(self) -> str:
        """The interesting end of the child's standard error."""
        self.log.flush()
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().splitlines() if line.strip()]
        fatal = next((i for i, line in enumerate(lines) if "Fatal" in line or "Error" in line), len(lines) - 3)
        return " | ".join(lines[max(fatal, 0) : max(fatal, 0) + 6])[:500]


class Runner:
    """Feeds groups to children and hands every cell to ``on_cell`` as soon as it is known.

    Args:
        setup: How children are made.
        workdir: Folder for the children's logs.
        on_cell: Called from several threads, one call at a time.
        on_start: Called with the id of a case that begins.
    """

    def __init__(
        self,
        setup: Setup,
        workdir: Path,
        on_cell: Callable[[Cell], None],
        on_start: Callable[[str], None] | None = None,
    ) -> None:
        self._setup = setup
        self._workdir = workdir
        self._emit = on_cell
        self._announce = on_start or (lambda _: None)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._serial = 0
        self._failures: list[BaseException] = []

    def run(self, cases: Iterable[Case]) -> None:
        """Run all cases, group by group; returns when each has a cell.

        Raises:
            KeyboardInterrupt: After ending the children; cells that are known have been handed over.
        """
        pending: queue.Queue[list[Case]] = queue.Queue()
        for group in groups(cases):
            pending.put(group)
        threads = [threading.Thread(target=self._serve, args=(pending,), daemon=True) for _ in range(self._setup.jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except KeyboardInterrupt:
            self._stop.set()
            for thread in threads:
                thread.join(15)
            raise
        if self._failures:
            raise self._failures[0]

    def _serve(self, pending: queue.Queue[list[Case]]) -> None:
        child: Child | None = None
        try:
            while not self._stop.is_set():
                try:
                    left = pending.get_nowait()
                except queue.Empty:
                    return
                while left and not self._stop.is_set():
                    child = child or self._spawn()
                    left, alive = self._group(child, left)
                    if not alive:
                        child.close()
                        child = None
        except BaseException as error:  # noqa: BLE001 (a thread's failure is raised again by run)
            self._failures.append(error)
            self._stop.set()
        finally:
            if child is not None:
                if self._stop.is_set():
                    child.kill()
                child.close()

    def _spawn(self) -> Child:
        with self._lock:
            self._serial += 1
            serial = self._serial
        child = Child.start(self._setup, self._workdir / f"worker-{serial}.log")
        try:
            event = child.event(START_TIMEOUT)
        except queue.Empty:
            event = None
        if event is None or event.get("event") != "ready":
            child.kill()
            words = child.last_words()
            child.close()
            raise RuntimeError(f"a worker could not start: {words}")
        return child

    def _group(self, child: Child, cases: list[Case]) -> tuple[list[Case], bool]:
        """Run what a live child can; returns what is left and whether the child is still usable."""
        waiting = {case.id: case for case in cases}
        if not child.ask([case.id for case in cases]):
            return cases, False
        running: Case | None = None
        began = time.monotonic()
        while True:
            limit = (running.timeout if running else 60.0) * self._setup.time_scale
            try:
                event = child.event(max(0.1, min(1.0, began + limit - time.monotonic())))
            except queue.Empty:
                if self._stop.is_set():
                    return [], True
                if time.monotonic() - began < limit:
                    continue
                child.kill()
                if running is not None:
                    self._give(
                        cell_of(running, Verdict.TIMEOUT, reason=f"no answer within {limit:g} s", ms=limit * 1e3)
                    )
                    waiting.pop(running.id, None)
                return list(waiting.values()), False
            if event is None:
                # A child that dies before it names a case is charged to the next one: the run must get on.
                if running is None and len(waiting) == len(cases):
                    running = cases[0]
                if running is not None:
                    self._give(cell_of(running, Verdict.CRASH, reason=self._epitaph(child)))
                    waiting.pop(running.id, None)
                return list(waiting.values()), False
            if event["event"] == "start":
                running, began = waiting[event["id"]], time.monotonic()
                self._announce(running.id)
            elif event["event"] == "cell":
                cell = Cell.from_json(event["cell"])
                waiting.pop(cell.id, None)
                running, began = None, time.monotonic()
                self._give(cell)
            elif event["event"] == "done":
                return list(waiting.values()), True

    def _give(self, cell: Cell) -> None:
        with self._lock:
            self._emit(cell)

    @staticmethod
    def _epitaph(child: Child) -> str:
        status = child.process.wait()
        if status == FAULT_STATUS:
            return "the device's context was lost"
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
            return f"the process died of {name}: {child.last_words()}"
        return f"the process ended with status {status}: {child.last_words()}"


def groups(cases: Iterable[Case]) -> list[list[Case]]:
    """Cases by group, the groups with the most allowed time first so that two jobs end together."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.group, []).append(case)
    return sorted(found.values(), key=lambda group: -sum(case.timeout for case in group))
