"""Check the Hopper kernels on a GPU; prints a summary last.

Usage: python backends/cuda_hopper/tools/gpu_check.py [--quick | --full] [--jobs 14] [--timeout 118] [--out DIR]

Cases (masks x lengths x head layouts x dtypes) go against a literal float64 oracle and against the portable Triton
backend; then: 30 forward runs bitwise equal, random masks until the time is up, graph capture and replay with changed
data, two streams at once, addresses past 2**31 elements (--full), and the host's time per call. Work is split over
processes that share the GPU, because most of the time goes into compiling; a failure never stops the run, a hang is
stopped by the time limit and named. Exit status 1 if anything failed or was not run. JSON goes to DIR.
"""

# ruff: noqa: INP001, T201, S603 (a program beside the package: it prints, and runs itself again)

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [
    str(ROOT),
    *(str(p) for p in sorted((ROOT / "backends").iterdir()) if p.is_dir()),
    str(ROOT / "backends" / "triton" / "tools"),
]

import torch  # noqa: E402
from cases import KINDS, Case, judge, make_mask, operands  # noqa: E402

from fmcore_cuda_hopper import attention as hopper  # noqa: E402
from fmcore_cuda_hopper.versions import triton_problem  # noqa: E402
from fmcore_triton import attention as portable  # noqa: E402
from fmcore_triton.register import use_plan_builder  # noqa: E402

Found = dict[str, Any]
DEVICE = torch.device("cuda", 0)


def keywords(scale: float) -> dict[str, Any]:
    """What every call says beside its tensors."""
    return {"softmax_scale": scale, "softcap": 0.0, "sink": None, "deterministic": False}


def both(impl: Any, case: Case) -> tuple[Any, Any, list[torch.Tensor]]:
    """Forward and backward of a case on poisoned memory; the operands, the mask and the five results."""
    x, mask = operands(case, DEVICE), make_mask(case, DEVICE)
    poison = torch.full((max(1, 4 * x.q.numel()),), float("nan"), device=DEVICE)
    del poison  # what is allocated next may well get this memory: unwritten results show
    out, lse = impl.forward(x.q, x.k, x.v, mask, **keywords(x.scale))
    grads = impl.backward(x.dout, x.dlse, x.q, x.k, x.v, out, lse, mask, **keywords(x.scale))
    return x, mask, [out, lse, *grads[:3]]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative L2 distance; -inf counts as equal to itself, NaN as infinitely far."""
    a, b = a.double(), b.double()
    same = torch.isneginf(a) & torch.isneginf(b)
    a, b = torch.where(same, 0.0, a), torch.where(same, 0.0, b)
    far = float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b).clamp_min(1e-30))
    return far if far == far else float("inf")  # noqa: PLR0124 (NaN)


def check_case(case: Case) -> Found:
    """Against the oracle."""
    x, _, (out, lse, dq, dk, dv) = both(hopper, case)
    result = judge(case, x, out, lse, (dq, dk, dv, None))
    return {"ok": result.ok, "ratios": result.ratios}


def check_rival(case: Case) -> Found:
    """Against the portable Triton backend, on sizes that the oracle cannot hold."""
    _, _, mine = both(hopper, case)
    _, _, theirs = both(portable, case)
    far = {n: distance(a, b) for n, a, b in zip(("out", "lse", "dq", "dk", "dv"), mine, theirs, strict=True)}
    return {"ok": far["lse"] < 1e-4 and all(value < 8e-3 for value in far.values()), "distance": far}


def check_repeats() -> Found:
    """30 runs: out, lse, dk and dv equal bit for bit; dq, summed by atomics, to rounding."""
    differ, dq_far = 0, 0.0
    for kind in ("causal_doc", "random4"):
        case = Case(kind=kind, s_q=2500, s_k=2500, h_q=4, h_kv=2, d=128, dv=128)
        x, mask = operands(case, DEVICE), make_mask(case, DEVICE)
        first: list[torch.Tensor] = []
        for _ in range(30):
            out, lse = hopper.forward(x.q, x.k, x.v, mask, **keywords(x.scale))
            dq, dk, dv, _ = hopper.backward(x.dout, None, x.q, x.k, x.v, out, lse, mask, **keywords(x.scale))
            now = [out, lse, dk, dv, dq]
            first = first or now
            differ += not all(torch.equal(a, b) for a, b in zip(first[:4], now[:4], strict=True))
            dq_far = max(dq_far, distance(now[4], first[4]))
    return {"ok": differ == 0 and dq_far < 4e-3, "differ": differ, "dq": dq_far}


def check_random(seconds: float, most: int, seed: int, layouts: tuple[tuple[int, int], ...]) -> Found:
    """Random masks, lengths and head layouts of two dtypes against the oracle until the time is up."""
    draw = random.Random(seed)  # noqa: S311 (a fixed choice)
    begin, count, worst, bad = time.monotonic(), 0, 0.0, []
    while count < most and time.monotonic() - begin < seconds:
        h_q, h_kv = draw.choice(layouts)
        case = Case(
            kind=draw.choice(("random1", "random4", "causal_doc", "document", "band", "gap")), b=draw.choice((1, 2)),
            s_q=draw.randint(1, 700), s_k=draw.randint(1, 700), h_q=h_q, h_kv=h_kv, d=128, dv=128,
            mask_heads="1" if len(layouts) == 1 else draw.choice(("1", "kv")),
            mask_batch=draw.random() < 0.5, dlse=draw.random() < 0.5,
            seed=seed * 10_000 + count,
        )  # fmt: skip
        found = check_case(case)
        top = max(found["ratios"].values())
        worst = max(worst, top)
        if not found["ok"]:
            bad.append(f"{case.name}: {found['ratios']}")
        count += 1
    return {"ok": not bad and count > 0, "masks": count, "worst": worst, "bad": bad[:5]}


def check_graph() -> Found:
    """Capture forward and backward, change the inputs in place, replay twice: equal to a plain run each time."""
    case = Case(kind="causal_doc", s_q=1500, s_k=1500, h_q=4, h_kv=2, d=128, dv=128)
    x, mask = operands(case, DEVICE), make_mask(case, DEVICE)

    def step() -> list[torch.Tensor]:
        out, lse = hopper.forward(x.q, x.k, x.v, mask, **keywords(x.scale))
        grads = hopper.backward(x.dout, None, x.q, x.k, x.v, out, lse, mask, **keywords(x.scale))
        return [out, lse, grads[1], grads[2], grads[0]]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    equal, far = True, 0.0
    for _ in range(2):
        for t in (x.q, x.k, x.v, x.dout):
            t.copy_(torch.randn_like(t))
        graph.replay()
        want = step()
        torch.cuda.synchronize()
        equal &= all(torch.equal(a, b) for a, b in zip(captured[:4], want[:4], strict=True))
        far = max(far, distance(captured[4], want[4]))
    fresh = make_mask(replace(case, seed=5), DEVICE)  # its plan is built inside the capture
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second):
        inside = hopper.forward(x.q, x.k, x.v, fresh, **keywords(x.scale))
    second.replay()
    outside = hopper.forward(x.q, x.k, x.v, fresh, **keywords(x.scale))
    torch.cuda.synchronize()
    planned = all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))
    return {"ok": equal and far < 4e-3 and planned, "bitwise": equal, "dq": far, "plan inside": planned}


def check_streams() -> Found:
    """Two streams run the same kernels on different data at once, 20 times."""
    cases = [Case(kind=k, s_q=1800, s_k=1800, h_q=4, h_kv=2, d=128, dv=128) for k in ("causal_doc", "sliding")]
    xs, masks = [operands(c, DEVICE) for c in cases], [make_mask(c, DEVICE) for c in cases]

    def step(i: int) -> list[torch.Tensor]:
        x = xs[i]
        out, lse = hopper.forward(x.q, x.k, x.v, masks[i], **keywords(x.scale))
        grads = hopper.backward(x.dout, None, x.q, x.k, x.v, out, lse, masks[i], **keywords(x.scale))
        return [out, lse, grads[1], grads[2]]

    want = [step(0), step(1)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    found: list[tuple[int, list[torch.Tensor]]] = []
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found.append((i, step(i)))
    torch.cuda.synchronize()
    wrong = sum(not all(torch.equal(a, b) for a, b in zip(got, want[i], strict=True)) for i, got in found)
    return {"ok": wrong == 0, "wrong": wrong}


def check_wide() -> Found:
    """More than 2**31 elements in q: the last heads equal a run of their own."""
    b, s, h, d = 5, 4096, 1024, 128
    mask = make_mask(Case(kind="causal_doc", s_q=s, s_k=s), DEVICE)
    g = torch.Generator(device=DEVICE).manual_seed(0)
    q, k, v, dout = (torch.randn(b, s, h, d, device=DEVICE, dtype=torch.bfloat16, generator=g) for _ in range(4))
    out, lse = hopper.forward(q, k, v, mask, **keywords(d**-0.5))
    _, dk, dv, _ = hopper.backward(dout, None, q, k, v, out, lse, mask, **keywords(d**-0.5))
    part = (slice(b - 1, b), slice(None), slice(h - 2, h))
    small = [t[part].clone() for t in (q, k, v, dout)]
    out2, lse2 = hopper.forward(*small[:3], mask, **keywords(d**-0.5))
    _, dk2, dv2, _ = hopper.backward(small[3], None, *small[:3], out2, lse2, mask, **keywords(d**-0.5))
    pairs = ((out[part], out2), (lse[b - 1 :, h - 2 :], lse2), (dk[part], dk2), (dv[part], dv2))
    return {"ok": all(torch.equal(a, c) for a, c in pairs), "elements": q.numel()}


def check_host() -> Found:
    """Microseconds that the host spends in a call whose plan is there; the GPU is far behind and never waited for."""
    case = Case(kind="causal_doc", s_q=256, s_k=256, h_q=4, h_kv=2, d=128, dv=128)
    x, mask = operands(case, DEVICE), make_mask(case, DEVICE)
    took: dict[str, float] = {}
    out, lse = hopper.forward(x.q, x.k, x.v, mask, **keywords(x.scale))
    calls: dict[str, Callable[[], Any]] = {
        "forward": lambda: hopper.forward(x.q, x.k, x.v, mask, **keywords(x.scale)),
        "backward": lambda: hopper.backward(x.dout, None, x.q, x.k, x.v, out, lse, mask, **keywords(x.scale)),
    }
    for name, call in calls.items():
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        samples = []
        for _ in range(200):
            begin = time.perf_counter()
            call()
            samples.append(time.perf_counter() - begin)
            if len(samples) % 50 == 0:
                torch.cuda.synchronize()
        took[name] = sorted(samples)[100] * 1e6
    return {"ok": True, "us": took}


def cases(*, full: bool) -> list[Case]:
    """Cases by head layout, so that those of one compilation go to one process."""
    wide = {"d": 128, "dv": 128}
    found = [
        Case(kind=kind, s_q=700, s_k=700, h_q=4, h_kv=2, dlse=True, seed=i, **wide) for i, kind in enumerate(KINDS)
    ]
    lengths = [(1, 1), (1, 300), (127, 128), (128, 127), (129, 129), (300, 1000), (1000, 300), (1025, 1023), (64, 2048)]
    found += [
        Case(kind=kind, s_q=a, s_k=c, h_q=4, h_kv=2, **wide)
        for a, c in lengths
        for kind in ("causal", "random4", "full")
    ]
    found += [
        Case(kind=kind, s_q=515, s_k=515, h_q=4, h_kv=2, **wide, **extra)
        for extra in ({"layout": "strided"}, {"layout": "zero"}, {"scale": -0.2}, {"scale": 0.0}, {"magnitude": 6.0})
        for kind in ("causal_doc", "band", "hidden")
    ]
    found += [Case(kind=kind, s_q=513, s_k=513, dtype="float16", h_q=4, h_kv=2, **wide) for kind in KINDS]
    found += [Case(kind=kind, s_q=513, s_k=400, h_q=2, h_kv=1) for kind in KINDS]  # d = 64
    if full:
        found += [Case(kind=kind, s_q=1500, s_k=1500, dtype="float16", h_q=2, h_kv=1) for kind in KINDS]
    return found


def layouts(*, full: bool) -> list[Case]:
    """Head layouts; every one compiles for itself."""
    return [
        Case(kind="random1", s_q=400, s_k=400, h_q=h, h_kv=hk, mask_heads=m, b=2, mask_batch=m != "1", d=128, dv=128)
        for h, hk in ((8, 1), (6, 2), *(((7, 7), (12, 3), (5, 1), (32, 8)) if full else ()))
        for m in ("1", "kv", "q")
    ]


Items = list[tuple[str, Callable[[], Found]]]


def work(*, full: bool) -> tuple[Items, Items]:
    """Every check with its name: many small ones that share few compilations, and some that compile or last."""
    small: Items = [(case.name, partial(check_case, case)) for case in cases(full=full)]
    items: Items = [(case.name, partial(check_case, case)) for case in layouts(full=full)]
    rivals = [
        Case(kind=kind, s_q=s, s_k=s, h_q=4, h_kv=2, d=128, dv=128)
        for kind in ("causal_doc", "band", "random1")
        for s in ((4100, 16383) if full else (4100,))
        if (kind, s) != ("causal_doc", 16383)  # its bounds are built through a square table
    ]
    items += [(f"against triton: {case.name}", partial(check_rival, case)) for case in rivals]
    items += [
        ("30 runs", check_repeats),
        ("graphs", check_graph),
        ("two streams", check_streams),
        *(
            (
                f"random masks {i}",
                partial(check_random, 150.0, 500, i, ((1, 1), (2, 1), (4, 2), (3, 3)))
                if full
                else partial(check_random, 20.0, 500, i, ((4, 2),)),
            )
            for i in range(4 if full else 2)
        ),
        ("host", check_host),
    ]
    if full:
        items.append(("addresses past 2**31 elements", check_wide))
    return small, items


def shard(args: argparse.Namespace) -> None:
    """Run every jobs-th check of this process; every result is written at once, so that a hang loses one."""
    use_plan_builder()
    torch.set_num_threads(1)
    index, count = map(int, args.shard.split("/"))
    found: Found = {}
    small, rest = work(full=args.full)
    # Cases that share a compilation lie side by side: every process gets a run of them, then of the rest one by one.
    mine = [c for i, c in enumerate(small) if i * count // len(small) == index]
    mine += [c for i, c in enumerate(rest) if i % count == index]
    for name, check in mine:
        Path(args.result).write_text(json.dumps({**found, name: {"ok": False, "error": "it did not come back"}}))
        begin = time.monotonic()
        try:
            found[name] = check()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 (a failing check must not stop the others)
            found[name] = {"ok": False, "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        found[name]["seconds"] = round(time.monotonic() - begin, 2)
        Path(args.result).write_text(json.dumps(found))


def summary(found: Found, names: list[str], seconds: float) -> bool:
    """Print what failed, the worst ratio per output and the special checks."""
    for name in names:
        entry = found.get(name)
        if entry is None:
            print(f"NOT RUN {name}")
        elif not entry["ok"]:
            shown = {k: v for k, v in entry.items() if k not in ("ok", "trace", "seconds")}
            print(f"FAIL {name}: {str(shown)[:420]}")
    worst: dict[str, tuple[float, str]] = {}
    for name, entry in found.items():
        for output, value in entry.get("ratios", {}).items():
            worst[output] = max(worst.get(output, (-1.0, "")), (value, name))
    for output, (value, name) in sorted(worst.items()):
        print(f"worst {output}: {value:.3f} of its bound at {name}")
    for name, entry in found.items():
        if "ratios" not in entry:
            print(f"{name}: { {k: v for k, v in entry.items() if k != 'trace'} }"[:300])
    bad = [n for n, e in found.items() if not e["ok"]]
    print(f"{len(found) - len(bad)} of {len(names)} passed, {len(bad)} failed; {seconds:.0f} s")
    return not bad and len(found) == len(names)


def main() -> int:
    """Run all shards and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="the default")
    size.add_argument("--full", action="store_true")
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--timeout", type=float, help="seconds for everything; 118, or 420 with --full")
    parser.add_argument("--out", default=os.environ.get("OUT", "build"))
    parser.add_argument("--shard")
    parser.add_argument("--result")
    args = parser.parse_args()
    if triton_problem():
        print(triton_problem())
        return 1
    if args.shard:
        shard(args)
        return 0
    limit = args.timeout or (420.0 if args.full else 118.0)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    children = []
    for i in range(args.jobs):
        result, log = out / f"hopper_check_{i}.part", out / f"hopper_check_{i}.txt"
        result.unlink(missing_ok=True)
        command = [sys.executable, __file__, "--shard", f"{i}/{args.jobs}", "--result", str(result)]
        command += ["--full"] if args.full else []
        with log.open("w") as stream:
            children.append((subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT), result, log))
    found: Found = {}
    for i, (child, result, log) in enumerate(children):
        try:
            child.wait(max(1.0, limit - (time.monotonic() - start)))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            print(f"process {i} was stopped after {limit:.0f} s")
        if result.exists():
            found.update(json.loads(result.read_text()))
            result.unlink()
        if child.returncode not in (0, -9):
            print(f"process {i} ended with {child.returncode}: {log.read_text()[-800:]}")
        log.unlink()
    good = summary(found, [name for part in work(full=args.full) for name, _ in part], time.monotonic() - start)
    (out / "hopper_check.json").write_text(json.dumps(found, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
