"""Check the Triton backend on a GPU: correctness, determinism, recompilation, 64-bit addresses; prints a summary last.

Usage: python backends/triton/tools/gpu_check.py [--jobs 14] [--quick] [--out DIR]
Cases are split over processes that share the GPU, because most of the time goes into compiling. A failure never stops
the run. Exit status 1 if anything failed. JSON goes to DIR, by default the environment's OUT, else build/.
"""

# ruff: noqa: INP001, T201, S603 (programs beside the package: they print, and run themselves again)

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [
    str(ROOT),
    *(str(p) for p in sorted((ROOT / "backends").iterdir()) if p.is_dir()),
    str(ROOT / "conformance"),
    str(Path(__file__).parent),
]

import torch  # noqa: E402
from cases import KINDS, Case, judge, make_mask, operands  # noqa: E402

from fmcore_triton import attention as impl  # noqa: E402
from fmcore_triton.register import use_plan_builder  # noqa: E402

Check = Callable[[torch.device], dict[str, Any]]


def attention_cases(*, quick: bool) -> list[Case]:
    """Masks x dtypes x head dimensions x shapes, thinned so that each value of each axis meets many of the others."""
    cases = [
        Case(kind=kind, s_q=700, s_k=700, h_q=4, h_kv=2, d=128, dv=128, dlse=True, seed=i)
        for i, kind in enumerate(KINDS)
    ]
    cases += [Case(kind=kind, s_q=513, s_k=513, d=64, dv=64, dtype="float16", seed=i) for i, kind in enumerate(KINDS)]
    lengths = [(1, 1), (1, 300), (127, 128), (128, 127), (129, 129), (300, 1000), (1000, 300), (1025, 1023), (16, 2048)]
    cases += [
        Case(kind=kind, s_q=a, s_k=c, d=128, dv=128, h_q=2, h_kv=2)
        for a, c in lengths
        for kind in ("causal", "random4", "full")
    ]
    if quick:
        return [
            *cases[: len(KINDS)],
            *(c for c in cases[2 * len(KINDS) :] if c.kind == "random4"),
            *(
                Case(kind="random4", s_q=300, s_k=333, d=d, dv=d, dtype=t)
                for d in (80, 96, 256)
                for t in ("bfloat16", "float16")
            ),
            *(
                Case(kind="random1", s_q=400, s_k=400, h_q=h, h_kv=hk, mask_heads="kv", b=2, mask_batch=True)
                for h, hk in ((8, 1), (12, 3))
            ),
            *(
                Case(kind=kind, s_q=515, s_k=515, d=128, dv=128, **extra)
                for kind in ("causal_doc", "band")
                for extra in ({"scale": -0.2}, {"magnitude": 6.0}, {"softcap": 5.0, "sink": True})
            ),
        ]
    for d, dv in ((32, 32), (40, 40), (80, 80), (96, 96), (192, 192), (256, 256), (192, 128), (64, 128), (128, 64)):
        for dtype in ("bfloat16", "float16"):
            cases += [Case(kind=kind, s_q=300, s_k=333, d=d, dv=dv, dtype=dtype) for kind in ("causal", "random4")]
    for d in (16, 64, 80, 128, 256):
        cases += [
            Case(kind=kind, s_q=257, s_k=257, d=d, dv=d, dtype="float32", dlse=True, h_q=4, h_kv=1)
            for kind in ("document", "band")
        ]
    gqa = ((8, 1), (6, 2), (7, 7), (12, 3), (5, 1))
    cases += [
        Case(kind="random1", s_q=400, s_k=400, h_q=h, h_kv=hk, mask_heads=m, b=2, mask_batch=m != "1")
        for h, hk in gqa
        for m in ("1", "kv", "q")
    ]
    extras: list[dict[str, Any]] = [
        {"softcap": 5.0},
        {"sink": True, "dlse": True},
        {"softcap": 5.0, "sink": True},
        {"layout": "strided"},
        {"layout": "zero"},
        {"scale": -0.2},
        {"magnitude": 6.0},
        {"deterministic": True},
    ]
    cases += [
        Case(kind=kind, s_q=515, s_k=515, d=128, dv=128, **extra)
        for extra in extras
        for kind in ("causal_doc", "band", "hidden")
    ]
    cases += [
        Case(kind=kind, s_q=260, s_k=260, d=64, dv=64, dtype="float32", **extra)
        for extra in extras[:3]
        for kind in ("sliding", "random4")
    ]
    return cases


def run_case(case: Case, device: torch.device) -> dict[str, Any]:
    """Run forward and backward, compare, and run them again for equality."""
    x = operands(case, device)
    mask = make_mask(case, device)
    keywords: dict[str, Any] = {
        "softmax_scale": x.scale,
        "softcap": case.softcap,
        "sink": x.sink,
        "deterministic": case.deterministic,
    }
    out, lse = impl.forward(x.q, x.k, x.v, mask, **keywords)
    grads = impl.backward(x.dout, x.dlse, x.q, x.k, x.v, out, lse, mask, **keywords)
    result = judge(case, x, out, lse, grads)
    again_out, again_lse = impl.forward(x.q, x.k, x.v, mask, **keywords)
    again = impl.backward(x.dout, x.dlse, x.q, x.k, x.v, out, lse, mask, **{**keywords, "deterministic": True})
    twice = impl.backward(x.dout, x.dlse, x.q, x.k, x.v, out, lse, mask, **{**keywords, "deterministic": True})
    equal = (
        torch.equal(out, again_out)
        and torch.equal(lse, again_lse)
        and all(a is b or torch.equal(a, b) for a, b in zip(again[:3], twice[:3], strict=True))
    )
    return {"ok": result.ok and equal, "ratios": result.ratios, "bitwise": equal}


def check_recompilation(device: torch.device) -> dict[str, Any]:
    """50 shapes and masks compile nothing after the first dense and the first sparse mask."""
    import random

    from fmcore_triton.kernels.attn_bwd import attn_bwd_kv, attn_bwd_q, attn_bwd_rows
    from fmcore_triton.kernels.attn_fwd import attn_fwd

    def compiled() -> int:
        total = 0
        for kernel in (attn_fwd, attn_bwd_kv, attn_bwd_q, attn_bwd_rows):
            for entry in kernel.device_caches.values():
                total += len(entry[0] if isinstance(entry, tuple) else entry)
        return total

    rng = random.Random(0)  # noqa: S311 (a fixed choice)
    counts = []
    for i in range(52):
        s_q, s_k = (1, 1) if i == 2 else (16, 16) if i == 3 else (rng.randint(1, 900), rng.randint(1, 900))
        hk = rng.choice((1, 2, 3))
        case = Case(
            kind=("causal", "causal_doc")[i] if i < 2 else rng.choice(("causal", "causal_doc", "sliding", "random1")),
            b=rng.choice((1, 2)),
            s_q=s_q,
            s_k=s_k,
            h_q=hk * rng.choice((1, 2)),
            h_kv=hk,
            d=128,
            dv=128,
            seed=i,
        )
        x, mask = operands(case, device), make_mask(case, device)
        out, lse = impl.forward(x.q, x.k, x.v, mask, softmax_scale=x.scale, softcap=0.0, sink=None, deterministic=False)
        impl.backward(
            x.dout,
            None,
            x.q,
            x.k,
            x.v,
            out,
            lse,
            mask,
            softmax_scale=x.scale,
            softcap=0.0,
            sink=None,
            deterministic=False,
        )
        counts.append(compiled())
    return {"ok": counts[1] == counts[-1], "first": counts[1], "last": counts[-1]}


def check_wide_addresses(device: torch.device) -> dict[str, Any]:
    """More than 2**31 elements in q, k, v and out: the last heads equal a run of their own, and the oracle."""
    b, s, h, d = 5, 4096, 1024, 128  # 2.68e9 elements, 5.4 GB each
    case = Case(kind="causal_doc", s_q=s, s_k=s, h_q=2, h_kv=2, d=d, dv=d)
    mask = make_mask(case, device)
    g = torch.Generator(device=device).manual_seed(0)
    q, k, v, dout = (torch.randn(b, s, h, d, device=device, dtype=torch.bfloat16, generator=g) for _ in range(4))
    keywords: dict[str, Any] = {"softmax_scale": d**-0.5, "softcap": 0.0, "sink": None, "deterministic": True}
    out, lse = impl.forward(q, k, v, mask, **keywords)
    grads = impl.backward(dout, None, q, k, v, out, lse, mask, **keywords)
    part = (slice(b - 1, b), slice(None), slice(h - 2, h))
    small = [t[part].clone() for t in (q, k, v, dout)]
    small_out, small_lse = impl.forward(*small[:3], mask, **keywords)
    small_grads = impl.backward(small[3], None, *small[:3], small_out, small_lse, mask, **keywords)
    same = torch.equal(out[part], small_out) and torch.equal(lse[b - 1 :, h - 2 :], small_lse)
    same = same and all(
        torch.equal(a[part], c)
        for a, c in zip(grads[:3], small_grads[:3], strict=True)
        if a is not None and c is not None
    )
    x = operands(Case(kind="causal_doc", s_q=s, s_k=s, h_q=2, h_kv=2, d=d, dv=d), device)
    x.q, x.k, x.v, x.dout = small
    result = judge(case, x, small_out, small_lse, small_grads)
    return {"ok": same and result.ok, "elements": q.numel(), "bitwise": same, "ratios": result.ratios}


def check_repeats(device: torch.device) -> dict[str, Any]:
    """30 runs of forward and deterministic backward are equal bit for bit."""
    case = Case(kind="causal_doc", s_q=2048, s_k=2048, h_q=8, h_kv=2, d=128, dv=128)
    x, mask = operands(case, device), make_mask(case, device)
    keywords: dict[str, Any] = {"softmax_scale": x.scale, "softcap": 0.0, "sink": None, "deterministic": True}
    first: list[torch.Tensor] = []
    differ = 0
    for _ in range(30):
        out, lse = impl.forward(x.q, x.k, x.v, mask, **keywords)
        now = [
            out,
            lse,
            *(t for t in impl.backward(x.dout, None, x.q, x.k, x.v, out, lse, mask, **keywords) if t is not None),
        ]
        first = first or now
        differ += not all(torch.equal(a, c) for a, c in zip(first, now, strict=True))
    return {"ok": differ == 0, "differ": differ}


def check_fallback(device: torch.device) -> dict[str, Any]:
    """A configuration far beyond the device's shared memory gives way to one that fits, and the results are right."""
    from fmcore_triton import tuner
    from fmcore_triton.launch import Launch

    case = Case(kind="band", s_q=333, s_k=300, d=128, dv=128)
    x, mask = operands(case, device), make_mask(case, device)
    keywords: dict[str, Any] = {"softmax_scale": x.scale, "softcap": 0.0, "sink": None, "deterministic": False}
    kinds = [tuner.Kind(kernel, x.q.dtype, 128, mask.mode) for kernel in ("attn_fwd", "attn_bwd_kv", "attn_bwd_q")]
    large = Launch({"BLOCK_M": 128, "BLOCK_N": 128}, 8, 4)
    for kind in kinds:
        tuner.override(kind, x.q.device, large)
    try:
        out, lse = impl.forward(x.q, x.k, x.v, mask, **keywords)
        grads = impl.backward(x.dout, None, x.q, x.k, x.v, out, lse, mask, **keywords)
        used = [tuner.launch_of(kind, x.q.device, trial=None) for kind in kinds]
    finally:
        tuner.forget()
    result = judge(case, x, out, lse, grads)
    fell = [launch != large for launch in used]
    return {"ok": result.ok and all(fell), "ratios": result.ratios, "used": [launch.to_row() for launch in used]}


def work(*, quick: bool) -> list[tuple[str, Check]]:
    """Every check with its name."""
    items: list[tuple[str, Check]] = [(case.name, partial(run_case, case)) for case in attention_cases(quick=quick)]
    items += [
        ("no recompilation over 50 shapes", check_recompilation),
        ("30 runs bitwise equal", check_repeats),
        ("fallback to what fits", check_fallback),
    ]
    items += math_checks()
    if not quick:
        items.append(("addresses past 2**31 elements", check_wide_addresses))
    return items


def math_checks() -> list[tuple[str, Check]]:
    """The fused kernels' checks, which live with them."""
    from math_cases import checks

    return list(checks())


def shard(args: argparse.Namespace) -> None:
    """Run every jobs-th item and write the results."""
    use_plan_builder()
    device = torch.device(args.device)
    index, count = map(int, args.shard.split("/"))
    found: dict[str, Any] = {}
    items = work(quick=args.quick)
    # Cases beside each other share their compiled kernels: deal them out in runs.
    size = -(-len(items) // count)
    for name, check in items[index * size : (index + 1) * size]:
        start = time.monotonic()
        try:
            found[name] = check(device)
        except Exception as error:  # noqa: BLE001 (a failing check must not hide the others)
            found[name] = {
                "ok": False,
                "error": f"{type(error).__name__}: {error}"[:300],
                "trace": traceback.format_exc()[-1500:],
            }
            if "CUDA error" in str(error):
                break
        found[name]["seconds"] = round(time.monotonic() - start, 2)
        Path(args.result).write_text(json.dumps(found))


def summary(found: dict[str, Any], expected: int, seconds: float) -> bool:
    """Print failures, the worst ratios and the count."""
    worst: dict[str, tuple[float, str]] = {}
    for name, entry in found.items():
        for output, value in entry.get("ratios", {}).items():
            if value > worst.get(output, (-1.0, ""))[0]:
                worst[output] = (value, name)
    bad = [name for name, entry in found.items() if not entry["ok"]]
    for name in bad:
        entry = found[name]
        print(
            f"FAIL {name}: {entry.get('error') or {k: v for k, v in entry.items() if k not in ('ok', 'trace')}}"[:400]
        )
    for output, (value, name) in sorted(worst.items()):
        print(f"worst {output}: {value:.3f} of its bound at {name}")
    for name in (
        "no recompilation over 50 shapes",
        "addresses past 2**31 elements",
        "30 runs bitwise equal",
        "fallback to what fits",
    ):
        if name in found:
            print(f"{name}: { {k: v for k, v in found[name].items() if k not in ('trace', 'ratios')} }")
    print(
        f"{len(found) - len(bad)} of {expected} passed, {len(bad)} failed, "
        f"{expected - len(found)} not run; {seconds:.0f} s"
    )
    return not bad and len(found) == expected


def main() -> int:
    """Run all shards and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--timeout", type=float, default=420, help="seconds for all checks")
    parser.add_argument("--out", default=os.environ.get("OUT", "build"))
    parser.add_argument("--shard")
    parser.add_argument("--result")
    args = parser.parse_args()
    if args.shard:
        shard(args)
        return 0
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    children = []
    for i in range(args.jobs):
        result = out / f"triton_check_{i}.part"
        result.unlink(missing_ok=True)
        command = [
            sys.executable,
            __file__,
            "--shard",
            f"{i}/{args.jobs}",
            "--result",
            str(result),
            "--device",
            args.device,
            *(["--quick"] if args.quick else []),
        ]
        log = (out / f"triton_check_{i}.log").open("w")
        children.append((subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), result, log.name))
    found: dict[str, Any] = {}
    for child, result, log in children:
        try:
            child.wait(max(1.0, args.timeout - (time.monotonic() - start)))
        except subprocess.TimeoutExpired:
            child.kill()
            print(f"a shard was stopped after {args.timeout:.0f} s")
        if result.exists():
            found.update(json.loads(result.read_text()))
            result.unlink()
        tail = Path(log).read_text()[-600:].strip()
        if child.returncode:
            print(f"shard ended with {child.returncode}: {tail}")
        Path(log).unlink()
    good = summary(found, len(work(quick=args.quick)), time.monotonic() - start)
    (out / "triton_check.json").write_text(json.dumps(found, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
