"""Rows as bits: transport copies integers of the same width, so that no value, not even a NaN's payload, is touched."""

from __future__ import annotations

import torch

_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def to_bits(x: torch.Tensor) -> torch.Tensor:
    """View ``x`` as integers of the same width (a last dimension of two for complex128); strides are kept."""
    x = x.resolve_conj().resolve_neg()
    if x.dtype == torch.complex128:
        x = torch.view_as_real(x)
    return x.view(_INTEGER[x.element_size()])


def from_bits(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """View the integers of :func:`to_bits` as ``dtype`` again."""
    if dtype == torch.complex128:
        return torch.view_as_complex(bits.view(torch.float64))
    return bits.view(dtype)


def flat_bytes(x: torch.Tensor) -> torch.Tensor:
    """View a contiguous tensor as its bytes."""
    # Extents of one may carry any stride, which a view of another width refuses.
    flat = x.as_strided((x.numel(),), (1,))
    return flat.view(torch.uint8)


def row_bytes(x: torch.Tensor) -> int:
    """Bytes of one row (all dimensions but the first)."""
    size = x.element_size()
    for extent in x.shape[1:]:
        size *= extent
    return size

