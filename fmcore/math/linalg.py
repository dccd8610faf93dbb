"""Products of matrices and Fourier transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore.errors import InvalidInputError
from fmcore.math._canon import array, binary, integer, operands, run
from fmcore.ops.math import OPS
from fmcore.ops.math.shapes import normalize_axis

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["fft", "grouped_matmul", "ifft", "irfft", "matmul", "rfft"]


def matmul(x1: Tensor, x2: Tensor, /, *, backend: str | None = None) -> Tensor:
    """Matrix product.

    Args:
        x1: [..., m, k] or [k].
        x2: [..., k, n] or [k]; leading axes broadcast.
        backend: Strict choice of a backend.

    Returns:
        [..., m, n] in the common dtype, without the axes of vector operands. Half precision accumulates in
        float32 and integers wrap.

    Raises:
        InvalidInputError: The inner sizes or the batch shapes do not fit, or an operand is 0-d.
        UnsupportedError: The operands are bool.

    >>> fm.math.matmul(torch.tensor([[1, 2]]), torch.tensor([3, 4]))
    tensor([11])
    """
    return binary("matmul", array("matmul", "x1", x1), array("matmul", "x2", x2), backend)


def grouped_matmul(x: Tensor, w: Tensor, offsets: Tensor, /, *, backend: str | None = None) -> Tensor:
    """One matrix product per group of rows.

    Args:
        x: [T, K], rows sorted by group.
        w: [G, K, N], one matrix per group.
        offsets: [G] int32 or int64: the end of each group; group g is rows offsets[g-1]:offsets[g]. Ends do
            not decrease; a group may be empty.
        backend: Strict choice of a backend.

    Returns:
        [T, N]; rows past the last end are zero. Gradients flow to x and w.

    Raises:
        InvalidInputError: Shapes do not fit, or the ends decrease or pass T.

    >>> w = torch.stack([torch.eye(2), 10 * torch.eye(2)])
    >>> fm.math.grouped_matmul(torch.ones(3, 2), w, torch.tensor([1, 2]))
    tensor([[ 1.,  1.],
            [10., 10.],
            [ 0.,  0.]])
    """
    name = "grouped_matmul"
    x, w = operands(name, array(name, "x", x), array(name, "w", w))
    return run(OPS[name], (x, w, array(name, "offsets", offsets)), {}, backend)  # type: ignore[no-any-return]


def _transform(name: str, x: Tensor, n: int | None, axis: int, norm: str, backend: str | None) -> Tensor:
    x = array(name, "x", x)
    if x.ndim == 0:
        raise InvalidInputError(f"math.{name}: a 0-d array has no axis to transform; reshape it to (1,)")
    axis = normalize_axis(name, axis, x.ndim)
    if n is None:
        size = x.shape[axis]
        n = 2 * (size - 1) if name == "irfft" else size
    return run(OPS[name], (x,), {"n": integer(name, "n", n), "axis": axis, "norm": norm}, backend)  # type: ignore[no-any-return]


def fft(
    x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward", backend: str | None = None
) -> Tensor:
    """Discrete Fourier transform y[k] = sum_j x[j] exp(-2 pi i j k / n) along one axis.

    Args:
        x: float32, float64 or complex.
        n: Points; the axis is cut or padded with zeros. By default its own length.
        axis: The axis.
        norm: Where the factor 1/n stands: ``"backward"`` (in the inverse), ``"forward"``, or ``"ortho"`` for
            1/sqrt(n) in both.
        backend: Strict choice of a backend.

    Raises:
        InvalidInputError: n < 1, the axis is out of range, or norm is unknown.
        UnsupportedError: Half precision (there is no complex half to hold the result), integers or bool.

    >>> fm.math.fft(torch.tensor([1.0, 0.0]))
    tensor([1.+0.j, 1.+0.j])
    """
    return _transform("fft", x, n, axis, norm, backend)


def ifft(
    x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward", backend: str | None = None
) -> Tensor:
    """Inverse of ``fft``; arguments and errors as there.

    >>> fm.math.ifft(torch.tensor([1 + 0j, 1 + 0j]))
    tensor([1.+0.j, 0.+0.j])
    """
    return _transform("ifft", x, n, axis, norm, backend)


def rfft(
    x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward", backend: str | None = None
) -> Tensor:
    """First n // 2 + 1 bins of the transform of a real array; arguments and errors as for ``fft``.

    >>> fm.math.rfft(torch.tensor([1.0, 2.0]))
    tensor([ 3.+0.j, -1.+0.j])
    """
    return _transform("rfft", x, n, axis, norm, backend)


def irfft(
    x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward", backend: str | None = None
) -> Tensor:
    """Real inverse of ``rfft``.

    ``n`` is the length of the result, by default 2 * (bins - 1). Imaginary parts of bin 0, and of bin n / 2 where n
    is even, are read as zero. Other arguments and errors as for ``fft``.

    >>> fm.math.irfft(torch.tensor([3 + 0j, -1 + 0j]))
    tensor([1., 2.])
    """
    return _transform("irfft", x, n, axis, norm, backend)
