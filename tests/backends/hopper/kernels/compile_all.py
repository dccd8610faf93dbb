"""Compile the attention kernels for sm_90a through the launch path, without a GPU, and say what they need.

Usage: python compile_all.py D DTYPE KIND. Prints one JSON object: by kernel its shared memory, spilled bytes, notes of
the assembler about products that it had to serialise, and which of Hopper's instructions it uses.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

ROOT = Path(__file__).parents[4]
sys.path[:0] = [str(ROOT), str(ROOT / "backends" / "cuda_hopper")]

from fmcore import masks  # noqa: E402
from fmcore_cuda_hopper import attention, work  # noqa: E402
from fmcore_cuda_hopper.operands import Descriptor  # noqa: E402

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
INSTRUCTIONS = ("wgmma.mma_async", "cp.async.bulk.tensor", "setmaxnreg", "red.relaxed.gpu.global.add.v4.f32")


class NoGpu:
    """A driver that knows its target and nothing else."""

    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device=None: 0)
    get_active_torch_device = staticmethod(lambda: torch.device("cpu"))
    map_python_to_cpp_type = staticmethod(lambda name: name)


def report(compiled: Any) -> dict[str, Any]:
    ptx = compiled.asm["ptx"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [str(TOOLS / "ptxas"), "-arch=sm_90a", "-v", "-o", str(source.with_suffix(".cubin")), str(source)]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        "shared": compiled.metadata.shared,
        "spill": sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", log)),
        "notes": [line.strip() for line in log.splitlines() if re.search(r"C75\d\d", line)],
        "instructions": [name for name in INSTRUCTIONS if name in ptx],
    }


class Compiled:
    """In place of a `Launcher`: the same arguments, compiled and not launched."""

    def __init__(self, launcher: Any, found: dict[str, Any]) -> None:
        self.kernel, self.options, self.found = launcher.kernel, launcher.options, found

    def __call__(self, key: Any, grid: tuple[int, ...], args: tuple[Any, ...]) -> None:
        checked = [a.checked() if isinstance(a, Descriptor) else a for a in args]
        self.found[self.kernel.__name__] = report(self.kernel.warmup(*checked, grid=grid, **self.options))


class Skipped:
    """The small kernels that prepare the plan: the portable tests run them."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **constants: None


def main(d: int, dtype: torch.dtype, kind: str) -> None:
    driver.set_active(NoGpu())
    found: dict[str, Any] = {}
    for name in ("_FORWARD", "_BACKWARD", "_BEFORE", "_AFTER"):
        setattr(attention, name, Compiled(getattr(attention, name), found))
    work.pad_planes = work.work_rows = work.work_order = Skipped()
    attention.multiprocessors = lambda device: 132
    work.cache_budget = lambda device: 40 << 20
    s = 1000
    mask = {
        "causal_document": lambda: masks.causal_document([300, 700]),
        "global_sliding": lambda: masks.global_sliding(s, global_tokens=16, window_size=200),
    }[kind]()
    q, k = torch.randn(2, s, 4, d).to(dtype), torch.randn(2, s, 2, d).to(dtype)
    scalars: dict[str, Any] = {"softmax_scale": d**-0.5, "softcap": 0.0, "sink": None, "deterministic": False}
    out, lse = attention.forward(q, k, k, mask, **scalars)
    attention.backward(q, lse, q, k, k, out, lse, mask, **scalars)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), getattr(torch, sys.argv[2]), sys.argv[3])
