"""CPU attention on the twelve benchmark masks: this backend against SDPA and FlexAttention, in one run.

    python benchmarks/attention_cpu.py                  # everything, about 11 minutes on 2 quiet cores
    python benchmarks/attention_cpu.py --lengths 2048 --repeats 3 --no-flex

Rivals: ``scaled_dot_product_attention`` with the dense boolean mask, the same with nothing but ``is_causal`` (what a
mask is up against at best), without a mask for ``full``, and compiled FlexAttention (forward only on a CPU) at one
length. Times are medians. Shapes are [1, s, 8, d]. A dense SDPA does the same work whatever the mask says, so it is
measured once per shape and dtype. Writes ``results/attention_cpu.{json,md,png}``.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import fmcore as fm
from fmcore import masks
from fmcore.masks import Mask

RESULTS = Path(__file__).parent / "results"
HEADS = 8
TILE = 64
OURS, DENSE, CAUSAL, PLAIN, FLEX = "fmcore cpu", "SDPA dense mask", "SDPA causal", "SDPA no mask", "FlexAttention"


class Clock:
    """Medians, within a budget: past it nothing new is started and the cell stays empty."""

    def __init__(self, repeats: int, seconds: float) -> None:
        self.repeats, self.end = repeats, time.monotonic() + seconds

    def over(self) -> bool:
        """Whether the budget is spent."""
        return time.monotonic() > self.end

    def median(self, run: Callable[[], Any], repeats: int | None = None) -> float | None:
        """Median seconds of ``run`` after one warm-up; a run of more than 5 s is measured once, warm-up included."""
        if self.over():
            return None
        start = time.perf_counter()
        run()
        first = time.perf_counter() - start
        if first > 5:
            return first
        times = []
        for _ in range(repeats or self.repeats):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192, 16384])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--masks", nargs="+", default=list(masks.BENCHMARK_MASKS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=660, help="start nothing new after this long")
    parser.add_argument("--flex-length", type=int, default=8192)
    parser.add_argument("--no-flex", action="store_true")
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--memory-of", nargs=3, metavar=("LENGTH", "DIM", "DTYPE"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "attention_cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory_of:
        length, dim, dtype = args.memory_of
        print(json.dumps(extra_memory(int(length), int(dim), dtype)))
        return
    clock, cells = Clock(args.repeats, args.seconds), []
    for length in args.lengths:
        for dim in args.dims:
            for dtype in args.dtypes:
                large = length >= 16384  # one length too long for a backward of every rival, and for every head dim
                if large and dim != args.dims[0]:
                    continue
                backward = not (args.no_backward or large)
                flex = not args.no_flex and length == args.flex_length and dim == args.dims[0]
                cells += measure(clock, length, dim, dtype, args.masks, backward=backward, flex=flex)
    largest = max(args.lengths)
    memory = {dtype: memory_of(largest, args.dims[0], dtype, args.threads) for dtype in args.dtypes}
    report(cells, memory, largest, args)


def measure(
    clock: Clock, length: int, dim: int, dtype: str, names: list[str], *, backward: bool, flex: bool
) -> list[dict[str, Any]]:
    """All cells of one shape."""
    torch.manual_seed(0)
    shape = (1, length, HEADS, dim)
    q, k, v, dout = (torch.randn(shape).to(getattr(torch, dtype)) for _ in range(4))
    heads_first = [t.transpose(1, 2).contiguous() for t in (q, k, v, dout)]
    base = {"length": length, "dim": dim, "dtype": dtype}
    rivals = {
        CAUSAL: {"is_causal": True},
        PLAIN: {},
        DENSE: {"attn_mask": masks.benchmark("causal_document", length).dense()},
    }
    cells = []
    for name, options in rivals.items():
        for what in ("forward", "backward") if backward else ("forward",):
            seconds = clock.median(_sdpa(heads_first, options, what))
            cells.append({**base, "rival": name, "mask": "any", "pass": what, "seconds": seconds})
    compiled = torch.compile(_flex, dynamic=False) if flex else None
    for name in names:
        mask = masks.benchmark(name, length, heads=HEADS)
        area = mask.plan(TILE, TILE).tile_area
        facts = {**base, "mask": name, "tile_area": area, "exact_area": mask.exact_area()}
        for what in ("forward", "backward") if backward else ("forward",):
            seconds = clock.median(_ours(q, k, v, dout, mask, what))
            cells.append({**facts, "rival": OURS, "pass": what, "seconds": seconds})
        if compiled is not None:
            cells.append({**facts, "rival": FLEX, "pass": "forward", **_time_flex(clock, compiled, heads_first, mask)})
        print(length, dim, dtype, name, [f"{c['seconds'] or 0:.4f}" for c in cells if c["mask"] == name], flush=True)
    return cells


def _ours(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, mask: Mask, what: str
) -> Callable[[], Any]:
    if what == "forward":
        return lambda: fm.flashmask_attention(q, k, v, mask=mask, backend="cpu")
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = fm.flashmask_attention(*leaves, mask=mask, backend="cpu")
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def _sdpa(tensors: list[torch.Tensor], options: dict[str, Any], what: str) -> Callable[[], Any]:
    q, k, v, dout = tensors
    if what == "forward":
        return lambda: sdpa(q, k, v, **options)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = sdpa(*leaves, **options)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_mask: Any) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, block_mask=block_mask)


def _time_flex(clock: Clock, compiled: Callable[..., Any], tensors: list[torch.Tensor], mask: Mask) -> dict[str, Any]:
    q, k, v, _ = tensors
    if clock.over():
        return {"seconds": None}
    block_mask = masks.to_block_mask(mask, heads_q=HEADS)
    try:
        with torch.no_grad():
            return {"seconds": clock.median(lambda: compiled(q, k, v, block_mask))}
    except Exception as error:  # noqa: BLE001 (a rival that fails to compile is a result, not the end of the run)
        return {"seconds": None, "failed": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}


def memory_of(length: int, dim: int, dtype: str, threads: int) -> dict[str, float]:
    """Peak extra memory in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", str(length), str(dim), dtype, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def extra_memory(length: int, dim: int, dtype: str) -> dict[str, float]:
    """MiB beyond inputs and outputs at the peak of a forward and of a backward (Linux: high-water mark, reset)."""
    q, k, v, dout = (torch.randn(1, length, HEADS, dim).to(getattr(torch, dtype)) for _ in range(4))
    mask = masks.benchmark("sliding_window", length)
    small = [t[:, :256].clone().requires_grad_() for t in (q, k, v)]
    fm.flashmask_attention(*small, causal=True, backend="cpu").sum().backward()
    leaves = [t.requires_grad_() for t in (q, k, v)]

    def peak(run: Callable[[], Any], kept: int) -> float:
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        run()
        return (_resident("VmHWM") - before - kept) / 2**20

    held: list[Any] = []
    out_bytes = q.numel() * q.element_size() + HEADS * length * 4
    forward = peak(lambda: held.append(fm.flashmask_attention(*leaves, mask=mask, backend="cpu")), out_bytes)
    grads = 3 * q.numel() * q.element_size()
    backward = peak(lambda: held.append(torch.autograd.grad(held[0], leaves, dout)), grads)
    return {
        "forward_mib": round(forward, 1),
        "backward_mib": round(backward, 1),
        "fp32_gradient_mib": q.numel() / 2**18,
    }


def _resident(field: str) -> int:
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(match.group(1)) if match else 0


def report(cells: list[dict[str, Any]], memory: dict[str, Any], length: int, args: argparse.Namespace) -> None:
    """Print the tables and write JSON, markdown and the picture."""
    machine = {"processor": _processor(), "threads": args.threads, "torch": torch.__version__, "isa": _isa()}
    found = {(c["length"], c["dim"], c["dtype"], c["pass"], c["rival"], c["mask"]): c for c in cells}
    lines = [f"# CPU attention\n\n{machine['processor']}, {args.threads} threads, {_isa()}, torch {torch.__version__}."]
    lines.append("Median seconds; [1, s, 8, d]. `bar` = (SDPA dense / ours) * tile area; 0.75 and more is asked for.\n")
    shapes = sorted({key[:4] for key in found})
    for shape in shapes:
        plain = {name: found.get((*shape, name, "any"), {}).get("seconds") for name in (DENSE, CAUSAL, PLAIN)}
        title = f"## s = {shape[0]}, d = {shape[1]}, {shape[2]}, {shape[3]}"
        lines += [title, "", ", ".join(f"{name} {_number(value)} s" for name, value in plain.items()), ""]
        lines += ["| mask | tile area | ours s | SDPA dense / ours | bar | Flex / ours |", "|---|---|---|---|---|---|"]
        for name in args.masks:
            cell = found.get((*shape, OURS, name))
            if cell is None:
                continue
            ours, area = cell["seconds"], cell["tile_area"]
            ratio = plain[DENSE] / ours if ours and plain[DENSE] else None
            flex = found.get((*shape, FLEX, name), {})
            other = flex.get("failed", "") or (_number(flex["seconds"] / ours) if flex.get("seconds") and ours else "")
            bar = _number(ratio * area if ratio else None)
            lines.append(f"| {name} | {area:.4f} | {_number(ours)} | {_number(ratio)} | {bar} | {other} |")
        lines.append("")
    lines.append(
        f"Peak memory beyond inputs and outputs at s = {length}, d = {args.dims[0]}, sliding window: {memory}\n"
    )
    text = "\n".join(lines)
    print(text)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".md").write_text(text)
    document = {"machine": machine, "cells": cells, "memory": memory}
    args.out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    picture(found, shapes, args.out.with_suffix(".png"))


def picture(found: dict[Any, dict[str, Any]], shapes: list[Any], path: Path) -> None:
    """Time against visible area, one line per rival, one panel per shape."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    shapes = [shape for shape in shapes if shape[0] == max(s[0] for s in shapes if s[3] == shape[3])] or shapes
    figure, axes = plt.subplots(1, len(shapes), figsize=(4.2 * len(shapes), 3.8), squeeze=False)
    for axis, shape in zip(axes[0], shapes, strict=True):
        for rival, style in ((OURS, "o-"), (FLEX, "s-")):
            points = sorted(
                (cell["tile_area"], cell["seconds"])
                for key, cell in found.items()
                if key[:4] == shape and key[4] == rival and cell["seconds"]
            )
            if points:
                axis.plot(*zip(*points, strict=True), style, label=rival, markersize=4)
        for rival, style in ((DENSE, "--"), (CAUSAL, ":"), (PLAIN, "-.")):
            seconds = found.get((*shape, rival, "any"), {}).get("seconds")
            if seconds:
                axis.axhline(seconds, linestyle=style, color="grey", label=rival)
        axis.set(title=f"s={shape[0]} d={shape[1]} {shape[2]} {shape[3]}", xlabel="visible tile area", xlim=(0, 1.02))
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel("seconds")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _isa() -> str:
    from fmcore_cpu import _native

    return _native.isa()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
