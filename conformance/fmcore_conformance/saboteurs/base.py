"""What a saboteur is, and how all of them are registered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcore.dispatch.registrar import Registrar


@dataclass(frozen=True)
class Saboteur:
    """One planted fault.

    Attributes:
        name: Backend name.
        kind: The fault's kind; a case that names it must fail. None for an honest twin, which must pass everything.
        family: Op family.
        register: Registers the implementations.
        probes: Globs over the case ids that are enough to find it, for a quick kill table.
    """

    name: str
    kind: str | None
    family: str
    register: Callable[[Registrar], None]
    probes: tuple[str, ...] = ("*",)


def saboteurs() -> list[Saboteur]:
    """Every saboteur and every honest twin."""
    from fmcore_conformance.saboteurs import attention, math, moe

    return [*attention.SABOTEURS, *math.saboteurs(), *moe.saboteurs()]


def unload() -> None:
    """Take them out again, with what was registered from them to try unclaimed cells."""
    import fmcore
    from fmcore_conformance.unclaimed import SUFFIX

    known = {backend.name for backend in fmcore.backends()}
    for saboteur in saboteurs():
        for name in (saboteur.name, saboteur.name + SUFFIX):
            if name in known:
                fmcore.unregister_backend(name)


def load() -> None:
    """Register all of them in this process; asked for by ``--load fmcore_conformance.saboteurs``."""
    from fmcore_conformance.unclaimed import register

    for saboteur in saboteurs():
        register(saboteur.name, saboteur.register)
