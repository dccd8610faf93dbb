"""The suite's dense attention and the project's oracle are two derivations of one thing; the masks' rule is literal."""

from __future__ import annotations

import pytest
import torch

from fmcore import masks
from fmcore.reference.attention import exact_backward, exact_forward
from fmcore_conformance.cases import attention_inputs as inputs
from fmcore_conformance.cases import attention_masks, attention_oracle
from fmcore_conformance.target import Target


@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("mask", ["causal_document", "masked_rows", "random_bounds"])
def test_two_derivations_agree(mask, softcap, with_sink):
    size = inputs.Size(b=2, s_q=40, s_k=50, h_q=4, h_kv=2, d=8, dv=6)
    call = inputs.make(Target(), mask, mask, size, "float64", softcap=softcap, sink=with_sink)
    value = masks.canonicalize(call.mask.startend, s_q=40, s_k=50, causal=call.mask.causal)
    options = {"softmax_scale": call.scale, "softcap": softcap, "sink": call.sink}
    out, lse = exact_forward(call.q, call.k, call.v, value, **options)
    ref = attention_oracle.forward(
        call.q, call.k, call.v, call.visible(), scale=call.scale, softcap=softcap, sink=call.sink
    )
    torch.testing.assert_close(out, ref.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, ref.lse, rtol=1e-12, atol=1e-12)
    g = torch.Generator().manual_seed(1)
    dout = torch.randn(out.shape, generator=g, dtype=torch.float64)
    dlse = torch.randn(lse.shape, generator=g, dtype=torch.float64).masked_fill(lse.isinf(), 0.0)
    theirs = exact_backward(dout, dlse, call.q, call.k, call.v, value, **options)
    ours = attention_oracle.backward(ref, call.q, call.k, call.v, dout, dlse, call.sink)
    for got, want in zip((ours.dq, ours.dk, ours.dv, ours.dsink), theirs, strict=True):
        if want is not None:
            torch.testing.assert_close(got, want.to(torch.float64), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", sorted(attention_masks.BY_NAME))
def test_masks_by_pure_python_loops(name):
    raw = attention_masks.make(name, s_q=23, s_k=29, g=torch.Generator().manual_seed(0), batch=2, heads=2)
    dense, counts = raw.dense(), raw.counts()
    assert torch.equal(dense.sum(-1), counts)
    for b in range(dense.shape[0]):
        for h in range(dense.shape[1]):
            for i in range(23):
                for j in range(29):
                    assert bool(dense[b, h, i, j]) == _sees(raw, b, h, i, j), (b, h, i, j)


def _sees(raw, b, h, i, j):
    if raw.causal and j > i + 29 - 23:
        return False
    if raw.startend is None:
        return True
    c = raw.startend[b, h, j].tolist()
    if len(c) == 1:
        return i < c[0]
    if len(c) == 2:
        return not c[0] <= i < c[1] if raw.causal else c[1] <= i < c[0]
    return not (c[0] <= i < c[1] or c[2] <= i < c[3])
