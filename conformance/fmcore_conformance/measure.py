"""Comparing tensors: exactly, row by row in units of u, or in units in the last place. Failures say where."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from fmcore_conformance.model import Measurement, Mismatch
from fmcore_conformance.tolerances import MAX_OVER_L2, MAY_FLUSH, UNIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` as ``"bfloat16"``."""
    return str(dtype).removeprefix("torch.")


def wide(x: Tensor) -> Tensor:
    """The tensor on the host in float64 or complex128."""
    x = x.detach().cpu().resolve_conj().resolve_neg()
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def coordinates(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Index tuple of a flat position."""
    where = []
    for size in reversed(tuple(shape)):
        where.append(flat % size)
        flat //= size
    return tuple(reversed(where))


def exact(what: str) -> Measurement:
    """The record of an exact check that held."""
    return Measurement(0.0, 0.0, "exact", what)


def check_form(got: Tensor, shape: Sequence[int], dtype: torch.dtype, what: str) -> None:
    """Shape and dtype are part of the contract."""
    if tuple(got.shape) != tuple(shape):
        raise Mismatch(f"{what}: shape {tuple(got.shape)}, expected {tuple(shape)}")
    if got.dtype != dtype:
        raise Mismatch(f"{what}: dtype {dtype_name(got.dtype)}, expected {dtype_name(dtype)}")


def bits(x: Tensor) -> Tensor:
    """The bytes of every element, on the host: the only equality that tells NaNs and zeros apart."""
    # A copy, since a contiguous tensor may still have any stride along a dimension of one element.
    x = x.detach().cpu().clone(memory_format=torch.contiguous_format)
    if x.dim() == 0:
        x = x.reshape(1)
    return x.view(torch.uint8) if x.dtype != torch.bool else x.to(torch.uint8)


def check_bits(got: Tensor, want: Tensor, what: str) -> Measurement:
    """Bit-for-bit equality; the message gives the first difference."""
    check_form(got, want.shape, want.dtype, what)
    if got.numel() == 0:
        return exact(what)
    differs = bits(got).reshape(-1) != bits(want).reshape(-1)
    if bool(differs.any()):
        width = max(differs.numel() // max(got.numel(), 1), 1)
        element = int(differs.nonzero()[0]) // width
        count = int(differs.reshape(-1, width).any(1).sum())
        raise Mismatch(
            f"{what}: {count} of {got.numel()} elements differ bitwise, first at {coordinates(element, got.shape)}: "
            f"{got.detach().cpu().reshape(-1)[element].item()!r}, "
            f"expected {want.detach().cpu().reshape(-1)[element].item()!r}"
        )
    return exact(what)


def check_specials(got: Tensor, want: Tensor, what: str) -> Tensor:
    """NaN and infinities must be in the same places with the same signs.

    Returns:
        A mask of the elements that are finite in the reference.
    """
    g, w = wide(got), wide(want)
    if g.is_complex():
        pairs = torch.view_as_real(g), torch.view_as_real(w)
        return check_specials(*pairs, what).all(-1)
    wrong = (g.isnan() != w.isnan()) | (g.isinf() != w.isinf()) | (w.isinf() & (g != w) & ~g.isnan())
    if bool(wrong.any()):
        flat = int(wrong.reshape(-1).nonzero()[0])
        raise Mismatch(
            f"{what}: {int(wrong.sum())} special values differ, first at {coordinates(flat, g.shape)}: "
            f"{g.reshape(-1)[flat].item()!r}, expected {w.reshape(-1)[flat].item()!r}"
        )
    return w.isfinite()


def check_rows(
    got: Tensor, want: Tensor, *, units: float, dtype: str, what: str, floor: Tensor | None = None
) -> list[Measurement]:
    """Row-wise relative L2 and elementwise error, in units of u of ``dtype``.

    Args:
        got: The answer.
        want: The reference in float64 or complex128, same shape.
        units: Bound on the L2 error over (row norm + floor).
        dtype: Tested dtype, whose u is the unit.
        what: Name for the message.
        floor: One value per row, added to the row norm: the size of what cancels in the reference.

    Returns:
        The L2 and the elementwise measurement.

    Raises:
        Mismatch: With the worst row or element.
    """
    u = UNIT[dtype]
    finite = check_specials(got, want, what)
    if got.numel() == 0:
        return [exact(what)]
    g, w = wide(got), wide(want)
    zero = torch.zeros((), dtype=w.dtype)
    if g.dim() == 0:
        g, w, finite = g.reshape(1), w.reshape(1), finite.reshape(1)
    error = torch.where(finite, g - w, zero).abs()
    size = torch.where(finite, w, zero).abs()
    norm = size.square().sum(-1).sqrt()
    extra = torch.zeros_like(norm) if floor is None else floor.detach().cpu().to(torch.float64).expand_as(norm)
    # A result below the smallest normal number of the dtype cannot be relatively accurate.
    guard = row_guard(dtype, g.shape[-1])
    l2 = error.square().sum(-1).sqrt() / (norm + extra + guard) / u
    rms = (norm + extra + guard) / math.sqrt(g.shape[-1])
    elementwise = error / torch.maximum(rms.unsqueeze(-1), size) / u
    found = []
    for name, values, bound in ((what, l2, units), (f"{what} max", elementwise, MAX_OVER_L2 * units)):
        worst = float(values.max())
        flat = int(values.reshape(-1).argmax())
        measurement = Measurement(worst, bound, "u", name)
        if not worst <= bound:
            where = coordinates(flat, values.shape)
            row = where if name == what else where[:-1]
            raise Mismatch(
                f"{name}: {worst:.3g} u at {where}, at most {bound:.3g} u allowed; row {row} begins "
                f"{_head(g, row)}, expected {_head(w, row)}",
                measurement,
            )
        found.append(measurement)
    return found


def row_guard(dtype: str, length: int) -> float:
    """Added to the size of a row: results below the smallest normal number keep an absolute accuracy only."""
    return 2 * float(torch.finfo(getattr(torch, dtype)).tiny) * math.sqrt(length)


def _head(x: Tensor, row: tuple[int, ...]) -> str:
    values = x[row].reshape(-1)[:4].tolist()
    return "[" + ", ".join(f"{v:.4g}" for v in values) + (", ...]" if x.shape[-1] > 4 else "]")


def check_absolute(got: Tensor, want: Tensor, bound: Tensor, what: str) -> Measurement:
    """Elementwise absolute error against a bound per element; infinities must match exactly.

    Returns:
        The measurement with the least headroom.
    """
    finite = check_specials(got, want, what)
    if got.numel() == 0 or not bool(finite.any()):
        return exact(what)
    error = torch.where(finite, wide(got) - wide(want), torch.zeros((), dtype=torch.float64)).abs()
    ratio = error / bound.to(torch.float64)
    flat = int(ratio.reshape(-1).argmax())
    measurement = Measurement(
        float(error.reshape(-1)[flat]), float(bound.expand_as(error).reshape(-1)[flat]), "abs", what
    )
    if not measurement.measured <= measurement.bound:
        raise Mismatch(
            f"{what}: off by {measurement.measured:.3g} at {coordinates(flat, error.shape)} "
            f"({wide(got).reshape(-1)[flat]:.8g}, expected {wide(want).reshape(-1)[flat]:.8g}), at most "
            f"{measurement.bound:.3g} allowed",
            measurement,
        )
    return measurement


def check_ulp(got: Tensor, want: Tensor, bound: float, what: str) -> Measurement:
    """Error in units in the last place of the output dtype; ``want`` in float64.

    A float64 answer is judged against a float64 reference: its own half ulp is added to the bound.
    """
    finite = check_specials(got, want.to(got.dtype).to(torch.float64), what)
    if got.numel() == 0:
        return exact(what)
    info = torch.finfo(got.dtype)
    g, w = wide(got), wide(want)
    exponent = torch.floor(torch.log2(w.abs().clamp_min(info.tiny)))
    ulp = torch.exp2(exponent) * info.eps
    error = torch.where(finite, (g - w).abs() / ulp, torch.zeros((), dtype=torch.float64))
    if bound > 0.5 and dtype_name(got.dtype) in MAY_FLUSH:
        error = error.masked_fill((g == 0) & (w.abs() < info.tiny), 0.0)
    allowed = bound + (0.5 if got.dtype == torch.float64 else 1e-3)
    flat = int(error.reshape(-1).argmax())
    measurement = Measurement(float(error.reshape(-1)[flat]), allowed, "ulp", what)
    if not measurement.measured <= allowed:
        raise Mismatch(
            f"{what}: {measurement.measured:.4g} ulp at {coordinates(flat, g.shape)}: {g.reshape(-1)[flat]:.9g}, "
            f"expected {w.reshape(-1)[flat]:.9g}, at most {bound:g} ulp allowed",
            measurement,
        )
    return measurement


def check_no_alias(outputs: Sequence[Tensor], inputs: Sequence[Tensor], what: str) -> None:
    """No output may share storage with an input."""
    owned = {t.untyped_storage().data_ptr() for t in inputs if t.numel()}
    for i, out in enumerate(outputs):
        if out.numel() and out.untyped_storage().data_ptr() in owned:
            raise Mismatch(f"{what}: output {i} shares its memory with an input")


class Untouched:
    """Checks that a call writes to none of its inputs nor to the memory around them.

    Args:
        tensors: Inputs; their whole storages are remembered.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._kept = [(t, self._bytes(t)) for t in tensors]

    @staticmethod
    def _bytes(t: Tensor) -> Tensor:
        flat = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
        return flat.clone()

    def check(self, what: str) -> None:
        """Raise ``Mismatch`` if any byte changed."""
        for i, (tensor, before) in enumerate(self._kept):
            now = self._bytes(tensor)
            if not torch.equal(now, before):
                count = int((now != before).sum())
                raise Mismatch(f"{what}: {count} bytes of input {i}'s memory were overwritten")
