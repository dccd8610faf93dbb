"""The document and the docstrings say what happens: their code runs, and the matrix is the table's."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
import torch

import fmcore as fm
from fmcore import math as fm_math
from fmcore.ops.math import OPS, matrix, shapes

DOCUMENT = Path(__file__).parents[3] / "docs" / "math.md"


def test_the_document_runs(capsys):
    text = DOCUMENT.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 5
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), scope)
    printed = capsys.readouterr().out
    assert "int64, float32" in printed
    assert "a product of bools" in printed
    assert text.endswith(matrix())


@pytest.mark.parametrize("name", OPS)
def test_every_docstring_has_an_example_that_runs(name):
    function = getattr(fm_math, name)
    finder = doctest.DocTestFinder(recurse=False)
    (found,) = finder.find(function, name, globs={"torch": torch, "fm": fm})
    assert found.examples
    assert doctest.DocTestRunner().run(found).failed == 0


def test_helpers_docstrings():
    assert doctest.testmod(shapes).failed == 0
