"""One case against one target, in this process: whatever happens becomes a cell with a verdict and a reason."""

from __future__ import annotations

import re
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from fmcore.errors import InvalidInputError, UnsupportedError
from fmcore_conformance.model import Cell, Measurement, Mismatch, cell_of
from fmcore_conformance.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcore_conformance.model import Case
    from fmcore_conformance.target import Target

#: What frameworks say where a kernel is missing for a dtype or a shape.
CANNOT = re.compile(
    r"not implemented for|not supported|unsupported|no kernel|does not support|not currently (implemented|supported)"
    r"|expected scalar type|could not find a kernel|not compiled|cannot be performed",
    re.IGNORECASE,
)
#: After one of these the device's context is lost: the process must end.
DEVICE_FAULT = re.compile(
    r"(CUDA|HIP|XPU|CUBLAS|device)[ _-]?(error|side assert|side assertion)|illegal memory access|misaligned address"
    r"|unspecified launch failure",
    re.IGNORECASE,
)
ABSENT = frozenset({"unavailable", "broken", "disabled"})


class DeviceFaultError(Exception):
    """The device's context is lost; ``cell`` records the case that lost it."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell.reason)
        self.cell = cell


def execute(case: Case, target: Target) -> Cell:
    """Run a case and say what came of it.

    Args:
        case: The question.
        target: The backend under test.

    Returns:
        The cell, with the measurement that has the least headroom.

    Raises:
        DeviceFaultError: If the process can be trusted no longer.
    """
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cell = _attempt(case, target)
    cell.ms = round((time.perf_counter() - start) * 1e3, 3)
    if cell.verdict is Verdict.CRASH:
        raise DeviceFaultError(cell)
    return cell


def _attempt(case: Case, target: Target) -> Cell:
    try:
        return _passed(case, case.run(target))
    except Mismatch as finding:
        return _failed(case, finding)
    except UnsupportedError as refusal:
        if refusal.decision is None and not case.may_refuse:
            return cell_of(case, Verdict.ERROR, reason=f"refused although the contract covers it: {_line(refusal)}")
        return _refused(case, target, refusal)
    except InvalidInputError as refusal:
        if case.may_refuse:
            return cell_of(case, Verdict.UNSUPPORTED_DECLARED, reason=_line(refusal), codes=["contract"])
        return cell_of(case, Verdict.ERROR, reason=_trace(refusal))
    except Exception as error:  # noqa: BLE001 (isolation: any exception of a kernel is its verdict, not the suite's)
        return cell_of(case, _unexpected(error), reason=_trace(error))


def _unexpected(error: Exception) -> Verdict:
    text = str(error)
    if DEVICE_FAULT.search(text):
        return Verdict.CRASH
    if isinstance(error, NotImplementedError) or CANNOT.search(text):
        return Verdict.UNSUPPORTED_UNDECLARED
    return Verdict.ERROR


def _refused(case: Case, target: Target, refusal: UnsupportedError) -> Cell:
    codes, absent = reason_codes(refusal, target.backend)
    cell = cell_of(case, Verdict.UNSUPPORTED_DECLARED, reason=reasons_text(refusal, target.backend), codes=codes)
    if absent:
        cell.verdict = Verdict.ERROR
        return cell
    if not codes:
        cell.verdict = Verdict.UNSUPPORTED_UNDECLARED
        cell.reason = f"refused without a reason: {cell.reason}"
        return cell
    if case.probe_unclaimed and "contract" not in codes:
        bare = target.without_claims()
        if bare is not None:
            try:
                _passed(case, case.run(bare))
            except Exception as error:  # noqa: BLE001 (an unclaimed kernel may do anything; it stays a declared refusal)
                cell.reason += f" (forced all the same: {type(error).__name__}: {_line(error)[:160]})"
            else:
                cell.verdict = Verdict.PASSES_UNCLAIMED
    return cell


def reason_codes(refusal: UnsupportedError, backend: str | None) -> tuple[list[str], bool]:
    """Codes of every reason against the backend under test, and whether it is not usable at all."""
    decision = refusal.decision
    if decision is None:
        return ["contract"], False
    rows = [c for c in decision.candidates if backend is None or c.backend == backend]
    if not rows:
        return ["absent"], False
    usable = [c for c in rows if c.verdict not in ABSENT]
    codes = sorted({reason.code for c in usable for reason in c.reasons})
    return codes, not usable and any(c.verdict in ("unavailable", "broken") for c in rows) and backend is not None


def reasons_text(refusal: UnsupportedError, backend: str | None) -> str:
    """The reasons against the backend under test, in one line."""
    decision = refusal.decision
    if decision is None:
        return _line(refusal)
    rows = [c for c in decision.candidates if backend is None or c.backend == backend]
    parts = [f"{c.id}: {'; '.join(r.text for r in c.reasons) or c.verdict}" for c in rows]
    return " | ".join(parts) or f"{backend} does not implement {decision.request.op}"


def _passed(case: Case, measurements: Sequence[Measurement]) -> Cell:
    tightest = tightest_of(measurements)
    return cell_of(case, Verdict.PASS, **_numbers(tightest))


def tightest_of(measurements: Sequence[Measurement]) -> Measurement | None:
    """The measurement with the least headroom; an exact one only where there is no other."""
    inexact = [m for m in measurements if m.headroom is not None]
    if inexact:
        return min(inexact, key=lambda m: m.headroom or 0.0)
    return measurements[0] if measurements else None


def _failed(case: Case, finding: Mismatch) -> Cell:
    return cell_of(case, Verdict.FAIL, reason=str(finding), **_numbers(finding.measurement))


def _numbers(m: Measurement | None) -> dict[str, Any]:
    if m is None:
        return {}
    return {"measured": m.measured, "bound": m.bound, "unit": m.unit, "what": m.what, "headroom": m.headroom}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:600]


def _trace(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    path = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__}: {_line(error)} [{path}]"
