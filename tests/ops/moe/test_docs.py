"""The blocks of docs/moe.md run, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path


def test_blocks_run() -> None:
    text = (Path(__file__).parents[3] / "docs" / "moe.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/moe.md", "exec"), namespace)
