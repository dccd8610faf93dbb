"""Cost of a dispatched call on the host: microseconds, and ratios to a dictionary look-up plus call.

Run ``python benchmarks/dispatch.py``. Every rival runs in the same process; figures are the minimum and the median of
repeats, on one thread. The implementation under test returns preallocated tensors, so that only dispatch is timed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fmcore as fm
from fmcore.dispatch import BackendMeta, hookimpl
from fmcore.dispatch.caps import Caps
from fmcore.dispatch.registry import REGISTRY, Impl
from fmcore.dispatch.table import STATE

RESULTS = Path(__file__).parent / "results"


class Null:
    """A plugin whose attention returns preallocated tensors; ``extra`` more implementations enlarge the registry."""

    def __init__(self, name: str, results: tuple[torch.Tensor, torch.Tensor], priority: int = 0) -> None:
        self.fmcore_metadata = (BackendMeta(name, "any", "native"),)
        self.results = results
        self.priority = priority

    @hookimpl
    def fmcore_register_impls(self, registrar: Any) -> None:
        out, lse = self.results

        def forward(*_: Any, **__: Any) -> Any:
            return out, lse

        def backward(dout: Any, dlse: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
            return q, k, v, None

        registrar.impl("flashmask_attention", name="null", priority=self.priority, caps=Caps(), backward=backward)(
            forward
        )


def clock(call: Callable[[], Any], repeats: int = 9) -> dict[str, float]:
    """Microseconds per call."""
    timer = timeit.Timer(call)
    number, _ = timer.autorange()
    times = [1e6 * t / number for t in timer.repeat(repeats, number)]
    return {"min_us": min(times), "median_us": statistics.median(times)}


def rivals(q: torch.Tensor, result: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """What else one could pay for a call with six arguments."""

    def plain(*_: Any) -> torch.Tensor:
        return result

    lookup = {(torch.float32, 64): plain}

    def by_dict() -> torch.Tensor:
        return lookup[torch.float32, 64](q, q, q, None, 0.1, False)

    @torch.library.custom_op("fmcore_bench::attention", mutates_args=())
    def op(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor | None, s: float, c: bool
    ) -> torch.Tensor:
        return torch.empty_like(q)

    library = torch.library.Library("fmcore_bench_lib", "DEF")
    library.define("attention(Tensor q, Tensor k, Tensor v, Tensor? m, float s, bool c) -> Tensor")
    library.impl("attention", plain, "CPU")
    rivals.keep = library  # type: ignore[attr-defined]
    defined = torch.ops.fmcore_bench_lib.attention.default
    return {
        "direct call": lambda: plain(q, q, q, None, 0.1, False),
        "dict look-up + call": by_dict,
        "Library.define + impl": lambda: defined(q, q, q, None, 0.1, False),
        "torch.library.custom_op": lambda: op(q, q, q, None, 0.1, False),
    }


def crowd(ops: int) -> None:
    """Register ``ops`` further ops with three implementations each, and settle a decision for every one."""
    impls = [
        Impl(f"crowd{ops}.op{index}", "null", f"impl{rank}", len, None, "none", rank, 0, Caps(grad=False))
        for index in range(ops)
        for rank in range(3)
    ]
    REGISTRY.add_impls(impls, [])
    for impl in impls:
        STATE.entries["crowd", impl.op, impl.name] = impl


def subprocess_ms(code: str, repeats: int = 5, env: dict[str, str] | None = None) -> float:
    """Median over fresh interpreters of a time that the code prints."""
    found = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
            ).stdout.split()[-1]
        )
        for _ in range(repeats)
    ]
    return statistics.median(found)


IMPORT = "import time; t = time.perf_counter(); import fmcore; print((time.perf_counter() - t) * 1e3)"


def many_distributions(count: int) -> float:
    """Milliseconds of ``import fmcore`` beside ``count`` installed distributions that are no plugins."""
    with tempfile.TemporaryDirectory() as folder:
        for index in range(count):
            info = Path(folder) / f"pad_{index}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pad-{index}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text("[console_scripts]\npad = pad:main\n")
        return subprocess_ms(IMPORT, env={**os.environ, "PYTHONPATH": folder})


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "dispatch.json")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, no subprocesses")
    options = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 5 if options.quick else 15
    q = torch.randn(1, 16, 4, 64)
    out, lse = torch.empty_like(q), torch.empty(1, 4, 16)
    mask = fm.masks.causal_document([10, 6])
    fm.register_backend(Null("null", (out, lse)))
    rows: dict[str, dict[str, float]] = {name: clock(call, repeats) for name, call in rivals(q, out).items()}
    rows["public call, named backend"] = clock(
        lambda: fm.flashmask_attention(q, q, q, mask=mask, backend="null"), repeats
    )
    with fm.use("null"):
        rows["public call, use()"] = clock(lambda: fm.flashmask_attention(q, q, q, mask=mask), repeats)
    fm.set_policy("null")
    rows["public call, cache hit, no grad"] = clock(lambda: fm.flashmask_attention(q, q, q, mask=mask), repeats)
    bound = fm.bind("flashmask_attention", backend="null")
    rows["bound handle"] = clock(lambda: bound(q, q, q, mask=mask), repeats)
    qg = q.clone().requires_grad_()
    rows["public call, grad"] = clock(lambda: fm.flashmask_attention(qg, q, q, mask=mask), repeats)

    def cold() -> None:
        STATE.renew()
        fm.flashmask_attention(q, q, q, mask=mask)

    rows["cold resolve"] = clock(cold, repeats)
    for plugins in (4, 16):
        for index in range(plugins - 1 if plugins == 4 else plugins - 4):
            fm.register_backend(Null(f"pad{plugins}_{index}", (out, lse), priority=-1))
        rows[f"public call, {plugins} more plugins"] = clock(
            lambda: fm.flashmask_attention(q, q, q, mask=mask), repeats
        )
        rows[f"cold resolve, {plugins} more plugins"] = clock(cold, repeats)
    for ops in (10, 200):
        crowd(ops)
        rows[f"public call, {ops} more ops"] = clock(lambda: fm.flashmask_attention(q, q, q, mask=mask), repeats)
        rows[f"cold resolve, {ops} more ops"] = clock(cold, repeats)
    compiled = torch.compile(lambda x: fm.flashmask_attention(x, x, x, mask=mask), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        compiled(q)
        rows["compiled call (aot_eager)"] = clock(lambda: compiled(q), repeats)
    milliseconds = {}
    if not options.quick:
        milliseconds = {
            "import fmcore": subprocess_ms(IMPORT),
            "import fmcore, 500 distributions": many_distributions(500),
        }
    unit = rows["dict look-up + call"]["min_us"]
    print(f"{'':34}{'min us':>10}{'median us':>12}{'x dict':>9}")
    for name, row in rows.items():
        print(f"{name:34}{row['min_us']:10.2f}{row['median_us']:12.2f}{row['min_us'] / unit:9.1f}")
    for name, value in milliseconds.items():
        print(f"{name:34}{value:10.1f} ms")
    report = {
        "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "python": platform.python_version(), "torch": torch.__version__,
        "fmcore": importlib.metadata.version("fmcore-kernels"), "rows": rows, "ms": milliseconds,
    }  # fmt: skip
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
