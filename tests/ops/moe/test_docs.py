"""The blocks of docs/moe.md run, in order, in one namespace; so do the examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest


def test_blocks_run() -> None:
    text = (Path(__file__).parents[3] / "docs" / "moe.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/moe.md", "exec"), namespace)


@pytest.mark.parametrize(
    ("module", "least"),
    [
        ("fmcore.moe", 3),
        ("fmcore.moe.buffer", 2),
        ("fmcore.moe.experts", 3),
        ("fmcore.ops.moe.checks", 1),
        ("fmcore.reference.moe", 1),
        ("fmcore.compat.deep_ep", 2),
    ],
)
def test_docstrings_run(module: str, least: int) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.failed == 0
    assert found.attempted >= least
