"""FlashMask attention on Triton: operands, tile lists and launch configurations brought together.

The work is in `kernels/attn_fwd.py` and `kernels/attn_bwd.py`; see there for the algorithm and its sources.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fmcore_triton import tuner
from fmcore_triton.kernels.attn_bwd import attn_bwd_kv, attn_bwd_q, attn_bwd_rows
from fmcore_triton.kernels.attn_fwd import attn_fwd

if TYPE_CHECKING:
    from fmcore.masks import Mask
    from fmcore_triton.launch import Launch

_LOG2E = 1.4426950408889634
_ROWS_BLOCK = 32  # rows per program of the row statistic; it is bound by memory and any small power of two will do


def padded(dim: int) -> int:
    """Return the tile width of a head dimension: the next power of two, 16 at least (the smallest matrix product)."""
    return max(16, 1 << (dim - 1).bit_length())


def _rows_aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy, whose rows are dense and whose strides and address suit 16-byte accesses."""
    fits = tensor.stride(-1) == 1 and tensor.data_ptr() % 16 == 0
    fits = fits and all(
        size == 1 or stride % 8 == 0 for size, stride in zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    )
    return tensor if fits else tensor.clone(memory_format=torch.contiguous_format)


def _strides(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Batch, row and head strides in units of eight elements; the stride of a dimension of size 1 does not matter."""
    b, s, h = (
        0 if size == 1 else stride // 8 for size, stride in zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    )
    return b, s, h


def device_guard(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Make the tensor's device current, as a launch needs it; host tensors (the interpreter) need nothing."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


@functools.cache
def _cache_budget(device: torch.device) -> int:
    """Bytes of last-level cache that one group of heads may occupy: two thirds of it."""
    if device.type != "cuda":
        return 4 << 20
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 6 << 20)) * 2 // 3


@functools.cache
def _head_group(heads: int, bytes_per_head: int, budget: int) -> int:
    """Largest divisor of `heads` whose operands fit the budget together (1 at least)."""
    wanted = max(1, min(heads, budget // max(1, bytes_per_head)))
    return next(size for size in range(wanted, 0, -1) if heads % size == 0)


class _Call:
    """What forward and backward derive alike from their arguments."""

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, softmax_scale: float, softcap: float
    ) -> None:
        # The kernels track row maxima of scale * (q.k) as scale * max(q.k): a negative scale moves into q.
        self.sign = -1.0 if softmax_scale < 0 else 1.0
        self.q = _rows_aligned(-q if self.sign < 0 else q)
        self.k = _rows_aligned(k)
        self.v = _rows_aligned(v)
        self.mask = mask
        self.b, self.s_q, self.h_q, self.d = q.shape
        self.s_k, self.h_kv, self.dv = k.shape[1], k.shape[2], v.shape[3]
        self.group = self.h_q // self.h_kv
        self.grad_scale = abs(softmax_scale)
        self.scale = self.grad_scale / softcap if softcap > 0 else self.grad_scale * _LOG2E
        self.cap = softcap * _LOG2E
        self.planes = mask.planes_on(q.device)
        self.mask_rows = mask.heads if mask.batch > 1 else 0
        self.mask_group = self.h_q // mask.heads
        self.budget = _cache_budget(q.device)
        self.constants: dict[str, Any] = {
            "D": self.d,
            "DV": self.dv,
            "BLOCK_D": padded(self.d),
            "BLOCK_DV": padded(self.dv),
            "MODE": mask.mode,
            "SOFTCAP": softcap > 0,
            "PRECISION": "ieee",
        }

    def run(self, kernel: str, trial: Callable[[Launch], Callable[[], None]]) -> None:
        """Run a kernel in its configuration, or in the largest one below it that the device can hold."""
        size = max(self.constants["BLOCK_D"], self.constants["BLOCK_DV"])
        kind = tuner.Kind(kernel, self.q.dtype, size, self.mask.mode, self.mask.is_full or self.mask.is_causal_only)
        tuner.run(kind, self.q.device, trial)

    def query_work(self, launch: Launch) -> tuple[tuple[Any, ...], int, tuple[int, ...], int]:
        """Lists by query tile, the grid, (n_q, n_k) and the head group."""
        plan = self.mask.plan(launch.meta["BLOCK_M"], launch.meta["BLOCK_N"], device=self.q.device)
        lists = (self.planes, plan.q_partial, plan.q_full, plan.q_tiles, plan.q_order)
        per_head = self.s_k * (self.d + self.dv) * self.q.element_size() // self.group
        return lists, self.b * self.h_q * plan.nq, (plan.nq, plan.nk), _head_group(self.h_q, per_head, self.budget)

    def key_work(self, launch: Launch) -> tuple[tuple[Any, ...], int, tuple[int, ...], int]:
        """Lists by key tile, the grid, (n_q, n_k) and the head group."""
        plan = self.mask.plan(launch.meta["BLOCK_M"], launch.meta["BLOCK_N"], device=self.q.device)
        lists = (self.planes, plan.k_partial, plan.k_full, plan.k_tiles, plan.k_order)
        per_row = (self.d + self.dv) * self.q.element_size()
        return (
            lists,
            self.b * self.h_kv * plan.nk,
            (plan.nq, plan.nk),
            _head_group(self.h_kv, self.group * self.s_q * per_row, self.budget),
        )


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask,
    *,
    softmax_scale: float,
    softcap: float,
    sink: torch.Tensor | None,
    deterministic: bool,  # noqa: ARG001 (one program owns a query tile: always deterministic)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention output and log-sum-exp.

    Args:
        q: [b, s_q, h_q, d] float16, bfloat16 or float32.
        k: [b, s_k, h_kv, d].
        v: [b, s_k, h_kv, dv].
        mask: The mask; its tile lists are built once per tile shape and kept on it.
        softmax_scale: Factor of q.k.
        softcap: 0 for none.
        sink: [h_q] extra logit of every row, or None.
        deterministic: Met in any case.

    Returns:
        out [b, s_q, h_q, dv] in q's dtype and lse [b, h_q, s_q] float32; a row that sees nothing has -inf there and
        0 in out.
    """
    b, s_q, h_q, _ = q.shape
    out = torch.empty(b, s_q, h_q, v.shape[3], dtype=q.dtype, device=q.device)
    lse = torch.empty(b, h_q, s_q, dtype=torch.float32, device=q.device)
    if out.numel() == 0 or k.shape[1] == 0:
        out.zero_()
        lse.fill_(-math.inf) if sink is None else lse.copy_(sink.float()[None, :, None].expand_as(lse))
        return out, lse
    call = _Call(q, k, v, mask, softmax_scale, softcap)

    def run(launch: Launch) -> Callable[[], None]:
        lists, grid, tiles, head_group = call.query_work(launch)
        arguments = (
            call.q, call.k, call.v, out, lse, lse if sink is None else sink.contiguous(), *lists,
            *_strides(call.q), *_strides(call.k), *_strides(call.v), call.s_q, call.s_k, *tiles,
            call.h_q, call.group, head_group, call.mask_rows, call.mask_group, call.scale, call.cap,
        )  # fmt: skip
        return lambda: attn_fwd[(grid,)](*arguments, **call.constants, SINK=sink is not None, **launch.options)

    with device_guard(q):
        call.run("attn_fwd", run)
    return out, lse


def backward(
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    mask: Mask,
    *,
    softmax_scale: float,
    softcap: float,
    sink: torch.Tensor | None,
    deterministic: bool,  # noqa: ARG001 (one program owns a key or a query tile: always deterministic)
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradients of `forward` from its canonical residuals.

    Args:
        dout: Gradient of out, of any strides.
        dlse: Gradient of lse, or None.
        q: As in `forward`; so are k, v, mask, softmax_scale, softcap and sink.
        k: See q.
        v: See q.
        out: What `forward` returned.
        lse: What `forward` returned.
        mask: See q.
        softmax_scale: See q.
        softcap: See q.
        sink: See q.
        deterministic: Met in any case.

    Returns:
        dq, dk, dv in the dtypes of q, k, v, and dsink in sink's dtype (None without a sink).
    """
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if out.numel() == 0 or k.shape[1] == 0:
        dsink = None if sink is None else (torch.zeros_like(sink) if dlse is None else dlse.sum((0, 2)).to(sink.dtype))
        return dq.zero_(), dk.zero_(), dv.zero_(), dsink
    call = _Call(q, k, v, mask, softmax_scale, softcap)
    grad = _rows_aligned(dout)
    lse2, delta = torch.empty_like(lse), torch.empty_like(lse)
    strides = (*_strides(call.q), *_strides(call.k), *_strides(call.v), *_strides(grad))
    tail = (call.mask_rows, call.mask_group, call.scale, call.cap, call.grad_scale)

    def run_rows() -> None:
        grid = (-(-call.s_q // _ROWS_BLOCK), call.b * call.h_q)
        attn_bwd_rows[grid](
            out.contiguous(), grad, lse.contiguous(), lse if dlse is None else dlse.contiguous(), lse2, delta,
            *_strides(grad), call.s_q, call.h_q, DV=call.dv, BLOCK_DV=padded(call.dv), BLOCK_M=_ROWS_BLOCK,
            HAS_DLSE=dlse is not None, num_warps=4,
        )  # fmt: skip

    def run_kv(launch: Launch) -> Callable[[], None]:
        lists, grid, tiles, head_group = call.key_work(launch)
        arguments = (
            call.q, call.k, call.v, grad, lse2, delta, dk, dv, *lists, *strides, call.s_q, call.s_k, *tiles,
            call.h_kv, call.group, head_group, *tail,
        )  # fmt: skip
        return lambda: attn_bwd_kv[(grid,)](*arguments, **call.constants, **launch.options)

    def run_q(launch: Launch) -> Callable[[], None]:
        lists, grid, tiles, head_group = call.query_work(launch)
        arguments = (
            call.q, call.k, call.v, grad, lse2, delta, dq, *lists, *strides, call.s_q, call.s_k, *tiles,
            call.h_q, call.group, head_group, *tail,
        )  # fmt: skip
        return lambda: attn_bwd_q[(grid,)](*arguments, **call.constants, **launch.options)

    with device_guard(q):
        run_rows()
        call.run("attn_bwd_kv", run_kv)
        call.run("attn_bwd_q", run_q)
        dsink = None if sink is None else _sink_gradient(sink, lse, delta)
    return (-dq if call.sign < 0 else dq), dk, dv, dsink


def _sink_gradient(sink: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """dsink[h] = -sum over rows of exp(sink_h - lse) * (delta - dlse); `delta` already holds the difference."""
    weight = torch.exp(sink.float()[None, :, None] - lse)
    weight = torch.where(torch.isneginf(lse), torch.zeros_like(weight), weight)
    return -(weight * delta).sum((0, 2)).to(sink.dtype)
