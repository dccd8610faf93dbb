"""Run the mapping from programs to work under Triton's interpreter; a program of its own, as the interpreter needs.

Prints one JSON object: for a batch of masks with a few heavy tiles, and for a causal one, the work of every program.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import triton

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "backends" / "triton")]

from fmcore_triton.kernels.attn_common import work_item  # noqa: E402


@triton.jit
def write_down(
    out,
    order,
    partial,
    full,
    n_tiles,
    heads,
    head_group,
    queries,
    mask_rows,
    mask_group,
    MODE: triton.language.constexpr,
):
    b, h, tile, row = work_item(order, partial, full, n_tiles, heads, head_group, queries, mask_rows, mask_group, MODE)
    at = out + triton.language.program_id(0) * 4
    triton.language.store(at, b.to(triton.language.int32))
    triton.language.store(at + 1, h)
    triton.language.store(at + 2, tile)
    triton.language.store(at + 3, row.to(triton.language.int32))


def programs(work: torch.Tensor, *, batch: int, heads: int, head_group: int, mode: int = 2) -> list[list[int]]:
    """(batch, head, tile, mask row) by program, for tile counts [mask batch, mask heads, tiles]."""
    mask_batch, mask_heads, n_tiles = work.shape
    order = work.argsort(dim=-1, descending=True, stable=True).int().contiguous()
    partial = (work // 3).int().contiguous()
    out = torch.empty((batch * heads * n_tiles, 4), dtype=torch.int32)
    mask_rows = mask_heads if mask_batch > 1 else 0
    write_down[(len(out),)](
        out, order, partial, (work - partial).int().contiguous(), n_tiles, heads, head_group, 1, mask_rows,
        heads // mask_heads, mode,
    )  # fmt: skip
    return out.tolist()


if __name__ == "__main__":
    few = torch.full((2, 2, 33), 9)
    few[:, :, 5] = few[0, :, 30] = 33
    causal = torch.arange(1, 34).expand(1, 1, 33)
    tiny = torch.tensor([[[4, 0, 1]]])
    print(
        json.dumps(
            {
                "few": programs(few, batch=2, heads=4, head_group=2),
                "causal": programs(causal, batch=2, heads=4, head_group=2, mode=1),
                "tiny": programs(tiny, batch=1, heads=3, head_group=1),
            }
        )
    )
