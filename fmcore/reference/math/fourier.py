"""Oracle of the Fourier transforms: the defining sum with exactly reduced angles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from fmcore.reference.math._wide import total, wide

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ORACLE"]


def _resize(x: Tensor, n: int) -> Tensor:
    """Cut or zero-pad the first axis."""
    if n <= x.shape[0]:
        return x[:n]
    return torch.cat((x, x.new_zeros((n - x.shape[0], *x.shape[1:]))))


def _dft(x: Tensor, sign: int) -> Tensor:
    """y[k] = sum_j x[j] exp(sign 2 pi i j k / n) along the first axis; j k is reduced modulo n exactly."""
    n = x.shape[0]
    turns = np.arange(n)
    roots = torch.from_numpy(np.exp(sign * 2j * np.pi * turns / n)).to(x.device)
    shape = (n, *(1,) * (x.ndim - 1))
    index = torch.arange(n, device=x.device)
    return torch.stack([total(x * roots[(index * k) % n].reshape(shape)) for k in range(n)])


def _scale(n: int, norm: str, *, forward: bool) -> float:
    if norm == "ortho":
        return float(1 / np.sqrt(n))
    return 1 / n if (norm == "forward") == forward else 1.0


def fft(x: Tensor, *, n: int, axis: int, norm: str) -> Tensor:
    """Forward transform."""
    rows = _resize(wide(x).to(torch.complex128).movedim(axis, 0), n)
    return (_dft(rows, -1) * _scale(n, norm, forward=True)).movedim(0, axis)


def ifft(x: Tensor, *, n: int, axis: int, norm: str) -> Tensor:
    """Inverse transform."""
    rows = _resize(wide(x).to(torch.complex128).movedim(axis, 0), n)
    return (_dft(rows, 1) * _scale(n, norm, forward=False)).movedim(0, axis)


def rfft(x: Tensor, *, n: int, axis: int, norm: str) -> Tensor:
    """The first n // 2 + 1 bins of fft."""
    return fft(x, n=n, axis=axis, norm=norm).movedim(axis, 0)[: n // 2 + 1].movedim(0, axis)


def irfft(x: Tensor, *, n: int, axis: int, norm: str) -> Tensor:
    """Inverse of the spectrum completed by X[n - k] = conj(X[k]); self-paired bins are read as real."""
    half = _resize(wide(x).movedim(axis, 0), n // 2 + 1)
    bins = []
    for k in range(n):
        value = half[k] if k <= n // 2 else half[n - k].conj().resolve_conj()
        bins.append(torch.complex(value.real, torch.zeros_like(value.real)) if 2 * k % n == 0 else value)
    return (_dft(torch.stack(bins), 1).real * _scale(n, norm, forward=False)).movedim(0, axis)


ORACLE: Final[dict[str, Callable[..., Tensor]]] = {"fft": fft, "ifft": ifft, "rfft": rfft, "irfft": irfft}
