"""Every Python block of the README and the docs runs, top to bottom, one process per file; links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def name(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=name)
def test_python_blocks_run(page, tmp_path):
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(BLOCK.findall(page.read_text())))
    env = {k: v for k, v in os.environ.items() if not k.startswith("FMCORE_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=240
    )
    assert done.returncode == 0, f"{page.name}:\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_table_of_variables_is_complete():
    from fmcore.config import VARIABLES

    text = (ROOT / "docs" / "backends.md").read_text()
    assert [v.name for v in VARIABLES if f"`{v.name}`" not in text] == []
