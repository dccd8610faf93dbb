"""What the builders share: lengths of documents, and column vectors to a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError
from fmcore.masks._canonical import check_int, check_length
from fmcore.masks.canonical import canonicalize

if TYPE_CHECKING:
    from fmcore.masks.mask import Mask

Device: TypeAlias = "torch.device | str | None"
Lengths: TypeAlias = "Sequence[int] | Sequence[Sequence[int]]"

HOST = torch.device("cpu")
"""Where columns are worked out, whatever the default device: lengths are the host's, and some sizes depend on them."""


def from_columns(vectors: tuple[Tensor, ...], *, s_q: int, causal: bool, kind: str, device: Device = None) -> Mask:
    """A mask from column vectors ``[s_k]`` or ``[batch, s_k]`` in the order of the mask format."""
    check_length("s_q", s_q)
    indices = torch.stack([v.clamp(0, s_q) for v in vectors], dim=-1).to(torch.int32)
    indices = indices.view(-1 if indices.dim() == 3 else 1, 1, *indices.shape[-2:])
    return canonicalize(placed(indices, device), s_q=s_q, s_k=indices.shape[2], causal=causal, kind=kind)


def placed(tensor: Tensor, device: Device) -> Tensor:
    """``tensor`` on ``device``; without one, what was made on the host goes to torch's default device."""
    if device is None:
        device = default_device() if tensor.device == HOST else tensor.device
    return tensor.to(device)


def default_device() -> torch.device:
    """torch's, asked in a way that a compiler can trace."""
    return torch.empty(0).device


def sides_of(window_size: object, *, least: int) -> tuple[int, int]:
    """Keys to the left and to the right of a window: one number for both, or a pair.

    Raises:
        InvalidInputError: Neither, or a number below ``least``.
    """
    sides = tuple(window_size) if is_list(window_size) else (window_size, window_size)
    if len(sides) != 2:
        raise InvalidInputError(f"window_size must be an int or a pair of ints, got {window_size!r}.")
    left, right = (check_int("window_size", side, least) for side in sides)
    return left, right


def bounds_of(lengths: Lengths, s: int | None = None) -> tuple[Tensor, Tensor]:
    """First row and end row of the document of every column: two int64 ``[batch, s]`` (0 and 0 on padding).

    Raises:
        InvalidInputError: A length is not an int >= 0, or a sequence is longer than ``s``.
    """
    table = table_of(lengths)
    totals = [sum(row) for row in table]
    size = max(totals) if s is None else s
    check_length("s", size)
    bounds = torch.zeros(2, len(table), size, dtype=torch.int64, device=HOST)
    for number, (row, total) in enumerate(zip(table, totals, strict=True)):
        if total > size:
            raise InvalidInputError(
                f"the documents of sequence {number} have {total} tokens together, but s={size}: {row}."
            )
        length = torch.tensor(row, dtype=torch.int64, device=HOST)
        end = length.cumsum(0)
        bounds[0, number, :total] = (end - length).repeat_interleave(length, output_size=total)
        bounds[1, number, :total] = end.repeat_interleave(length, output_size=total)
    return bounds[0], bounds[1]


def table_of(lengths: Any) -> list[list[int]]:
    """Lengths as one list per sequence of the batch.

    Raises:
        InvalidInputError: Empty, mixed, or with an entry that is not an int >= 0.
    """
    if isinstance(lengths, Tensor) or type(lengths).__module__ == "numpy":
        lengths = lengths.tolist()
    if not is_list(lengths) or not lengths:
        raise InvalidInputError(f"lengths must be a non-empty list of ints, or a list of such lists, got {lengths!r}.")
    nested = [is_list(entry) for entry in lengths]
    if any(nested) and not all(nested):
        raise InvalidInputError(f"lengths mixes ints and lists: {lengths!r}; give a list of ints or a list of lists.")
    return [[check_int("a length", entry) for entry in row] for row in (lengths if all(nested) else [lengths])]


def pairs_of(name: str, form: str, pairs: Any) -> list[tuple[int, int]]:
    """Pairs (a, b) of ints with 0 <= a <= b.

    Raises:
        InvalidInputError: Something else; ``name`` and ``form`` say what was wanted.
    """
    out = []
    for pair in pairs if is_list(pairs) else [pairs]:
        if not is_list(pair) or len(pair) != 2:
            raise InvalidInputError(f"{name} must be a list of pairs {form}, got {pair!r}.")
        a, b = (check_int(f"an entry of {name}", entry) for entry in pair)
        if a > b:
            raise InvalidInputError(f"{name} must be a list of pairs {form}, got {pair!r}.")
        out.append((a, b))
    return out


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """A list or a tuple, not a string."""
    return isinstance(value, Sequence) and not isinstance(value, str)
