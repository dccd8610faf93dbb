"""What ``import fmcore`` must not do; each check is a fresh interpreter."""

# ruff: noqa: E501 (tables and snippets read better on one line)
from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import fmcore


def run(code: str, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FMCORE_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env={**clean, **env}, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_torch_and_no_plugin_is_imported():
    code = (
        "import sys, json, fmcore; heavy = ('torch', 'numpy', 'triton', 'cupy', 'paddle', 'click', 'rich', 'matplotlib');"
        "print(json.dumps([m for m in sys.modules if m.split('.')[0] in heavy or m.startswith('fmcore_')]))"
    )
    loaded = [m for m in json.loads(run(code)) if not m.startswith("fmcore_kernels")]
    assert loaded == []


def test_auto_selection_happens_at_import_by_shallow_signs():
    code = "import sys, fmcore; from fmcore.dispatch.api import select_shallow; c = select_shallow(); print(c.name, c.deep, 'torch' in sys.modules)"
    name, deep, torch_loaded = run(code).split()
    assert (deep, torch_loaded) == ("False", "False")
    assert name


def test_nothing_is_printed_and_no_device_context_exists():
    code = (
        "import fmcore, torch, os;"
        "print(torch.cuda.is_initialized(), len([f for f in os.listdir('/proc/self/fd') if 'nvidia' in os.path.realpath('/proc/self/fd/' + f)]))"
    )
    assert run(code) == "False 0"


def test_children_forked_after_import_can_choose_their_device():
    code = (
        "import torch, fmcore as fm, os\nfm.backends()\npid = os.fork()\n"
        "if pid == 0:\n"
        "    x = torch.ones(1, 4, 1, 8); fm.flashmask_attention(x, x, x); os._exit(0 if not torch.cuda.is_initialized() else 3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert run(code) == "0"


def test_ops_are_registered_at_import_when_torch_is_there_already():
    assert run("import torch, fmcore; print(hasattr(torch.ops.fmcore, 'flashmask_attention'))") == "True"
    assert (
        run(
            "import fmcore, torch, fmcore.ops; fmcore.ops.define_all(); print(hasattr(torch.ops.fmcore, 'flashmask_attention'))"
        )
        == "True"
    )


def test_without_torch_the_names_say_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\nimport fmcore\n"
        "try:\n    fmcore.flashmask_attention\nexcept ImportError as e:\n    print(e)"
    )
    assert "needs torch, which is not installed" in run(code)


def test_autoload_off_discovers_no_plugin():
    code = "import fmcore; from fmcore.dispatch.registry import REGISTRY; print(sorted(REGISTRY.snapshot.backends))"
    assert run(code, FMCORE_PLUGIN_AUTOLOAD="0") == "['reference']"


def test_the_allow_list_blocks_the_others():
    code = "import fmcore; from fmcore.dispatch.registry import REGISTRY; print({n: b.state for n, b in REGISTRY.snapshot.backends.items()})"
    states = eval(run(code, FMCORE_PLUGINS="torch"))
    assert states["torch"] == "possible"
    assert states["triton"] == "blocked"


def test_an_unknown_variable_warns_with_the_nearest_name():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FMCORE_")}
    done = subprocess.run(
        [sys.executable, "-c", "import fmcore"], capture_output=True, text=True, env={**clean, "FMCORE_BAKEND": "torch"}
    )
    assert "FMCORE_BAKEND is not known" in done.stderr
    assert "did you mean FMCORE_BACKEND?" in done.stderr


def test_a_malformed_variable_is_an_error_that_names_it():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FMCORE_")}
    done = subprocess.run(
        [sys.executable, "-c", "import fmcore"], capture_output=True, text=True, env={**clean, "FMCORE_STRICT": "maybe"}
    )
    assert "FMCORE_STRICT='maybe' is not a yes or no" in done.stderr


def test_public_names_are_exactly_all():
    assert sorted(dir(fmcore)) == sorted(fmcore.__all__)
    for name in fmcore.__all__:
        assert getattr(fmcore, name) is not None
    with pytest.raises(AttributeError, match="it has __version__"):
        _ = fmcore.nothing


def test_a_trace_file_gets_one_line_per_decision(tmp_path):
    trace = tmp_path / "trace.jsonl"
    run(
        "import torch, fmcore as fm\nx = torch.ones(1, 4, 1, 8)\nfor _ in range(3): fm.flashmask_attention(x, x, x)",
        FMCORE_TRACE=str(trace),
    )
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert len(lines) == 1
    assert lines[0]["request"]["op"] == "flashmask_attention"
