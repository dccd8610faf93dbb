"""The suite's nouns: a case, what it measured, how it failed, and the cell that records it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fmcore_conformance.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fmcore_conformance.target import Target

LEVELS = ("L0", "L1", "L2", "L3", "L4")
FAMILIES = ("engine", "attention", "moe", "math")

#: Columns of the coverage matrix. Every op has a cell for each of them.
DTYPES = (
    "bool",
    "int8",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
)

ALIASES = {
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
    "c64": "complex64",
    "c128": "complex128",
    "fp8": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}


@dataclass(frozen=True)
class Measurement:
    """One compared quantity.

    Attributes:
        measured: The error found, in ``unit``.
        bound: What the policy allows, in ``unit``; 0 for an exact check.
        unit: ``"u"`` (unit round-offs of the tested dtype), ``"abs"``, ``"ulp"`` or ``"exact"``.
        what: The quantity, such as ``"out"`` or ``"dq"``.
    """

    measured: float
    bound: float
    unit: str
    what: str

    @property
    def headroom(self) -> float | None:
        """``bound / measured``; None where the check is exact."""
        if self.unit == "exact":
            return None
        return self.bound / max(self.measured, self.bound * 1e-6, 1e-300)


class Mismatch(Exception):  # noqa: N818 (it is a finding about a backend, not an error of this program)
    """A backend's answer is wrong.

    Args:
        message: Where, what was expected and what came: worst coordinates, the mask row, the expected count.
        measurement: The measurement outside its bound, where there is one.
    """

    def __init__(self, message: str, measurement: Measurement | None = None) -> None:
        super().__init__(message)
        self.measurement = measurement


@dataclass(frozen=True)
class Case:
    """One question put to a backend.

    Attributes:
        id: ``family/topic/name/dtype``; stable between versions, matched by globs in levels and waivers.
        op: Public op name, the matrix row.
        dtype: Tested dtype, the matrix column.
        level: The level that it belongs to, L0 to L4.
        run: The check. Returns measurements, raises ``Mismatch`` where the answer is wrong.
        kinds: Fault kinds that this case is written to detect (see ``kinds.py``).
        probe_unclaimed: Where the cell is not claimed, force the kernel and report whether it would work.
        may_refuse: The op's own contract excludes this input for every backend, and says so by an exception. Elsewhere
            such an exception is a finding.
        mandatory: Kept in every fraction of a run.
        world: Processes that it needs.
        timeout: Seconds allowed.
    """

    id: str
    op: str
    dtype: str
    level: str
    run: Callable[[Target], Sequence[Measurement]]
    kinds: tuple[str, ...] = ()
    probe_unclaimed: bool = False
    may_refuse: bool = False
    mandatory: bool = False
    world: int = 1
    timeout: float = 120.0

    @property
    def family(self) -> str:
        """First part of the id."""
        return self.id.split("/", 1)[0]

    @property
    def group(self) -> str:
        """Cases of one group share a child process: family, topic and number of processes."""
        return "/".join(self.id.split("/")[:2])


@dataclass
class Cell:
    """The record of one case in a statement."""

    id: str
    op: str
    dtype: str
    level: str
    verdict: Verdict
    measured: float | None = None
    bound: float | None = None
    unit: str = ""
    what: str = ""
    headroom: float | None = None
    ms: float | None = None
    reason: str = ""
    codes: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    served_by: str = ""

    @property
    def family(self) -> str:
        """First part of the id."""
        return self.id.split("/", 1)[0]

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, in field order."""
        return {**asdict(self), "verdict": str(self.verdict)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Cell:
        """The inverse of ``to_json``; unknown fields of later versions are dropped."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**{**known, "verdict": Verdict(data["verdict"])})


def cell_of(case: Case, verdict: Verdict, **more: Any) -> Cell:
    """A cell for ``case`` with its identity filled in."""
    return Cell(case.id, case.op, case.dtype, case.level, verdict, kinds=list(case.kinds), **more)
