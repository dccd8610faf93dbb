"""The plan kernels under Triton's interpreter against the torch builder; a program of its own, like ``interpret.py``.

Usage: TRITON_INTERPRET=1 python interpret_plan.py. Prints one JSON object: the tile classes that occurred, and for
every case the names of what differs.
"""

from __future__ import annotations

import json
import random

import torch
from interpret import _repair_interpreter

from fmcore.masks import Mask, canonicalize
from fmcore.masks.plan_torch import build_plan_torch
from fmcore_triton.plan import build_plan

FORMS = ((True, 1), (True, 2), (False, 2), (False, 4))


def make(case: int) -> tuple[str, Mask, int, int]:
    draw = random.Random(case)
    s_q, s_k = draw.choice([(200, 200), (140, 257), (130, 65), (1, 1), (64, 256)])
    causal, n = FORMS[case % 4]
    batch, heads = draw.choice([(1, 1), (2, 1), (1, 3)])
    generator = torch.Generator().manual_seed(case)
    shape = (batch, heads, s_k, n)
    indices = torch.randint(-5, s_q + 6, shape, generator=generator, dtype=torch.int32)
    if case % 3 == 0:  # bounds that move slowly give all three classes
        indices = indices.sort(dim=2).values
    keep = None
    block_q, block_k = draw.choice([(16, 32), (64, 128), (128, 64), (96, 80), (256, 256), (100, 37)])
    if case // 4 % 2:
        keep = torch.rand(batch, heads, -(-s_q // 128), -(-s_k // 128), generator=generator) > 0.4
        block_q, block_k = draw.choice([(32, 64), (128, 128), (96, 160), (256, 192)])
    mask = canonicalize(indices, s_q=s_q, s_k=s_k, causal=causal, block_mask=keep)
    name = f"{case}: mode {mask.mode}, {s_q}x{s_k}, {batch}x{heads}, tiles {block_q}x{block_k}, keep={keep is not None}"
    return name, mask, block_q, block_k


def differences(mask: Mask, block_q: int, block_k: int) -> list[str]:
    want = build_plan_torch(mask, mask.planes, mask.block_mask, block_q, block_k)
    got = build_plan(mask, mask.planes, mask.block_mask, block_q, block_k)
    wrong = [
        name
        for name in ("q_partial", "q_full", "k_partial", "k_full", "q_order", "k_order")
        if not torch.equal(getattr(want, name), getattr(got, name))
    ]
    for name, work in (("q_tiles", want.q_work), ("k_tiles", want.k_work)):
        one, other = getattr(want, name), getattr(got, name)
        used = torch.arange(one.shape[-1]) < work.unsqueeze(-1)
        if one.dtype != other.dtype or not torch.equal(one[used], other[used]):
            wrong.append(name)
    return wrong


if __name__ == "__main__":
    _repair_interpreter()
    torch.set_num_threads(1)
    cases = [make(case) for case in range(8)]
    report = {
        "classes": sorted({int(c) for _, mask, q, k in cases for c in mask.plan(q, k).classes().unique()}),
        "differences": {name: differences(mask, q, k) for name, mask, q, k in cases},
    }
    print(json.dumps(report))
