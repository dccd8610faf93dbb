"""``fmcore explain``: who would serve a call, and why not the others. Nothing is computed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fmcore.cli import _output

if TYPE_CHECKING:
    from fmcore.dispatch.decision import Decision


def _pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    found = {}
    for value in values:
        name, sign, text = value.partition("=")
        if not sign or not name:
            raise click.UsageError(f"{option} {value!r} is not of the form NAME=VALUE")
        found[name.strip()] = text.strip()
    return found


def _shapes(values: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    try:
        return {
            role: tuple(int(part) for part in text.replace(",", "x").split("x"))
            for role, text in _pairs(values, "--shape").items()
        }
    except ValueError as error:
        raise click.UsageError(f"--shape takes ROLE=1x4096x32x128; {error}") from error


@click.command(name="explain")
@click.argument("op")
@click.option(
    "--shape", "shapes", multiple=True, metavar="ROLE=AxBxC", help="Shape of a tensor, such as q=1x4096x32x128."
)
@click.option("--dtype", default="", help="Dtype of the tensors, or ROLE=DTYPE,ROLE=DTYPE.")
@click.option("--device", default="cpu", show_default=True, help="Any torch device; it need not exist here.")
@click.option("--grad", is_flag=True, help="The tensors require gradients.")
@click.option("--mask", default="", help="For attention: a builder of fm.masks, such as causal_document:[3000,1096].")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Another argument, such as softcap=30.0.")
@click.option("--backend", default="", help="As if this backend were named in the call: strict.")
@_output.json_option
def command(
    op: str, shapes: tuple[str, ...], dtype: str, device: str, grad: bool, mask: str, settings: tuple[str, ...],
    backend: str, as_json: bool,
) -> None:  # fmt: skip
    """Who would serve a call, and why not the others. Nothing is computed.

    Exit code 0: somebody serves the call; 2: the call is wrong; 3: nobody can serve it.
    """
    import fmcore
    from fmcore.cli import _examples

    by_role = _pairs(tuple(dtype.split(",")), "--dtype") if "=" in dtype else {}
    wish = _examples.Wish(
        _shapes(shapes), "" if by_role else dtype, by_role, device, grad, _pairs(settings, "--set"), mask
    )
    tensors, options = _examples.build(op, wish)
    if backend:
        options["backend"] = backend
    decision = fmcore.explain(op, *tensors, **options)
    if as_json:
        _output.print_json(decision.to_json())
    else:
        _show(decision)
    sys.exit(_output.EXIT_OK if decision.selected else _output.EXIT_NOTHING)


def _show(decision: Decision) -> None:
    out = _output.console()
    request = decision.request
    dtypes = ", ".join(f"{role} {name}" for role, name in request.dtypes.items())
    where = f"{request.device_type} ({request.vendor}{f', {request.arch}' if request.arch else ''})"
    facts = ", ".join(f"{name} {value}" for name, value in request.features.items())
    chosen = decision.selected
    _output.lines(
        out,
        decision.request.op,
        [
            ("served by", chosen.id if chosen else "nobody"),
            ("decided by", decision.source),
            ("device", where),
            ("dtypes", dtypes),
            ("gradient", "asked" if request.needs_grad else "not asked"),
            ("features", facts or "none"),
            *([("note", decision.fallback)] if decision.fallback else []),
        ],
    )
    rows: list[tuple[str, str, str]] = []
    for candidate in decision.candidates:
        texts = [str(reason) for reason in candidate.reasons] or [""]
        rows.append((candidate.id, candidate.verdict, texts[0]))
        rows += [("", "", text) for text in texts[1:]]
    _output.table(out, "Candidates, in order of preference", ("implementation", "verdict", "why"), rows)
