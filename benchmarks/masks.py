"""Time to build masks and their plans: ``python benchmarks/masks.py [--device cuda] [--sizes 8192,32768]``.

For every mask and length: building the mask on the host (``build``), canonicalising its ``startend_row_indices`` on the
device (``canon``), the plan of 128 x 128 tiles (``plan``), and, where all pairs can be evaluated in a reasonable time,
FlexAttention's ``create_block_mask`` for the same mask in the same run (``flex``). On an accelerator times are device
times: events behind a sleeping kernel hide the host, whose part is given by itself. Every plan of a device is compared
with the CPU's before it is timed. Writes a table and JSON under ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import re
import statistics
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "backends" / "triton")]  # runs from a checkout that is not installed, too

from fmcore import masks  # noqa: E402
from fmcore.masks.plan import build_plan, plan_builders  # noqa: E402
from fmcore.masks.plan_torch import build_plan_torch  # noqa: E402

TILE = 128
SIZES = (8192, 32768, 131072, 1 << 20)
LONG_MASKS = ("causal", "sliding_window", "causal_document", "document")
FLEX_MASKS = ("causal_document", "document")  # each is compiled anew
FLEX_LIMIT = {"cpu": 8192, "cuda": 32768}
SLEEP_CYCLES = 40_000_000
RESULTS = Path(__file__).parent / "results"


def host_ms(fn, repeats):
    fn()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        fn()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def once_ms(fn):
    begin = time.perf_counter()
    fn()
    return (time.perf_counter() - begin) * 1e3


def device_ms(fn, repeats):
    """Median device time and median host time of the call, in ms."""
    fn()
    device, host = [], []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP_CYCLES)  # noqa: SLF001 -- torch has no public kernel that waits
        start.record()
        begin = time.perf_counter()
        fn()
        host.append((time.perf_counter() - begin) * 1e3)
        stop.record()
        torch.cuda.synchronize()
        device.append(start.elapsed_time(stop))
    return statistics.median(device), statistics.median(host)


def compare(one, other):
    """Raise unless two plans are equal."""
    for name in ("q_partial", "q_full", "k_partial", "k_full", "q_order", "k_order"):
        if not torch.equal(getattr(one, name).cpu(), getattr(other, name).cpu()):
            raise SystemExit(f"{name} differs between the plans of {one!r} and {other!r}")
    for name, work in (("q_tiles", one.q_work), ("k_tiles", one.k_work)):
        mine, theirs = getattr(one, name), getattr(other, name).to(one.q_work.device)
        used = torch.arange(mine.shape[-1], device=mine.device) < work.unsqueeze(-1)
        if not torch.equal(mine[used], theirs[used]):
            raise SystemExit(f"{name} differs between the plans of {one!r} and {other!r}")


def flex_ms(mask, device, repeats):
    """FlexAttention's way to the same block lists, compiled where there is a compiler for it."""
    from torch.nn.attention.flex_attention import create_block_mask

    if mask.s_q > FLEX_LIMIT[device] or mask.kind not in FLEX_MASKS:
        return None
    mod = masks.to_mask_mod(mask.to(device))
    heads = None if mask.heads == 1 else mask.heads

    def make():
        return create_block_mask(mod, None, heads, mask.s_q, mask.s_k, device=device, _compile=device == "cuda")

    try:
        return device_ms(make, repeats)[0] if device == "cuda" else once_ms(make)
    except torch.OutOfMemoryError:
        return None


def measure(name, size, heads, device, repeats):
    masks.benchmark_documents(size)
    begin = time.perf_counter()
    mask = masks.benchmark(name, size, heads=heads)
    row = {"mask": name, "s": size, "heads": mask.heads, "build_ms": (time.perf_counter() - begin) * 1e3}
    indices = masks.to_startend_row_indices(mask)
    plan = mask.plan(TILE, TILE)
    row |= {"tile_area": plan.tile_area, "exact_area": plan.exact_area, "plan_MiB": plan.nbytes / 2**20}

    def canon(where):
        return lambda: masks.canonicalize(where, s_q=size, s_k=size, causal=False)

    if device == "cpu":
        row["canon_ms"] = host_ms(canon(indices), repeats)
        row["plan_ms"] = host_ms(lambda: build_plan(mask, TILE, TILE), repeats)
    else:
        there = mask.to(device)
        compare(build_plan(there, TILE, TILE), plan)
        torch_built = build_plan_torch(there, there.planes, None, TILE, TILE)
        compare(torch_built, plan)
        row["canon_ms"], row["canon_host_ms"] = device_ms(canon(indices.to(device)), repeats)
        row["plan_ms"], row["plan_host_ms"] = device_ms(lambda: build_plan(there, TILE, TILE), repeats)
        row["torch_plan_ms"] = device_ms(lambda: build_plan_torch(there, there.planes, None, TILE, TILE), 3)[0]
    row["flex_ms"] = flex_ms(mask, device, repeats)
    row["flex_over_plan"] = None if row["flex_ms"] is None else row["flex_ms"] / row["plan_ms"]
    return row


def table(rows):
    columns = [c for c in rows[0] if any(row.get(c) is not None for row in rows)]

    def cell(value):
        return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = [columns, *([cell(row.get(c)) for c in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--masks", default="", help="names, comma-separated; all of the benchmark by default")
    parser.add_argument("--heads", type=int, default=32, help="mask heads of random_eviction on an accelerator")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--note", default="", help="kept with the results, such as 'busy machine'")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        try:  # its builder registers itself when the backend is loaded; here it is wanted in any case
            from fmcore_triton import plan as triton_plan
        except ImportError as error:
            print(f"no Triton plan ({error}); torch builds the plans", file=sys.stderr)
        else:
            masks.register_plan_builder("cuda", triton_plan.build_plan, name=triton_plan.NAME)
    names = [name for name in arguments.masks.split(",") if name] or list(masks.BENCHMARK_MASKS)
    heads = arguments.heads if arguments.device == "cuda" else 1
    rows = []
    for size in map(int, arguments.sizes.split(",")):
        for name in names:
            if size > 131072 and name not in LONG_MASKS:
                continue
            rows.append(measure(name, size, heads if size <= 32768 else 1, arguments.device, arguments.repeats))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    hardware = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{platform.machine()} cpu"
    facts = {
        "device": hardware,
        "date": dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "tile": TILE,
        "plan_builder": plan_builders().get(arguments.device, "torch"),
        "note": arguments.note,
    }
    text = table(rows)
    print(f"\n{json.dumps(facts)}\n{text}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = f"masks_{re.sub(r'[^a-z0-9]+', '_', hardware.lower()).strip('_')}_{facts['date']}"
    (arguments.out / f"{stem}.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    (arguments.out / f"{stem}.txt").write_text(f"{json.dumps(facts)}\n{text}\n")


if __name__ == "__main__":
    main()
