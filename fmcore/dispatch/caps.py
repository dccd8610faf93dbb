"""What an implementation supports, said once: the predicate, the reasons, the docs matrix, the marks and the audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol, Union

from fmcore.dispatch.arch import Arch, ArchRange
from fmcore.dispatch.reasons import Reason
from fmcore.dispatch.request import COMMON_FIELDS, Request

__all__ = ["Arch", "ArchRange", "Caps", "Constraint", "OneOf", "Range", "Reason", "Request"]

PredicateResult = Union[None, Reason, "tuple[Reason, ...]"]


class Constraint(Protocol):
    """A test of one feature's value that can describe itself."""

    def admits(self, value: Any) -> bool:
        """Whether the value is supported."""
        ...

    def describe(self) -> str:
        """What is supported, for a reason's ``want`` and the docs."""
        ...


@dataclass(frozen=True, slots=True)
class Range:
    """Integers from ``low`` to ``high`` inclusive, all multiples of ``multiple_of``.

    >>> Range(8, 256, multiple_of=8).admits(80)
    True
    """

    low: int
    high: int
    multiple_of: int = 1

    def admits(self, value: Any) -> bool:
        """Whether the value lies in the range."""
        return bool(self.low <= value <= self.high and value % self.multiple_of == 0)

    def describe(self) -> str:
        """Return the range in words."""
        step = f", a multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f"{self.low}..{self.high}{step}"


@dataclass(frozen=True, slots=True, init=False)
class OneOf:
    """One of the listed values.

    >>> OneOf(False).admits(True)
    False
    """

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def admits(self, value: Any) -> bool:
        """Whether the value is listed."""
        return value in self.values

    def describe(self) -> str:
        """Return the list in words."""
        return " or ".join(str(value) for value in self.values)


def _freeze(dtypes: Iterable[str] | Mapping[str, Iterable[str]] | None) -> Mapping[str, frozenset[str]] | None:
    if dtypes is None:
        return None
    if isinstance(dtypes, Mapping):
        return {role: frozenset(names) for role, names in dtypes.items()}
    return {"*": frozenset(dtypes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The capabilities of one implementation. A field left out is unconstrained.

    Args:
        dtypes: Dtype names for every tensor argument, or by argument name with ``"*"`` for the rest.
        device_types: torch device types.
        vendors: Vendor tags; compared with the device table, never with a device type.
        arch: Range of one vendor's generations.
        grad: Whether gradients can be asked for.
        deterministic: Whether ``deterministic=True`` can be honoured.
        capture: Whether it may run while a device graph is captured.
        compiles: Whether it may be traced by ``torch.compile``.
        world_size: Ranks it can serve.
        where: A constraint by feature name of the op.
        predicate: An escape hatch: a pure function of the request that returns None, a Reason or several.
        reads: The fields that ``predicate`` reads; it may read no other.

    >>> caps = Caps(dtypes={"float32"}, where={"head_dim": Range(8, 128)})
    """

    dtypes: Any = None
    device_types: AbstractSet[str] | None = None
    vendors: AbstractSet[str] | None = None
    arch: ArchRange | None = None
    grad: bool = True
    deterministic: bool = True
    capture: bool = True
    compiles: bool = True
    world_size: Constraint | None = None
    where: Mapping[str, Constraint] = field(default_factory=dict)
    predicate: Callable[[Request], PredicateResult] | None = None
    reads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtypes", _freeze(self.dtypes))
        for name in ("device_types", "vendors"):
            value = getattr(self, name)
            if value is not None:
                if isinstance(value, str):
                    raise TypeError(f"Caps({name}={value!r}): give a set of names, for instance {{{value!r}}}")
                object.__setattr__(self, name, frozenset(value))
        if self.predicate is None and self.reads:
            raise ValueError(f"Caps(reads={self.reads}) names fields of a predicate, but there is no predicate")

    def fields_read(self) -> frozenset[str]:
        """Names of every request field that can change the verdict: these must be in the op's key."""
        names = set(self.where) | set(self.reads)
        for name, value in (
            ("dtypes", self.dtypes),
            ("device_type", self.device_types),
            ("vendor", self.vendors),
            ("arch", self.arch),
            ("world_size", self.world_size),
        ):
            if value is not None:
                names.add(name)
        for name, allowed in (
            ("needs_grad", self.grad),
            ("deterministic", self.deterministic),
            ("capturing", self.capture),
            ("compiling", self.compiles),
        ):
            if not allowed:
                names.add(name)
        return frozenset(names)

    def check_against(self, feature_names: Iterable[str]) -> None:
        """Raise ValueError if a field is named that the op does not have."""
        known = set(feature_names) | set(COMMON_FIELDS)
        unknown = sorted(self.fields_read() - known)
        if unknown:
            raise ValueError(f"Caps name unknown request fields {unknown}; the op has {sorted(known)}")

    def why_not(self, request: Request) -> tuple[Reason, ...]:
        """Return every reason against serving ``request``; an empty tuple means that it is supported."""
        return (
            *self._device_reasons(request),
            *self._dtype_reasons(request),
            *self._mode_reasons(request),
            *self._own_reasons(request),
        )

    def _device_reasons(self, request: Request) -> list[Reason]:
        reasons = []
        if self.device_types is not None and request.device_type not in self.device_types:
            want = " or ".join(sorted(self.device_types))
            reasons.append(
                Reason(
                    "device",
                    f"runs on {want} tensors, got {request.device_type}",
                    request.device_type,
                    want,
                    f"move the tensors to {want}",
                )
            )
        if self.vendors is not None and request.vendor not in self.vendors:
            want = " or ".join(sorted(self.vendors))
            reasons.append(
                Reason("vendor", f"serves devices of {want}, this one is of {request.vendor}", request.vendor, want)
            )
        if self.arch is not None and request.arch not in self.arch:
            reasons.append(
                Reason(
                    "arch",
                    f"needs {self.arch}, this device is {request.arch or 'of no known generation'}",
                    str(request.arch),
                    str(self.arch),
                )
            )
        if self.world_size is not None and not self.world_size.admits(request.world_size):
            want = self.world_size.describe()
            reasons.append(
                Reason(
                    "world", f"serves a world of {want} ranks, got {request.world_size}", str(request.world_size), want
                )
            )
        return reasons

    def _dtype_reasons(self, request: Request) -> list[Reason]:
        if self.dtypes is None:
            return []
        reasons = []
        for role, dtype in request.dtypes.items():
            allowed = self.dtypes.get(role, self.dtypes.get("*"))
            if allowed is not None and dtype not in allowed:
                want = ", ".join(sorted(allowed))
                reasons.append(
                    Reason(
                        "dtype",
                        f"{role} of dtype {dtype} is not supported; it takes {want}",
                        dtype,
                        want,
                        f"cast {role} to one of: {want}",
                    )
                )
        return reasons

    def _mode_reasons(self, request: Request) -> list[Reason]:
        checks = (
            (
                "grad",
                request.needs_grad,
                self.grad,
                "has no backward, and a gradient is needed",
                "call under torch.no_grad()",
            ),
            (
                "determinism",
                request.deterministic,
                self.deterministic,
                "cannot promise bitwise reproducible results",
                "pass deterministic=False",
            ),
            (
                "capture",
                request.capturing,
                self.capture,
                "cannot run while a device graph is captured",
                "call it outside the capture",
            ),
            (
                "compile",
                request.compiling,
                self.compiles,
                "cannot be traced by torch.compile",
                "call it outside the compiled region",
            ),
        )
        return [
            Reason(code, text, "asked", "not asked", fix)
            for code, asked, able, text, fix in checks
            if asked and not able
        ]

    def _own_reasons(self, request: Request) -> list[Reason]:
        reasons = []
        for name, constraint in self.where.items():
            value = request[name]
            if not constraint.admits(value):
                want = constraint.describe()
                reasons.append(Reason(name, f"{name} = {value} is not supported; it takes {want}", str(value), want))
        if self.predicate is not None:
            found = self.predicate(request)
            if found is not None:
                reasons += [found] if isinstance(found, Reason) else list(found)
        return reasons

    def to_json(self) -> dict[str, Any]:
        """Return plain data: the docs matrix and ``fmcore list --json`` are made from it."""
        return {
            "dtypes": None if self.dtypes is None else {role: sorted(names) for role, names in self.dtypes.items()},
            "device_types": None if self.device_types is None else sorted(self.device_types),
            "vendors": None if self.vendors is None else sorted(self.vendors),
            "arch": None if self.arch is None else str(self.arch),
            "grad": self.grad,
            "deterministic": self.deterministic,
            "capture": self.capture,
            "compiles": self.compiles,
            "world_size": None if self.world_size is None else self.world_size.describe(),
            "where": {name: constraint.describe() for name, constraint in self.where.items()},
            "predicate_reads": sorted(self.reads),
        }
