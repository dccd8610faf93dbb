"""Compile every kernel for every target without a GPU and judge what the results need.

Usage: python backends/triton/tools/compile_all.py [--quick] [--targets sm_90,gfx942] [--jobs 2] [--json FILE]
--quick compiles the default configuration of every kernel x dtype once per target, at head dimension 64; without it
every head dimension, switch and mask mode. Exit status 1 if anything does not compile or breaks a limit.
"""

# ruff: noqa: INP001, T201 (programs beside the package: they print, and run themselves again)

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "backends" / "triton")]

from fmcore_triton import aot  # noqa: E402

DIMS = (32, 64, 80, 96, 128, 192, 256)


def specs(target: str, *, quick: bool) -> list[aot.Spec]:
    """Everything to compile for a target."""
    if quick:
        return [*aot.attention_specs(target, dims=(64,)), *aot.fused_specs()]
    return [*aot.attention_specs(target, dims=DIMS, every=True), *aot.fused_specs()]


def run(item: tuple[str, int, bool]) -> dict[str, Any]:
    """Compile one; a kernel object does not travel between processes, so the item is named by number."""
    target, number, quick = item
    spec = specs(target, quick=quick)[number]
    start = time.monotonic()
    try:
        report = aot.compile_spec(spec, target)
        found = {
            "shared": report.shared,
            "spill": report.spill,
            "registers": report.registers,
            "problem": report.problem(target),
        }
    except Exception as error:  # noqa: BLE001 (a compiler's failure of any kind is this row's result)
        found = {"problem": f"{type(error).__name__}: {str(error)[:300]}"}
    return {"target": target, "spec": str(spec), **found, "seconds": round(time.monotonic() - start, 2)}


def main() -> int:
    """Compile, print one line per problem and a summary per target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--targets", type=lambda t: t.split(","), default=list(aot.TARGETS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    work = [(target, i, args.quick) for target in args.targets for i in range(len(specs(target, quick=args.quick)))]
    start = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        rows = []
        for row in pool.imap(run, work):
            rows.append(row)
            if row["problem"] or args.verbose:
                print(
                    f"{row['target']} {row['spec']}: {row}"
                    if args.verbose
                    else f"{row['target']} {row['spec']}: {row['problem']}",
                    flush=True,
                )
    import triton

    for target in args.targets:
        mine = [r for r in rows if r["target"] == target]
        good = [r for r in mine if not r["problem"]]
        spilled = max((r.get("spill", 0) for r in mine), default=0)
        most = max((r.get("shared", 0) for r in mine), default=0)
        print(f"{target}: {len(good)} of {len(mine)} good; most shared memory {most}, spilled {spilled} bytes a thread")
    print(f"Triton {triton.__version__}, {time.monotonic() - start:.0f} s")
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))
    return 1 if any(r["problem"] for r in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
