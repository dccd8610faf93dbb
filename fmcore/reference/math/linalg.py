"""Oracle of the matrix products: every output element is a compensated sum of its products."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch

from fmcore.ops.math.shapes import broadcast_shapes
from fmcore.reference.math._wide import total, wide, wrap

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ORACLE", "matmul"]


def _product(x1: Tensor, x2: Tensor) -> Tensor:
    """[..., m, k] @ [..., k, n], one row of the result at a time."""
    rows = [total((x1[..., i, :, None] * x2).movedim(-2, 0)) for i in range(x1.shape[-2])]
    if rows:
        return torch.stack(rows, dim=-2)
    batch = broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    return torch.zeros((*(batch or ()), 0, x2.shape[-1]), dtype=x1.dtype, device=x1.device)


def matmul(x1: Tensor, x2: Tensor) -> Tensor:
    """Matrix product; integers modulo 2**width."""
    integer = not (x1.is_floating_point() or x1.is_complex())
    a, b = (x1.to(torch.int64), x2.to(torch.int64)) if integer else (wide(x1), wide(x2))
    a = a[None] if x1.ndim == 1 else a
    b = b[:, None] if x2.ndim == 1 else b
    y = _product(a, b)
    y = y.squeeze(-1) if x2.ndim == 1 else y
    y = y.squeeze(-2 if x2.ndim > 1 else -1) if x1.ndim == 1 else y
    return wrap(y, x1.dtype) if integer else y


def grouped_matmul(x: Tensor, w: Tensor, offsets: Tensor) -> Tensor:
    """Row t belongs to the first group whose end lies past t; rows past the last end are zero."""
    ends = offsets.tolist()
    rows = []
    for t in range(x.shape[0]):
        group = next((g for g, end in enumerate(ends) if t < end), None)
        rows.append(
            matmul(x[t], w[group])
            if group is not None
            else matmul(x[t], torch.zeros_like(x[t][:, None].expand(-1, w.shape[2])))
        )
    return torch.stack(rows) if rows else wide(x.new_zeros((0, w.shape[2])))


ORACLE: Final[dict[str, Callable[..., Tensor]]] = {"matmul": matmul, "grouped_matmul": grouped_matmul}
