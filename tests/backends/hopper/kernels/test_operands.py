"""Which tensors the tensor memory accelerator reads in place, and how heads are grouped."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton.experimental.gluon")

from fmcore_cuda_hopper.operands import addressable, sequence, strides_of
from fmcore_cuda_hopper.work import head_group

BF16 = torch.bfloat16


def views() -> dict[str, tuple[torch.Tensor, bool]]:
    packed = torch.randn(2, 10, 3, 4, 64).to(BF16)
    odd = torch.randn(2 * 10 * 4 * 64 + 1).to(BF16)[1:].view(2, 10, 4, 64)
    return {
        "dense": (torch.randn(2, 10, 4, 64).to(BF16), True),
        "slice of a packed projection": (packed[:, :, 1], True),
        "one row": (torch.randn(2, 1, 4, 64).to(BF16), True),
        "heads before the sequence": (torch.randn(2, 4, 10, 64).to(BF16).transpose(1, 2), False),
        "address of 2 bytes": (odd, False),
        "expanded": (torch.ones((), dtype=BF16).expand(2, 10, 4, 64), False),
        "expanded over the batch": (torch.randn(1, 10, 4, 64).to(BF16).expand(2, 10, 4, 64), False),
        "every other head": (torch.randn(2, 10, 8, 64).to(BF16)[:, :, ::2], False),
    }


@pytest.mark.parametrize("name", views())
def test_in_place_or_copied(name):
    tensor, in_place = views()[name]
    found = addressable(tensor)
    assert (found is tensor) is in_place
    assert torch.equal(found, tensor)
    descriptor = sequence(found, 64).checked()
    assert descriptor.shape == [2, tensor.shape[1], 256]
    seen = found.as_strided(descriptor.shape, descriptor.strides)
    assert torch.equal(seen, tensor.reshape(2, tensor.shape[1], 256))


def test_strides_of_dimensions_of_size_one_are_made_up():
    tensor = torch.randn(64).to(BF16).as_strided((1, 1, 1, 64), (3, 5, 7, 1))
    assert strides_of(tensor) == (64, 64)


def test_a_group_of_heads_fits_the_budget_and_divides_the_heads():
    assert head_group(32, 1, 40) == 32
    assert head_group(12, 10, 50) == 4
    assert head_group(7, 10, 50) == 1
    assert head_group(8, 100, 50) == 1
