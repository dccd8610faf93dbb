"""Who is preferred: ``use``, then ``set_policy``, then FMCORE_BACKEND. A policy is a value with an interned number."""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from fmcore import config
from fmcore.dispatch.plugins import MANAGER
from fmcore.dispatch.registry import REGISTRY
from fmcore.errors import InvalidInputError

Rank = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A preference order for the ops that match one of the patterns."""

    backends: tuple[str, ...]
    ops: tuple[str, ...]
    strict: bool
    source: str

    def matches(self, op: str) -> bool:
        """Whether the rule speaks of this op."""
        return any(fnmatch.fnmatchcase(op, pattern) for pattern in self.ops)


@dataclass(frozen=True, slots=True)
class Policy:
    """What is in force: rules, strongest first; the first that matches an op decides for it."""

    rules: tuple[Rule, ...] = ()
    block: frozenset[str] = frozenset()
    allow_reference: bool = False
    rank: Rank | None = None

    def rule_for(self, op: str) -> Rule | None:
        """Return the strongest rule for an op, or None."""
        return next((rule for rule in self.rules if rule.matches(op)), None)


def parse_backend_variable(text: str, *, strict: bool) -> tuple[Rule, ...]:
    """Parse ``"first,second; moe.*=third"``: parts by ``;``, an op pattern before ``=``.

    Parts with a pattern come before the one without, whatever their order.
    """
    rules = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        pattern, _, names = part.rpartition("=")
        backends = tuple(filter(None, (name.strip() for name in names.split(","))))
        if not backends:
            raise InvalidInputError(f"FMCORE_BACKEND part {part!r} names no backend; write 'triton' or 'moe.*=torch'")
        rules.append(Rule(backends, (pattern.strip() or "*",), strict, "FMCORE_BACKEND"))
    return tuple(sorted(rules, key=lambda rule: rule.ops == ("*",)))


class _Frames:
    """A stack of ``use`` blocks and, per generation of the base policy, the number of the combined policy."""

    __slots__ = ("block", "generation", "number", "rules")

    def __init__(self, rules: tuple[Rule, ...], block: frozenset[str]) -> None:
        self.rules = rules
        self.block = block
        self.generation = -1
        self.number = -1


_frames: ContextVar[_Frames | None] = ContextVar("fmcore_policy", default=None)
_lock = threading.Lock()
_numbers: dict[Policy, int] = {}
_policies: list[Policy] = []
_env_rules: tuple[Rule, ...] = ()
_base = Policy()
_base_number = -1
_generation = 0


def _intern(policy: Policy) -> int:
    with _lock:
        number = _numbers.get(policy)
        if number is None:
            number = _numbers[policy] = len(_policies)
            _policies.append(policy)
        return number


def current_id() -> int:
    """Return the number of the policy in force in this context; equal policies have equal numbers."""
    frames = _frames.get()
    if frames is None:
        return _base_number
    if frames.generation != _generation:
        frames.number = _intern(replace(_base, rules=frames.rules + _base.rules, block=frames.block | _base.block))
        frames.generation = _generation
    return frames.number


def by_id(number: int) -> Policy:
    """Return the policy with this number."""
    return _policies[number]


def current() -> Policy:
    """Return the policy in force in this context."""
    return by_id(current_id())


def _set_base(policy: Policy) -> None:
    global _base, _base_number, _generation  # noqa: PLW0603 (the process-wide base policy)
    number = _intern(policy)
    with _lock:
        _base, _base_number = policy, number
        _generation += 1


def _on_config(settings: config.Config) -> None:
    global _env_rules  # noqa: PLW0603 (follows the environment)
    _env_rules = parse_backend_variable(settings.backend, strict=settings.strict)
    own = tuple(rule for rule in _base.rules if rule.source == "set_policy")
    _set_base(
        replace(
            _base, rules=own + _env_rules, block=frozenset(settings.block), allow_reference=settings.allow_reference
        )
    )


config.on_reload(_on_config)
_on_config(config.current())


def _check_names(names: Sequence[str], what: str) -> None:
    MANAGER.discover()
    known = set(REGISTRY.snapshot.backends)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInputError(f"{what} names unknown backends {unknown}; known are {sorted(known)}")


@contextmanager
def use(
    *backends: str, ops: Sequence[str] = ("*",), block: Sequence[str] = (), strict: bool | None = None
) -> Iterator[None]:
    """Prefer backends, in this order, for the calls made inside the block, in this thread or task.

    Args:
        *backends: Names in order of preference. None at all only applies ``block``.
        ops: Patterns of the op names that it applies to.
        block: Backends that are not used at all inside.
        strict: True raises where none of the named can serve a call; None follows FMCORE_STRICT.

    Raises:
        InvalidInputError: A name is unknown.

    Example:
        >>> import fmcore as fm
        >>> with fm.use("torch", ops=("math.*",)):
        ...     pass
    """
    _check_names((*backends, *block), "use()")
    if isinstance(ops, str):
        raise InvalidInputError(f"use(ops={ops!r}): give a sequence of patterns, for instance ops=({ops!r},)")
    outer = _frames.get()
    strictly = config.current().strict if strict is None else strict
    rules: tuple[Rule, ...] = (Rule(backends, tuple(ops), strictly, "use"),) if backends else ()
    if outer is not None:
        rules, blocked = rules + outer.rules, outer.block | frozenset(block)
    else:
        blocked = frozenset(block)
    token = _frames.set(_Frames(rules, blocked))
    try:
        yield
    finally:
        _frames.reset(token)


def set_policy(
    *backends: str,
    ops: Sequence[str] = ("*",),
    block: Sequence[str] = (),
    strict: bool | None = None,
    allow_reference: bool | None = None,
    rank: Rank | None = None,
) -> None:
    """Set the process-wide preference; it replaces what an earlier ``set_policy`` said. Without arguments it clears it.

    Args:
        *backends: Names in order of preference.
        ops: Patterns of the op names that it applies to.
        block: Backends that are not used at all.
        strict: True raises where none of the named can serve a call; None follows FMCORE_STRICT.
        allow_reference: Permit automatic selection to end at the float64 reference; None follows
            FMCORE_ALLOW_REFERENCE.
        rank: A pure function ``rank(request, impl) -> sortable`` that orders eligible implementations (smaller
            first) where no preference decides. It may depend on the request's fields and the impl only.

    Raises:
        InvalidInputError: A name is unknown.
    """
    _check_names((*backends, *block), "set_policy()")
    if isinstance(ops, str):
        raise InvalidInputError(f"set_policy(ops={ops!r}): give a sequence of patterns, for instance ops=({ops!r},)")
    settings = config.current()
    strictly = settings.strict if strict is None else strict
    own = (Rule(backends, tuple(ops), strictly, "set_policy"),) if backends else ()
    _set_base(
        Policy(
            own + _env_rules,
            frozenset(block) | frozenset(settings.block),
            settings.allow_reference if allow_reference is None else allow_reference,
            rank,
        )
    )
