"""FlashMask attention on a GPU against compiled FlexAttention and cuDNN, on the twelve benchmark masks.

Usage: python benchmarks/attention_gpu.py [--backends triton,cuda_hopper] [--lengths 8192,32768] [--budget 480]

B=1, H=32, D=128, bf16, forward and backward. Device time by events: a GPU sleep before each call hides the host, rivals
take turns in alternating order, medians are reported. Cells (mask x length) are prepared in parallel processes, because
compiling takes longest, and then measured strictly one at a time, the sparse masks at the shorter length first; what
does not fit the budget is left out and said. FlexAttention gets exact 128 x 128 block lists from the mask's own plan.

TFLOP/s count visible 128 x 128 tiles: 4 * S^2 * H * D * (tile area) forward, 2.5 times that backward; `of gemm` is that
over the run's own 8192^3 bf16 product. A table goes to the terminal; JSON, Markdown and PNG to --out (the environment's
OUT, else benchmarks/results).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), *(str(p) for p in sorted((ROOT / "backends").iterdir()) if p.is_dir())]

import torch  # noqa: E402

import fmcore as fm  # noqa: E402
from fmcore import masks as fm_masks  # noqa: E402
from fmcore.masks import BENCHMARK_MASKS, benchmark, benchmark_documents  # noqa: E402

DENSE = ("full", "causal")
SLEEP_CYCLES = 5_000_000
PLUGINS = {"triton": "fmcore_triton", "cuda_hopper": "fmcore_cuda_hopper", "torch": "fmcore_torch"}


def visibility(name: str, s: int, mask: fm_masks.Mask) -> Callable[..., Any]:
    """The mask as a FlexAttention user would write it."""
    device = mask.planes.device
    documents, sparse = benchmark_documents(s)
    lengths = torch.tensor([length for _, length in documents], device=device)
    which = torch.arange(len(documents), device=device).repeat_interleave(lengths)
    start = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    prefix = torch.arange(s, device=device) - start < torch.tensor([p for p, _ in documents], device=device)[which]
    flagged = torch.tensor(sparse, device=device)[which]
    last, window, near = len(documents) - 1, s // 16, s // 16
    end = mask.planes[0, :, 1].contiguous() if mask.mode == 1 else None
    definitions: dict[str, Callable[..., Any]] = {
        "full": lambda b, h, q, k: q >= 0,
        "causal": lambda b, h, q, k: q >= k,
        "sliding_window": lambda b, h, q, k: (q >= k) & (q - k < window),
        "causal_document": lambda b, h, q, k: (q >= k) & (which[q] == which[k]),
        "document": lambda b, h, q, k: which[q] == which[k],
        "share_question": lambda b, h, q, k: (q >= k) & (q < end[0, k]),
        "global_sliding": lambda b, h, q, k: (k < 16) | (q < 16) | ((q - k <= near) & (k - q <= near)),
        "causal_blockwise": lambda b, h, q, k: (q >= k) & ((which[q] == which[k]) | (which[q] == last)),
        "prefix_lm_document": lambda b, h, q, k: (which[q] == which[k]) & ((q >= k) | prefix[k]),
        "prefix_lm_causal": lambda b, h, q, k: (q >= k) | (k < s // 2),
        "qk_sparse": lambda b, h, q, k: (q >= k) & ~(flagged[k] & (which[q] == which[k])),
        "random_eviction": lambda b, h, q, k: (q >= k) & (q < end[h, k]),
    }
    return definitions[name]


class Cell:
    """One mask at one length: inputs, and per rival a forward and a backward call."""

    def __init__(self, name: str, s: int, args: argparse.Namespace) -> None:
        self.name, self.s, self.args = name, s, args
        self.device = torch.device("cuda:0")
        self.mask = benchmark(name, s, heads=args.heads, device=self.device)
        self.area = self.mask.plan(128, 128).tile_area
        g = torch.Generator(device=self.device).manual_seed(0)
        shape = (1, s, args.heads, args.dim)
        self.inputs = [torch.randn(shape, device=self.device, dtype=torch.bfloat16, generator=g) for _ in range(4)]
        self.calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
        self.outputs: dict[str, list[torch.Tensor]] = {}
        self.errors: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.differences: dict[str, list[float]] = {}

    def prepare(self) -> None:
        """Build and run every rival once; one that fails is reported and left out."""
        makers: dict[str, Callable[[], tuple[Any, Any, list[torch.Tensor]]]] = {}
        for backend in self.args.backends:
            makers[backend] = lambda backend=backend: self._fmcore(backend)
        makers["flex"] = self._flex
        if self.name in DENSE:
            makers["cudnn"] = self._cudnn
        for rival, maker in makers.items():
            try:
                forward, backward, results = maker()
            except Exception as error:  # noqa: BLE001 (a rival that cannot run must not end the comparison)
                self.errors[rival] = f"{type(error).__name__}: {str(error)[:300]}"
                traceback.print_exc(file=sys.stderr)
                continue
            self.calls[rival] = (forward, backward)
            self.outputs[rival] = results
        self.differences = self.difference()
        self.outputs.clear()  # many cells wait side by side: keep what is timed, no more
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def _fmcore(self, backend: str) -> tuple[Any, Any, list[torch.Tensor]]:
        q, k, v = (t.detach().requires_grad_() for t in self.inputs[:3])

        def forward() -> torch.Tensor:
            return fm.flashmask_attention(q, k, v, mask=self.mask, backend=backend)

        return self._autograd(forward, (q, k, v), self.inputs[3])

    def _flex(self) -> tuple[Any, Any, list[torch.Tensor]]:
        import torch._dynamo
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch._dynamo.config.recompile_limit = 256  # noqa: SLF001 (each mask is a program of its own)
        torch._dynamo.config.accumulated_recompile_limit = 256  # noqa: SLF001
        mask_mod = visibility(self.name, self.s, self.mask)
        try:
            block_mask = self._exact_blocks(mask_mod)
        except (TypeError, ValueError, RuntimeError) as error:
            # The lists come from private habits of FlexAttention; its own, coarser builder is public.
            self.notes["flex"] = f"block mask by create_block_mask ({type(error).__name__}: {str(error)[:100]})"
            heads = self.mask.heads if self.mask.heads > 1 else None
            block_mask = create_block_mask(mask_mod, None, heads, self.s, self.s, device=self.device, BLOCK_SIZE=128)
        compiled = torch.compile(flex_attention, dynamic=False)
        q, k, v = (t.detach().transpose(1, 2).contiguous().requires_grad_() for t in self.inputs[:3])
        return self._autograd(
            lambda: compiled(q, k, v, block_mask=block_mask), (q, k, v), self.inputs[3].transpose(1, 2).contiguous()
        )

    def _exact_blocks(self, mask_mod: Callable[..., Any]) -> Any:
        """FlexAttention's block mask from the mask's own plan: partly and wholly visible blocks told apart exactly."""
        from torch.nn.attention.flex_attention import BlockMask

        classes = self.mask.plan(128, 128).classes()
        # With `stable`, argsort takes `dim` by name only.
        lists = [
            t
            for chosen in (classes == 1, classes == 2)
            for t in (chosen.sum(-1).int(), chosen.byte().argsort(dim=-1, descending=True, stable=True).int())
        ]
        return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=128, mask_mod=mask_mod, seq_lengths=(self.s, self.s))

    def _cudnn(self) -> tuple[Any, Any, list[torch.Tensor]]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (t.detach().transpose(1, 2).contiguous().requires_grad_() for t in self.inputs[:3])

        def forward() -> torch.Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.name == "causal")

        return self._autograd(forward, (q, k, v), self.inputs[3].transpose(1, 2).contiguous())

    def _autograd(
        self, forward: Callable[[], torch.Tensor], leaves: tuple[torch.Tensor, ...], dout: torch.Tensor
    ) -> tuple[Any, Any, list[torch.Tensor]]:
        out = forward()

        def backward() -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(out, leaves, dout, retain_graph=True)

        results = [out.detach(), *backward()]
        if dout.stride() != self.inputs[3].stride() and dout.shape[1] == self.args.heads:
            results = [t.transpose(1, 2) for t in results]
        return forward, backward, results

    def difference(self) -> dict[str, list[float]]:
        """Relative difference of out, dq, dk, dv between each fmcore backend and FlexAttention (or cuDNN)."""
        judge = next((r for r in ("flex", "cudnn") if r in self.outputs), None)
        if judge is None:
            return {}
        found = {}
        for rival, results in self.outputs.items():
            if rival != judge:
                found[rival] = [
                    float(
                        torch.linalg.vector_norm((a - b).float()) / torch.linalg.vector_norm(b.float()).clamp_min(1e-30)
                    )
                    for a, b in zip(results, self.outputs[judge], strict=True)
                ]
        return found

    def measure(self) -> dict[str, Any]:
        """Time every rival, taking turns."""
        samples: dict[str, tuple[list[float], list[float]]] = {rival: ([], []) for rival in self.calls}
        order = list(self.calls)
        rounds = self.args.rounds if self.s <= 16384 else max(3, self.args.rounds // 2)
        for turn in range(rounds + 1):
            for rival in order if turn % 2 == 0 else order[::-1]:
                for calls, times in zip(self.calls[rival], samples[rival], strict=True):
                    took = timed(calls)
                    if turn:  # the first round warms up
                        times.append(took)
        flops = 4.0 * self.s**2 * self.args.heads * self.args.dim * self.area
        rivals = {}
        for rival, (forward, backward) in samples.items():
            fwd, bwd = median(forward), median(backward)
            rivals[rival] = {
                "forward_ms": fwd, "backward_ms": bwd,
                "forward_tflops": flops / fwd / 1e9, "backward_tflops": 2.5 * flops / bwd / 1e9,
                "forward_spread": (max(forward) - min(forward)) / fwd,
                "backward_spread": (max(backward) - min(backward)) / bwd,
            }  # fmt: skip
        return {
            "mask": self.name,
            "s": self.s,
            "area": self.area,
            "rivals": rivals,
            "difference": self.differences,
            "errors": self.errors,
            "notes": self.notes,
        }


def median(values: list[float]) -> float:
    """Middle value."""
    return sorted(values)[len(values) // 2]


def timed(call: Callable[[], Any]) -> float:
    """Device milliseconds of a call; the GPU sleeps while the host gets ahead."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(SLEEP_CYCLES)  # noqa: SLF001 (no public name)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def gemm_tflops() -> float:
    """Median rate of an 8192^3 bf16 matrix product on random data."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    for _ in range(3):
        torch.mm(a, b, out=out)
    return 2 * 8192.0**3 / median([timed(lambda: torch.mm(a, b, out=out)) for _ in range(11)]) / 1e9


def ensure_plugins(names: list[str]) -> tuple[list[str], list[str]]:
    """Register the backends of this checkout where they are not installed; return who can run here, and why not."""
    import importlib

    known = {b.name for b in fm.backends()}
    notes = []
    for name in names:
        if name in PLUGINS and name not in known:
            try:
                fm.register_backend(importlib.import_module(PLUGINS[name]))
            except ImportError as error:
                notes.append(f"{name}: {error}")
    states = {b.name: b for b in fm.backends()}
    usable = [n for n in names if n in states and states[n].state == "available"]
    told = {note.split(":")[0] for note in notes}
    notes += [
        f"{name}: {states[name].reason if name in states else 'no such backend'}"
        for name in names
        if name not in usable and name not in told
    ]
    return usable, notes


def cells(args: argparse.Namespace) -> list[tuple[str, int]]:
    """What to measure, the most telling first."""
    chosen = [m for m in BENCHMARK_MASKS if args.masks is None or m in args.masks]
    sparse = [m for m in chosen if m not in DENSE]
    dense = [m for m in chosen if m in DENSE]
    return [(m, s) for group in (sparse, dense) for s in args.lengths for m in group]


def worker(args: argparse.Namespace) -> None:
    """Prepare every jobs-th cell, then measure on demand: one line in (a number), one line of JSON out."""
    index, count = map(int, args.shard.split("/"))
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # compilers may print
    args.backends, _ = ensure_plugins(args.backends)
    mine = {}
    for number, (name, s) in enumerate(cells(args)):
        if number % count == index:
            try:
                cell = Cell(name, s, args)
                cell.prepare()
                mine[number] = cell
                message: dict[str, Any] = {"ready": number}
            except Exception as error:  # noqa: BLE001 (told to the parent)
                message = {"ready": number, "failed": f"{type(error).__name__}: {str(error)[:300]}"}
                traceback.print_exc(file=sys.stderr)
            print(json.dumps(message), file=channel, flush=True)
    for line in sys.stdin:
        cell = mine.pop(int(line))
        result = cell.measure()
        del cell
        torch.cuda.empty_cache()
        print(json.dumps(result), file=channel, flush=True)


def listen(child: Any, inbox: queue.Queue[tuple[int, dict[str, Any]]], number: int) -> None:
    """Pass a worker's lines on."""
    for line in child.stdout:
        inbox.put((number, json.loads(line)))


def collect(args: argparse.Namespace, out: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Run the workers; return the results and what was left out."""
    begin = time.monotonic()
    work = cells(args)
    jobs = min(args.jobs, len(work))
    log = (out / "attention_gpu.log").open("w")
    command = [sys.executable, __file__, *sys.argv[1:]]
    children = [
        subprocess.Popen(
            [*command, "--shard", f"{i}/{jobs}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        for i in range(jobs)
    ]
    inbox: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
    for i, child in enumerate(children):
        threading.Thread(target=listen, args=(child, inbox, i), daemon=True).start()
    ready: dict[int, int] = {}
    notes: list[str] = []
    answered = 0
    while answered < len(work) and time.monotonic() - begin < args.budget * 0.7:
        try:
            child_number, message = inbox.get(timeout=1.0)
        except queue.Empty:
            if all(child.poll() is not None for child in children):
                break
            continue
        answered += 1
        if "failed" in message:
            notes.append(f"{work[message['ready']]}: {message['failed']}")
        else:
            ready[message["ready"]] = child_number
    # A worker that is still compiling would disturb the measurements, and cannot answer: its finished cells are lost.
    busy = {
        i
        for i in range(jobs)
        if any(
            n % jobs == i and n not in ready and not any(str(work[n]) in note for note in notes)
            for n in range(len(work))
        )
    }
    for i in busy:
        children[i].kill()
        notes.append(
            f"worker {i} was not ready in time: {[work[n] for n in range(len(work)) if n % jobs == i]} left out"
        )
    print(f"{answered} of {len(work)} cells prepared in {time.monotonic() - begin:.0f} s", flush=True)
    results = []
    for number in sorted(ready):
        child_number = ready[number]
        if child_number in busy:
            continue
        if time.monotonic() - begin > args.budget:
            notes.append(f"{work[number]}: no time left")
            continue
        child = children[child_number]
        assert child.stdin is not None
        child.stdin.write(f"{number}\n")
        child.stdin.flush()
        try:
            _, result = inbox.get(timeout=max(30.0, args.budget - (time.monotonic() - begin)))
        except queue.Empty:
            notes.append(f"{work[number]}: no answer")
            break
        results.append(result)
        show(result)
        (out / "attention_gpu.part.json").write_text(json.dumps(results))
    for child in children:
        child.kill()
        child.wait()
    return results, notes


def show(result: dict[str, Any]) -> None:
    """One line per cell."""
    flex = result["rivals"].get("flex")
    parts = []
    for rival, r in result["rivals"].items():
        ratio = (
            f" x{flex['forward_ms'] / r['forward_ms']:.2f}/{flex['backward_ms'] / r['backward_ms']:.2f}"
            if flex and rival != "flex"
            else ""
        )
        parts.append(
            f"{rival} {r['forward_ms']:.3f}/{r['backward_ms']:.3f} ms "
            f"{r['forward_tflops']:.0f}/{r['backward_tflops']:.0f} TF{ratio}"
        )
    worst = {rival: f"{max(d):.1e}" for rival, d in result["difference"].items()}
    print(
        f"{result['s'] // 1024:3d}K {result['mask']:<19s} {result['area']:.4f} | "
        + " | ".join(parts)
        + f" | diff {worst}"
        + (f" | {result['errors']}" if result["errors"] else "")
        + (f" | {result['notes']}" if result["notes"] else ""),
        flush=True,
    )


def markdown(results: list[dict[str, Any]], header: str) -> str:
    """The table for people."""
    rivals = sorted({r for result in results for r in result["rivals"]}, key=lambda r: (r in ("flex", "cudnn"), r))
    lines = [
        header,
        "",
        "| S | mask | tile area | " + " | ".join(f"{r} fwd/bwd ms | {r} TFLOP/s" for r in rivals) + " |",
        "|---|---|---|" + "---|---|" * len(rivals),
    ]
    for result in sorted(results, key=lambda r: (r["s"], BENCHMARK_MASKS.index(r["mask"]))):
        row = [f"{result['s']}", result["mask"], f"{result['area']:.4f}"]
        for rival in rivals:
            r = result["rivals"].get(rival)
            row += (
                ["", ""]
                if r is None
                else [
                    f"{r['forward_ms']:.3f} / {r['backward_ms']:.3f}",
                    f"{r['forward_tflops']:.0f} / {r['backward_tflops']:.0f}",
                ]
            )
        lines.append("| " + " | ".join(row) + " |")
    remarks = {
        (rival, note): [r for r in results if r["notes"].get(rival) == note]
        for result in results
        for rival, note in result["notes"].items()
    }
    for (rival, note), rows in remarks.items():
        lines += ["", f"{rival}, {len(rows)} of {len(results)} rows: {note}"]
    failed = sorted({(rival, error) for result in results for rival, error in result["errors"].items()})
    lines += [line for rival, error in failed for line in ("", f"{rival} did not run: {error}")]
    return "\n".join(lines) + "\n"


def picture(results: list[dict[str, Any]], gemm: float, path: Path) -> None:
    """Bars of TFLOP/s per mask, one panel per length and pass; the line is the matrix product's rate."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no matplotlib here: no picture")
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    lengths = sorted({r["s"] for r in results})
    rivals = sorted({r for result in results for r in result["rivals"]}, key=lambda r: (r in ("flex", "cudnn"), r))
    figure, axes = plt.subplots(2, len(lengths), figsize=(7 * len(lengths), 8), squeeze=False, sharey=True)
    for column, s in enumerate(lengths):
        rows = sorted((r for r in results if r["s"] == s), key=lambda r: BENCHMARK_MASKS.index(r["mask"]))
        for line, direction in enumerate(("forward", "backward")):
            axis = axes[line][column]
            for i, rival in enumerate(rivals):
                heights = [r["rivals"].get(rival, {}).get(f"{direction}_tflops", 0.0) for r in rows]
                axis.bar([x + i * 0.8 / len(rivals) for x in range(len(rows))], heights, 0.8 / len(rivals), label=rival)
            axis.axhline(gemm, color="black", linewidth=0.8, linestyle="--")
            axis.set_title(f"{direction}, S = {s}")
            axis.set_xticks([x + 0.4 for x in range(len(rows))], [r["mask"] for r in rows], rotation=45, ha="right")
            axis.set_ylabel("TFLOP/s of visible tiles")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def verdict(rival: str, results: list[dict[str, Any]], gemm: float) -> None:
    """Print the range of rates over the matrix product's, and where FlexAttention is faster."""
    rows = [r for r in results if rival in r["rivals"]]
    for direction in ("forward", "backward"):
        rates = [r["rivals"][rival][f"{direction}_tflops"] / gemm for r in rows]
        ratio = {
            f"{r['mask']}@{r['s']}": r["rivals"]["flex"][f"{direction}_ms"] / r["rivals"][rival][f"{direction}_ms"]
            for r in rows
            if "flex" in r["rivals"]
        }
        if rates:
            print(f"{rival} {direction}: {min(rates):.2f}..{max(rates):.2f} of the matrix product's rate")
        if ratio:
            slower = {name: round(value, 2) for name, value in ratio.items() if value < 1}
            print(
                f"  {min(ratio.values()):.2f}..{max(ratio.values()):.2f} x FlexAttention; slower: {slower or 'nowhere'}"
            )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    split = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--backends", type=split, default=["triton"])
    parser.add_argument("--lengths", type=lambda t: [int(x) for x in t.split(",")], default=[8192, 32768])
    parser.add_argument("--masks", type=split)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--budget", type=float, default=480)
    parser.add_argument("--out", default=os.environ.get("OUT", str(ROOT / "benchmarks" / "results")))
    parser.add_argument("--shard")
    args = parser.parse_args()
    if args.shard:
        worker(args)
        return 0
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    args.backends, absent = ensure_plugins(args.backends)
    before = gemm_tflops()
    results, notes = collect(args, out)
    notes = absent + notes
    after = gemm_tflops()
    gemm = max(before, after)
    name = torch.cuda.get_device_name(0)
    import triton

    header = (
        f"# Attention on {name}: torch {torch.__version__}, Triton {triton.__version__}, bf16, B=1, H={args.heads}, "
        f"D={args.dim}; 8192^3 product {before:.0f} before, {after:.0f} after (TFLOP/s)"
    )
    print(header)
    for note in notes:
        print("left out:", note)
    for rival in args.backends:
        verdict(rival, results, gemm)
    (out / "attention_gpu.json").write_text(
        json.dumps(
            {
                "device": name,
                "torch": torch.__version__,
                "triton": triton.__version__,
                "gemm_tflops": [before, after],
                "heads": args.heads,
                "dim": args.dim,
                "dtype": "bfloat16",
                "results": results,
                "left_out": notes,
            },
            indent=1,
        )
    )
    (out / "attention_gpu.md").write_text(markdown(results, header))
    (out / "attention_gpu.part.json").unlink(missing_ok=True)
    if results:
        picture(results, gemm, out / "attention_gpu.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
