"""Tensors as the tensor memory accelerator sees them."""

from __future__ import annotations

import functools

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


class Descriptor:
    """What a launch reads of a tensor descriptor, without the checks of Triton's own, which cost 5 us each.

    The first launch of a compiled kernel takes `checked` instead, and later ones have the same form.
    """

    __slots__ = ("base", "block", "padding", "shape", "strides")

    def __init__(self, base: torch.Tensor, shape: list[int], strides: list[int], block: tuple[int, ...]) -> None:
        self.base = base
        self.shape = shape
        self.strides = strides
        self.block = block
        self.padding = "zero"

    def checked(self) -> TensorDescriptor:
        """Triton's descriptor of the same tensor; raises if the accelerator cannot address it."""
        layout = _layout(self.block, self.base.dtype)
        return TensorDescriptor(self.base, self.shape, self.strides, list(self.block), layout)


@functools.cache
def _layout(block: tuple[int, ...], dtype: torch.dtype) -> NVMMASharedLayout:
    element = _ELEMENTS.get(dtype)
    if element is None:  # 32-bit rows: planes and statistics, read as they lie
        return NVMMASharedLayout(0, 32, 2)
    return NVMMASharedLayout.get_default_for(list(block), element)


def fits(tensor: torch.Tensor) -> bool:
    """Whether [b, s, h, d] can be addressed as [b, s, h * d] with dense rows, nested strides and 16-byte steps."""
    b, s, h, d = tensor.shape
    batch, row, head, one = tensor.stride()
    if one != 1 or (h > 1 and head != d) or tensor.data_ptr() % 16:
        return False
    if s > 1 and (row < h * d or row % 8):
        return False
    step = row if s > 1 else h * d
    return b == 1 or (batch >= s * step and batch % step == 0 and batch % 8 == 0)


def addressable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself where it `fits`, such as a slice of a packed projection, else a dense copy."""
    return tensor if fits(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def strides_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Batch and row strides in elements of a tensor that `fits`; those of dimensions of size 1 are made up."""
    b, s, h, d = tensor.shape
    row = tensor.stride(1) if s > 1 else h * d
    return (tensor.stride(0) if b > 1 else s * row), row


def sequence(tensor: torch.Tensor, rows: int) -> Descriptor:
    """Descriptor of [b, s, h, d] for tiles of ``rows`` rows of one head."""
    b, s, h, d = tensor.shape
    batch, row = strides_of(tensor)
    return Descriptor(tensor, [b, s, h * d], [batch, row, 1], (1, rows, d))


def lines(tensor: torch.Tensor, width: int) -> Descriptor:
    """Descriptor of a dense 32-bit tensor as rows of its last dimension, for pieces of ``width`` of one row."""
    last = tensor.shape[-1]
    return Descriptor(tensor, [tensor.numel() // last, last], [last, 1], (1, width))


def eighths(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Batch, row and head strides of a tensor that `fits`, in units of eight elements."""
    batch, row = strides_of(tensor)
    return batch // 8, row // 8, tensor.shape[3] // 8
