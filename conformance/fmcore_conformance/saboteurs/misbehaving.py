"""Backends that crash, hang or leave by the back door: what process isolation is tested with. Loaded by name only."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from fmcore_conformance.saboteurs.dense import DTYPES, Dense
from fmcore_conformance.unclaimed import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcore.dispatch.registrar import Registrar

EMULATED = "backends that misbehave on purpose"


def crash() -> None:
    """Die of a signal, as a fault in native code does."""
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    """Never answer."""
    time.sleep(3600)


def leave() -> None:
    """End the process without a word."""
    os._exit(5)


def lose_device() -> None:
    """Say what a driver says when its context is lost."""
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Misbehaving(Dense):
    """Honest up to 64 keys; beyond that it does ``act``."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def forward(self, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
        if k.shape[1] > 64:
            self._act()
        return super().forward(q, k, v, mask, **options)


def _register(act: Callable[[], None], registrar: Registrar) -> None:
    from fmcore.dispatch.caps import Caps

    made = Misbehaving(act)
    registrar.impl("flashmask_attention", name="dense", caps=Caps(dtypes=DTYPES), backward=made.backward)(made.forward)


def load() -> None:
    """Register one backend for each way to go wrong."""
    for act in (crash, hang, leave, lose_device):
        register(f"misbehaves_{act.__name__}", partial(_register, act))
