"""``bench`` measures real dispatched calls and leaves the registry as it was."""

from __future__ import annotations

import json

from click.testing import CliRunner

from fmcore.cli import bench, main
from fmcore.dispatch.registry import REGISTRY


def test_rows_and_verdict():
    result = CliRunner().invoke(main, ["bench", "--repeats", "2", "--json"])
    data = json.loads(result.stdout)
    assert result.exit_code == (0 if data["worst_ratio"] <= data["limit_ratio"] else 1)
    rows = {row["what"]: row for row in data["rows"]}
    assert rows["dict look-up and call"]["ratio"] == 1
    assert rows["fm.flashmask_attention"]["min_us"] > rows["dict look-up and call"]["min_us"]
    assert data["worst_ratio"] == max(row["ratio"] for row in data["rows"] if row["judged"])
    assert bench.NAME not in REGISTRY.snapshot.backends


def test_the_verdict_follows_the_limit(monkeypatch):
    monkeypatch.setattr(bench, "LIMIT_RATIO", 0.001)
    result = CliRunner().invoke(main, ["bench", "--repeats", "1"])
    assert result.exit_code == 1
    assert "the limit is 0" in result.stdout
