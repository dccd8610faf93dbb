"""matmul and grouped_matmul on any torch device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from fmcore.errors import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor

LIMB = 16
EXACT_TERMS = 1 << 21
"""A float64 sum of this many products of two 16-bit limbs is exact."""
_INTEGER_GEMM = frozenset({"cpu", "meta"})
"""Device types whose torch multiplies integer matrices; elsewhere they are multiplied as exact float64 limbs."""


def matmul(x1: Tensor, x2: Tensor) -> Tensor:
    """Matrix product."""
    if x1.is_floating_point() or x1.is_complex() or x1.device.type in _INTEGER_GEMM:
        return torch.matmul(x1, x2)
    return limb_matmul(x1, x2)


def limb_matmul(x1: Tensor, x2: Tensor) -> Tensor:
    """Integer matrix product modulo 2**width from float64 products of 16-bit limbs, each of them exact."""
    dtype = x1.dtype
    limbs = max(1, dtype.itemsize * 8 // LIMB)
    a, b = _limbs(x1, limbs), _limbs(x2, limbs)
    inner = x1.shape[-1]
    total: Tensor | None = None
    for start in range(0, max(inner, 1), EXACT_TERMS):
        stop = min(start + EXACT_TERMS, inner)
        for i in range(limbs):
            for j in range(limbs - i):
                rows = a[i][..., start:stop]
                columns = b[j][..., start:stop, :] if x2.ndim > 1 else b[j][start:stop]
                part = torch.matmul(rows, columns).to(torch.int64) << (LIMB * (i + j))
                total = part if total is None else total + part
    return total.to(dtype) if total is not None else torch.matmul(x1.double(), x2.double()).to(dtype)


def _limbs(x: Tensor, count: int) -> list[Tensor]:
    wide = x.to(torch.int64)
    return [((wide >> (LIMB * i)) & 0xFFFF if count > 1 else wide).to(torch.float64) for i in range(count)]


def segments(offsets: Tensor, rows: int) -> list[int]:
    """Lengths of the groups and of the rest, read on the host.

    Raises:
        InvalidInputError: The ends decrease or pass the last row.
    """
    ends = offsets.tolist()
    starts = [0, *ends]
    for g, (start, end) in enumerate(zip(starts[:-1], ends, strict=True)):
        if not start <= end <= rows:
            raise InvalidInputError(
                f"math.grouped_matmul: offsets[{g}] = {end} after {start} for {rows} rows; "
                "ends must not decrease and not pass the rows"
            )
    return [end - start for start, end in zip(starts[:-1], ends, strict=True)] + [rows - starts[-1]]


def grouped_matmul(x: Tensor, w: Tensor, offsets: Tensor) -> Tensor:
    """One product per group; rows past the last end are zero."""
    if offsets.is_meta:
        return x.new_empty((x.shape[0], w.shape[2]))
    *parts, rest = torch.split(x, segments(offsets, x.shape[0]))
    found = [matmul(part, weight) for part, weight in zip(parts, w.unbind(0), strict=True)]
    return torch.cat((*found, rest.new_zeros((rest.shape[0], w.shape[2]))))


def grouped_matmul_backward(
    grads: Sequence[Tensor | None], inputs: Sequence[Any], outputs: Sequence[Any]
) -> tuple[Tensor | None, ...]:
    """Return dx = dy @ w[g]^H group by group, dw[g] = x^H @ dy over the rows of the group."""
    del outputs
    grad, (x, w, offsets) = grads[0], inputs
    if grad is None:
        return None, None, None
    lengths = segments(offsets, x.shape[0])
    *d_rows, rest = torch.split(grad, lengths)
    x_rows = torch.split(x, lengths)[:-1]
    dx = [d @ weight.mH for d, weight in zip(d_rows, w.unbind(0), strict=True)]
    dw = [part.mH @ d for part, d in zip(x_rows, d_rows, strict=True)]
    return (
        torch.cat((*dx, rest.new_zeros((rest.shape[0], x.shape[1])))),
        torch.stack(dw) if dw else torch.zeros_like(w),
        None,
    )


IMPLS: Final[dict[str, Callable[..., Tensor]]] = {"matmul": matmul}
