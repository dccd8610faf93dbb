"""What is remembered of planes that were wrapped in a mask: nothing that keeps the planes or the mask alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from torch import Tensor

    from fmcore.masks.mask import Mask
    from fmcore.masks.plan import Plan


class Wrapped:
    """The mask of some planes while it lives, and its plans for as long as the planes do."""

    __slots__ = ("block_mask", "key", "mask", "plans")

    def __init__(self, key: tuple[Any, ...], mask: Mask, plans: dict[Any, Plan], block_mask: Tensor | None) -> None:
        self.key = key
        self.mask = weakref.ref(mask)
        self.plans = plans
        self.block_mask = _nothing if block_mask is None else weakref.ref(block_mask)


_WRAPPED: MutableMapping[Tensor, Wrapped] = WeakIdKeyDictionary()


def recall(planes: Tensor, key: tuple[Any, ...], block_mask: Tensor | None) -> Wrapped | None:
    """What is known of ``planes`` under ``key`` with the same ``block_mask``."""
    held = _WRAPPED.get(planes)
    return None if held is None or held.key != key or held.block_mask() is not block_mask else held


def remember(
    planes: Tensor, key: tuple[Any, ...], mask: Mask, plans: dict[Any, Plan], block_mask: Tensor | None
) -> None:
    """Keep it until ``planes`` dies."""
    _WRAPPED[planes] = Wrapped(key, mask, plans, block_mask)


def version(tensor: Tensor | None) -> int:
    """How often a tensor was changed in place; inference tensors keep no count and cannot be changed outside."""
    return -1 if tensor is None or tensor.is_inference() else tensor._version  # noqa: SLF001 -- the one way to ask


def _nothing() -> None:
    """Stand in for a weak reference to None."""
