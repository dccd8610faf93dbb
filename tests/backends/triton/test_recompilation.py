"""Other lengths, heads and mask values compile nothing anew: the keys that Triton's JIT looks its kernels up by."""

from __future__ import annotations

import random
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from fmcore import masks

pytest.importorskip("triton")


@pytest.fixture
def keys(monkeypatch):
    """Per kernel, the distinct keys of its launches, for a GPU that is not here; nothing is compiled or run."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import jit

    active = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0)
    monkeypatch.setattr(jit, "driver", SimpleNamespace(active=active))
    found = defaultdict(set)
    binders = {}

    def run(self, *args, grid, warmup, **keywords):
        if self not in binders:
            binders[self] = self.create_binder()
        *_, binder = binders[self]
        bound, specialization, options = binder(*args, **keywords)
        assert len(bound) == len(self.arg_names)
        found[self.__name__].add(f"{specialization} {options}")

    monkeypatch.setattr(jit.JITFunction, "run", run)
    return found


def call(mask, *, b=1, h_q=2, h_kv=1, d=64, dtype=torch.bfloat16):
    from fmcore_triton import attention

    q, dout = (torch.zeros(b, mask.s_q, h_q, d, dtype=dtype) for _ in range(2))
    k, v = (torch.zeros(b, mask.s_k, h_kv, d, dtype=dtype) for _ in range(2))
    keywords = {"softmax_scale": d**-0.5, "softcap": 0.0, "sink": None, "deterministic": True}
    out, lse = attention.forward(q, k, v, mask, **keywords)
    attention.backward(dout, None, q, k, v, out, lse, mask, **keywords)


def test_fifty_shapes_and_masks_share_one_key_per_kernel(keys):
    rng = random.Random(0)
    for i in range(50):
        s = (1, 16, 128, 17)[i] if i < 4 else rng.randint(1, 400)
        heads = rng.choice((1, 2, 3))
        mask = rng.choice(
            (
                lambda s: masks.sliding_window(s, window=rng.randint(1, s)),
                lambda s: masks.causal_document([s // 2 + 1, s - s // 2 - 1] if s > 1 else [1]),
            )
        )(s)
        call(mask, b=rng.choice((1, 2)), h_q=heads * rng.choice((1, 2)), h_kv=heads)
    assert set(keys) == {"attn_fwd", "attn_bwd_rows", "attn_bwd_kv", "attn_bwd_q"}
    assert {name: len(found) for name, found in keys.items()} == dict.fromkeys(keys, 1)


@pytest.mark.parametrize("change", [{"d": 32}, {"dtype": torch.float16}], ids=str)
def test_what_is_compiled_in_has_a_key_of_its_own(keys, change):
    mask = masks.sliding_window(100, window=9)
    call(mask)
    call(mask, **change)
    assert {name: len(found) for name, found in keys.items()} == dict.fromkeys(keys, 2)
