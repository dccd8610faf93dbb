"""Closeness of attention to the float64 oracle, forward and backward, and behaviour between calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

import fmcore
from fmcore_conformance.cases import attention_inputs as inputs
from fmcore_conformance.cases import attention_oracle as oracle
from fmcore_conformance.cases.attention_masks import RawMask
from fmcore_conformance.cases.attention_probes import check_contract, check_masked_rows
from fmcore_conformance.measure import check_absolute, check_bits, check_rows, exact, wide
from fmcore_conformance.model import Measurement, Mismatch
from fmcore_conformance.tolerances import ATTENTION_BACKWARD, ATTENTION_FORWARD, lse_bound, score_floor

if TYPE_CHECKING:
    from torch import Tensor

    from fmcore_conformance.cases.attention_inputs import Call
    from fmcore_conformance.target import Target


def reference(call: Call) -> oracle.Forward:
    """The oracle on the call's own inputs."""
    return oracle.forward(
        call.q, call.k, call.v, call.visible(), scale=call.scale, softcap=call.softcap, sink=call.sink
    )


def check_forward(call: Call, out: Tensor, lse: Tensor, ref: oracle.Forward, dtype: str) -> list[Measurement]:
    """Both results against the oracle."""
    check_contract(call, out, lse)
    if call.sink is None:
        check_masked_rows(out, lse, ref.lse == -torch.inf)
    floor = score_floor(dtype) * ref.out.norm(dim=-1) * ref.max_terms.transpose(1, 2)
    found = check_rows(out, ref.out, units=ATTENTION_FORWARD[dtype], dtype=dtype, what="out", floor=floor)
    bound = torch.tensor(
        [
            lse_bound(dtype, v, m)
            for v, m in zip(ref.lse.reshape(-1).tolist(), ref.max_terms.reshape(-1).tolist(), strict=True)
        ],
        dtype=torch.float64,
    ).reshape(ref.lse.shape)
    found.append(check_absolute(lse, ref.lse, bound, "lse"))
    return found


def forward(target: Target, call: Call, dtype: str) -> list[Measurement]:
    """Forward pass against the oracle."""
    out, lse = call.run(target)
    return check_forward(call, out, lse, reference(call), dtype)


def backward(
    target: Target, call: Call, dtype: str, *, with_lse: bool = False, expanded: bool = False, only_lse: bool = False
) -> list[Measurement]:
    """Gradients against the oracle.

    Args:
        target: The backend under test.
        call: The inputs.
        dtype: Tested dtype.
        with_lse: Whether the loss uses lse as well.
        expanded: Whether the gradient of out has stride 0, as ``out.sum().backward()`` makes it.
        only_lse: Whether the loss uses lse alone.
    """
    g = target.generator("backward")
    leaves = [x.detach().clone().requires_grad_() for x in (call.q, call.k, call.v)]
    sink = call.sink.detach().clone().requires_grad_() if call.sink is not None else None
    run = replace(call, q=leaves[0], k=leaves[1], v=leaves[2], sink=sink)
    out, lse = run.run(target)
    ref = reference(call)
    dout = inputs.normal(g, *out.shape, dtype=dtype)
    if expanded:
        dout = torch.full((), 0.75, dtype=out.dtype).expand(out.shape)
    if only_lse:
        dout = torch.zeros(out.shape, dtype=out.dtype)
    seen = ref.lse.isfinite()
    dlse = (
        torch.randn(lse.shape, generator=g, dtype=torch.float64).to(lse.dtype) * seen if with_lse or only_lse else None
    )
    # The gradients are handed over directly: a loss computed from out would round them once more.
    wanted = [*leaves, *([sink] if sink is not None else [])]
    outputs, gradients = [out], [target.put(dout)]
    if dlse is not None:
        outputs, gradients = [out, lse], [target.put(dout), target.put(dlse)]
    if only_lse:
        outputs, gradients = [lse], gradients[1:]
        wanted = [leaves[0], leaves[1]] + ([sink] if sink is not None else [])
    grads = list(torch.autograd.grad(outputs, wanted, gradients, allow_unused=True))
    back = oracle.backward(ref, call.q, call.k, call.v, dout, dlse, call.sink, dtype=dtype)
    names: list[tuple[str, Tensor, Tensor]] = [("dq", back.dq, back.floor_q), ("dk", back.dk, back.floor_k)]
    if not only_lse:
        names.append(("dv", back.dv, back.floor_v))
    found: list[Measurement] = []
    for (name, want, floor), got, leaf in zip(names, grads, wanted, strict=False):
        if got is None:
            raise Mismatch(f"{name} is missing: no gradient reaches the input")
        if got.dtype != leaf.dtype:
            raise Mismatch(f"{name} has dtype {got.dtype}, its input has {leaf.dtype}")
        found += check_rows(got, want, units=ATTENTION_BACKWARD[dtype], dtype=dtype, what=name, floor=floor)
    if sink is not None and back.dsink is not None:
        if grads[-1] is None:
            raise Mismatch("dsink is missing: no gradient reaches the sink")
        size = _sink_size(ref, call, dout, dlse)
        found.append(check_absolute(grads[-1], back.dsink, 8 * _unit(dtype) * size, "dsink"))
    return found


def _unit(dtype: str) -> float:
    # dsink sums over rows that were rounded once; its own accumulation is fp32.
    return max(ATTENTION_BACKWARD[dtype] / 4, 1.0) * torch.finfo(getattr(torch, dtype)).eps / 2


def _sink_size(ref: oracle.Forward, call: Call, dout: Tensor, dlse: Tensor | None) -> Tensor:
    """Sum of the magnitudes that cancel in dsink, per head."""
    if call.sink is None:
        raise ValueError("the call has no sink")
    share = torch.exp(wide(call.sink).view(1, -1, 1) - ref.lse)
    delta = (wide(dout).transpose(1, 2).abs() * ref.out.transpose(1, 2).abs()).sum(-1)
    extra = torch.zeros_like(delta) if dlse is None else wide(dlse).abs()
    return (share * (delta + extra)).sum((0, 2))


def layouts(target: Target, call: Call, dtype: str, layout: str) -> list[Measurement]:
    """q, k, v and the output gradient in another memory layout: the same answer as the oracle's."""
    change = inputs.LAYOUTS[layout]
    q, k, v = (change(x) for x in (call.q, call.k, call.v))
    moved = replace(call, q=q, k=k, v=v)
    ref = reference(call)
    out, lse = moved.run(target)
    found = check_forward(moved, out, lse, ref, dtype)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = replace(call, q=leaves[0], k=leaves[1], v=leaves[2]).run(target)
    dout = inputs.normal(target.generator("layout"), *out.shape, dtype=dtype)
    grads = torch.autograd.grad(out, leaves, change(target.put(dout)))
    back = oracle.backward(ref, call.q, call.k, call.v, dout, dtype=dtype)
    for name, got, want, floor in zip(
        ("dq", "dk", "dv"), grads, (back.dq, back.dk, back.dv), (back.floor_q, back.floor_k, back.floor_v), strict=True
    ):
        found += check_rows(
            got, want, units=ATTENTION_BACKWARD[dtype], dtype=dtype, what=f"{name} ({layout})", floor=floor
        )
    return found


def zero_stride(target: Target, call: Call, dtype: str) -> list[Measurement]:
    """Keys and values expanded over batch and heads with stride 0."""
    b, h_kv = call.q.shape[0], call.k.shape[2]
    k = call.k[:1, :, :1].expand(b, -1, h_kv, -1)
    v = call.v[:1, :, :1].expand(b, -1, h_kv, -1)
    q = call.q[:1].expand(b, -1, -1, -1)
    return forward(target, replace(call, q=q, k=k, v=v), dtype)


def far(target: Target, call: Call, dtype: str) -> list[Measurement]:
    """Batch items more than 2**31 elements apart: offsets do not fit 32 bits."""
    k = inputs.far_apart(call.k)
    return forward(target, replace(call, k=k), dtype)


def long_accumulation(target: Target, dtype: str) -> list[Measurement]:
    """A mean over 4096 equal weights: in low precision the sum stalls, in fp32 it is right to one rounding."""
    s_k, d = 4096, 32
    g = target.generator("long accumulation")
    q = torch.zeros(1, 3, 1, d, dtype=getattr(torch, dtype))
    k = inputs.normal(g, 1, s_k, 1, d, dtype=dtype)
    v = (1 + 0.25 * torch.rand(1, s_k, 1, d, generator=g, dtype=torch.float64)).to(q.dtype)
    call = inputs.Call(target.put(q), target.put(k), target.put(v), RawMask(None, False, 3, s_k), d**-0.5)
    return forward(target, call, dtype)


def stale(target: Target, call: Call, dtype: str, change: str) -> list[Measurement]:
    """Two calls that differ in one thing: the second is answered by its own inputs.

    Args:
        target: The backend under test.
        call: The first call.
        dtype: Tested dtype.
        change: ``bounds`` (the bounds tensor is changed in place), ``values`` (v is), ``scale`` or ``mask``.
    """
    bounds = call.startend()
    if bounds is None:
        raise ValueError("this check needs a mask with bounds")
    target.attention(call.q, call.k, call.v, bounds, **call.options())
    second = call
    if change == "bounds":
        bounds.copy_((bounds - 9).clamp(min=0))
        second = replace(call, mask=replace(call.mask, startend=bounds.cpu().clone()))
    elif change == "values":
        call.v.copy_(call.v.flip(1).clone())
    elif change == "scale":
        second = replace(call, scale=call.scale * 1.5)
    else:
        fresh = call.mask.startend.roll(17, 2) if call.mask.startend is not None else None
        second = replace(call, mask=replace(call.mask, startend=fresh))
        bounds = target.put(fresh) if fresh is not None else None
    out, lse = target.attention(second.q, second.k, second.v, bounds, **second.options())
    return check_forward(second, out, lse, reference(second), dtype)


def training(target: Target, call: Call, dtype: str) -> list[Measurement]:
    """Two attention layers, the first with rows that see nothing: finite gradients, and right ones at the input."""
    q = call.q.detach().clone().requires_grad_()
    k, v = call.k.detach().clone().requires_grad_(), call.v.detach().clone().requires_grad_()
    first, _ = replace(call, q=q, k=k, v=v).run(target)
    causal: dict[str, Any] = {"causal": True, "softmax_scale": call.scale}
    middle = first + q
    second, lse = target.attention(middle, first, v, **causal)
    weights = inputs.normal(target.generator("training"), *second.shape, dtype=dtype)
    grads = torch.autograd.grad((second * target.put(weights)).sum() + lse.sum() * 1e-2, (q, k, v))
    for name, grad in zip(("dq", "dk", "dv"), grads, strict=True):
        if not bool(grad.isfinite().all()):
            raise Mismatch(f"{name} of the first layer is not finite: a row that sees nothing poisons the network")
    want = _two_layers(call, weights)
    # Two layers compose two backward bounds; the inner one is amplified by the outer Jacobian, so 8 times one bound.
    found: list[Measurement] = []
    for name, got, ref in zip(("dq", "dk", "dv"), grads, want, strict=True):
        floor = ref.norm(dim=-1).amax() * torch.ones(ref.shape[:-1], dtype=torch.float64)
        found += check_rows(
            got, ref, units=8 * ATTENTION_BACKWARD[dtype], dtype=dtype, what=f"{name} of two layers", floor=floor
        )
    return found


def _two_layers(call: Call, weights: Tensor) -> tuple[Tensor, ...]:
    q, k, v = (wide(x).requires_grad_() for x in (call.q, call.k, call.v))
    visible = call.visible()

    def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        score = call.scale * torch.einsum("bihd,bjhd->bhij", q, k)
        dead = ~visible.any(-1, keepdim=True)
        score = score.masked_fill(~visible, -torch.inf).masked_fill(dead, 0.0)
        p = torch.softmax(score, -1).masked_fill(dead, 0.0)
        return torch.einsum("bhij,bjhd->bihd", p, v), torch.logsumexp(score, -1)

    first, _ = attend(q, k, v, visible)
    n = first.shape[1]
    causal = torch.ones(n, n, dtype=torch.bool).tril().view(1, 1, n, n)
    second, lse = attend(first + q, first, v, causal)
    return torch.autograd.grad((second * wide(weights)).sum() + lse.sum() * 1e-2, (q, k, v))


def built_mask(target: Target, call: Call, dtype: str, mask: Any) -> list[Measurement]:
    """The same mask as a ``Mask`` value: its dense form is the literal rule's, and the answer the oracle's."""
    literal = call.mask.dense()
    dense = mask.dense().cpu()
    if dense.shape[-2:] != literal.shape[-2:] or not torch.equal(dense.expand_as(literal), literal):
        raise Mismatch(f"the mask {mask.kind!r} built by fmcore.masks hides other pairs than its definition")
    options = {key: value for key, value in call.options().items() if key != "causal"}
    out, lse = target.attention(call.q, call.k, call.v, mask=mask, **options)
    return check_forward(call, out, lse, reference(call), dtype)


def block_mask(target: Target, call: Call, dtype: str) -> list[Measurement]:
    """A 128 x 128 block mask on top of the bounds."""
    s_q, s_k = call.mask.s_q, call.mask.s_k
    g = target.generator("block mask")
    keep = torch.randint(0, 2, (1, 1, -(-s_q // 128), -(-s_k // 128)), generator=g, dtype=torch.int32)
    keep[..., 0, 0], keep[..., -1, 0] = 1, 0
    mask = fmcore.masks.canonicalize(call.mask.startend, s_q=s_q, s_k=s_k, causal=call.mask.causal, block_mask=keep)
    tiles = keep.bool().repeat_interleave(128, 2)[:, :, :s_q].repeat_interleave(128, 3)[..., :s_k]
    visible = call.mask.for_heads(call.mask.dense() & tiles, call.h_q)
    out, lse = target.attention(call.q, call.k, call.v, mask=mask.to(call.q.device), softmax_scale=call.scale)
    ref = oracle.forward(call.q, call.k, call.v, visible, scale=call.scale)
    return check_forward(call, out, lse, ref, dtype)


def empty(target: Target, dtype: str, size: inputs.Size) -> list[Measurement]:
    """A length of zero: results of the right shape, zeros and -inf, and gradients."""
    call = inputs.make(target, "empty", "full", size, dtype)
    leaves = [x.clone().requires_grad_() for x in (call.q, call.k, call.v)]
    out, lse = replace(call, q=leaves[0], k=leaves[1], v=leaves[2]).run(target)
    check_contract(call, out, lse)
    check_masked_rows(out, lse, torch.full(lse.shape, fill_value=size.s_k == 0))
    for leaf, grad in zip(leaves, torch.autograd.grad(out.sum(), leaves), strict=True):
        check_bits(grad, torch.zeros_like(leaf), "gradient")
    return [exact("empty")]
