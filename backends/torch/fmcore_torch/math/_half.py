"""Half precision done right: accumulate in float32, round once to nearest even."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

HALF = frozenset({torch.float16, torch.bfloat16})


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Dtype that sums of ``dtype`` are kept in."""
    return torch.float32 if dtype in HALF else dtype


def raised(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors in the accumulator of the widest of them."""
    dtypes = [accumulator(t.dtype) for t in tensors]
    target = dtypes[0]
    for dtype in dtypes[1:]:
        target = torch.promote_types(target, dtype)
    return tuple(t.to(target) for t in tensors)


def to_half(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast float64 or integers to a half dtype with one rounding.

    torch goes through float32 and rounds twice. Rounding to odd on the way keeps what the second
    rounding needs to know (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    if x.dtype == torch.float64:
        return _ToHalf.apply(x, dtype)  # type: ignore[no-any-return, no-untyped-call]
    if x.dtype == torch.int64:
        # Beyond 53 bits the low eleven become one sticky bit, so that float64 holds the integer.
        sticky = ((x & 0x7FF) != 0).to(torch.int64) << 10
        x = torch.where((x >= 1 << 53) | (x <= -(1 << 53)), (x & ~0x7FF) | sticky, x)
    return _odd(x.to(torch.float64)).to(dtype)


def _odd(x: Tensor) -> Tensor:
    """float64 to float32, inexact values to the neighbour with an odd last bit."""
    near = x.to(torch.float32)
    back = near.to(torch.float64)
    bits = near.contiguous().view(torch.int32)
    toward_zero = torch.where(back.abs() > x.abs(), bits - 1, bits)
    inexact = (back != x) & ~x.isnan()
    return torch.where(inexact, toward_zero | 1, bits).view(torch.float32)


class _ToHalf(torch.autograd.Function):
    """The cast; its gradient is the cast back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        return _odd(x).to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        del ctx
        return grad.to(torch.float64), None
