"""Finding launch configurations on the machine: a declared space, a time budget, a stored result.

`FMCORE_TUNE=<seconds>` allows a process to spend that long on searching, in all. What was found is stored in fmcore's
cache folder, one small JSON file per device, Triton version, kernel source, element type, size and mask mode, and used
by every later process, with or without FMCORE_TUNE. A file that does not read, or was made for another key, is ignored
with one warning; so is a value that is no configuration of the kernel.
"""

from __future__ import annotations

import functools
import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcore.dispatch.cache import CacheDir
from fmcore.errors import ConfigWarning
from fmcore_triton.launch import Launch, default_launch, device_family

if TYPE_CHECKING:
    import torch

Trial = Callable[[Launch], Callable[[], None]]

_chosen: dict[tuple[Any, ...], Launch] = {}
_spent = 0.0
_warned: set[str] = set()


def launch_of(
    kernel: str, device: torch.device, *, dtype: torch.dtype, size: int, mode: int, trial: Trial | None
) -> Launch:
    """Return the launch configuration for a call, searching for it where FMCORE_TUNE allows.

    Args:
        kernel: Kernel name, as in the configuration files.
        device: Where it will run; host tensors (the interpreter) get the default table.
        dtype: Element type.
        size: The kernel's size figure.
        mode: Mask mode, or 0 where there is no mask.
        trial: Prepares the caller's own launch with a given configuration, for timing; None forbids a search.
    """
    key = (kernel, device, dtype, size, mode)
    launch = _chosen.get(key)
    if launch is None:
        launch = _choose(kernel, device, dtype, size, mode, trial)
        _chosen[key] = launch
    return launch


def forget() -> None:
    """Drop what this process has chosen, so that the next call looks at files and settings anew."""
    global _spent  # noqa: PLW0603 (the budget belongs to the process)
    _chosen.clear()
    _warned.clear()
    _spent = 0.0


def override(kernel: str, device: torch.device, launch: Launch, *, dtype: torch.dtype, size: int, mode: int) -> None:
    """Make this process use `launch` for such calls; for measuring."""
    _chosen[kernel, device, dtype, size, mode] = launch


def _choose(kernel: str, device: torch.device, dtype: torch.dtype, size: int, mode: int, trial: Trial | None) -> Launch:
    bits = dtype.itemsize * 8
    if device.type != "cuda":
        return default_launch(kernel, "default", bits=bits, size=size)
    index = 0 if device.index is None else device.index
    default = default_launch(kernel, device_family(index), bits=bits, size=size)
    key = _identity(kernel, index, str(dtype), size, mode)
    cache = CacheDir("triton-launch")
    stored = _load(cache, key, default)
    if stored is not None:
        return stored
    if trial is None or _seconds_left() <= 0 or _capturing():
        return default
    with cache.lock(key):  # one process searches, the others wait for its result
        stored = _load(cache, key, default)
        if stored is not None:
            return stored
        best, milliseconds = search(kernel, default, trial, bits=bits)
        cache.store(key, {"launch": best.to_row(), "ms": milliseconds})
    return best


def space(kernel: str, default: Launch, *, bits: int) -> Iterator[Launch]:
    """Yield the candidates of a kernel, the default first: tile shapes, warps and stages around it.

    A switch that changes what a kernel computes (ATOMIC_DQ) stays as the default has it: times would not compare.
    """
    yield default
    fixed = {name: value for name, value in default.meta.items() if not name.startswith("BLOCK_")}
    tiles = {
        "attn_fwd": ((128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (64, 32)),
        "attn_bwd_kv": ((64, 128), (32, 128), (128, 128), (64, 64), (128, 64), (32, 64)),
        "attn_bwd_q": ((128, 64), (128, 32), (64, 128), (64, 64), (128, 128), (64, 32)),
    }
    narrow = ((32, 32), (32, 16), (16, 32), (16, 16))
    for block_m, block_n in (tiles if bits == 16 else dict.fromkeys(tiles, narrow)).get(kernel, ()):
        for warps in (4, 8):
            for stages in (1, 2, 3):
                candidate = Launch({**fixed, "BLOCK_M": block_m, "BLOCK_N": block_n}, warps, stages)
                if candidate != default:
                    yield candidate


def search(kernel: str, default: Launch, trial: Trial, *, bits: int) -> tuple[Launch, float]:
    """Time candidates until the budget is spent; return the fastest and its median time in milliseconds."""
    global _spent  # noqa: PLW0603 (the budget belongs to the process)
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError
    from triton.testing import do_bench

    start = time.monotonic()
    left = _seconds_left()
    best, best_ms = default, float("inf")
    for candidate in space(kernel, default, bits=bits):
        if time.monotonic() - start > left:
            break
        try:
            median = float(do_bench(trial(candidate), warmup=10, rep=40, return_mode="median"))
        except (OutOfResources, PTXASError, CompilationError):
            continue  # too large for this device: not a candidate here
        if median < best_ms:
            best, best_ms = candidate, median
    _spent += time.monotonic() - start
    return best, best_ms


def valid_row(row: Any, default: Launch) -> bool:
    """Whether a stored value is a configuration of this kernel: the same fields, small whole numbers."""
    if not isinstance(row, dict) or set(row) != set(default.to_row()):
        return False
    return all(isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1024 for value in row.values())


def _load(cache: CacheDir, key: Mapping[str, Any], default: Launch) -> Launch | None:
    value = cache.load(key)
    if value is None:
        return None
    row = value.get("launch") if isinstance(value, dict) else None
    if valid_row(row, default):
        return Launch.from_row(row)
    path = str(cache.path(key))
    if path not in _warned:
        _warned.add(path)
        warnings.warn(
            f"stored launch configuration {path} is ignored: {row!r} does not fit this kernel; delete the file",
            ConfigWarning,
            stacklevel=2,
        )
    return None


def _seconds_left() -> float:
    from fmcore import config

    return config.current().tune - _spent


def _capturing() -> bool:
    import torch

    return torch.cuda.is_current_stream_capturing()


@functools.cache
def _sources() -> str:
    """Hash of the kernels' source: a changed kernel is another kernel."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parent / "kernels").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _identity(kernel: str, index: int, dtype: str, size: int, mode: int) -> dict[str, Any]:
    import torch
    import triton

    properties = torch.cuda.get_device_properties(index)
    return {
        "kernel": kernel,
        "source": _sources(),
        "device": properties.name,
        "processors": properties.multi_processor_count,
        "arch": list(torch.cuda.get_device_capability(index)),
        "triton": triton.__version__,
        "dtype": dtype,
        "size": size,
        "mode": mode,
    }
