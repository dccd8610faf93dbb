"""Compiling kernels for a target without having one, and reading what the result needs."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fmcore_triton.kernels.attn_bwd import attn_bwd_kv, attn_bwd_q, attn_bwd_rows
from fmcore_triton.kernels.attn_fwd import attn_fwd
from fmcore_triton.kernels.gate import gate_backward, gate_forward
from fmcore_triton.kernels.norm import rms_backward, rms_forward
from fmcore_triton.kernels.rotary import rotate, rotate_tables
from fmcore_triton.kernels.rows import rows_backward, rows_forward
from fmcore_triton.kernels.swiglu import swiglu_backward, swiglu_forward
from fmcore_triton.launch import Launch, default_launch, family_of

TARGETS = {
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_80": GPUTarget("cuda", 80, 32),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_LIMIT = {"sm_90": 232448, "sm_80": 166912, "gfx90a": 65536, "gfx942": 65536}
"""Bytes of shared memory (LDS) that one program may take."""
SPILL_LIMIT = 1024
"""Bytes per thread that may live in local memory: what is spilled around the loops, never a whole operand."""

DTYPES = {"bf16": 16, "fp16": 16, "fp32": 32}
_FIXED = {
    **dict.fromkeys(("lse", "lse2", "delta", "dlse", "dq32", "sink"), "*fp32"),
    **dict.fromkeys(("planes", "partial", "full", "tiles", "order"), "*i32"),
    **dict.fromkeys(("scale", "cap", "grad_scale", "eps", "sign"), "fp32"),
    **dict.fromkeys(("weights", "dweights", "cos", "sin", "dcos", "dsin"), "*fp32"),
    "indices": "*i64",
}
_UNALIGNED = ("planes", "partial", "full", "tiles", "order")


@dataclass(frozen=True)
class Spec:
    """One compilation: a kernel, its constants, an element type and how it is launched."""

    name: str
    fn: Any
    dtype: str
    constants: Mapping[str, Any]
    launch: Launch

    def __str__(self) -> str:
        shown = " ".join(f"{k}={v}" for k, v in self.constants.items() if k in ("D", "DV", "MODE", "SOFTCAP", "SINK"))
        return f"{self.name} {self.dtype} {shown} {self.launch.to_row()}"


def fused_specs(*, dtypes: tuple[str, ...] = tuple(DTYPES)) -> Iterator[Spec]:
    """The fused kernels at ordinary widths; they have one configuration, derived from the width."""
    for dtype in dtypes:
        for has_weight in (False, True):
            norm = {"HAS_WEIGHT": has_weight, "ROWS": 1, "BLOCK": 4096}
            yield Spec("rms_forward", rms_forward, dtype, norm, Launch({}, 8, 2))
            yield Spec("rms_backward", rms_backward, dtype, norm, Launch({}, 8, 2))
        for fn in (swiglu_forward, swiglu_backward):
            yield Spec(fn.__name__, fn, dtype, {"BLOCK": 1024}, Launch({}, 4, 2))
        for kind in range(3):
            for fn in (rows_forward, rows_backward):
                yield Spec(fn.__name__, fn, dtype, {"KIND": kind, "BLOCK": 4096}, Launch({}, 8, 2))
        for interleaved in (False, True):
            shape = {"INTERLEAVED": interleaved, "HEADS": 32, "PAIRS": 64}
            yield Spec("rotate", rotate, dtype, {**shape, "T_P": 1 + interleaved, "REST": 64}, Launch({}, 4, 2))
            yield Spec("rotate_tables", rotate_tables, dtype, shape, Launch({}, 4, 2))
        for score in (0, 1):
            top = {"SCORE": score, "RENORMALIZE": True, "BLOCK": 256, "TOP": 8}
            yield Spec("gate_forward", gate_forward, dtype, {**top, "BIASED": True}, Launch({}, 2, 2))
            yield Spec("gate_backward", gate_backward, dtype, top, Launch({}, 2, 2))


@dataclass(frozen=True)
class Report:
    """What a compiled kernel needs."""

    shared: int
    spill: int
    registers: int

    def problem(self, target: str) -> str:
        """Say which limit is broken; empty if none is."""
        if self.shared > SHARED_LIMIT[target]:
            return f"needs {self.shared} bytes of shared memory where {target} has {SHARED_LIMIT[target]}"
        if self.spill > SPILL_LIMIT:
            return f"spills {self.spill} bytes per thread, more than {SPILL_LIMIT}"
        return ""


def attention_specs(
    target: str, *, dims: tuple[int, ...], dtypes: tuple[str, ...] = tuple(DTYPES), every: bool = False
) -> Iterator[Spec]:
    """Attention kernels in their default configurations.

    Both mask modes, each with what a dense mask is launched in where that differs; with `every` each mode with and
    without softcap, otherwise the first without and the second with it.
    """
    spec = TARGETS[target]
    family = family_of(spec.backend, spec.arch)
    for dtype in dtypes:
        for dim in dims:
            padded = max(16, 1 << (dim - 1).bit_length())
            base = {"D": dim, "DV": dim, "BLOCK_D": padded, "BLOCK_DV": padded, "PRECISION": "ieee"}
            yield Spec(
                "attn_bwd_rows",
                attn_bwd_rows,
                dtype,
                {"DV": dim, "BLOCK_DV": padded, "HAS_DLSE": True},
                Launch({"BLOCK_M": 32}, 4, 2),
            )
            for mode, softcap in (
                ((1, False), (2, True)) if not every else ((1, False), (1, True), (2, False), (2, True))
            ):
                constants = {**base, "MODE": mode, "SOFTCAP": softcap}
                for name, fn, extra in (
                    ("attn_fwd", attn_fwd, {"SINK": softcap}),
                    ("attn_bwd_kv", attn_bwd_kv, {}),
                    ("attn_bwd_q", attn_bwd_q, {}),
                ):
                    bits = DTYPES[dtype]
                    launches = [default_launch(name, family, bits=bits, size=padded, mode=mode)]
                    dense = default_launch(name, family, bits=bits, size=padded, dense=True)
                    if mode == 1 and dense not in launches:  # a dense mask has one interval a column
                        launches.append(dense)
                    for launch in launches:
                        yield Spec(name, fn, dtype, {**constants, **extra}, launch)


def compile_spec(spec: Spec, target: str) -> Report:
    """Compile for a target.

    Raises:
        triton.CompilationError: The target cannot express it.
    """
    constants = {**spec.constants, **spec.launch.meta}
    signature: dict[str, str] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for i, parameter in enumerate(spec.fn.params):
        name = parameter.name
        if name in constants:
            signature[name] = "constexpr"
            continue
        kind = parameter.annotation_type or _FIXED.get(name, f"*{spec.dtype}")
        if (spec.name, name) == ("rms_backward", "partial"):
            kind = "*fp32"
        signature[name] = kind
        if kind.startswith("*") and name not in _UNALIGNED:
            attributes[i,] = [["tt.divisibility", 16]]
    names = spec.fn.arg_names
    source = ASTSource(spec.fn, signature, {(names.index(k),): v for k, v in constants.items()}, attributes)
    options = {"num_warps": spec.launch.num_warps, "num_stages": spec.launch.num_stages}
    return usage(triton.compile(source, target=TARGETS[target], options=options))


def usage(kernel: Any) -> Report:
    """Read registers, local memory and shared memory from the compiled object."""
    if "cubin" in kernel.asm:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(kernel.asm["cubin"])
            file.flush()
            text = subprocess.run(  # noqa: S603 (the tool that Triton brings)
                [_cuobjdump(), "-res-usage", file.name], capture_output=True, text=True, check=True
            ).stdout
        match = re.search(r"REG:(\d+) STACK:(\d+)", text)
        if match is None:
            raise RuntimeError(f"cuobjdump printed no resource usage: {text[:200]!r}")
        return Report(int(kernel.metadata.shared), int(match.group(2)), int(match.group(1)))
    text = kernel.asm["amdgcn"]
    found = {
        name: int(value)
        for name, value in re.findall(
            r"\.(private_segment_fixed_size|group_segment_fixed_size|vgpr_count):\s+(\d+)", text
        )
    }
    return Report(
        max(int(kernel.metadata.shared), found["group_segment_fixed_size"]),
        found["private_segment_fixed_size"],
        found["vgpr_count"],
    )


@functools.cache
def _cuobjdump() -> str:
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump")
