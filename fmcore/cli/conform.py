"""``fmcore conform``: run the conformance suite, render and compare its statements."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

#: Exit statuses: 0 no finding, 1 findings, 2 the command cannot be carried out as asked, 130 interrupted.
FINDINGS, INTERRUPTED = 1, 130


@click.group(name="conform")
def command() -> None:
    """Prove what a backend does, op by op and dtype by dtype.

    Exit status: 0 without findings, 1 with findings, 2 where the command cannot be carried out, 130 after an interrupt.
    """


@command.command()
@click.option(
    "--backend",
    default=None,
    help="Backend under test, called strictly. Default: the whole stack, automatic selection.",
)
@click.option("--device", default="cpu", show_default=True, help="torch device of the inputs.")
@click.option("--level", default="L3", show_default=True, help="Highest level whose cases are run: L0 to L4.")
@click.option("--ops", default="*", show_default=True, help="Globs over op names, such as 'moe.*,math.sum'.")
@click.option("--dtypes", default="", help="Dtypes, such as bool,bf16,complex64. Default: all.")
@click.option("--cases", default="*", show_default=True, help="Globs over case ids.")
@click.option(
    "--fraction",
    default="1",
    show_default=True,
    help="Share of the cases, such as 1/8; mandatory ones are kept. Grants no level.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of every input and of the fraction.")
@click.option(
    "--jobs", default=0, help="Child processes at a time. Default: one per core for CPU inputs, one for a device."
)
@click.option("--time-scale", default=1.0, show_default=True, help="Factor on every case's time-out.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("conform-out"),
    show_default=True,
    help="Folder for results, statement and logs.",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted run in --out.")
@click.option(
    "--waivers", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File of accepted failures."
)
@click.option("--load", multiple=True, help="Module with a load() that registers further backends, in every process.")
@click.option(
    "--emulated", default="", help="Say that this run goes through stand-ins, and which: it then grants no level."
)
@click.option("--html", "html_path", type=click.Path(path_type=Path), help="Also write the HTML report here.")
@click.option(
    "--markdown", "markdown_path", type=click.Path(path_type=Path), help="Also write the Markdown report here."
)
@click.option("--junit", "junit_path", type=click.Path(path_type=Path), help="Also write JUnit XML here.")
@click.option("--json", "as_json", is_flag=True, help="Print the statement instead of the matrix.")
def run(**options: Any) -> None:
    """Run the suite and print the op x dtype matrix."""
    from rich.console import Console

    from fmcore_conformance.progress import Quiet, progress_for
    from fmcore_conformance.render import text
    from fmcore_conformance.runner import Setup
    from fmcore_conformance.selection import Selection, parse_dtypes, parse_fraction, parse_globs, parse_level
    from fmcore_conformance.session import STATEMENT, Plan
    from fmcore_conformance.session import run as run_session
    from fmcore_conformance.statement import cells_of, failed

    console = Console()
    width = console.width if console.is_terminal else 150
    console = Console(width=width)
    device = options["device"]
    jobs = options["jobs"] or (os.cpu_count() or 1 if device == "cpu" else 1)
    try:
        selection = Selection(
            parse_level(options["level"]),
            parse_globs(options["ops"]),
            parse_dtypes(options["dtypes"]),
            parse_globs(options["cases"]),
            parse_fraction(options["fraction"]),
            options["seed"],
        )
        setup = Setup(options["backend"], device, options["seed"], options["load"], jobs, options["time_scale"])
        plan = Plan(setup, selection, options["out"], options["resume"], options["waivers"], options["emulated"])
        statement = run_session(plan, Quiet() if options["as_json"] else progress_for(console))
    except (ValueError, RuntimeError, ImportError) as error:
        raise click.UsageError(str(error)) from error
    if options["as_json"]:
        click.echo(json.dumps(statement, indent=1))
    else:
        text.show(statement, console)
        console.print(f"statement: {plan.out / STATEMENT}", highlight=False)
    for kind, path in (
        ("html", options["html_path"]),
        ("markdown", options["markdown_path"]),
        ("junit", options["junit_path"]),
    ):
        if path is not None:
            _render(statement, kind, path)
            if not options["as_json"]:
                console.print(f"{kind}: {path}", highlight=False)
    if statement["interrupted"]:
        sys.exit(INTERRUPTED)
    sys.exit(FINDINGS if failed(cells_of(statement)) else 0)


@command.command()
@click.argument("statement", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--html", "html_path", type=click.Path(path_type=Path), help="Write the HTML report here.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the Markdown report here.")
@click.option("--junit", "junit_path", type=click.Path(path_type=Path), help="Write JUnit XML here.")
@click.option("--json", "as_json", is_flag=True, help="Print the statement.")
def report(
    statement: Path, html_path: Path | None, markdown_path: Path | None, junit_path: Path | None, as_json: bool
) -> None:
    """Check a STATEMENT's checksum and render it; without an option, print its matrix."""
    from rich.console import Console

    from fmcore_conformance.render import text

    data = _read(statement)
    targets = [("html", html_path), ("markdown", markdown_path), ("junit", junit_path)]
    if as_json:
        click.echo(json.dumps(data, indent=1))
    elif not any(path for _, path in targets):
        console = Console()
        text.show(data, console if console.is_terminal else Console(width=150))
    for kind, path in targets:
        if path is not None:
            _render(data, kind, path)
            click.echo(f"{kind}: {path}", err=as_json)


@command.command()
@click.argument("older", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("newer", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(older: Path, newer: Path, as_json: bool) -> None:
    """List what got worse or better from OLDER to NEWER; exit status 1 if anything got worse."""
    from fmcore_conformance import compare as comparing

    try:
        result = comparing.compare(_read(older), _read(newer))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(json.dumps(result.to_json(), indent=1) if as_json else comparing.as_text(result))
    sys.exit(FINDINGS if result.worse else 0)


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def kinds(as_json: bool) -> None:
    """List the fault kinds that the suite detects, and how many cases name each."""
    from fmcore_conformance.collect import collect
    from fmcore_conformance.kinds import KINDS
    from fmcore_conformance.target import Target

    counts = dict.fromkeys(KINDS, 0)
    for case in collect(Target()):
        for kind in case.kinds:
            counts[kind] += 1
    if as_json:
        rows = [{"kind": k, "families": list(v.families), "text": v.text, "cases": counts[k]} for k, v in KINDS.items()]
        click.echo(json.dumps(rows, indent=1))
        return
    for kind, about in KINDS.items():
        click.echo(f"{kind:<22} {','.join(about.families):<20} {counts[kind]:>5} cases  {about.text}")


@command.command(name="list")
@click.option("--level", default="L4", show_default=True, help="Highest level.")
@click.option("--ops", default="*", show_default=True, help="Globs over op names.")
@click.option("--dtypes", default="", help="Dtypes. Default: all.")
@click.option("--cases", default="*", show_default=True, help="Globs over case ids.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_cases(level: str, ops: str, dtypes: str, cases: str, as_json: bool) -> None:
    """List the cases with their levels and the fault kinds that they detect."""
    from fmcore_conformance.collect import collect
    from fmcore_conformance.selection import Selection, parse_dtypes, parse_globs, parse_level, split
    from fmcore_conformance.target import Target

    try:
        selection = Selection(parse_level(level), parse_globs(ops), parse_dtypes(dtypes), parse_globs(cases))
        chosen, _ = split(collect(Target()), selection)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        rows = [{"id": c.id, "op": c.op, "dtype": c.dtype, "level": c.level, "kinds": list(c.kinds)} for c in chosen]
        click.echo(json.dumps(rows, indent=1))
        return
    for case in chosen:
        click.echo(f"{case.level} {case.id}" + (f"  [{', '.join(case.kinds)}]" if case.kinds else ""))
    click.echo(f"{len(chosen)} cases")


def _read(path: Path) -> dict[str, Any]:
    from fmcore_conformance.statement import read

    try:
        return read(path)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _render(statement: dict[str, Any], kind: str, path: Path) -> None:
    from importlib import import_module

    try:
        page = import_module(f"fmcore_conformance.render.{kind}").render(statement)
    except ModuleNotFoundError as error:
        raise click.UsageError(str(error)) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
