"""Random shapes, bounds (canonical or not) and threads: the kernels against the float64 oracle, until time is up.

Planes also go in raw, uncanonicalised: the kernels must then stay inside their tensors and agree with the literal rule.
A failure prints the seed that repeats it.
"""

# ruff: noqa: INP001, T201, S311 (a program beside the sources, not a package; its dice are no secrets)
from __future__ import annotations

import argparse
import random
import sys
import time

import torch

from fmcore import masks
from fmcore.masks import Mask
from fmcore.reference import attention as oracle
from fmcore_cpu import _native, attention

INT32 = (-(2**31), 2**31 - 1)


def main() -> int:
    """Run cases until the time is up; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    end, seed = time.monotonic() + args.seconds, args.seed
    while time.monotonic() < end:
        problem = one(seed)
        if problem:
            print(f"seed {seed}: {problem}")
            return 1
        seed += 1
    print(f"{seed - args.seed} cases clean, seeds {args.seed}..{seed - 1}, {_native.isa()}")
    return 0


def bounds(rng: random.Random, s_q: int, s_k: int, heads: int, batch: int) -> Mask:
    """A mask whose bounds are random, degenerate or out of range; raw planes one time in three."""
    n, causal = rng.choice([(1, True), (2, True), (2, False), (4, False)])
    style = rng.choice(["near", "edges", "wild"])
    if style == "near":
        columns = torch.randint(-2, s_q + 3, (batch, heads, s_k, n), dtype=torch.int32)
    elif style == "edges":
        edges = torch.tensor([0, 1, 63, 64, 65, 127, 128, s_q - 1, s_q, s_q + 1], dtype=torch.int32)
        columns = edges[torch.randint(0, len(edges), (batch, heads, s_k, n))]
    else:
        columns = torch.randint(*INT32, (batch, heads, s_k, n), dtype=torch.int32)
    keep = None
    if rng.random() < 0.3:
        keep = torch.randint(0, 2, (batch, heads, -(-s_q // 128), -(-s_k // 128)), dtype=torch.int32)
    if rng.random() < 1 / 3:
        mode = rng.choice([1, 2])
        planes = columns[..., :1].transpose(2, 3).repeat(1, 1, 2 * mode, 1)
        planes = planes[..., torch.randperm(s_k)] if s_k else planes
        planes = torch.stack([planes[:, :, i, torch.randperm(s_k)] for i in range(2 * mode)], 2)
        return Mask(planes, s_q=s_q, mode=mode, block_mask=keep)
    return masks.canonicalize(columns, s_q=s_q, s_k=s_k, causal=causal, block_mask=keep)


def one(seed: int) -> str:
    """Run one case; return what is wrong, or an empty string."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(rng.choice([1, 2, 3]))
    _native.use_isa(rng.choice([name for name, able in _native.kernels().isa_list() if able]))
    b, h_kv, group = rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([1, 2, 3])
    s_q, s_k = (rng.choice([1, 2, 63, 64, 65, 127, 129, 190, 300]) for _ in range(2))
    d, dv = rng.choice([1, 7, 16, 33]), rng.choice([4, 8, 31])
    dtype = rng.choice([torch.float32, torch.float64, torch.bfloat16, torch.float16])
    h_q = h_kv * group
    mask = bounds(rng, s_q, s_k, rng.choice([1, h_kv, h_q]), rng.choice([1, b]))
    q, k, v = torch.randn(b, s_q, h_q, d), torch.randn(b, s_k, h_kv, d), torch.randn(b, s_k, h_kv, dv)
    q, k, v = (t.to(dtype) for t in (q, k, v))
    options = {"softmax_scale": d**-0.5, "softcap": rng.choice([0.0, 0.0, 5.0])}
    if rng.random() < 0.3:
        options["sink"] = torch.randn(h_q).to(_native.compute_dtype(dtype))
    out, lse = attention.forward(q, k, v, mask, **options)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    got = (out, lse, *attention.backward(dout, dlse, q, k, v, out, lse, mask, **options))
    want = (
        *oracle.exact_forward(q, k, v, mask, **options),
        *oracle.exact_backward(dout, dlse, q, k, v, mask, **options),
    )
    unit = torch.finfo(dtype).eps
    for name, mine, good in zip(("out", "lse", "dq", "dk", "dv", "dsink"), got, want, strict=True):
        if good is None or not good.numel():
            continue
        finite = good.isfinite()
        if not torch.equal(mine.isfinite(), finite):
            return f"{name}: finite where it should not be, or the reverse"
        size = good[finite].abs().max().item() if finite.any() else 0.0
        error = (mine.double() - good)[finite].abs().max().item() if finite.any() else 0.0
        if error > 200 * unit * (1 + size):
            return f"{name}: error {error:.3g} at values up to {size:.3g} ({dtype}, {mask})"
    return ""


if __name__ == "__main__":
    sys.exit(main())
