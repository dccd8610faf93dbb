"""Compile every kernel for every target without a GPU and judge what the results need.

Usage: python backends/triton/tools/compile_all.py [--quick] [--dtypes bf16] [--targets sm_90,gfx942] [--jobs 2]
--quick compiles the default configuration of every kernel x dtype once per target, at head dimension 64; without it
every head dimension, switch and mask mode. Exit status 1 if anything does not compile or breaks a limit.
Before 3.4, Triton needs ROCm's linker for AMD targets: where there is none, code is assembled and not linked, which
changes nothing that is judged here.
"""

# ruff: noqa: INP001, T201 (programs beside the package: they print, and run themselves again)

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "backends" / "triton")]

from fmcore_triton import aot  # noqa: E402

DIMS = (32, 64, 80, 96, 128, 192, 256)


def specs(target: str, dtypes: tuple[str, ...], *, quick: bool) -> list[aot.Spec]:
    """Everything to compile for a target."""
    dims = (64,) if quick else DIMS
    return [*aot.attention_specs(target, dims=dims, dtypes=dtypes, every=not quick), *aot.fused_specs(dtypes=dtypes)]


def assemble_only(folder: str) -> None:
    """Give an old Triton a linker that passes the object on, where it would find none."""
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    beside = Path(triton.__file__).parent / "backends" / "amd" / "llvm" / "bin" / "ld.lld"
    places = (beside, Path("/opt/rocm/llvm/bin/ld.lld"), Path("/usr/bin/ld.lld"))
    if version >= (3, 4) or "TRITON_HIP_LLD_PATH" in os.environ or any(place.is_file() for place in places):
        return
    script = Path(folder) / "ld.lld"
    # Called as `--version`, for the cache's key, and as `-flavor gnu -shared IN -o OUT`.
    script.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo no linker; else cp "$4" "$6"; fi\n')
    script.chmod(0o755)
    os.environ["TRITON_HIP_LLD_PATH"] = str(script)
    os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "cache")  # what is not linked must not reach another process


def run(item: tuple[str, int, tuple[str, ...], bool]) -> dict[str, Any]:
    """Compile one; a kernel object does not travel between processes, so the item is named by number."""
    target, number, dtypes, quick = item
    spec = specs(target, dtypes, quick=quick)[number]
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


def compiled(work: list[Any], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compile everything in processes of their own, saying what goes wrong as it comes."""
    rows = []
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for row in pool.imap(run, work):
            rows.append(row)
            if row["problem"] or args.verbose:
                told = row if args.verbose else row["problem"]
                print(f"{row['target']} {row['spec']}: {told}", flush=True)
    return rows


def main() -> int:
    """Compile, print one line per problem and a summary per target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--targets", type=lambda t: t.split(","), default=list(aot.TARGETS))
    parser.add_argument("--dtypes", type=lambda t: tuple(t.split(",")), default=tuple(aot.DTYPES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    work = [
        (target, i, args.dtypes, args.quick)
        for target in args.targets
        for i in range(len(specs(target, args.dtypes, quick=args.quick)))
    ]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        assemble_only(folder)
        rows = compiled(work, args)
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
