"""Time launch configurations of the attention kernels on a GPU and print the best few of each.

Usage: python backends/triton/tools/gpu_tune.py [--budget 240] [--dims 128,64] [--kernels attn_fwd,...] [--modes 1,2]
       python backends/triton/tools/gpu_tune.py --budget 60 --only attn_fwd:128:2     (kernel:head dimension:mask mode)
Compilation runs first, in parallel processes that share Triton's cache; then every configuration is timed on a few
masks of each mode at 8K (B=1, H=32, bf16), host time hidden behind a GPU sleep. The last lines are rows
for `configs/*.json`. JSON goes to the environment's OUT, else build/.
"""

# ruff: noqa: INP001, T201, S603 (programs beside the package: they print, and run themselves again)

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), *(str(p) for p in sorted((ROOT / "backends").iterdir()) if p.is_dir())]

import torch  # noqa: E402

from fmcore import masks  # noqa: E402
from fmcore_triton import attention as impl  # noqa: E402
from fmcore_triton import tuner  # noqa: E402
from fmcore_triton.launch import Launch  # noqa: E402
from fmcore_triton.register import use_plan_builder  # noqa: E402

DOCUMENTS = [2481, 1388, 1978, 2345]
SLEEP_CYCLES = 1_500_000


def candidates(kernel: str, dim: int) -> Iterator[Launch]:
    """Yield the configurations to try, the likeliest first."""
    tiles = {
        "attn_fwd": ((128, 128), (128, 64), (64, 128), (64, 64), (128, 32)),
        "attn_bwd_kv": ((64, 128), (128, 128), (32, 128), (64, 64), (128, 64)),
        "attn_bwd_q": ((128, 64), (128, 128), (64, 128), (64, 64), (128, 32)),
    }[kernel]
    stages = (2, 3, 4) if kernel == "attn_fwd" or dim <= 64 else (2, 3)
    for (m, n), warps, stage in itertools.product(tiles, (8, 4), stages):
        if m * n >= 128 * 128 and warps == 4:
            continue
        yield Launch({"BLOCK_M": m, "BLOCK_N": n}, warps, stage)


class Setup:
    """One attention call whose kernels can be launched with any configuration."""

    def __init__(self, mask: masks.Mask, heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        g = torch.Generator(device=device).manual_seed(0)
        shape = (1, mask.s_q, heads, dim)
        self.q, self.k, self.v, self.dout = (
            torch.randn(shape, device=device, dtype=dtype, generator=g) for _ in range(4)
        )
        self.mask = mask.to(device)
        self.trials: dict[str, Callable[[Launch], Callable[[], None]]] = {}
        original = impl._Call.run  # noqa: SLF001 (the hook through which a search gets the launches)

        def keep(call: Any, kernel: str, trial: Callable[[Launch], Callable[[], None]]) -> None:
            self.trials[kernel] = trial
            original(call, kernel, trial)

        impl._Call.run = keep  # type: ignore[method-assign]  # noqa: SLF001
        try:
            keywords: dict[str, Any] = {"softmax_scale": dim**-0.5, "softcap": 0.0, "sink": None, "deterministic": True}
            out, lse = impl.forward(self.q, self.k, self.v, self.mask, **keywords)
            impl.backward(self.dout, None, self.q, self.k, self.v, out, lse, self.mask, **keywords)
        finally:
            impl._Call.run = original  # type: ignore[method-assign]  # noqa: SLF001


def benchmark_masks(s: int, mode: int) -> dict[str, masks.Mask]:
    """The masks to time on: long lists, short lists; and with mode 2, two intervals a column."""
    if mode == 2:
        return {name: masks.benchmark(name, s, device="cpu") for name in ("global_sliding", "causal_blockwise")}
    lengths = [length * s // sum(DOCUMENTS) for length in DOCUMENTS]
    lengths[-1] += s - sum(lengths)
    return {
        "full": masks.full(s),
        "causal_doc": masks.causal_document(lengths),
        "sliding": masks.sliding_window(s, window=s // 16),
    }


def median_ms(call: Callable[[], None], repeats: int) -> float:
    """Median device time of a call, its launch hidden behind a sleep."""
    call()
    times = []
    for _ in range(repeats):
        torch.cuda._sleep(SLEEP_CYCLES)  # noqa: SLF001 (no public name)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def items(args: argparse.Namespace) -> list[tuple[str, int, int, Launch]]:
    """Every (kernel, head dimension, mode, configuration), all kernels advancing together: a cut falls evenly."""
    queues = [
        [(kernel, dim, mode, launch) for launch in candidates(kernel, dim)]
        for dim, mode, kernel in itertools.product(args.dims, args.modes, args.kernels)
    ]
    return [item for row in itertools.zip_longest(*queues) for item in row if item is not None]


def too_large() -> tuple[type[Exception], ...]:
    """What Triton raises for a configuration that the device cannot hold."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    return (OutOfResources, PTXASError, CompilationError)


def warm(args: argparse.Namespace) -> None:
    """Compile every jobs-th configuration by running it on a small case."""
    use_plan_builder()
    index, count = map(int, args.shard.split("/"))
    device = torch.device("cuda:0")
    small = {1: masks.causal_document([100, 156]), 2: masks.benchmark("global_sliding", 256, device="cpu")}
    setups = {
        (dim, mode): Setup(small[mode], 1, dim, torch.bfloat16, device) for dim in args.dims for mode in args.modes
    }
    for kernel, dim, mode, launch in items(args)[index::count]:
        with contextlib.suppress(*too_large()):
            setups[dim, mode].trials[kernel](launch)()
            torch.cuda.synchronize()


def main() -> int:
    """Compile, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=240, help="seconds for all of it")
    parser.add_argument("--dims", type=lambda t: [int(x) for x in t.split(",")], default=[128, 64])
    parser.add_argument("--kernels", type=lambda t: t.split(","), default=["attn_fwd", "attn_bwd_kv", "attn_bwd_q"])
    parser.add_argument("--modes", type=lambda t: [int(x) for x in t.split(",")], default=[1, 2])
    parser.add_argument("--only", help="kernel:head dimension:mask mode, in place of the three lists")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--s", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default=os.environ.get("OUT", "build"))
    parser.add_argument("--shard")
    args = parser.parse_args()
    if args.only:
        kernel, dim, mode = args.only.split(":")
        args.kernels, args.dims, args.modes = [kernel], [int(dim)], [int(mode)]
    if args.shard:
        warm(args)
        return 0
    use_plan_builder()
    begin = time.monotonic()
    work = items(args)
    lists = {"--dims": args.dims, "--kernels": args.kernels, "--modes": args.modes}
    command = [sys.executable, __file__, *(w for name, v in lists.items() for w in (name, ",".join(map(str, v))))]
    children = [
        subprocess.Popen([*command, "--shard", f"{i}/{args.jobs}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for i in range(args.jobs)
    ]
    for child in children:
        left = args.budget * 0.7 - (time.monotonic() - begin)
        try:
            _, errors = child.communicate(timeout=max(1.0, left))
            if child.returncode:
                print(f"a compiling process ended with {child.returncode}: {errors.decode()[-500:]}")
        except subprocess.TimeoutExpired:
            child.kill()
    print(f"compiled in {time.monotonic() - begin:.0f} s")
    device = torch.device("cuda:0")
    found: list[dict[str, Any]] = []
    setups = {
        (dim, mode, name): Setup(mask, args.heads, dim, torch.bfloat16, device)
        for dim, mode in itertools.product(args.dims, args.modes)
        for name, mask in benchmark_masks(args.s, mode).items()
    }
    for done, (kernel, dim, mode, launch) in enumerate(work):
        if time.monotonic() - begin > args.budget:
            print(f"out of time after {done} of {len(work)} configurations")
            break
        times: dict[str, float] = {}
        try:
            for (d, m, name), setup in setups.items():
                if (d, m) == (dim, mode):
                    times[name] = median_ms(setup.trials[kernel](launch), args.repeats)
        except too_large():
            continue
        score = math.exp(sum(map(math.log, times.values())) / len(times))
        row = {"kernel": kernel, "dim": dim, "mode": mode, "launch": launch.to_row(), "ms": times, "score": score}
        found.append(row)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "triton_tune.json").write_text(json.dumps(found, indent=1))
    report(found, args)
    print(f"{len(found)} configurations in {time.monotonic() - begin:.0f} s on {torch.cuda.get_device_name(0)}")
    return 0


def report(found: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the eight best of each kernel and head dimension, and the default."""
    device = torch.device("cuda:0")
    for dim, mode, kernel in itertools.product(args.dims, args.modes, args.kernels):
        defaults = {
            word: tuner.launch_of(tuner.Kind(kernel, torch.bfloat16, dim, mode, dense), device, trial=None).to_row()
            for word, dense in (("default", False), ("dense", True))
        }
        mine = [r for r in found if (r["kernel"], r["dim"], r["mode"]) == (kernel, dim, mode)]
        rows = sorted(mine, key=lambda r: r["score"])
        if not rows:
            print(f"-- {kernel} D={dim} mode {mode}: nothing ran")
            continue
        print(f"-- {kernel} D={dim} mode {mode}: M N warps stages | ms " + " ".join(rows[0]["ms"]))
        for row in rows[:8] + [r for r in rows[8:] if r["launch"] in defaults.values()]:
            launch = row["launch"]
            marks = [word for word, default in defaults.items() if launch == default]
            print(
                f"{launch['BLOCK_M']:4d}{launch['BLOCK_N']:4d}{launch['num_warps']:3d}{launch['num_stages']:3d} | "
                + " ".join(f"{v:7.3f}" for v in row["ms"].values())
                + f" | {row['score']:.3f} {' '.join(marks)}"
            )


if __name__ == "__main__":
    raise SystemExit(main())
