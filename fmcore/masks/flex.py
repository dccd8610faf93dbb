"""FlexAttention's masks, a ``mask_mod`` or a ``BlockMask``, into a :class:`fmcore.masks.Mask` and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError
from fmcore.masks._canonical import BLOCK, check_length
from fmcore.masks._columns import Device
from fmcore.masks.converters import runs_of, simplify
from fmcore.masks.mask import Mask

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["from_block_mask", "from_mask_mod", "to_block_mask", "to_mask_mod"]

MaskMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

STRIP = 1 << 22
"""Pairs that are evaluated at a time."""


def from_mask_mod(
    mask_mod: MaskMod, s_q: int, s_k: int | None = None, *, batch: int = 1, heads: int = 1, device: Device = None
) -> Mask:
    """The mask of ``mask_mod(b, h, q_idx, kv_idx) -> bool`` (True where visible), if it can be said by columns.

    Evaluates all pairs, a strip of columns at a time: O(s_q * s_k) time, O(s_q) memory. Waits for the device.

    Raises:
        InvalidInputError: A column hides more than two intervals of rows; the message names the first one found.

    Example:
        >>> from_mask_mod(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, 2).dense().int()[0, 0].tolist()
        [[1, 0], [1, 1]]
    """
    s_k = s_q if s_k is None else s_k
    check_length("s_q", s_q)
    check_length("s_k", s_k)
    evaluate = _over_all(mask_mod, batch, heads, s_q, device)
    return _from_strips(evaluate, batch, heads, s_q, s_k, device)


def from_block_mask(block_mask: BlockMask) -> Mask:
    """The mask of a FlexAttention ``BlockMask``: its full blocks, and its partial blocks through its ``mask_mod``.

    Raises:
        InvalidInputError: A column hides more than two intervals of rows; the message names the first one found.
    """
    batch, heads, s_q, s_k = block_mask.shape
    rows, columns = block_mask.BLOCK_SIZE
    device = block_mask.kv_indices.device
    blocks = -(-s_k // columns)
    partial = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, blocks)
    full = torch.zeros_like(partial)
    if block_mask.full_kv_num_blocks is not None and block_mask.full_kv_indices is not None:
        full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, blocks)
    evaluate = _over_all(block_mask.mask_mod, batch, heads, s_q, device)
    row_block = torch.arange(s_q, device=device) // rows

    def visible(column: Tensor) -> Tensor:
        def at(listed: Tensor) -> Tensor:
            return listed[:, :, row_block][..., column // columns]

        return at(full) | (at(partial) & evaluate(column))

    return _from_strips(visible, batch, heads, s_q, s_k, device)


def _over_all(mask_mod: MaskMod, batch: int, heads: int, s_q: int, device: Device) -> Callable[[Tensor], Tensor]:
    """``columns -> bool [batch, heads, s_q, columns]``; the mod sees scalars, as FlexAttention promises it."""
    mapped: Callable[..., Tensor] = mask_mod
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        mapped = torch.vmap(mapped, in_dims=dims)
    b, h, row = (torch.arange(n, device=device) for n in (batch, heads, s_q))

    def evaluate(column: Tensor) -> Tensor:
        visible = mapped(b, h, row, column)
        if visible.dtype != torch.bool:
            raise InvalidInputError(f"mask_mod must return bool, True where visible, got {visible.dtype}.")
        return visible

    return evaluate


def _from_strips(
    visible: Callable[[Tensor], Tensor], batch: int, heads: int, s_q: int, s_k: int, device: Device
) -> Mask:
    step = max(1, STRIP // max(1, batch * heads * s_q))
    planes = [torch.zeros(batch, heads, 4, 0, dtype=torch.int32, device=device)]
    if s_q:
        for first in range(0, s_k, step):
            column = torch.arange(first, min(s_k, first + step), device=device)
            planes.append(runs_of(visible(column), first))
    else:
        planes.append(planes[0].new_zeros(batch, heads, 4, s_k))
    return simplify(Mask(torch.cat(planes, dim=-1), s_q=s_q, mode=2))


def _listed(count: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Block lists to bool ``[batch, heads, row blocks, columns]``."""
    used = torch.arange(indices.shape[-1], device=indices.device) < count.unsqueeze(-1)
    out = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
    index = torch.where(used, indices.long(), columns)  # unused entries go to a spare column
    return out.scatter_(-1, index, used)[..., :columns]


def to_mask_mod(mask: Mask, *, heads_q: int | None = None) -> MaskMod:
    """A ``mask_mod`` that FlexAttention can run, bounds and block mask included.

    Args:
        mask: The mask; its tensors must lie where attention will run (``mask.to(device)``).
        heads_q: Query heads of the call, needed where the mask has several heads but fewer than those.
    """
    if heads_q is not None and heads_q % mask.heads:
        raise InvalidInputError(f"heads_q={heads_q} is not a multiple of the mask's {mask.heads} heads.")
    group = 1 if heads_q is None else heads_q // mask.heads
    planes, keep = mask.planes, mask.block_mask
    one_batch, one_head, mode = mask.batch == 1, mask.heads == 1, mask.mode

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        b = b * 0 if one_batch else b
        h = h * 0 if one_head else h // group
        bounds = [planes[b, h, plane, kv_idx] for plane in range(2 * mode)]
        if mode == 1:
            visible = (q_idx >= bounds[0]) & (q_idx < bounds[1])
        else:
            us, ue, ls, le = bounds
            visible = ~(((q_idx >= us) & (q_idx < ue)) | ((q_idx >= ls) & (q_idx < le)))
        if keep is not None:
            visible = visible & (keep[b, h, q_idx // BLOCK, kv_idx // BLOCK] != 0)
        return visible

    return mask_mod


def to_block_mask(mask: Mask, *, block_q: int = BLOCK, block_k: int = BLOCK, heads_q: int | None = None) -> BlockMask:
    """A ``BlockMask`` from the plan of the mask, O(visible tiles) where ``create_block_mask`` evaluates every pair.

    With several mask heads, ``heads_q`` repeats each for its query heads. Tiles cut by the end of a sequence are listed
    as partial.
    """
    from torch.nn.attention.flex_attention import BlockMask

    plan = mask.plan(block_q, block_k)
    classes = plan.classes()
    if mask.s_q % block_q:
        classes[:, :, -1:].clamp_(max=1)
    if mask.s_k % block_k:
        classes[..., -1:].clamp_(max=1)
    mask_mod = to_mask_mod(mask, heads_q=heads_q)
    if heads_q is not None and mask.heads > 1:
        classes = classes.repeat_interleave(heads_q // mask.heads, dim=1)
    members = [(classes == value).to(torch.int32) for value in (1, 2)]
    counts = [member.sum(-1, dtype=torch.int32) for member in members]
    first = [torch.argsort(member, dim=-1, descending=True, stable=True).to(torch.int32) for member in members]
    return BlockMask.from_kv_blocks(
        counts[0],
        first[0],
        counts[1],
        first[1],
        BLOCK_SIZE=(block_q, block_k),
        mask_mod=mask_mod,
        seq_lengths=(mask.s_q, mask.s_k),
    )
