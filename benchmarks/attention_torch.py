"""The framework rung of attention against torch's own scaled_dot_product_attention, in one run on one device.

    python benchmarks/attention_torch.py                              # CPU, 2048 rows, 4 heads, D=64, float32
    python benchmarks/attention_torch.py --device cuda --dtype bfloat16 --length 8192 --heads 32 --dim 128

SDPA gets the mask as a dense bool matrix, its only way to express it; "dense" is SDPA without a mask. Times are the
best of the repetitions; CPU time of the thread on the CPU (one thread), so that a busy machine disturbs less. "of
ideal" is the speed-up over masked SDPA, divided by 1 / (share of visible tiles).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from fmcore import masks
from fmcore_torch.attention import backward, forward
from fmcore_torch.attention.arithmetic import arithmetic


def best(run: Callable[[], object], device: torch.device, repeat: int) -> float:
    """Milliseconds of the fastest repetition, after one to warm up."""
    run()
    times = []
    for _ in range(repeat):
        if device.type == "cpu":
            start = time.thread_time()
            run()
            times.append(time.thread_time() - start)
        else:
            module = torch.get_device_module(device)
            module.synchronize(device)
            start = time.perf_counter()
            run()
            module.synchronize(device)
            times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--masks", default=",".join(masks.BENCHMARK_MASKS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    shape = (1, args.length, args.heads, args.dim)
    q, k, v, dout = (torch.randn(shape, device=device).to(dtype) for _ in range(4))
    leaves = [t.transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
    scale = args.dim**-0.5
    how = arithmetic(dtype, device)

    def sdpa(mask: torch.Tensor | None) -> tuple[float, float]:
        def ahead() -> object:
            with torch.no_grad():
                return scaled_dot_product_attention(*leaves, attn_mask=mask)

        def both() -> object:
            out = scaled_dot_product_attention(*leaves, attn_mask=mask)
            return torch.autograd.grad(out, leaves, dout.transpose(1, 2))

        return best(ahead, device, args.repeat), best(both, device, args.repeat)

    dense = sdpa(None)
    print(f"torch {torch.__version__}, {device}, {args.dtype}, b=1 s={args.length} h={args.heads} d={args.dim}; ms")
    print(f"dense SDPA: forward {dense[0]:.1f}, both {dense[1]:.1f}")
    heading = f"{'mask':20}{'area':>7}{'sdpa fwd':>10}{'fwd':>8}{'x':>7}{'of ideal':>10}"
    print(f"{heading}{'sdpa both':>11}{'both':>8}{'x':>7}{'of ideal':>10}")
    rows = []
    for name in args.masks.split(","):
        mask = masks.benchmark(name, args.length, heads=args.heads, device=device)
        visible = mask.dense()
        theirs = sdpa(visible)
        out, lse = forward(q, k, v, mask, softmax_scale=scale)
        ahead = best(lambda m=mask: forward(q, k, v, m, softmax_scale=scale), device, args.repeat)
        back = best(
            lambda m=mask, o=out, n=lse: backward(dout, None, q, k, v, o, n, m, softmax_scale=scale),
            device,
            args.repeat,
        )
        area = mask.plan(how.block_q, how.block_k, "cpu").tile_area
        both = ahead + back
        gain, gain_both = theirs[0] / ahead, theirs[1] / both
        print(
            f"{name:20}{area:7.3f}{theirs[0]:10.1f}{ahead:8.1f}{gain:7.2f}{gain * area:10.2f}"
            f"{theirs[1]:11.1f}{both:8.1f}{gain_both:7.2f}{gain_both * area:10.2f}"
        )
        rows.append({"mask": name, "area": area, "sdpa": theirs, "forward_ms": ahead, "backward_ms": back})
    if args.json:
        record = {"torch": torch.__version__, "device": str(device), "dtype": args.dtype, "shape": shape}
        args.json.write_text(json.dumps({**record, "dense_sdpa": dense, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
