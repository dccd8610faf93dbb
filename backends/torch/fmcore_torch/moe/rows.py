"""Rows as bits: transport copies integers of the same width, so that no value, not even a NaN's payload, is touched."""

from __future__ import annotations

from collections.abc import Sequence

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


def row_bytes(x: torch.Tensor) -> int:
    """Bytes of one row (all dimensions but the first)."""
    size = x.element_size()
    for extent in x.shape[1:]:
        size *= extent
    return size


_SMALL = 4096
"""Tensors whose rows have at most so many bytes share one message: below that, a message costs more than a copy."""


def bundles(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Group positions of ``tensors`` into messages: large ones alone, the small ones together."""
    large = [[n] for n, tensor in enumerate(tensors) if row_bytes(tensor) > _SMALL]
    small = [n for n, tensor in enumerate(tensors) if row_bytes(tensor) <= _SMALL]
    return [*large, small] if small else large


def join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the rows of contiguous tensors side by side as bytes [n, W]; a view where there is one tensor."""
    flat = [_bytes(part) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat, 1)


def split(rows: torch.Tensor, likes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Undo :func:`join` for [n, W]: tensors of the dtypes and widths of ``likes``."""
    found, start = [], 0
    for like in likes:
        width = row_bytes(like)
        # A copy even of one row, whose bytes may start where no wider element can.
        part = rows if len(likes) == 1 else rows[:, start : start + width].clone(memory_format=torch.contiguous_format)
        bits = to_bits(like[:0])
        found.append(from_bits(_flat(part).view(bits.dtype).view(rows.shape[0], *bits.shape[1:]), like.dtype))
        start += width
    return found


def _flat(x: torch.Tensor) -> torch.Tensor:
    # Extents of one may carry any stride, which a view of another width refuses.
    return x.as_strided((x.numel(),), (1,))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return _flat(x).view(torch.uint8).view(x.shape[0], row_bytes(x))
