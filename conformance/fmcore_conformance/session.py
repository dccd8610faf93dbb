"""One run from selection to statement: results go to a JSONL file as they come, so an interrupt loses nothing."""

from __future__ import annotations

import importlib
import json
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fmcore_conformance import SUITE_VERSION, environment, statement, waivers
from fmcore_conformance.collect import collect
from fmcore_conformance.model import Cell, cell_of
from fmcore_conformance.runner import Runner, Setup
from fmcore_conformance.selection import Selection, split
from fmcore_conformance.target import Target
from fmcore_conformance.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcore_conformance.model import Case

RESULTS = "results.jsonl"
STATEMENT = "statement.json"


class Progress(Protocol):
    """What shows a run while it goes on."""

    def begin(self, total: int, done: int) -> None:
        """Called once, with the number of cases and how many a resumed run has already."""

    def case(self, case_id: str) -> None:
        """Called when a case begins."""

    def cell(self, cell: Cell) -> None:
        """Called with every cell."""

    def end(self) -> None:
        """Called once."""


@dataclass(frozen=True)
class Plan:
    """Everything that defines a run.

    Attributes:
        setup: Backend, device, seed and processes.
        selection: Which cases.
        out: Folder of the results, the statement and the children's logs.
        resume: Keep the results that ``out`` has already.
        waiver_file: Accepted failures, or None.
    """

    setup: Setup
    selection: Selection
    out: Path
    resume: bool = False
    waiver_file: Path | None = None
    emulated: str = ""

    def header(self) -> dict[str, Any]:
        """First line of the results file: a run is only resumed under the same one."""
        return {
            "suite": SUITE_VERSION,
            "backend": self.setup.backend,
            "device": self.setup.device,
            "seed": self.setup.seed,
            "load": list(self.setup.load),
            "level": self.selection.level,
            "ops": list(self.selection.ops),
            "dtypes": list(self.selection.dtypes),
            "cases": list(self.selection.cases),
            "fraction": str(self.selection.fraction),
        }


@dataclass
class Log:
    """The results file: one header line, then one line per cell."""

    path: Path
    header: dict[str, Any]
    cells: dict[str, Cell] = field(default_factory=dict)

    @classmethod
    def open(cls, plan: Plan) -> Log:
        """Begin a new file, or read what an interrupted run left.

        Raises:
            ValueError: If the file to resume is of another run.
        """
        plan.out.mkdir(parents=True, exist_ok=True)
        log = cls(plan.out / RESULTS, plan.header())
        if plan.resume and log.path.exists():
            log._read()
            return log
        log.path.write_text(json.dumps(log.header) + "\n", encoding="utf-8")
        return log

    def _read(self) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines()
        found = json.loads(lines[0]) if lines else {}
        if found != self.header:
            changed = [key for key in self.header if found.get(key) != self.header[key]]
            raise ValueError(f"{self.path} is of another run (differs in {', '.join(changed)}); choose another --out")
        for line in lines[1:]:
            try:
                cell = Cell.from_json(json.loads(line))
            except (json.JSONDecodeError, KeyError):
                continue  # the line that an interrupt cut off
            self.cells[cell.id] = cell
        # Rewritten whole, so that a cut-off last line does not swallow the next result.
        self.path.write_text(
            "".join(json.dumps(row) + "\n" for row in [self.header, *(c.to_json() for c in self.cells.values())]),
            encoding="utf-8",
        )

    def add(self, cell: Cell) -> None:
        """Append one cell."""
        self.cells[cell.id] = cell
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(cell.to_json()) + "\n")


def run(plan: Plan, progress: Progress) -> dict[str, Any]:
    """Run the cases of a plan and write its statement.

    Args:
        plan: What to run.
        progress: What shows it.

    Returns:
        The statement. After an interrupt it is complete as to what ran, and says ``interrupted``.

    Raises:
        ValueError: If nothing is selected, or the results to resume are of another run.
        fmcore_conformance.waivers.WaiverError: If the waiver file is not acceptable.
    """
    started, begin = datetime.now(timezone.utc).isoformat(timespec="seconds"), time.monotonic()
    for module in plan.setup.load:
        importlib.import_module(module).load()
    accepted = waivers.load(plan.waiver_file) if plan.waiver_file else []
    target = Target(plan.setup.backend, plan.setup.device, plan.setup.seed, plan.setup.load)
    chosen, left_out = split(collect(target), plan.selection)
    log = Log.open(plan)
    todo = [case for case in chosen if case.id not in log.cells]
    progress.begin(len(chosen), len(chosen) - len(todo))

    def record(cell: Cell) -> None:
        log.add(cell)
        progress.cell(cell)

    interrupted = False
    try:
        Runner(plan.setup, plan.out, record, progress.case).run(todo)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        progress.end()
    made = _conclude(plan, chosen, left_out, log, accepted, started, time.monotonic() - begin, interrupted=interrupted)
    statement.write(made, plan.out / STATEMENT)
    return made


def _conclude(
    plan: Plan,
    chosen: Sequence[Case],
    left_out: Sequence[Case],
    log: Log,
    accepted: Sequence[waivers.Waiver],
    started: str,
    seconds: float,
    *,
    interrupted: bool,
) -> dict[str, Any]:
    backends = environment.backend_facts()
    cells = [
        log.cells.get(case.id) or cell_of(case, Verdict.NOT_RUN, reason="interrupted before its turn")
        for case in chosen
    ]
    cells += [
        cell_of(case, Verdict.NOT_RUN, reason=f"left out by --fraction {plan.selection.fraction}") for case in left_out
    ]
    backend = plan.setup.backend or "automatic"
    version = environment.version_of(plan.setup.backend, backends)
    cells, unused = waivers.apply(cells, accepted, backend=backend, version=version)
    facts = {
        "source": environment.source_state(),
        "distributions": environment.distributions(),
        "device": environment.device_facts(plan.setup.device),
        "backends": backends,
        "switches": environment.switches(),
    }
    return statement.build(
        cells,
        backend=plan.setup.backend,
        selection=plan.selection,
        facts=facts,
        emulated=plan.emulated or environment.emulation(plan.setup.backend, plan.setup.load),
        unused_waivers=[w.id for w in unused],
        started=started,
        seconds=seconds,
        interrupted=interrupted,
    )
