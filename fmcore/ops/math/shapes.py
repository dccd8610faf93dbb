"""Shapes and axes of the math ops: broadcasting, axis normalisation and the errors about them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fmcore.errors import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Shape",
    "broadcast",
    "broadcast_shapes",
    "check_nonempty",
    "normalize_axes",
    "normalize_axis",
    "reduced",
    "replaced",
    "same_shape",
]

Shape = tuple[int, ...]


def broadcast(op: str, *tensors: Tensor) -> Shape:
    """Broadcast shape of the tensors.

    Raises:
        InvalidInputError: The shapes do not broadcast.
    """
    first = tensors[0].shape
    if len(tensors) == 2 and same_shape(first, tensors[1].shape):
        return first
    shape = broadcast_shapes(*(t.shape for t in tensors))
    if shape is None:
        shapes = " and ".join(str(tuple(t.shape)) for t in tensors)
        raise InvalidInputError(
            f"math.{op}: shapes {shapes} do not broadcast; aligned from the right, sizes must be equal or 1"
        )
    return shape


def same_shape(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes are equal; ranks first, as comparing symbolic sizes of unlike axes would fix them."""
    return len(a) == len(b) and a == b


def broadcast_shapes(*shapes: Sequence[int]) -> Shape | None:
    """Common shape, aligned from the right, or None.

    >>> broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    first = shapes[0]
    if all(same_shape(shape, first) for shape in shapes[1:]):
        return tuple(first)
    result = [1] * max(len(shape) for shape in shapes)
    for shape in shapes:
        for i in range(1, len(shape) + 1):
            if shape[-i] == 1 or shape[-i] == result[-i]:
                continue
            if result[-i] != 1:
                return None
            result[-i] = shape[-i]
    return tuple(result)


def normalize_axis(op: str, axis: int, ndim: int) -> int:
    """Return the axis counted from the front.

    Raises:
        InvalidInputError: The axis is no integer or outside ``[-ndim, ndim)``.
    """
    try:
        index = operator.index(axis)
    except TypeError as error:
        raise InvalidInputError(f"math.{op}: axis={axis!r} is not an integer") from error
    if isinstance(axis, bool) or not -ndim <= index < ndim:
        raise InvalidInputError(f"math.{op}: axis={axis!r} is outside [{-ndim}, {ndim}) for {ndim} dimension(s)")
    return index % ndim


def normalize_axes(op: str, axis: int | Iterable[int] | None, ndim: int) -> tuple[int, ...]:
    """Return sorted axes counted from the front; None means all of them, ``()`` none.

    Raises:
        InvalidInputError: An axis is out of range or named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, Iterable):
        axes = sorted(normalize_axis(op, a, ndim) for a in axis)
        if len(set(axes)) != len(axes):
            raise InvalidInputError(f"math.{op}: axis={axis!r} names an axis twice")
        return tuple(axes)
    return (normalize_axis(op, axis, ndim),)


def reduced(shape: Sequence[int], axes: Iterable[int], *, keepdims: bool) -> Shape:
    """Shape after a reduction over ``axes``."""
    gone = set(axes)
    if keepdims:
        return tuple(1 if i in gone else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in gone)


def replaced(shape: Sequence[int], axis: int, size: int) -> Shape:
    """Shape with one axis resized."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def check_nonempty(op: str, shape: Sequence[int], axes: Iterable[int]) -> None:
    """Refuse a reduction without an identity over an axis of length zero.

    Raises:
        InvalidInputError: A reduced axis is empty.
    """
    for axis in axes:
        if shape[axis] == 0:
            raise InvalidInputError(
                f"math.{op}: axis {axis} of shape {tuple(shape)} is empty, and {op} of nothing has no value"
            )
