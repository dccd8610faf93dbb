"""The main job in one page: choose a backend, run real ops, check each against the float64 reference.

Run ``python examples/first_steps.py``. It trains nothing: it shows who served each op, and how far from exact it was.
"""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import fmcore as fm
from fmcore.reference import moe as moe_reference
from fmcore.reference.attention import exact_backward, exact_forward

RANKS, TOKENS, HIDDEN, TOP, EXPERTS = 2, 64, 32, 4, 8


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative L2 distance; NaN where the two disagree about NaN."""
    wide = torch.complex128 if exact.is_complex() else torch.float64
    gap, size = torch.linalg.vector_norm(found.to(wide) - exact.to(wide)), torch.linalg.vector_norm(exact.to(wide))
    return float(gap / size)


def report(name: str, by: str, error: float, bound: float) -> bool:
    """Print one line and return whether the error is within its bound; NaN never is."""
    good = error <= bound
    print(f"  {'ok  ' if good else 'FAIL'} {name:44} by {by:18} error {error:.1e} (bound {bound:.0e})")
    return good


def attention() -> list[bool]:
    """Forward and backward on a packed batch of three documents, grouped-query heads, in two dtypes."""
    passed = []
    mask = fm.masks.causal_document([300, 120, 92])
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(2, 512, h, 64, generator=generator).to(dtype).requires_grad_() for h in (8, 2, 2))
        out, lse = fm.flashmask_attention(q, k, v, mask=mask, return_softmax_lse=True)
        dout = torch.randn(out.shape, generator=generator).to(dtype)
        grads = torch.autograd.grad(out, (q, k, v), dout)
        leaves = [t.detach() for t in (q, k, v)]
        want = [*exact_forward(*leaves, mask, softmax_scale=0.125)]
        want += exact_backward(dout, None, *leaves, mask, softmax_scale=0.125)[:3]
        served = fm.explain("flashmask_attention", q, k, v, mask=mask).selected
        by = served.id if served else "nobody"
        for name, found, exact in zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), want, strict=True):
            passed.append(report(f"flashmask_attention {name} {dtype}", by, distance(found.detach(), exact), bound))
    return passed


def math() -> list[bool]:
    """One op of each of three kinds of dtype."""
    generator = torch.Generator().manual_seed(1)
    flags = torch.randn(64, 64, generator=generator) > 0
    halves = torch.randn(64, 256, generator=generator).bfloat16()
    waves = torch.randn(64, 64, generator=generator, dtype=torch.complex64)
    wide, exact_halves = waves.to(torch.complex128), halves.double()
    cases = (
        ("logical_xor", (flags, flags.T), flags ^ flags.T, 0.0),
        ("sum", (flags,), flags.double().sum(), 0.0),
        ("softmax", (halves,), exact_halves.softmax(-1), 4e-3),
        ("matmul", (halves, halves.T), exact_halves @ exact_halves.T, 4e-3),
        ("matmul", (waves, waves), wide @ wide, 1e-6),
        ("fft", (waves,), torch.fft.fft(wide), 1e-6),
    )
    passed = []
    for name, inputs, exact, bound in cases:
        served = fm.explain(f"math.{name}", *inputs).selected
        found = getattr(fm.math, name)(*inputs)
        by = served.id if served else "nobody"
        passed.append(report(f"math.{name} {inputs[0].dtype}", by, distance(found, exact), bound))
    return passed


def _routes() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randn(TOKENS - 9 * rank, HIDDEN, generator=generator) for rank in range(RANKS)]
    experts = [torch.rand(len(x), EXPERTS, generator=generator).argsort(1)[:, :TOP] for x in rows]
    return rows, experts


def _moe_rank(rank: int, folder: str) -> None:
    """One process: dispatch, a factor per expert, combine; compared with the literal reference of all ranks."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    rows, experts = _routes()
    sent = fm.moe.dispatch(rows[rank], fm.moe.layout(experts[rank], EXPERTS, group=dist.group.WORLD), experts[rank])
    out, _ = fm.moe.combine(sent.x * 2, sent.handle)
    received = moe_reference.dispatch(rows, experts, None, EXPERTS)
    exact = moe_reference.combine([2 * r.x for r in received], received, [len(x) for x in rows], exact=True)
    torch.save((distance(sent.x, received[rank].x), distance(out, exact[rank])), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def moe() -> list[bool]:
    """Dispatch and combine over two processes with uneven token counts."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_moe_rank, (folder,), nprocs=RANKS)  # type: ignore[no-untyped-call]
        errors = [torch.load(f"{folder}/{rank}.pt") for rank in range(RANKS)]
    passed = []
    for rank, (sent, combined) in enumerate(errors):
        passed.append(report(f"moe.dispatch rank {rank} of {RANKS}, bit for bit", "torch/collective", sent, 0.0))
        passed.append(report(f"moe.combine rank {rank} of {RANKS}", "torch/collective", combined, 1e-6))
    return passed


def main() -> None:
    """Run the three families and end with status 1 if anything was off."""
    print(f"backend: {fm.backend()}")
    for family in (attention, math, moe):
        print(f"{family.__name__}:")
        if not all(family()):
            raise SystemExit(1)
    print(f"all within bounds, on {os.cpu_count()} cores, torch {torch.__version__}")


if __name__ == "__main__":
    main()
