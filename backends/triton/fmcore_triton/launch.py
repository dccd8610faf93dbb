"""Launch configurations: data by architecture family, read from `configs/*.json`, looked up and never computed.

A file names the families it serves and, per kernel, rows `{"bits": 16, "head_dim": 128, "num_warps": 8, ...}`; the
first row whose element width fits, whose `head_dim` (the kernel's size figure) is large enough and whose `mode` and
`dense`, if it has them, say what the mask is wins.
A kernel that a family's file lacks, and any unknown family, is served by `default.json`, sized for the smallest shared
memory that a current GPU has.  A tuned configuration (see `tuner`) takes precedence over both.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG_FOLDER = Path(__file__).parent / "configs"
_LEAST_SIDE = 16
_SELECTORS = ("bits", "head_dim", "mode", "dense")


@dataclass(frozen=True)
class Launch:
    """One launch configuration.

    Attributes:
        meta: Compile-time constants of the kernel that tuning may choose (tile sizes, switches).
        num_warps: Warps (wavefronts) per program.
        num_stages: Depth of the software pipeline.
    """

    meta: Mapping[str, int]
    num_warps: int
    num_stages: int

    @classmethod
    def from_row(cls, row: Mapping[str, int]) -> Launch:
        """Build one from a row of a configuration file; the selecting fields are left out."""
        rest = {key: value for key, value in row.items() if key not in _SELECTORS}
        warps, stages = rest.pop("num_warps"), rest.pop("num_stages")
        return cls(rest, warps, stages)

    def to_row(self) -> dict[str, int]:
        """Return the row that `from_row` reads."""
        return {**self.meta, "num_warps": self.num_warps, "num_stages": self.num_stages}

    def smaller(self) -> Launch | None:
        """Return the next configuration that needs less shared memory: fewer stages, then a larger tile side halved.

        None where nothing is left to give: one stage, and tiles of the smallest side of a matrix product.

        >>> Launch({"BLOCK_M": 64, "BLOCK_N": 16}, 4, 1).smaller()
        Launch(meta={'BLOCK_M': 32, 'BLOCK_N': 16}, num_warps=4, num_stages=1)
        """
        if self.num_stages > 1:
            return Launch(self.meta, self.num_warps, self.num_stages - 1)
        sides = {name: value for name, value in self.meta.items() if name.startswith("BLOCK_")}
        if not sides or max(sides.values()) <= _LEAST_SIDE:
            return None
        largest = max(sides, key=lambda name: sides[name])
        return Launch({**self.meta, largest: sides[largest] // 2}, self.num_warps, self.num_stages)

    @property
    def options(self) -> dict[str, int]:
        """The keyword arguments of a launch."""
        return self.to_row()


@functools.cache
def tables() -> Mapping[str, Mapping[str, Any]]:
    """Return every configuration table by the family it serves."""
    found: dict[str, Mapping[str, Any]] = {}
    for path in sorted(CONFIG_FOLDER.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        for family in data["families"]:
            found[family] = data["kernels"]
    return found


def default_launch(kernel: str, family: str, *, bits: int, size: int, mode: int = 1, dense: bool = False) -> Launch:
    """Return the stored configuration of a kernel.

    Args:
        kernel: Kernel name, as in the configuration files.
        family: Architecture family, see `family_of`.
        bits: Width of the element type.
        size: The kernel's size figure (the padded head dimension for attention).
        mode: Mask mode: the number of intervals a column has.
        dense: Whether the mask is known to be full or plainly causal: long lists of whole tiles like larger tiles.

    Raises:
        LookupError: Not even the default table has a row that is large enough.
    """
    for name in (family, "default"):
        for row in tables().get(name, {}).get(kernel, ()):
            fits = row.get("bits", bits) == bits and row.get("head_dim", size) >= size
            fits = fits and row.get("mode", mode) == mode
            if fits and bool(row.get("dense", dense)) == dense:
                return Launch.from_row(row)
    raise LookupError(
        f"no launch configuration for kernel {kernel} with {bits}-bit elements and size {size}; "
        "the default table ends below it"
    )


def family_of(backend: str, arch: int | str) -> str:
    """Name the family of a Triton target.

    Args:
        backend: Triton's backend name of the target, such as "cuda" or "hip".
        arch: Triton's architecture: 90 or "gfx942".

    >>> family_of("cuda", 90), family_of("cuda", 89), family_of("hip", "gfx942")
    ('sm90', 'sm86', 'gfx9')
    """
    if backend == "cuda":
        capability = int(arch)
        # 8.6, 8.7 and 8.9 have 99 KiB of shared memory where 8.0 has 163; what is newer than 9.0 gets the safe default.
        known = {80: "sm80", 86: "sm86", 87: "sm86", 89: "sm86", 90: "sm90"}
        return known.get(capability, "default")
    if backend == "hip" and str(arch).startswith("gfx9"):
        return "gfx9"
    return "default"


@functools.cache
def device_family(index: int) -> str:
    """Return the family of a torch device of type cuda; the driver is asked once per device."""
    import torch
    import triton

    with torch.cuda.device(index):
        target = triton.runtime.driver.active.get_current_target()
    return family_of(target.backend, target.arch)
