"""The ``fmcore`` command: one file per subcommand, loaded when it is called."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from fmcore import __version__
from fmcore.cli._output import EXIT_FAILED, EXIT_NOTHING, EXIT_USAGE
from fmcore.errors import FmcoreError, InvalidInputError, UnsupportedError

# Name, module and help of each subcommand: ``fmcore --help`` imports none of them.
COMMANDS = {
    "doctor": ("doctor", "What is on this machine, which backends work, and why the others do not."),
    "list": ("listing", "Which backend implements which op, and within which limits."),
    "explain": ("explain", "Who would serve a call, and why not the others."),
    "mask": ("mask", "Draw a mask and count its tiles."),
    "conform": ("conform", "Run the conformance suite, render its reports, compare two of them."),
    "bench": ("bench", "Measure what a dispatched call costs on this machine."),
    "plugin": ("plugin", "Write a new vendor plugin, or judge one."),
}


class _Lazy(click.Group):
    """Imports a subcommand's module when it is looked up, and turns fmcore's errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"fmcore.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            click.echo(f"this needs torch, which does not import: {error}; `fmcore doctor` works without it", err=True)
            sys.exit(EXIT_NOTHING)
        except FmcoreError as error:
            click.echo(f"{type(error).__name__}: {error}", err=True)
            codes = {InvalidInputError: EXIT_USAGE, UnsupportedError: EXIT_NOTHING}
            sys.exit(next((code for kind, code in codes.items() if isinstance(error, kind)), EXIT_FAILED))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fmcore")
def main() -> None:
    """Kernels for language models on several vendors' accelerators.

    Exit codes: 0 all well, 1 a check failed, 2 wrong usage, 3 nothing here can serve what was asked.
    """
