"""Run cases under Triton's interpreter; a program of its own: the interpreter is chosen when kernels are defined.

Usage: TRITON_INTERPRET=1 python interpret.py attention|math [all]. Prints one JSON object: measured over allowed, by
case. Without `all`, what the tests run: every feature once, in as few and small cases as show it.
Every tensor that a kernel reads or writes lies between guard bands: NaN around inputs shows reads outside them in the
results, and the bands of what the host allocates are compared afterwards.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from triton.runtime import interpreter

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "backends" / "triton"), str(ROOT / "backends" / "triton" / "tools")]

BAND = 4096  # elements; wider than any tile here, so that a stray access lands in it


def _repair_interpreter() -> None:
    """NumPy 2.4 refuses int() of a one-element array, which Triton 3.6's interpreter uses for loop bounds."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, *rest: Any) -> None:
        patch(tensor, *rest)
        if rest:
            rest[0].set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
        else:
            tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched


def banded(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides between NaN bands (of the largest value for integers)."""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    poison = float("nan") if tensor.is_floating_point() or tensor.is_complex() else torch.iinfo(tensor.dtype).max
    buffer = torch.full((span + 2 * BAND,), poison, dtype=tensor.dtype)
    view = buffer.as_strided(tensor.shape, tensor.stride(), BAND)
    if 0 in tensor.stride():  # several elements share a place: copy the places
        buffer[BAND : BAND + span].copy_(tensor.as_strided((span,), (1,)))
        return view
    return view.copy_(tensor)


@contextlib.contextmanager
def guarded_allocations() -> Iterator[list[torch.Tensor]]:
    """Put what the host allocates between bands, poisoned inside, and check the bands at the end."""
    buffers: list[torch.Tensor] = []
    empty, empty_like = torch.empty, torch.empty_like

    def allocate(*shape: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
        dims = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        size = torch.Size(dims).numel()
        dtype = dtype or torch.float32
        poison = float("nan") if dtype.is_floating_point or dtype.is_complex else -77
        buffer = torch.full((size + 2 * BAND,), poison, dtype=dtype)
        buffers.append(buffer)
        return buffer[BAND : BAND + size].view(dims)

    def allocate_like(tensor: torch.Tensor, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
        return allocate(tensor.shape, dtype=dtype or tensor.dtype)

    with mock.patch.object(torch, "empty", allocate), mock.patch.object(torch, "empty_like", allocate_like):
        yield buffers
    assert (torch.empty, torch.empty_like) == (empty, empty_like)
    for buffer in buffers:
        bands = torch.cat([buffer[:BAND], buffer[-BAND:]])
        clean = bands.isnan() if buffer.dtype.is_floating_point or buffer.dtype.is_complex else bands == -77
        if not bool(clean.all()):
            raise AssertionError(
                f"{int((~clean).sum())} elements outside an output of {buffer.numel() - 2 * BAND} were written"
            )


def _of(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**base, **changes}


def attention(*, every: bool) -> dict[str, Any]:
    from cases import Case, judge, make_mask, operands

    from fmcore_triton import attention as impl

    small = {"dtype": "float32", "d": 16, "dv": 16, "s_q": 70, "s_k": 70, "h_q": 1, "h_kv": 1}
    runs = [Case(kind=kind, **{**small, "dlse": True}) for kind in ("causal_doc", "gap", "hidden")]
    runs += [
        Case(kind="random1", mask_heads="q", b=2, mask_batch=True, **_of(small, s_q=33, s_k=40, h_q=4, h_kv=2)),
        Case(kind="causal", **_of(small, s_q=20, s_k=90)),
        Case(kind="full", **_of(small, s_q=1, s_k=1)),
        Case(kind="full", softcap=3.0, sink=True, dlse=True, **_of(small, s_q=64, s_k=33)),
        Case(kind="hidden", softcap=2.0, sink=True, dlse=True, **_of(small, s_q=40, s_k=40)),
        Case(kind="causal_doc", scale=-0.3, layout="strided", **_of(small, s_q=40, s_k=40, h_q=2, h_kv=1)),
        Case(kind="causal_doc", layout="zero", **_of(small, s_q=40, s_k=40, h_q=2, h_kv=1)),
        Case(kind="blocks", seed=3, **_of(small, s_q=140, s_k=140)),
        Case(kind="document", **_of(small, s_q=40, s_k=40, h_q=3, h_kv=1, dtype="float16", d=24, dv=40)),
    ]
    if every:
        two = {**small, "h_q": 2}
        runs += [Case(kind=kind, dlse=True, **two) for kind in ("full", "causal", "document", "sliding", "band")]
        runs += [
            Case(kind="random4", mask_heads="kv", **_of(small, s_q=40, s_k=65, d=24, dv=40, h_q=6, h_kv=2)),
            Case(kind="causal", **{**two, "s_q": 90, "s_k": 20}),
            Case(kind="random4", softcap=2.0, sink=True, **two),
            Case(kind="causal_doc", magnitude=6.0, **two),
            Case(kind="causal_doc", **{**two, "dtype": "float16"}),
            Case(kind="document", **{**two, "dtype": "float16", "d": 80, "dv": 32}),
        ]
    found: dict[str, Any] = {}
    for case in runs:
        x = operands(case, "cpu")
        x.q, x.k, x.v, x.dout = (banded(t) for t in (x.q, x.k, x.v, x.dout))
        mask = make_mask(case, "cpu")
        keywords: dict[str, Any] = {
            "softmax_scale": x.scale,
            "softcap": case.softcap,
            "sink": x.sink,
            "deterministic": False,
        }
        with guarded_allocations():
            out, lse = impl.forward(x.q, x.k, x.v, mask, **keywords)
            grads = impl.backward(x.dout, x.dlse, x.q, x.k, x.v, out, lse, mask, **keywords)
        found[case.name] = judge(case, x, out, lse, grads).ratios
    return found


def math(*, every: bool) -> dict[str, Any]:
    from math_cases import cases, check

    found: dict[str, Any] = {}
    half = set()
    for i, (op, tensors, params, gradient) in enumerate(cases(small=True)):
        if not every and tensors[0].dtype is torch.float16:  # once each: only loads and stores differ
            if op in half:
                continue
            half.add(op)
        inside = tuple(None if t is None else banded(t) for t in tensors)
        with guarded_allocations():
            found[f"{i} {op} {params}"] = check(op, inside, params, gradient=gradient)["ratios"]
    return found


if __name__ == "__main__":
    _repair_interpreter()
    torch.set_num_threads(1)
    print(json.dumps({"attention": attention, "math": math}[sys.argv[1]](every="all" in sys.argv[2:])))
