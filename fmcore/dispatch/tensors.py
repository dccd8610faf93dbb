"""Facts of tensors and of torch's modes, read as cheaply as torch allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 (no public way to ask whether a mode is active)
_functorch_top = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 (likewise for functorch transforms)
_compiling = torch.compiler.is_compiling
_capturing = getattr(torch.cuda, "is_current_stream_capturing", None)

DTYPE_NAMES = {
    getattr(torch, name): name
    for name in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
        "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    )
}  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``"bfloat16"`` for ``torch.bfloat16``."""
    return DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def traced() -> bool:
    """Whether calls must go through registered torch ops: compile, export, a dispatch mode or a functorch transform."""
    return _compiling() or _dispatch_modes() > 0 or _functorch_top() is not None


def transformed() -> bool:
    """Whether a torch.func transform (grad, vmap, jvp) is active."""
    return _functorch_top() is not None


def plain(tensors: Sequence[Any]) -> bool:
    """Whether all are ordinary tensors; None counts as one."""
    for t in tensors:  # noqa: SIM110 (a generator costs more than the answer, on the path of every call)
        if t is not None and type(t) not in _PLAIN:
            return False
    return True


def capturing(device_type: str) -> bool:
    """Whether a device graph is being captured on the current stream."""
    return device_type == "cuda" and _capturing is not None and bool(_capturing())


def wants_grad(tensors: Sequence[Any]) -> bool:
    """Whether autograd will ask for a gradient of any of the tensors."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t is not None and t.requires_grad:
                return True
    return False
