"""FlashMask attention on Hopper: operands, the mask's work and the launches brought together.

The kernels are `kernels/forward.py` and `kernels/backward.py`; docs/hopper.md explains them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmcore.errors import UnsupportedError
from fmcore_cuda_hopper.kernels.around import after_backward, before_backward
from fmcore_cuda_hopper.kernels.backward import flashmask_backward
from fmcore_cuda_hopper.kernels.forward import flashmask_forward
from fmcore_cuda_hopper.launch import Launcher, multiprocessors, on_device
from fmcore_cuda_hopper.operands import addressable, eighths, lines, sequence
from fmcore_cuda_hopper.work import BLOCK_K, BLOCK_Q_BACKWARD, key_work, query_work

if TYPE_CHECKING:
    from torch import Tensor

    from fmcore.masks import Mask

_LOG2E = 1.4426950408889634
_SMALLEST = 1e-30  # a scale of 0 would make -inf * 0 of the row maxima
_STAGES = 2
_HALF = 64

_FORWARD = Launcher(flashmask_forward, num_warps=4, maxnreg=168)
_BACKWARD = Launcher(flashmask_backward, num_warps=4, maxnreg=168)
_BEFORE = Launcher(before_backward, num_warps=4)
_AFTER = Launcher(after_backward, num_warps=4)


def _refuse(softcap: float, sink: Tensor | None) -> None:
    if softcap > 0 or sink is not None:
        raise UnsupportedError(
            f"these kernels have no softcap and no sink, got softcap={softcap} and "
            f"sink={'None' if sink is None else 'a tensor'}; leave the choice of backend to fmcore."
        )


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    softmax_scale: float,
    softcap: float,
    sink: Tensor | None,
    deterministic: bool,  # noqa: ARG001 (one warpgroup owns a row: always deterministic)
) -> tuple[Tensor, Tensor]:
    """Attention output and log-sum-exp.

    Args:
        q: [b, s_q, h_q, d] bfloat16 or float16, d 64 or 128, no size 0.
        k: [b, s_k, h_kv, d].
        v: [b, s_k, h_kv, d].
        mask: The mask; its plan for 128 x 128 tiles is built once and kept on it.
        softmax_scale: Factor of q.k.
        softcap: 0.
        sink: None.
        deterministic: Met in any case.

    Returns:
        out [b, s_q, h_q, d] in q's dtype and lse [b, h_q, s_q] float32; a row that sees nothing has -inf there and 0 in
        out.

    Raises:
        UnsupportedError: A softcap or a sink.
    """
    _refuse(softcap, sink)
    q = addressable(-q if softmax_scale < 0 else q)  # row maxima are those of q.k, so the scale must be positive
    k, v = addressable(k), addressable(v)
    b, s_q, h_q, d = q.shape
    s_k, h_kv = k.shape[1], k.shape[2]
    device, group = q.device, h_q // h_kv
    mask_group = h_q // mask.heads
    with on_device(device):
        work = query_work(mask, device, b, h_q, 4 * s_k * d // group)
        out = torch.empty((b, s_q, h_q, d), dtype=q.dtype, device=device)
        lse = torch.empty((b, h_q, s_q), dtype=torch.float32, device=device)
        items = b * h_q * work.n_q
        args = (
            sequence(q, _HALF), sequence(k, BLOCK_K), sequence(v, BLOCK_K), sequence(out, _HALF),
            lines(work.planes, BLOCK_K), lse, work.rows, work.tiles, work.order,
            torch.zeros(1, dtype=torch.int32, device=device),
            max(abs(softmax_scale) * _LOG2E, _SMALLEST), items, work.n_q, work.n_k, s_q,
            mask.heads if mask.batch > 1 else 0,
            h_q, group, mask_group, BLOCK_K, BLOCK_K, d, _STAGES, mask.mode,
        )  # fmt: skip
        key = (device, q.dtype, work.tiles.dtype, h_q, group, mask_group, d, mask.mode)
        _FORWARD(key, (min(multiprocessors(device), items),), args)
    return out, lse


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Mask,
    *,
    softmax_scale: float,
    softcap: float,
    sink: Tensor | None,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor, None]:
    """Gradients of `forward` from its canonical residuals.

    dk and dv are sums of fixed order; dq is summed by atomic additions, so its last bits differ from run to run.

    Args:
        dout: Gradient of out, of any strides.
        dlse: Gradient of lse [b, h_q, s_q], or None.
        q: As in `forward`; so are k, v, mask, softmax_scale, softcap and sink.
        k: See q.
        v: See q.
        out: What a forward returned.
        lse: What a forward returned.
        mask: See q.
        softmax_scale: See q.
        softcap: See q.
        sink: See q.
        deterministic: False.

    Returns:
        dq, dk, dv in the dtypes of q, k, v, and None for the sink.

    Raises:
        UnsupportedError: A softcap, a sink, or ``deterministic``.
    """
    _refuse(softcap, sink)
    if deterministic:
        raise UnsupportedError(
            "dq is summed in no fixed order here, deterministic=True was asked; use another backend."
        )
    q = addressable(-q if softmax_scale < 0 else q)
    k, v, out, dout = addressable(k), addressable(v), addressable(out), addressable(dout.to(q.dtype))
    b, s_q, h_q, d = q.shape
    s_k, h_kv = k.shape[1], k.shape[2]
    device, group = q.device, h_q // h_kv
    # Where every query head has a mask of its own, an item is of one query head, and dk, dv are summed afterwards.
    apart = mask.heads == h_q and group > 1
    heads, loop = (h_q, 1) if apart else (h_kv, group)
    mask_group = heads // mask.heads
    softmax_scale = float(softmax_scale)
    scale = abs(softmax_scale)
    rows = BLOCK_Q_BACKWARD
    with on_device(device):
        work = key_work(mask, device, b, heads, loop * s_q * d * 8)
        n_q = work.n_q
        dq = torch.empty((b, s_q, h_q, d), dtype=q.dtype, device=device)
        dk = torch.empty((b, s_k, heads, d), dtype=k.dtype, device=device)
        dv = torch.empty((b, s_k, heads, d), dtype=v.dtype, device=device)
        stats = torch.empty((b * h_q * n_q, 2, rows), dtype=torch.float32, device=device)
        dq32 = torch.empty(b * h_q * n_q * rows * d, dtype=torch.float32, device=device)
        ticket = torch.empty(1, dtype=torch.int32, device=device)
        grid = (b * h_q * n_q,)
        _BEFORE(
            (device, q.dtype, h_q, d, dlse is None),
            grid,
            (
                out, dout, lse.contiguous(), lse if dlse is None else dlse.contiguous(), stats, dq32, ticket, s_q, n_q,
                *eighths(out), *eighths(dout), h_q, dlse is not None, rows, d,
            ),
        )  # fmt: skip
        items = b * heads * work.n_k
        args = (
            sequence(q, rows), sequence(k, _HALF), sequence(v, _HALF), sequence(dout, rows), lines(stats, rows),
            sequence(dk, _HALF), sequence(dv, _HALF), dq32, work.rows, work.tiles, work.order, ticket, work.planes,
            scale, scale * _LOG2E, items, n_q, work.n_k, work.planes.shape[-1],
            mask.heads if mask.batch > 1 else 0, 0,
            heads, loop, heads // h_kv, mask_group, rows, BLOCK_K, d, mask.mode,
        )  # fmt: skip
        key = (device, q.dtype, work.tiles.dtype, heads, loop, heads // h_kv, mask_group, d, mask.mode)
        _BACKWARD(key, (min(multiprocessors(device), items),), args)
        _AFTER((device, q.dtype, h_q, d), grid, (dq32, dq, s_q, n_q, softmax_scale, *eighths(dq), h_q, rows, d))
        if apart:
            dk, dv = (t.view(b, s_k, h_kv, group, d).sum(3, dtype=torch.float32).to(t.dtype) for t in (dk, dv))
    return dq, dk, dv, None
