"""Showing a run: a progress bar with an estimate on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fmcore_conformance.verdicts import BAD, Verdict

if TYPE_CHECKING:
    from fmcore_conformance.model import Cell

PLAIN_EVERY = 10.0


class Bar:
    """A rich progress bar; findings are printed above it as they come."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("[bold]conform"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[case]}", style="dim"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, case="")

    def begin(self, total: int, done: int) -> None:
        self._bar.update(self._task, total=total, completed=done)
        self._bar.start()

    def case(self, case_id: str) -> None:
        self._bar.update(self._task, case=case_id[-40:])

    def cell(self, cell: Cell) -> None:
        self._bar.advance(self._task)
        if cell.verdict in BAD:
            self._console.print(f"[red]{cell.verdict}[/red] {escape(cell.id)}: {escape(cell.reason)}", highlight=False)

    def end(self) -> None:
        self._bar.stop()


class Lines:
    """One line for each finding, and one every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._done = self._bad = 0
        self._since = self._last = time.monotonic()

    def begin(self, total: int, done: int) -> None:
        self._total, self._done = total, done
        self._since = self._last = time.monotonic()
        kept = f", {done} of them kept from before" if done else ""
        self._say(f"conform: {total} cases{kept}")

    def case(self, case_id: str) -> None:
        """Plain output names a case only when there is something to say about it."""

    def cell(self, cell: Cell) -> None:
        self._done += 1
        if cell.verdict in BAD:
            self._bad += 1
            self._say(f"{cell.verdict}: {cell.id}: {cell.reason}")
        now = time.monotonic()
        if now - self._last >= PLAIN_EVERY or self._done == self._total:
            self._last = now
            self._say(f"conform: {self._done}/{self._total} cases, {self._bad} bad, {now - self._since:.0f} s")

    def end(self) -> None:
        """The summary follows from the statement."""

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class Quiet:
    """No output: for tests and for ``--json``."""

    def __init__(self) -> None:
        self.bad: list[Cell] = []

    def begin(self, total: int, done: int) -> None:
        """Nothing to show."""

    def case(self, case_id: str) -> None:
        """Nothing to show."""

    def cell(self, cell: Cell) -> None:
        if cell.verdict in BAD or cell.verdict is Verdict.XPASS:
            self.bad.append(cell)

    def end(self) -> None:
        """Nothing to show."""


def progress_for(console: Console) -> Bar | Lines:
    """A bar on a terminal, lines elsewhere."""
    return Bar(console) if console.is_terminal else Lines(console)
