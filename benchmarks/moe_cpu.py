"""MoE on one host: the cpu backend's layout, permutation and combine against torch and the machine's copy speed.

    python benchmarks/moe_cpu.py            # about half a minute on 2 cores

Bandwidth counts bytes read and written. The yardstick is ``Tensor.copy_`` of the same rows in the same run. Writes
``results/moe_cpu.{json,md,png}``.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fmcore as fm
from fmcore_cpu import _native, moe

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS / "moe_cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows = [*layouts(args), *moves(args)]
    report(rows, args)


def median(run: Callable[[], Any], repeats: int) -> float:
    """Median seconds after one warm-up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def composition(idx: torch.Tensor, experts: int, ranks: int) -> tuple[torch.Tensor, ...]:
    """The layout from torch's own operations: a histogram, a scatter for the map, a sum."""
    per_expert = torch.bincount(idx.clamp(min=-1).add(1).flatten(), minlength=experts + 1)[1:].to(torch.int32)
    rank = torch.where(idx < 0, ranks, idx // (experts // ranks))
    marks = torch.zeros(idx.shape[0], ranks + 1, dtype=torch.uint8).scatter_(1, rank, 1)[:, :ranks].bool()
    return per_expert, marks, marks.sum(0, dtype=torch.int32)


def layouts(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Layout of one routing table, alone and among 8 ranks."""

    class Ranks:
        def __init__(self, ranks: int) -> None:
            self.size, self.rank = (lambda: ranks), (lambda: 0)

    idx = torch.rand(args.tokens, args.experts).topk(args.topk).indices
    found = []
    for ranks in (1, 8):
        ours = median(lambda r=ranks: moe.layout(idx, num_experts=args.experts, group=Ranks(r)), args.repeats)
        torch_s = median(lambda r=ranks: composition(idx, args.experts, r), args.repeats)
        found.append({"what": f"layout, {ranks} ranks", "seconds": ours, "rival": torch_s, "ratio": torch_s / ours})
    return found


def moves(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Dispatch and combine in GB/s, as a share of copy speed."""
    tokens, hidden, topk = args.tokens // 8, args.hidden, args.topk
    idx = torch.rand(tokens, args.experts).topk(topk).indices
    weights = torch.rand(tokens, topk)
    order, few = torch.randperm(tokens), tokens // 8
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(tokens, hidden).to(dtype)
        out = torch.empty_like(x)
        size = x.numel() * x.element_size()
        copy = 2 * size / median(lambda a=x, b=out: b.copy_(a), args.repeats) / 1e9
        addresses = tokens, size // tokens, x.data_ptr(), order.data_ptr(), out.data_ptr(), args.threads
        permute = median(lambda a=addresses: _native.kernels().gather_rows(*a), args.repeats)
        rival = median(lambda a=x, b=out: torch.index_select(a, 0, order, out=b), args.repeats)
        routed = fm.moe.dispatch(
            x[:few], fm.moe.layout(idx[:few], args.experts), idx[:few], weights[:few], backend="cpu"
        )
        y = torch.randn(few, topk, hidden).to(dtype)
        moved = few * (topk + 1) * hidden * x.element_size()
        with torch.no_grad():
            weighted = median(
                lambda y=y, r=routed: fm.moe.combine(y, r.handle, r.topk_weights, weighted=True), args.repeats
            )
            einsum = median(lambda y=y: torch.einsum("tkh,tk->th", y.float(), weights[:few]).to(y.dtype), args.repeats)
            plain = median(lambda a=x[:few], r=routed: fm.moe.combine(a, r.handle), args.repeats)
        name = str(dtype).removeprefix("torch.")
        for what, seconds, other, nbytes in (
            ("permute", permute, rival, 2 * size),
            ("weighted combine", weighted, einsum, moved),
            ("plain combine", plain, None, 2 * few * hidden * x.element_size()),
        ):
            rate = nbytes / seconds / 1e9
            ratio = None if other is None else other / seconds
            found.append({"what": f"{what}, {name}", "seconds": seconds, "rival": other, "ratio": ratio, "gbps": rate})
            found[-1] |= {"copy_gbps": copy, "share": rate / copy}
    return found


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the table and write JSON, markdown and the picture."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else ["?"]
    shape = f"{args.tokens} tokens, top-{args.topk} of {args.experts} experts, hidden {args.hidden}; medians."
    lines = [
        f"# MoE on a CPU\n\n{names[0]}, {args.threads} threads, {_native.isa()}, torch {torch.__version__}; {shape}\n",
        "| what | ours ms | torch ms | torch / ours | GB/s | share of copy |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        rival = "" if row["rival"] is None else f"{row['rival'] * 1e3:.3f} | {row['ratio']:.1f}"
        rate = f"{row['gbps']:.1f} | {row['share']:.0%}" if "gbps" in row else " | "
        lines.append(f"| {row['what']} | {row['seconds'] * 1e3:.3f} | {rival or ' | '} | {rate} |")
    text = "\n".join(lines) + "\n"
    print(text)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".md").write_text(text)
    machine = {"processor": names[0], "threads": args.threads, "isa": _native.isa(), "torch": torch.__version__}
    args.out.with_suffix(".json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    moved = [row for row in rows if "gbps" in row]
    figure, axis = plt.subplots(figsize=(6, 3))
    axis.barh([row["what"] for row in moved], [row["share"] for row in moved])
    axis.axvline(0.7, color="grey", linestyle="--", label="asked for")
    axis.axvline(1.0, color="black", label="copy")
    axis.set_xlabel("share of the machine's copy bandwidth")
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(args.out.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
