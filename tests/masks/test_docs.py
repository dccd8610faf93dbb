"""The page on masks runs from top to bottom."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
from pathlib import Path

import pytest

import fmcore.masks

PAGE = Path(__file__).parents[2] / "docs" / "masks.md"
MODULES = ["fmcore.masks", *(f"fmcore.masks.{m.name}" for m in pkgutil.iter_modules(fmcore.masks.__path__))]


def test_the_page_runs():
    pytest.importorskip("matplotlib")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "page"})
    text = printed.getvalue()
    assert "must be int32, got torch.int64" in text
    assert re.search(r"column \d+ .*hides 3 separate intervals", text)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
