"""Fourier transforms through torch.fft."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor


def _transform(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def op(x: Tensor, *, n: int, axis: int, norm: str) -> Tensor:
        return fn(x, n=n, dim=axis, norm=norm).resolve_conj()  # ifft of a real array is lazily conjugated

    return op


IMPLS: Final[dict[str, Callable[..., Tensor]]] = {
    "fft": _transform(torch.fft.fft),
    "ifft": _transform(torch.fft.ifft),
    "rfft": _transform(torch.fft.rfft),
    "irfft": _transform(torch.fft.irfft),
}
