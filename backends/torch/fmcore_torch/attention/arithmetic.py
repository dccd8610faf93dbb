"""In which dtype tiles are multiplied and summed, and how large they are, by device.

Sums are always float32 (float64 for float64). float16 and bfloat16 are multiplied

- as they are where the device's matrix product hands out float32 sums (``torch.bmm(..., out_dtype=)``): probabilities
  and their gradients are rounded to the input dtype first, as every tuned kernel does;
- in float32 everywhere else, on the CPU in particular: products of half numbers are exact there, nothing is rounded
  before the end, and CPUs without half-precision units emulate half products slowly anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["Arithmetic", "arithmetic"]


@dataclass(frozen=True)
class Arithmetic:
    """How one call computes.

    Attributes:
        operand: Dtype of the factors of matrix products.
        sums: Dtype of scores, sums and lse.
        block_q: Rows of a query tile.
        block_k: Columns of a key tile.
        width: Most key columns in one product.
        pairs: Most scores in one product, over heads.
    """

    operand: torch.dtype
    sums: torch.dtype
    block_q: int
    block_k: int
    width: int
    pairs: int

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """``a @ b`` of batched operands, in the sums' dtype."""
        if self.operand == self.sums:
            return torch.bmm(a, b)
        return torch.bmm(a, b, out_dtype=self.sums)

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """``total += a @ b`` in place."""
        if self.operand == self.sums:
            total.baddbmm_(a, b)
        else:
            total += torch.bmm(a, b, out_dtype=self.sums)

    def factor(self, x: Tensor) -> Tensor:
        """``x`` as a factor of a product."""
        return x if self.operand == self.sums else x.to(self.operand)


def arithmetic(dtype: torch.dtype, device: torch.device) -> Arithmetic:
    """The arithmetic for inputs of ``dtype`` on ``device``."""
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    if device.type == "cpu":
        return Arithmetic(sums, sums, block_q=128, block_k=64, width=512, pairs=1 << 17)
    half = dtype in (torch.float16, torch.bfloat16)
    operand = dtype if half and sums_half_products(device, dtype) else sums
    return Arithmetic(operand, sums, block_q=128, block_k=128, width=4096, pairs=1 << 26)


@lru_cache(maxsize=64)
def sums_half_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device multiplies ``dtype`` with float32 sums and hands them out; asked once, by a sum that needs it.

    4096 + 1 and 2048 + 1 exist in neither bfloat16 nor float16, so a result that was rounded on the way shows.
    """
    a = torch.ones(1, 16, 16, dtype=dtype, device=device)
    b = a.clone()
    a[..., 0] = 64.0
    b[:, 0] = 64.0
    try:
        got = torch.bmm(a, b, out_dtype=torch.float32)
    except (RuntimeError, TypeError):  # the product does not exist on this device or in this torch
        return False
    return got.dtype == torch.float32 and bool((got == 64.0 * 64.0 + 15.0).all())
