"""The plan of a mask: which tiles a kernel visits, and in which order.

A tile pair is *skipped* (no visible pair in it), *full* (every pair visible) or *partial*. For every query tile the
plan lists its key tiles, partial ones first, then full ones, with both counts; and the same transposed. A kernel runs
one masked loop and one unmasked loop, with no branch in either. Classes are exact, not an estimate from extrema.

A backend may bring its own builder for a device type (:func:`register_plan_builder`); it must yield what
:func:`build_plan_torch` yields.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError

if TYPE_CHECKING:
    from fmcore.masks.mask import Mask

__all__ = ["Plan", "PlanBuilder", "build_plan", "plan_builders", "register_plan_builder"]


@final
class Plan:
    """Tile lists of one mask for one tile size; B and H are the mask's batch and heads.

    Attributes:
        block_q: Rows of a query tile.
        block_k: Columns of a key tile.
        nq: Query tiles, ceil(s_q / block_q).
        nk: Key tiles, ceil(s_k / block_k).
        q_partial: int32 ``[B, H, nq]``, partial key tiles of each query tile.
        q_full: int32 ``[B, H, nq]``, full key tiles of each query tile.
        q_tiles: int16 or int32 ``[B, H, nq, nk]``: the key tiles, ascending, partial ones first, then full ones;
            entries past ``q_partial + q_full`` are unspecified.
        q_order: int32 ``[B, H, nq]``, query tiles by falling number of tiles (ties ascending).
        k_partial: int32 ``[B, H, nk]``, as ``q_partial`` for the query tiles of each key tile.
        k_full: int32 ``[B, H, nk]``.
        k_tiles: int16 or int32 ``[B, H, nk, nq]``.
        k_order: int32 ``[B, H, nk]``.
    """

    __slots__ = (
        "__weakref__",
        "_exact",
        "_mask",
        "_visited",
        "block_k",
        "block_q",
        "k_full",
        "k_order",
        "k_partial",
        "k_tiles",
        "nk",
        "nq",
        "q_full",
        "q_order",
        "q_partial",
        "q_tiles",
    )

    def __init__(
        self,
        mask: Mask,
        block_q: int,
        block_k: int,
        *,
        q_partial: Tensor,
        q_full: Tensor,
        q_tiles: Tensor,
        q_order: Tensor,
        k_partial: Tensor,
        k_full: Tensor,
        k_tiles: Tensor,
        k_order: Tensor,
    ) -> None:
        self.block_q: Final = block_q
        self.block_k: Final = block_k
        self.nq: Final = -(-mask.s_q // block_q)
        self.nk: Final = -(-mask.s_k // block_k)
        self.q_partial: Final = q_partial
        self.q_full: Final = q_full
        self.q_tiles: Final = q_tiles
        self.q_order: Final = q_order
        self.k_partial: Final = k_partial
        self.k_full: Final = k_full
        self.k_tiles: Final = k_tiles
        self.k_order: Final = k_order
        self._mask = weakref.ref(mask)  # the mask caches the plan: a strong reference back would keep both alive
        self._visited: int | None = None
        self._exact: float | None = None

    def rebind(self, mask: Mask) -> None:
        """Make ``mask``, an equal one, the mask of this plan; for caches that outlive the mask they were filled by."""
        self._mask = weakref.ref(mask)

    @property
    def q_work(self) -> Tensor:
        """Tiles that each query tile visits, int32 ``[B, H, nq]``."""
        return self.q_partial + self.q_full

    @property
    def k_work(self) -> Tensor:
        """Tiles that each key tile visits, int32 ``[B, H, nk]``."""
        return self.k_partial + self.k_full

    @property
    def visited(self) -> int:
        """Tile pairs that are not skipped, over all batches and mask heads (waits for the device once)."""
        if self._visited is None:
            self._visited = int(self.q_work.sum())
        return self._visited

    @property
    def tile_area(self) -> float:
        """Share of the tile pairs that are not skipped: 1 - (FlashMask's block sparsity) when tiles are 128 x 128."""
        return self.visited / max(1, self.q_work.numel() * self.nk)

    @property
    def exact_area(self) -> float:
        """Share of the (row, column) pairs that are visible, as :meth:`Mask.exact_area` says."""
        if self._exact is None:
            mask = self._mask()
            if mask is None:
                raise RuntimeError("the Mask of this plan is gone, so its exact area is unknown; keep the Mask alive.")
            self._exact = mask.exact_area()
        return self._exact

    @property
    def nbytes(self) -> int:
        """Bytes held by the plan's tensors."""
        by_query = (self.q_partial, self.q_full, self.q_tiles, self.q_order)
        by_key = (self.k_partial, self.k_full, self.k_tiles, self.k_order)
        tensors = (*by_query, *by_key)
        return sum(t.numel() * t.element_size() for t in tensors)

    def classes(self) -> Tensor:
        """Classes of all tile pairs, uint8 ``[B, H, nq, nk]``: 0 skip, 1 partial, 2 full."""
        column = torch.arange(self.nk, device=self.q_tiles.device)
        partial, work = self.q_partial.unsqueeze(-1), self.q_work.unsqueeze(-1)
        value = (column < work).to(torch.uint8) + ((column >= partial) & (column < work)).to(torch.uint8)
        index = torch.where(column < work, self.q_tiles.long(), self.nk)  # unspecified entries go to a spare column
        out = value.new_zeros(*value.shape[:-1], self.nk + 1)
        return out.scatter_(-1, index, value)[..., : self.nk]

    def __repr__(self) -> str:
        batch, heads, nq = self.q_partial.shape
        return (
            f"Plan(block_q={self.block_q}, block_k={self.block_k}, nq={nq}, nk={self.nk}, batch={batch}, "
            f"heads={heads}, device={str(self.q_tiles.device)!r})"
        )


class PlanBuilder(Protocol):
    """Builds the plan of a mask whose planes already lie on the device that is wanted."""

    def __call__(self, mask: Mask, planes: Tensor, block_mask: Tensor | None, block_q: int, block_k: int) -> Plan:
        """Build without waiting for the device, so that the build can be captured in a graph."""
        ...


_BUILDERS: dict[str, tuple[str, PlanBuilder]] = {}


def register_plan_builder(device_type: str, fn: PlanBuilder, *, name: str) -> None:
    """Let ``fn`` build the plans on devices of one type, in place of the torch builder.

    Args:
        device_type: A torch device type, such as ``"cuda"``.
        fn: Called as ``fn(mask, planes, block_mask, block_q, block_k)``; must agree with the torch builder.
        name: Who it is, for :func:`plan_builders`; the same name may register again, another name may not.

    Raises:
        InvalidInputError: Another builder holds the device type.
    """
    held = _BUILDERS.get(device_type)
    if held is not None and held[0] != name:
        raise InvalidInputError(
            f"plan builder {name!r} wants device type {device_type!r}, which {held[0]!r} holds; "
            "only one may build its plans."
        )
    _BUILDERS[device_type] = (name, fn)


def plan_builders() -> dict[str, str]:
    """Name of the builder registered for each device type; other devices use the torch builder."""
    return {device: name for device, (name, _) in _BUILDERS.items()}


def check_block(name: str, value: Any) -> None:
    """Raise unless ``value`` is a positive int."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInputError(f"{name} must be a positive int (a tile size, such as 64 or 128), got {value!r}.")


def build_plan(mask: Mask, block_q: int, block_k: int, device: torch.device | str | None = None) -> Plan:
    """Build the plan of ``mask`` on ``device`` (by default where its planes are), without caching it.

    Args:
        mask: The mask.
        block_q: Rows of a query tile.
        block_k: Columns of a key tile.
        device: Where the lists shall lie.

    Raises:
        InvalidInputError: A tile size is not a positive int, or the mask has a ``block_mask`` and a tile size is not a
            multiple of 16.
    """
    from fmcore.masks.plan_torch import build_plan_torch

    check_block("block_q", block_q)
    check_block("block_k", block_k)
    if mask.block_mask is not None and (block_q % 16 or block_k % 16):
        raise InvalidInputError(
            "a mask with a block_mask needs tile sizes that are multiples of 16, "
            f"got block_q={block_q}, block_k={block_k}."
        )
    planes = mask.planes_on(device)
    builder: PlanBuilder = build_plan_torch
    held = _BUILDERS.get(planes.device.type)
    if held is not None and planes.device.type != "cpu":
        builder = held[1]
    return builder(mask, planes, mask.block_mask_on(device), block_q, block_k)
