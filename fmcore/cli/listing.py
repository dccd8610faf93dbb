"""``fmcore list``: which backend implements which op, and within which limits."""

from __future__ import annotations

import fnmatch
import sys
from typing import Any

import click

from fmcore.cli import _output
from fmcore.dispatch.plugins import MANAGER
from fmcore.dispatch.registry import REGISTRY, Impl


@click.command(name="list")
@click.option("--op", "pattern", default="*", show_default=True, help="Ops whose name matches, such as 'math.*'.")
@click.option("--backend", default="", help="One backend only.")
@click.option("--caps", is_flag=True, help="One row per implementation, with its limits.")
@_output.json_option
def command(pattern: str, backend: str, caps: bool, as_json: bool) -> None:
    """Which backend implements which op, and within which limits.

    Exit code 0: something matches; 2: there is no such backend; 3: nothing matches.
    """
    from fmcore.ops import specs

    MANAGER.load_all()
    snapshot = REGISTRY.snapshot
    if backend and backend not in snapshot.backends:
        raise click.UsageError(f"there is no backend {backend!r}; there are {', '.join(sorted(snapshot.backends))}")
    names = [name for name in sorted(specs()) if fnmatch.fnmatchcase(name, pattern)]
    found = {op: [i for i in snapshot.impls.get(op, ()) if not backend or i.backend == backend] for op in names}
    if as_json:
        _output.print_json({op: [_json(impl) for impl in impls] for op, impls in found.items()})
    elif caps:
        _show_caps(found)
    else:
        _show_matrix(found)
    sys.exit(_output.EXIT_OK if any(found.values()) else _output.EXIT_NOTHING)


def _json(impl: Impl) -> dict[str, Any]:
    return {
        "id": impl.id,
        "backend": impl.backend,
        "name": impl.name,
        "priority": impl.priority,
        "autograd": impl.autograd,
        "caps": impl.caps.to_json(),
    }


def _show_matrix(found: dict[str, list[Impl]]) -> None:
    backends = sorted({impl.backend for impls in found.values() for impl in impls})
    rows = [
        (op, *(", ".join(i.name for i in impls if i.backend == name) or "-" for name in backends))
        for op, impls in found.items()
    ]
    out = _output.console()
    _output.table(out, f"{len(rows)} ops", ("op", *backends), rows)
    silent = [b.name for b in REGISTRY.snapshot.backends.values() if b.name not in backends]
    if silent:
        out.print(f"Without implementations here: {', '.join(silent)} (`fmcore doctor` says why).", soft_wrap=True)


def _show_caps(found: dict[str, list[Impl]]) -> None:
    rows = [
        (op, impl.id, impl.priority, impl.autograd, limits(impl.caps.to_json()))
        for op, impls in found.items()
        for impl in impls
    ]
    _output.table(
        _output.console(), f"{len(rows)} implementations", ("op", "impl", "priority", "autograd", "limits"), rows
    )


def limits(caps: dict[str, Any]) -> str:
    """Render capabilities in words; what is unconstrained is left out."""
    parts = []
    if caps["dtypes"] is not None:
        parts += [f"{'' if role == '*' else f'{role}: '}{' '.join(names)}" for role, names in caps["dtypes"].items()]
    for name in ("device_types", "vendors"):
        if caps[name] is not None:
            parts.append("on " + " or ".join(caps[name]))
    parts += [str(caps[name]) for name in ("arch",) if caps[name]]
    if caps["world_size"]:
        parts.append(f"ranks {caps['world_size']}")
    parts += [f"no {name}" for name in ("grad", "deterministic", "capture", "compiles") if not caps[name]]
    parts += [f"{name} {text}" for name, text in caps["where"].items()]
    if caps["predicate_reads"]:
        parts.append(f"a rule over {', '.join(caps['predicate_reads'])}")
    return "; ".join(parts) or "none"
