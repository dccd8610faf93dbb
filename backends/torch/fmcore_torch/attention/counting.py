"""Counting the tile pairs that calls visit: work follows the mask, and a test can hold it to that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fmcore_torch.attention import walk

__all__ = ["TileCount", "count_tiles"]


@dataclass
class TileCount:
    """Tile pairs visited since counting began, over the mask's batches and heads."""

    visited: int = 0

    def add(self, tiles: int) -> None:
        """Count some more."""
        self.visited += tiles


@contextmanager
def count_tiles() -> Iterator[TileCount]:
    """Count the tile pairs visited inside the block, forward and backward alike, by all threads.

    Example:
        >>> with count_tiles() as count:
        ...     pass
        >>> count.visited
        0
    """
    count = TileCount()
    walk.OBSERVERS.append(count.add)
    try:
        yield count
    finally:
        walk.OBSERVERS.remove(count.add)
