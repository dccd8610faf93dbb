"""Finding launch configurations on the machine: a declared space, a time budget, a stored result.

`FMCORE_TUNE=<seconds>` allows a process to spend that long on searching, in all. What was found is stored in fmcore's
cache folder, one small JSON file per device, Triton version, kernel source, element type, size and kind of mask, and
used by every later process, with or without FMCORE_TUNE. A file that does not read, or was made for another key, is
ignored with one warning; so is a value that is no configuration of the kernel.

A configuration that needs more than the device has, as Triton finds when it loads the compiled kernel, gives way to the
next smaller one, once per process and kind of call.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcore.dispatch.cache import CacheDir
from fmcore.errors import ConfigWarning
from fmcore_triton.launch import Launch, default_launch, device_family

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

Trial = Callable[[Launch], Callable[[], None]]


@dataclass(frozen=True)
class Kind:
    """Calls that share one launch configuration.

    Attributes:
        kernel: Kernel name, as in the configuration files.
        dtype: Element type.
        size: The kernel's size figure.
        mode: Mask mode, or 0 where there is no mask.
        dense: Whether the mask is known to be full or plainly causal.
    """

    kernel: str
    dtype: torch.dtype
    size: int
    mode: int
    dense: bool = False

    @property
    def bits(self) -> int:
        """Width of the element type."""
        return self.dtype.itemsize * 8


_chosen: dict[tuple[Kind, torch.device], Launch] = {}
_spent = 0.0
_warned: set[str] = set()


def launch_of(kind: Kind, device: torch.device, *, trial: Trial | None) -> Launch:
    """Return the launch configuration for a call, searching for it where FMCORE_TUNE allows.

    Args:
        kind: What is called.
        device: Where it will run; host tensors (the interpreter) get the default table.
        trial: Prepares the caller's own launch with a given configuration, for timing; None forbids a search.
    """
    launch = _chosen.get((kind, device))
    if launch is None:
        launch = _choose(kind, device, trial)
        _chosen[kind, device] = launch
    return launch


def run(kind: Kind, device: torch.device, trial: Trial) -> None:
    """Launch in the configuration for a call, or in the largest one below it that the device can hold.

    Args:
        kind: What is called.
        device: Where it runs.
        trial: Prepares the launch with a given configuration.

    Raises:
        triton.runtime.errors.OutOfResources: Not even the smallest configuration fits the device.
    """
    launch = launch_of(kind, device, trial=trial)
    while (error := _attempt(trial(launch))) is not None:
        smaller = launch.smaller()
        if smaller is None:
            raise error
        _log.info("%s does not fit %s in %s; trying %s", kind, device, launch.to_row(), smaller.to_row())
        launch = smaller
        override(kind, device, launch)


def _attempt(call: Callable[[], None]) -> Exception | None:
    """Launch; return the error if the device cannot hold the kernel, which is known before anything runs."""
    try:
        call()
    except _out_of_resources() as error:
        return error
    return None


def forget() -> None:
    """Drop what this process has chosen, so that the next call looks at files and settings anew."""
    global _spent  # noqa: PLW0603 (the budget belongs to the process)
    _chosen.clear()
    _warned.clear()
    _spent = 0.0


def override(kind: Kind, device: torch.device, launch: Launch) -> None:
    """Make this process use `launch` for such calls."""
    _chosen[kind, device] = launch


def _choose(kind: Kind, device: torch.device, trial: Trial | None) -> Launch:
    index = 0 if device.index is None else device.index
    family = device_family(index) if device.type == "cuda" else "default"
    default = default_launch(kind.kernel, family, bits=kind.bits, size=kind.size, mode=kind.mode or 1, dense=kind.dense)
    if device.type != "cuda":
        return default
    key = _identity(kind, index)
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
        best, milliseconds = search(kind.kernel, default, trial, bits=kind.bits)
        if math.isfinite(milliseconds):  # otherwise nothing could be timed, and there is nothing to remember
            cache.store(key, {"launch": best.to_row(), "ms": milliseconds})
    return best


def space(kernel: str, default: Launch, *, bits: int) -> Iterator[Launch]:
    """Yield the candidates of a kernel, the default first: tile shapes, warps and stages around it."""
    yield default
    tiles = {
        "attn_fwd": ((128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (64, 32)),
        "attn_bwd_kv": ((64, 128), (32, 128), (128, 128), (64, 64), (128, 64), (32, 64)),
        "attn_bwd_q": ((128, 64), (128, 32), (64, 128), (64, 64), (128, 128), (64, 32)),
    }
    narrow = ((32, 32), (32, 16), (16, 32), (16, 16))
    for block_m, block_n in (tiles if bits == 16 else dict.fromkeys(tiles, narrow)).get(kernel, ()):
        for warps in (4, 8):
            for stages in (1, 2, 3):
                candidate = Launch({**default.meta, "BLOCK_M": block_m, "BLOCK_N": block_n}, warps, stages)
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
    if row is not None and valid_row(row, default):
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


def _identity(kind: Kind, index: int) -> dict[str, Any]:
    import torch
    import triton

    properties = torch.cuda.get_device_properties(index)
    return {
        "kernel": kind.kernel,
        "source": _sources(),
        "device": properties.name,
        "processors": properties.multi_processor_count,
        "arch": list(torch.cuda.get_device_capability(index)),
        "triton": triton.__version__,
        "dtype": str(kind.dtype),
        "size": kind.size,
        "mode": kind.mode,
        "dense": kind.dense,
    }


@functools.cache
def _out_of_resources() -> type[Exception]:
    from triton.runtime.errors import OutOfResources

    found: type[Exception] = OutOfResources
    return found
