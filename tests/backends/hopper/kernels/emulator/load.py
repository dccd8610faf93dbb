"""The backend with its two Gluon kernels on the emulated machine: the kernel source and the host code as they are."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from . import language, machine

KERNELS = "fmcore_cuda_hopper.kernels"
HOPPER = "triton.experimental.gluon.language.nvidia.hopper"


def _fake_gluon() -> dict[str, types.ModuleType]:
    names = ("triton.experimental", "triton.experimental.gluon", "triton.experimental.gluon.language", HOPPER)
    fakes = {name: types.ModuleType(name) for name in names}
    fakes["triton.experimental"].gluon = fakes["triton.experimental.gluon"]
    fakes["triton.experimental.gluon"].jit = language.jit
    fakes["triton.experimental.gluon"].language = language.gl
    for name in ("mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait"):
        setattr(fakes[HOPPER], name, getattr(language, name))
    fakes[HOPPER].fence_async_shared = lambda: None
    return fakes


def _without_assembly(modules: dict[str, Any]) -> None:
    """What the kernels say in assembly, in words: five functions whose arithmetic the compiled code alone can show."""
    forward, backward, common = (modules[n] for n in ("forward", "backward", "common"))
    forward.turn_wait = lambda who: machine.named_sync(9 + who)
    forward.turn_give = lambda who: machine.named_arrive(9 + who)
    forward.pack = lambda p, dtype: p.to(dtype)
    forward.unpack = lambda words, dtype, layout: words
    backward.opaque_zero = lambda x, zero: 0
    common.wide = forward.wide = backward.wide = lambda x: x

    def reduce_dq(dq_p: Any, row: int, dq: Any, rows: int, half: int) -> None:
        x = language.raw(dq).reshape(4, 2, 8, half // 8, 4, 2).permute(3, 0, 2, 4, 1, 5).reshape(-1)
        with machine.WORLD.condition:
            dq_p.tensor.view(-1)[row * rows * half : (row + 1) * rows * half] += x

    backward.reduce_dq = reduce_dq


def kernel_modules(edit: Callable[[str, str], str] | None = None) -> dict[str, Any]:
    """Load the kernel sources against the emulated language, ``edit(name, source)`` may plant a fault first."""
    folder = Path(importlib.import_module(KERNELS).__file__).parent
    modules: dict[str, Any] = {}
    kept = {name: module for name, module in sys.modules.items() if name.startswith(KERNELS)}
    with mock.patch.dict(sys.modules, _fake_gluon()):
        for name in ("gluon_names", "common", "forward", "backward"):
            source = (folder / f"{name}.py").read_text()
            if edit is not None:
                source = edit(name, source)
            module = types.ModuleType(f"{KERNELS}.{name}")
            sys.modules[f"{KERNELS}.{name}"] = modules[name] = module
            exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    for name in modules:
        sys.modules.pop(f"{KERNELS}.{name}", None)
    sys.modules.update(kept)
    _without_assembly(modules)
    return modules


class Emulated:
    """In place of a `Launcher`: runs every program of the grid in turn, each with its partitions side by side."""

    def __init__(self, kernel: Any, *, jitter: float, seed: int = 0) -> None:
        self.kernel = kernel
        self.jitter = jitter
        self.seed = seed

    def __call__(self, key: Any, grid: tuple[int, ...], args: tuple[Any, ...]) -> None:
        checked = [a.checked() if hasattr(a, "checked") else a for a in args]
        shown = [
            machine.Descriptor(a) if hasattr(a, "block_shape") else language.Pointer(a) if torch.is_tensor(a) else a
            for a in checked
        ]
        for program in range(grid[0]):
            language.PROGRAM[:] = [program, grid[0]]
            machine.start(machine.World(jitter=self.jitter, seed=self.seed + program))
            self.kernel(*shown)
