"""``fmcore plugin``: write a new vendor plugin, or judge one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fmcore.cli import _output


@click.group(name="plugin")
def command() -> None:
    """Write a new vendor plugin, or judge one."""


@command.command("new")
@click.argument("name")
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), default=None, help="New folder; by default ./fmcore-NAME."
)
@_output.json_option
def new(name: str, folder: Path | None, as_json: bool) -> None:
    """Write a working plugin with one kernel; replace the kernel by yours.

    Exit code 0: written; 2: the name does not fit, or the folder holds something.
    """
    from fmcore.cli import _plugin_new

    place = folder or Path(f"fmcore-{name}")
    written = _plugin_new.write(name, place)
    if as_json:
        _output.print_json({"name": name, "files": [str(path) for path in written]})
        return
    for path in written:
        click.echo(f"wrote {path}")
    click.echo(f"next: `fmcore plugin check {place}`, then `pip install {place}` and `fmcore doctor`")


@command.command("check")
@click.argument("place", metavar="PATH_OR_NAME")
@_output.json_option
def check(place: str, as_json: bool) -> None:
    """Judge a plugin in a folder, or an installed one: metadata, import, hooks, probes, implementations.

    Exit code 0: nothing failed; 1: a check failed; 2: there is no such plugin.
    """
    from fmcore.cli import _plugin_check

    lines = _plugin_check.check(_plugin_check.find(place))
    failed = sum(line.verdict == "failed" for line in lines)
    if as_json:
        _output.print_json({"plugin": place, "passed": not failed, "checks": [line.to_json() for line in lines]})
    else:
        out = _output.console()
        for line in lines:
            out.print(_output.coloured(line.verdict, width=7), end=" ")
            out.print(f"{line.check}: {line.text}", markup=False, soft_wrap=True)
        out.print(f"{len(lines)} checks, {failed} failed")
    sys.exit(_output.EXIT_FAILED if failed else _output.EXIT_OK)
