"""The compiled module: loaded late, with the reason kept where it cannot be, and the instruction set in force."""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError, UnsupportedError
from fmcore_cpu import _build

__all__ = ["DTYPES", "address", "compute_dtype", "isa", "kernels", "load_error", "rows_of", "threads", "use_isa"]

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
"""dtype -> number in ``csrc/api.h``."""


@lru_cache(maxsize=1)
def _load() -> tuple[ModuleType | None, str]:
    try:
        module = importlib.import_module("fmcore_cpu._kernels")
    except ImportError as error:
        return None, str(error)
    wanted = os.environ.get(_build.ISA_VARIABLE, "auto").strip() or "auto"
    try:
        module.set_isa(wanted)
    except ValueError as error:
        return None, f"{_build.ISA_VARIABLE}={wanted!r}: {error}"
    return module, ""


def load_error() -> str:
    """Why the compiled kernels cannot be used, or an empty string."""
    return _load()[1]


def kernels() -> Any:
    """The compiled module.

    Raises:
        UnsupportedError: It is not there; the text says why and what to do.
    """
    module, error = _load()
    if module is None:
        failure = _build.failure()
        built = f"; building them failed: {failure}" if failure else ""
        raise UnsupportedError(f"the cpu backend's kernels cannot be used: {error}{built}")
    return module


def isa() -> str:
    """Name of the instruction set in force: ``avx512``, ``avx2`` or ``baseline``."""
    return str(kernels().isa())


def use_isa(name: str) -> None:
    """Force an instruction set, or ``"auto"`` for the best this processor has; for tests and measurements.

    Raises:
        InvalidInputError: It is not built in, or not of this processor.
    """
    try:
        kernels().set_isa(name)
    except ValueError as error:
        raise InvalidInputError(str(error)) from error


def threads() -> int:
    """Threads to use: torch's own number, so that DataLoader workers and ``torch.set_num_threads`` are obeyed."""
    return int(torch.get_num_threads())


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums are kept in: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rows_of(t: Tensor) -> Tensor:
    """``t`` itself if its last dimension is dense, else a contiguous copy; any other stride is fine as it is."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def address(t: Tensor | None) -> int:
    """Address of the first element; 0 for None."""
    return 0 if t is None else int(t.data_ptr())
