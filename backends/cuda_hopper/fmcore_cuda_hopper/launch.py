"""Launching a kernel again without asking Triton's front end again."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable
from typing import Any

import torch

from fmcore_cuda_hopper.operands import Descriptor


class Launcher:
    """One kernel. A launch that is like an earlier one goes straight to the compiled object.

    Triton looks at every argument of every launch to find what to compile; that costs more than a short kernel takes.
    The kernels here specialise on nothing but dtypes and constants (all other numbers are listed in their
    ``do_not_specialize``), so whoever calls says with ``key`` what those are.
    """

    def __init__(self, kernel: Any, **options: int) -> None:
        self.kernel = kernel
        self.options = options
        self.compiled: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, grid: tuple[int, ...], args: tuple[Any, ...]) -> None:
        """Launch on the current stream of the current device.

        Args:
            key: Device, dtypes and constants of the launch.
            grid: Programs in one, two or three dimensions.
            args: Every argument of the kernel in order, constants too.
        """
        compiled = self.compiled.get(key)
        if compiled is not None:
            compiled[(*grid, 1, 1)[:3]](*args)
            return
        checked = tuple(a.checked() if isinstance(a, Descriptor) else a for a in args)
        self.compiled[key] = self.kernel[grid](*checked, **self.options)


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make the device current, as a launch needs it; cheap where it is already."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many programs of one per multiprocessor run at once."""
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def cache_budget(device: torch.device) -> int:
    """Bytes that the operands of one group of heads may take: two thirds of the second-level cache."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) * 2 // 3
