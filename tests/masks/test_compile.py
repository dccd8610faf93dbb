"""A mask inside torch.compile: plain attribute reads, with no graph break."""

from __future__ import annotations

import pytest
import torch

import fmcore
from fmcore import masks


def test_a_closed_over_mask_is_a_constant_of_the_graph():
    mask = masks.causal_document([3, 5])

    def use(x):
        if mask.mode == 1 and not mask.is_full and mask.block_mask is None:
            return x * mask.s_q + mask.planes[0, 0, 1].float()
        return x

    x = torch.randn(8)
    torch.testing.assert_close(torch.compile(use, fullgraph=True, backend="eager")(x), use(x))


def test_a_mask_is_an_argument_of_the_graph():
    def use(x, mask):
        return x + mask.planes[0, 0, 0].float() + mask.heads + len(mask.kind)

    compiled = torch.compile(use, fullgraph=True, backend="eager")
    x = torch.randn(8)
    for mask in (masks.causal_document([3, 5]), masks.document([3, 5]), masks.causal(8)):
        torch.testing.assert_close(compiled(x, mask), use(x, mask))


@pytest.mark.parametrize("dynamic", [False, True])
def test_masks_may_be_built_in_the_graph(dynamic):
    def use(q, k, v):
        one = fmcore.flashmask_attention(q, k, v, mask=masks.causal_document([3, 5]), backend="torch")
        return one + fmcore.flashmask_attention(q, k, v, mask=masks.causal(q.shape[1]), backend="torch")

    qkv = [torch.randn(1, 8, 2, 8) for _ in range(3)]
    compiled = torch.compile(use, fullgraph=True, backend="eager", dynamic=dynamic)
    torch.testing.assert_close(compiled(*qkv), use(*qkv))
    assert type(masks.causal(8).planes) is torch.Tensor  # none of the graph's was kept


def test_canonicalising_can_be_traced():
    def use(indices):
        return masks.canonicalize(indices, s_q=8, s_k=8, causal=True).planes

    indices = torch.randint(0, 9, (1, 1, 8, 2), dtype=torch.int32)
    got = torch.compile(use, fullgraph=True, backend="eager")(indices)
    assert torch.equal(got, use(indices))
