"""The table of settled decisions: a hit is one dictionary look-up, a miss resolves under a lock and stores."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Hashable
from typing import Any

from fmcore import config
from fmcore.dispatch import policy
from fmcore.dispatch.decision import Decision
from fmcore.dispatch.plugins import MANAGER
from fmcore.dispatch.registry import REGISTRY, Impl
from fmcore.dispatch.request import Request
from fmcore.dispatch.resolve import resolve
from fmcore.errors import FallbackWarning, InvalidInputError, UnsupportedError

log = logging.getLogger("fmcore.dispatch")


class _State:
    """Holds the current table; a change of the registry puts an empty one in its place.

    ``recent`` is for ops that recognise a call that repeats one by its shapes: it is renewed with the table and holds
    nothing that the table does not follow from.
    """

    __slots__ = ("entries", "recent")

    def __init__(self) -> None:
        self.entries: dict[Hashable, Impl] = {}
        self.recent: dict[Hashable, Any] = {}

    def renew(self) -> None:
        """Forget every decision. A resolution in flight still writes to the table that it started with."""
        self.entries = {}
        self.recent = {}


STATE = _State()
REGISTRY.listeners.append(STATE.renew)
os.register_at_fork(after_in_child=STATE.renew)


def decide(request: Callable[[], Request], named: str | None = None, policy_id: int | None = None) -> Decision:
    """Load plugins if that has not happened, and resolve; nothing is stored, and a refusal is no exception."""
    MANAGER.load_all()
    snapshot = REGISTRY.snapshot
    if named is not None and named.split("/")[0] not in snapshot.backends:
        raise InvalidInputError(f"backend={named!r} is unknown; known are {sorted(snapshot.backends)}")
    number = policy.current_id() if policy_id is None else policy_id
    return resolve(request(), policy.by_id(number), snapshot, named)


def miss(key: Hashable, request: Callable[[], Request], named: str | None, policy_id: int) -> Impl:
    """Resolve a request whose key is not in the table, and store the outcome.

    Raises:
        UnsupportedError: Nobody permitted can serve it; the message lists every candidate with all its reasons.
        InvalidInputError: ``named`` is no backend.
        VendorConflictError: The device is claimed by two vendors.
    """
    with REGISTRY.lock:
        MANAGER.load_all()
        entries = STATE.entries
        decision = decide(request, named, policy_id)
        impl = decision.impl
        if impl is None:
            asked = f"backend={named!r} was asked for" if named else "a backend was looked for"
            raise UnsupportedError(decision.refusal(asked), decision)
        entries[key] = impl
    _tell(decision)
    return impl


def _tell(decision: Decision) -> None:
    if log.isEnabledFor(logging.INFO):
        chosen = decision.selected
        log.info("%s -> %s (decided by %s)", decision.request.op, chosen.id if chosen else None, decision.source)
    trace = config.current().trace
    if trace:
        with open(trace, "a", encoding="utf-8") as file:  # noqa: PTH123 (append mode)
            file.write(json.dumps(decision.to_json()) + "\n")
    MANAGER.on_decision(decision)
    if decision.fallback:
        warnings.warn(f"{decision.request.op}: {decision.fallback}", FallbackWarning, stacklevel=_USER_FRAME)


_USER_FRAME = 5


def settled() -> dict[Any, Impl]:
    """Return a copy of the table, for ``fmcore explain`` and tests."""
    return dict(STATE.entries)
