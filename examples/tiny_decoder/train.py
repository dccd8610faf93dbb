"""Train the tiny decoder on the text beside this file; its experts are spread over the ranks.

``python train.py`` starts two gloo processes. ``torchrun --nproc-per-node=N train.py`` uses N processes; where there
are enough accelerators, each has one and they speak its collective library.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))

from model import Decoder, Shape, cross_entropy, one_hot

import fmcore as fm

TEXT = Path(__file__).with_name("text.txt")
BATCH = 2


def sequences(length: int) -> list[tuple[torch.Tensor, list[int]]]:
    """Pack the text's paragraphs, each a document that attends to itself only: bytes [length + 1] and lengths."""
    stream, marks = bytearray(), []
    for paragraph in TEXT.read_text(encoding="ascii").split("\n\n"):
        marks += [len(stream)]
        stream += paragraph.strip().encode() + b"\n"
    packed = []
    for start in range(0, len(stream) - length, length):
        cuts = [start, *(m for m in marks if start < m < start + length), start + length]
        packed.append(
            (
                torch.tensor(list(stream[start : start + length + 1])),
                [b - a for a, b in pairwise(cuts)],
            )
        )
    return packed


def mean_gradients(model: Decoder, ranks: int) -> None:
    """Average over the ranks what every rank holds; an expert's gradient has every rank's tokens in it already."""
    shared = [p for name, p in model.named_parameters() if not name.endswith((".gate", ".up", ".down"))]
    flat = torch.cat([p.grad.reshape(-1) for p in shared])
    if ranks > 1:
        dist.all_reduce(flat)
    start = 0
    for p in shared:
        p.grad.copy_(flat[start : start + p.numel()].view_as(p) / ranks)
        start += p.numel()
    for name, p in model.named_parameters():
        if name.endswith((".gate", ".up", ".down")):
            p.grad /= ranks


def train(rank: int, ranks: int, steps: int, group: Any, device: str, trace: str) -> list[float]:
    """Train and return the mean loss of every step."""
    os.environ["FMCORE_TRACE"] = trace if rank == 0 else ""
    fm.config.reload()
    shape = Shape()
    model = Decoder(shape, group).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.0)
    packed = sequences(shape.sequence)
    losses, masks, started = [], {}, time.perf_counter()
    for step in range(steps):
        picked = [(step * ranks + rank) * BATCH % len(packed), ((step * ranks + rank) * BATCH + 1) % len(packed)]
        tokens = torch.stack([packed[n][0] for n in picked]).to(device)
        if picked[0] not in masks:
            masks[picked[0]] = fm.masks.causal_document([packed[n][1] for n in picked]).to(device)
        hot = one_hot(tokens, shape.vocabulary)
        loss = cross_entropy(model(hot[:, :-1], masks[picked[0]]), hot[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        mean_gradients(model, ranks)
        optimiser.step()
        losses.append(float(loss.detach()))
        if rank == 0 and (step % 25 == 0 or step == steps - 1):
            print(f"step {step:3d}  loss {losses[-1]:.3f}  {time.perf_counter() - started:5.1f} s", flush=True)
    return losses


def served(trace: str) -> dict[str, set[str]]:
    """Return who served each op, from the trace that fmcore wrote."""
    found: dict[str, set[str]] = {}
    for line in Path(trace).read_text(encoding="utf-8").splitlines():
        decision = json.loads(line)
        for candidate in decision["candidates"]:
            if candidate["verdict"] == "selected":
                found.setdefault(decision["request"]["op"], set()).add(f"{candidate['backend']}/{candidate['name']}")
    return found


def run(rank: int, ranks: int, steps: int, store: str | None, trace: str, out: str) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    local = int(os.environ.get("LOCAL_RANK", rank))
    many = torch.accelerator.is_available() and torch.accelerator.device_count() >= ranks
    device = f"{torch.accelerator.current_accelerator().type}:{local}" if many else "cpu"
    if many:
        torch.accelerator.set_device_index(local)
    backend = dist.get_default_backend_for_device(device) if many else "gloo"
    where = {"init_method": f"file://{store}", "rank": rank, "world_size": ranks} if store else {}
    dist.init_process_group(backend, timeout=timedelta(seconds=120), **where)
    losses = train(rank, ranks, steps, dist.group.WORLD, device, trace)
    if rank == 0:
        first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
        print(f"loss {first:.3f} -> {last:.3f} in {steps} steps over {ranks} ranks on {device}")
        for op, impls in sorted(served(trace).items()):
            print(f"  {op:24s} {', '.join(sorted(impls))}")
        if out:
            Path(out).write_text(
                json.dumps({"losses": losses, "served": {op: sorted(i) for op, i in served(trace).items()}})
            )
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks, or be one if a launcher has started us."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", default="", help="write losses and who served what as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = str(Path(folder) / "trace.jsonl")
        if "RANK" in os.environ:
            run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), options.steps, None, trace, options.out)
            return
        store = str(Path(folder) / "store")
        torch.multiprocessing.start_processes(
            run, (options.ranks, options.steps, store, trace, options.out), nprocs=options.ranks, start_method="spawn"
        )


if __name__ == "__main__":
    main()
