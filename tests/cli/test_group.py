"""The group is lazy, and every exit code is the documented one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from fmcore.cli import COMMANDS, main


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def test_help_names_every_subcommand():
    result = run("--help")
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)
    assert "3 nothing here can" in result.output


@pytest.mark.parametrize("name", ["doctor", "list", "explain", "plugin"])
def test_each_subcommand_has_help_and_json(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    if name != "plugin":
        assert "--json" in result.output
        assert "Exit code 0" in result.output


@pytest.mark.parametrize("name", ["new", "check"])
def test_the_plugin_subcommands_too(name):
    result = run("plugin", name, "--help")
    assert "--json" in result.output
    assert "Exit code 0" in result.output


def test_version():
    import fmcore

    assert fmcore.__version__ in run("--version").output


def test_unknown_subcommand_is_wrong_usage():
    assert run("nothing").exit_code == 2


def test_help_imports_no_torch_and_no_subcommand():
    code = (
        "import sys\n"
        "from fmcore.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "import json\n"
        "print('@@' + json.dumps([m for m in sys.modules if m in ('torch', 'rich') or m.startswith('fmcore.cli.')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout.split("@@")[1]) == ["fmcore.cli._output"]
