"""Checks of the fused kernels against the oracle of fmcore.reference.math; for the device check and the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


def checks() -> Iterator[tuple[str, Callable[[torch.device], dict[str, Any]]]]:
    """Yield (name, check) pairs."""
    yield from ()
