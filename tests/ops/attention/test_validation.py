"""Every wrong input is refused before a kernel runs, in a message that has the caller's own shapes."""

# ruff: noqa: E501 (tables and snippets read better on one line)
from __future__ import annotations

import math

import pytest
import torch

import fmcore as fm
from fmcore.errors import InvalidInputError, UnsupportedError


@pytest.fixture
def silent(plugin):
    """A backend that must never be called in these tests."""
    made = plugin("silent", priority=99)
    yield made
    assert made.forwards == 0


def tensor(b=2, s=6, h=4, d=8, dtype=torch.float32):
    return torch.zeros(b, s, h, d, dtype=dtype)


def bounds(*shape, dtype=torch.int32):
    return torch.zeros(shape, dtype=dtype)


WRONG = {
    "query is a list": (lambda: ([1.0], tensor(), tensor()), {}, "query must be a torch tensor, got list"),
    "rank 3": (lambda: (tensor()[0], tensor(), tensor()), {}, r"query must be \[batch, seq, heads, head_dim\], got shape \(6, 4, 8\)"),
    "integer": (lambda: (tensor(dtype=torch.int32), tensor(), tensor()), {}, "query is of dtype int32; it takes float16, bfloat16"),
    "complex": (lambda: (tensor(), tensor(dtype=torch.complex64), tensor()), {}, "key is of dtype complex64"),
    "bool": (lambda: (tensor(), tensor(), tensor(dtype=torch.bool)), {}, "value is of dtype bool"),
    "mixed dtypes": (lambda: (tensor(), tensor(dtype=torch.float64), tensor()), {}, "one dtype, got float32, float64, float32"),
    "batch": (lambda: (tensor(3), tensor(), tensor()), {}, r"batch sizes differ: query \(3, 6, 4, 8\), key \(2, 6, 4, 8\)"),
    "lengths": (lambda: (tensor(), tensor(s=5), tensor()), {}, r"key and value lengths differ \(5 and 6\)"),
    "kv heads": (lambda: (tensor(), tensor(h=2), tensor()), {}, r"key and value head counts differ \(2 and 4\)"),
    "head_dim": (lambda: (tensor(d=16), tensor(), tensor()), {}, r"query and key head_dim differ \(16 and 8\)"),
    "head_dim 0": (lambda: (tensor(d=0), tensor(d=0), tensor()), {}, "head_dim must be at least 1"),
    "group": (lambda: (tensor(h=5), tensor(h=2), tensor(h=2)), {}, "5 query heads cannot be shared out over 2 key/value heads"),
    "no heads": (lambda: (tensor(h=0), tensor(h=0), tensor(h=0)), {}, "0 query heads cannot be shared"),
    "device": (lambda: (tensor(), tensor().to("meta"), tensor()), {}, "must be on one device, got cpu, meta, cpu"),
    "sparse": (lambda: (tensor().to_sparse(), tensor(), tensor()), {}, "query must be a dense strided tensor"),
    "scale": (lambda: (tensor(),) * 3, {"softmax_scale": math.nan}, "softmax_scale must be a finite number or None"),
    "softcap": (lambda: (tensor(),) * 3, {"softcap": -1.0}, "softcap must be a finite number >= 0"),
    "sink shape": (lambda: (tensor(),) * 3, {"sink": torch.zeros(3)}, r"sink must be a tensor of shape \[query heads\] = \(4,\), got \(3,\)"),
    "sink dtype": (lambda: (tensor(),) * 3, {"sink": torch.zeros(4, dtype=torch.float64)}, "sink must be of dtype float32"),
    "sink kind": (lambda: (tensor(),) * 3, {"sink": 0.5}, "got float"),
    "window": (lambda: (tensor(),) * 3, {"window_size": -2}, "window_size must be an integer >= -1 or a pair"),
    "window pair": (lambda: (tensor(),) * 3, {"window_size": (1, 2, 3)}, r"got \(1, 2, 3\)"),
    "window kind": (lambda: (tensor(),) * 3, {"window_size": 1.5}, "got 1.5"),
    "mask kind": (lambda: (tensor(),) * 3, {"mask": torch.ones(6, 6, dtype=torch.bool)}, "mask must be an fmcore.masks.Mask, got Tensor.*from_dense"),
    "mask length": (lambda: (tensor(),) * 3, {"mask": lambda: fm.masks.causal(5, 6)}, "the mask is for 5 queries and 6 keys, the tensors have 6 and 6"),
    "mask and causal": (lambda: (tensor(),) * 3, {"mask": lambda: fm.masks.document([6]), "causal": True}, "causal=True beside mask= is ambiguous"),
    "mask and window": (lambda: (tensor(),) * 3, {"mask": lambda: fm.masks.full(6, 6), "window_size": 2}, "mask and window_size exclude each other"),
    "bounds and mask": (lambda: (tensor(),) * 3, {"mask": lambda: fm.masks.full(6, 6), "startend_row_indices": bounds(1, 1, 6, 2)}, "startend_row_indices and mask exclude"),
    "bounds and window": (lambda: (tensor(),) * 3, {"window_size": 1, "startend_row_indices": bounds(1, 1, 6, 2)}, "exclude each other"),
    "bounds dtype": (lambda: (tensor(),) * 3, {"startend_row_indices": bounds(1, 1, 6, 2, dtype=torch.int64)}, "must be of dtype int32, got int64; cast it"),
    "bounds rank": (lambda: (tensor(),) * 3, {"startend_row_indices": bounds(1, 6, 2)}, r"must be \[batch, heads, keys, n\], got shape \(1, 6, 2\)"),
    "bounds n": (lambda: (tensor(),) * 3, {"startend_row_indices": bounds(1, 1, 6, 3)}, "has 3 bounds per key; with causal=False it takes 2 or 4"),
    "bounds n causal": (lambda: (tensor(),) * 3, {"startend_row_indices": bounds(1, 1, 6, 4), "causal": True}, "has 4 bounds per key; with causal=True it takes 1 or 2"),
    "bounds n 1": (lambda: (tensor(),) * 3, {"startend_row_indices": bounds(1, 1, 6, 1)}, "takes 2 or 4"),
    "bounds keys": (lambda: (tensor(),) * 3, {"startend_row_indices": bounds(1, 1, 7, 2)}, "is for 7 keys, key has 6"),
    "bounds batch": (lambda: (tensor(),) * 3, {"startend_row_indices": bounds(3, 1, 6, 2)}, "has batch size 3, the tensors 2"),
    "bounds heads": (lambda: (tensor(),) * 3, {"startend_row_indices": bounds(1, 3, 6, 2)}, "has 3 heads; it takes 1, 4"),
    "bounds kind": (lambda: (tensor(),) * 3, {"startend_row_indices": [[0]]}, "must be an int32 tensor .*got list"),
    "bounds device": (lambda: (tensor(),) * 3, {"startend_row_indices": bounds(1, 1, 6, 2).to("meta")}, "is on meta, query on cpu"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("way", ["call", "explain"])
def test_wrong_input_names_what_was_found(silent, name, way):
    make, options, message = WRONG[name]
    options = {k: v() if callable(v) else v for k, v in options.items()}
    call = fm.flashmask_attention if way == "call" else lambda *a, **o: fm.explain("flashmask_attention", *a, **o)
    with pytest.raises(InvalidInputError, match=message):
        call(*make(), **options)


@pytest.mark.parametrize("argument", ["dropout", "fixed_seed_offset", "rng_name", "training"])
def test_arguments_that_are_not_offered_are_no_arguments(silent, argument):
    """Dropout is refused: a keyword that is silently accepted would be dropped."""
    with pytest.raises(TypeError, match=argument):
        fm.flashmask_attention(tensor(), tensor(), tensor(), **{argument: 0.0})


def test_mask_heads_and_batch_that_do_not_fit(silent):
    mask = fm.masks.canonicalize(bounds(1, 3, 6, 2), s_q=6, s_k=6, causal=False)
    with pytest.raises(InvalidInputError, match=r"the mask has 3 heads; it must have 1, 2 .* or 4"):
        fm.flashmask_attention(tensor(), tensor(h=2), tensor(h=2), mask=mask)
    mask = fm.masks.canonicalize(bounds(3, 1, 6, 2), s_q=6, s_k=6, causal=False)
    with pytest.raises(InvalidInputError, match="the mask has batch size 3, the tensors 2"):
        fm.flashmask_attention(tensor(), tensor(), tensor(), mask=mask)


def test_every_parameter_changes_the_result_or_raises():
    """No argument is dropped, by any backend that serves host tensors."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 8, 2, 16, generator=generator) for _ in range(3))
    changes = {
        "causal": {"causal": True}, "softmax_scale": {"softmax_scale": 0.9}, "window_size": {"window_size": 1},
        "softcap": {"softcap": 0.5}, "sink": {"sink": torch.ones(2)}, "mask": {"mask": fm.masks.document([3, 5])},
        "startend_row_indices": {"startend_row_indices": torch.full((1, 1, 8, 1), 4, dtype=torch.int32), "causal": True},
    }  # fmt: skip
    for backend in ("torch", "cpu", "reference"):
        if next(b.state for b in fm.backends() if b.name == backend) != "available":
            continue
        plain = fm.flashmask_attention(q, k, v, backend=backend)
        for name, options in changes.items():
            if fm.explain("flashmask_attention", q, k, v, backend=backend, **options).selected is None:
                with pytest.raises(UnsupportedError, match=name):
                    fm.flashmask_attention(q, k, v, backend=backend, **options)
                continue
            changed = fm.flashmask_attention(q, k, v, backend=backend, **options)
            assert not torch.allclose(plain, changed, atol=1e-3), (backend, name)
