"""Pictures of a mask and of its tile classes: text for a terminal, a PNG through matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError, UnsupportedError
from fmcore.masks._canonical import BLOCK, hidden_intervals
from fmcore.masks._columns import HOST
from fmcore.masks.mask import Mask

if TYPE_CHECKING:
    import os

__all__ = ["save_png", "to_text"]

GLYPHS = {"unicode": "·▒█", "ascii": ".+#"}


def to_text(mask: Mask, *, width: int = 64, batch: int = 0, head: int = 0, glyphs: str = "unicode") -> str:
    """The mask as lines of characters, one per tile: hidden, partly visible, wholly visible.

    Masks of up to ``width`` columns get one character per pair; larger ones are classified on tiles that fit.

    Args:
        mask: The mask.
        width: Characters per line, and lines, at most.
        batch: Which sequence.
        head: Which mask head.
        glyphs: ``"unicode"`` or ``"ascii"``.

    Raises:
        InvalidInputError: Unknown glyphs, or no such sequence or head.

    Example:
        >>> from fmcore.masks import causal_document
        >>> print(to_text(causal_document([2, 2]), glyphs="ascii"))
        #...
        ##..
        ..#.
        ..##
    """
    marks = GLYPHS.get(glyphs)
    if marks is None or width < 1:
        raise InvalidInputError(
            f"glyphs must be one of {', '.join(GLYPHS)} and width >= 1, got {glyphs!r} and {width!r}."
        )
    one = _single(mask, batch, head)
    tile = max(1, -(-mask.s_k // width), -(-mask.s_q // width))
    if tile > 1 and mask.block_mask is not None:
        tile = -(-tile // 16) * 16
    classes = _pair_classes(one) if tile == 1 else one.plan(tile, tile, "cpu").classes()[0, 0]
    return "\n".join("".join(marks[value] for value in row) for row in classes.tolist())


def save_png(
    mask: Mask,
    path: str | os.PathLike[str],
    *,
    block_q: int = BLOCK,
    block_k: int = BLOCK,
    batch: int = 0,
    head: int = 0,
    title: str | None = None,
) -> Path:
    """Write a PNG of the mask beside the classes of its tiles, and return the path. Needs matplotlib.

    Args:
        mask: The mask.
        path: The file.
        block_q: Rows of a tile.
        block_k: Columns of a tile.
        batch: Which sequence.
        head: Which mask head.
        title: Above the picture; by default the mask's kind and sizes.

    Raises:
        UnsupportedError: matplotlib is not installed.
        InvalidInputError: No such sequence, head or directory, or a mask without pairs.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"a picture of a mask needs matplotlib ({error}); pip install matplotlib, or draw it with to_text."
        ) from error
    if not mask.s_q or not mask.s_k:
        raise InvalidInputError(f"there is nothing to draw in {mask!r}; it has no pairs.")
    target = Path(path)
    if not target.parent.is_dir():
        raise InvalidInputError(f"cannot write {str(path)!r}: there is no directory {str(target.parent)!r}.")

    one = _single(mask, batch, head)
    plan = one.plan(block_q, block_k, "cpu")
    figure = Figure(figsize=(9.6, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    extent = (0, mask.s_k, mask.s_q, 0)
    two = ListedColormap(["#f4f1ea", "#1f4e79"])
    left.imshow(sample(one).numpy(), cmap=two, vmin=0, vmax=1, extent=extent, aspect="auto")
    left.set_title(f"visible pairs: {one.exact_area():.2%}")
    colours = ListedColormap(["#f4f1ea", "#e0a458", "#1f4e79"])
    tiles = (0, plan.nk * block_k, plan.nq * block_q, 0)
    right.imshow(
        plan.classes()[0, 0].numpy(), cmap=colours, vmin=0, vmax=2, extent=tiles, aspect="auto", interpolation="nearest"
    )
    right.set_title(f"{block_q} x {block_k} tiles: {plan.tile_area:.2%} visited")
    for axes in (left, right):
        axes.set_xlabel("key column")
        axes.set_ylabel("query row")
    figure.suptitle(
        title if title is not None else f"{mask.kind}, {mask.s_q} x {mask.s_k}; tiles: partial orange, full blue"
    )
    figure.savefig(target, dpi=120, format="png")
    return target


def sample(mask: Mask, limit: int = 1024) -> Tensor:
    """Visibility of up to ``limit`` evenly spread rows and columns of a single-head mask, bool ``[rows, columns]``."""
    row, column = (_spread(size, limit) for size in (mask.s_q, mask.s_k))
    us, ue, ls, le = (b[0, 0, column] for b in hidden_intervals(mask.mode, mask.planes_on("cpu"), mask.s_q))
    at = row.unsqueeze(-1)
    visible = ~(((at >= us) & (at < ue)) | ((at >= ls) & (at < le)))
    keep = mask.block_mask_on("cpu")
    if keep is not None:
        visible &= keep[0, 0].bool()[row // BLOCK][:, column // BLOCK]
    return visible


def _spread(size: int, limit: int) -> Tensor:
    count = min(size, limit)
    return ((2 * torch.arange(count, device=HOST) + 1) * size // max(1, 2 * count)).clamp(max=max(0, size - 1))


def _pair_classes(mask: Mask) -> Tensor:
    return mask.dense("cpu")[0, 0].to(torch.uint8) * 2


def _single(mask: Mask, batch: int, head: int) -> Mask:
    """The mask of one sequence and one head."""
    if not 0 <= batch < mask.batch or not 0 <= head < mask.heads:
        raise InvalidInputError(f"{mask!r} has no batch {batch}, head {head}.")
    keep = None if mask.block_mask is None else mask.block_mask[batch : batch + 1, head : head + 1]
    planes = mask.planes[batch : batch + 1, head : head + 1]
    return Mask(planes, s_q=mask.s_q, mode=mask.mode, kind=mask.kind, block_mask=keep)
