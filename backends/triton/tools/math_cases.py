"""Checks of the fused kernels against the oracle of fmcore.reference.math; for the device check and the interpreter."""

# ruff: noqa: INP001 (programs beside the package: they print, and run themselves again)

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fmcore.reference.math.nn import ORACLE as NN
from fmcore.reference.math.reductions import ORACLE as REDUCTIONS
from fmcore_triton import fused

UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.complex64: 2.0**-24}
BACKWARDS = {
    "rms_norm": fused.rms_norm_backward,
    "swiglu": fused.swiglu_backward_pair,
    "rotary": fused.rotary_backward,
    "rotary_complex": fused.rotary_complex_backward,
    "softmax": fused.softmax_backward,
    "log_softmax": fused.log_softmax_backward,
    "logsumexp": fused.logsumexp_backward,
    "topk_gate": fused.topk_gate_backward,
}


def _differentiable(name: str) -> Callable[..., Any]:
    """The op in float64 torch operations, for its gradient; anchored to the oracle's values by every check."""

    def rms_norm(x: Any, w: Any, *, eps: float) -> Any:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return y if w is None else y * w

    def rotary(x: Any, cos: Any, sin: Any, *, interleaved: bool) -> Any:
        c, s = ((t if t.ndim == 3 else t[None])[:, :, None] for t in (cos, sin))
        n = 2 * cos.shape[-1]
        a, b = (x[..., 0:n:2], x[..., 1:n:2]) if interleaved else (x[..., : n // 2], x[..., n // 2 : n])
        u, v = a * c - b * s, a * s + b * c
        turned = torch.stack([u, v], -1).flatten(-2) if interleaved else torch.cat([u, v], -1)
        return torch.cat([turned, x[..., n:]], -1)

    def rotary_complex(x: Any, rotation: Any) -> Any:
        turn = (rotation if rotation.ndim == 3 else rotation[None])[:, :, None]
        if x.is_complex():
            return x * turn
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)

    def topk_gate(x: Any, bias: Any, *, k: int, score: str, renormalize: bool, scale: float) -> Any:
        logs = torch.nn.functional.logsigmoid(x) if score == "sigmoid" else x.log_softmax(-1)
        keys = x if bias is None else logs.exp() + bias
        order = torch.sort(keys.detach(), dim=-1, descending=True, stable=True).indices[..., :k]
        chosen = logs.gather(-1, order)
        return (chosen.softmax(-1) if renormalize else chosen.exp()) * scale

    return {
        "rms_norm": rms_norm,
        "rotary": rotary,
        "rotary_complex": rotary_complex,
        "swiglu": lambda gate, up: torch.nn.functional.silu(gate) * up,
        "softmax": lambda x, *, axis: x.softmax(axis),
        "log_softmax": lambda x, *, axis: x.log_softmax(axis),
        "logsumexp": lambda x, *, axis, keepdims: x.logsumexp(axis, keepdims),
        "topk_gate": topk_gate,
    }[name]


def _wide(t: torch.Tensor | None) -> torch.Tensor | None:
    return None if t is None else t.to(torch.complex128 if t.is_complex() else torch.float64)


def _apart(got: torch.Tensor, want: torch.Tensor, unit: float) -> float:
    """Relative L2 distance in units; inf where NaN or infinite entries differ."""
    got, want = _wide(got), _wide(want)  # type: ignore[assignment]
    if (
        got.shape != want.shape
        or not torch.equal(got.isfinite(), want.isfinite())
        or not torch.equal(got.isnan(), want.isnan())
    ):
        return math.inf
    keep = want.isfinite()
    error = torch.linalg.vector_norm((got - want)[keep])
    size = torch.linalg.vector_norm(want[keep])
    return 0.0 if float(error) == 0 else float(error / size.clamp_min(1e-30)) / unit


def check(
    name: str, tensors: tuple[torch.Tensor | None, ...], params: dict[str, Any], *, gradient: bool = True
) -> dict[str, Any]:
    """Run an op forward and backward on the tensors' device and compare with float64."""
    unit = UNIT[tensors[0].dtype]  # type: ignore[union-attr]
    oracle = {**REDUCTIONS, **NN}[name]
    out = getattr(fused, name)(*tensors, **params)
    outs = out if isinstance(out, tuple) else (out,)
    host = tuple(None if t is None else t.cpu() for t in tensors)
    want = oracle(*host, **params)
    wants = want if isinstance(want, tuple) else (want,)
    ratios = {f"{name} value": _apart(outs[0].cpu(), wants[0], unit) / 24}
    if len(outs) == 2:
        ratios[f"{name} index"] = 0.0 if torch.equal(outs[1].cpu(), wants[1]) else math.inf
    if gradient:
        g = torch.Generator().manual_seed(7)
        dtype = torch.float64 if not outs[0].is_complex() else torch.complex128
        dy = torch.randn(outs[0].shape, generator=g, dtype=dtype).to(outs[0].dtype)
        grads = BACKWARDS[name]((dy.to(outs[0].device), None)[: len(outs)], tensors, outs, **params)  # type: ignore[operator]
        leaves = [None if t is None else _wide(t).requires_grad_() for t in host]  # type: ignore[union-attr]
        value = _differentiable(name)(*leaves, **params)
        value.backward(_wide(dy))
        for i, (leaf, grad) in enumerate(zip(leaves, grads, strict=True)):
            if leaf is not None and leaf.grad is not None:
                ratios[f"{name} grad {i}"] = math.inf if grad is None else _apart(grad.cpu(), leaf.grad, unit) / 24
    return {"ok": all(v <= 1 for v in ratios.values()), "ratios": ratios}


def cases(*, small: bool) -> Iterator[tuple[str, tuple[torch.Tensor | None, ...], dict[str, Any], bool]]:
    """Yield (op, tensors on the host, parameters, whether to check the gradient)."""
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)

    dtypes = (torch.float32, torch.float16) if small else (torch.float32, torch.float16, torch.bfloat16)
    tokens, cols = (3, 5) if small else (321, 70)
    for t in dtypes:
        for width in (3, 96) if small else (3, 7, 96, 4096, 7168, 16384):
            yield "rms_norm", (draw(tokens, width, dtype=t), draw(width, dtype=t)), {"eps": 1e-6}, True
        yield "rms_norm", (draw(tokens, 1, dtype=t), None), {"eps": 1e-6}, False  # its gradient is all cancellation
        yield "rms_norm", (draw(3, tokens, 40, dtype=t), None), {"eps": 1e-5}, True
        yield "rms_norm", (draw(40, tokens, dtype=t).T, draw(40)), {"eps": 1e-5}, True
        yield "swiglu", (draw(tokens, 70, dtype=t) * 4, draw(tokens, 70, dtype=t)), {}, True
        yield "swiglu", (draw(tokens, 1, 6, dtype=t), draw(3, 6, dtype=t)), {}, True
        for interleaved in (False, True):
            yield (
                "rotary",
                (draw(2, tokens, 3, 32, dtype=t), draw(tokens, 16), draw(tokens, 16)),
                {"interleaved": interleaved},
                True,
            )
            yield (
                "rotary",
                (
                    draw(2, 3, tokens, 40, dtype=t).transpose(1, 2),
                    draw(2, tokens, 12, dtype=t),
                    draw(2, tokens, 12, dtype=t),
                ),
                {"interleaved": interleaved},
                True,
            )
        yield "rotary_complex", (draw(2, tokens, 3, 32, dtype=t), draw(tokens, 16, dtype=torch.complex64)), {}, True
        for axis in (0, 2) if small else (0, 1, 2):
            yield "softmax", (draw(3, tokens, cols, dtype=t) * 5,), {"axis": axis}, True
            yield "log_softmax", (draw(3, tokens, cols, dtype=t) * 5,), {"axis": axis}, True
        yield "logsumexp", (draw(3, tokens, cols, dtype=t) * 5,), {"axis": (2,), "keepdims": True}, True
        yield "logsumexp", (draw(3, tokens, cols, dtype=t) * 5,), {"axis": (0, 2), "keepdims": False}, True
        for score in ("softmax", "sigmoid"):
            for renormalize in (True, False):
                yield (
                    "topk_gate",
                    (draw(tokens, 12, dtype=t), None),
                    {"k": 3, "score": score, "renormalize": renormalize, "scale": 2.5},
                    True,
                )
            yield (
                "topk_gate",
                (draw(tokens, 60, dtype=t), draw(60)),
                {"k": 8, "score": score, "renormalize": True, "scale": 1.0},
                True,
            )
        yield (
            "topk_gate",
            (torch.zeros(tokens, 9, dtype=t), None),
            {"k": 9, "score": "softmax", "renormalize": True, "scale": 1.0},
            False,
        )
    yield (
        "rotary_complex",
        (draw(2, tokens, 3, 16, dtype=torch.complex64), draw(1, tokens, 16, dtype=torch.complex64)),
        {},
        True,
    )
    inf, nan = float("inf"), float("nan")
    special = torch.tensor([[0.0, inf, 1.0], [-inf, -inf, -inf], [nan, 0.0, 1.0], [-inf, 3.0, 2.0], [1e30, -1e30, 0.0]])
    for op in ("softmax", "log_softmax"):
        yield op, (special,), {"axis": 1}, False
    yield "logsumexp", (special,), {"axis": (1,), "keepdims": False}, False
    yield "swiglu", (torch.tensor([0.0, -0.0, 90.0, -80.0, -87.0, nan, inf]), torch.ones(7)), {}, False
    for op, params in (("softmax", {"axis": 1}), ("logsumexp", {"axis": (1,), "keepdims": False})):
        yield op, (draw(2, 5000 if small else 40000),), params, True


def checks() -> Iterator[tuple[str, Callable[[torch.device], dict[str, Any]]]]:
    """Yield (name, check) pairs for the device check."""
    for i, (op, tensors, params, gradient) in enumerate(cases(small=False)):
        first = tensors[0]
        assert first is not None
        name = f"math {i} {op} {str(first.dtype).removeprefix('torch.')} {tuple(first.shape)} {params}"
        yield (
            name,
            lambda device, op=op, tensors=tensors, params=params, gradient=gradient: check(
                op, tuple(None if t is None else t.to(device) for t in tensors), params, gradient=gradient
            ),
        )  # type: ignore[misc]
