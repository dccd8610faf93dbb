"""What the subcommands share: exit codes, JSON, tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_NOTHING = range(4)
# A pipe has no width: wide enough that reasons are read on one line.
PIPE_WIDTH = 160
COLOURS = {
    "available": "green", "selected": "green", "ok": "green", "for": "green", "eligible": "cyan", "possible": "cyan",
    "hint": "yellow", "warning": "yellow", "unsupported": "yellow", "not_preferred": "dim", "unknown": "dim",
    "unavailable": "dim", "disabled": "dim", "blocked": "dim", "against": "dim", "broken": "bold red",
    "failed": "bold red",
}  # fmt: skip

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


def console() -> Console:
    """Return a rich console on stdout."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(width=wide, highlight=False, soft_wrap=False)


def print_json(data: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(data, indent=2, sort_keys=False, default=str))


def coloured(word: str, width: int = 0) -> str:
    """Return a state or verdict in its colour, as rich markup, padded to a width."""
    colour = COLOURS.get(word)
    return f"[{colour}]{word:<{width}}[/]" if colour else f"{word:<{width}}"


def table(target: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; cells are plain text except those that ``coloured`` made."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for name in columns:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(*(coloured(str(cell)) if str(cell) in COLOURS else escape(str(cell)) for cell in row))
    target.print(drawn)


def lines(target: Console, title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Print a heading and ``name  value`` lines."""
    from rich.markup import escape

    found = list(pairs)
    width = max((len(name) for name, _ in found), default=0)
    target.print(f"[bold]{escape(title)}[/]")
    for name, value in found:
        target.print(f"  {escape(name):<{width}}  {escape(value)}", soft_wrap=True)
