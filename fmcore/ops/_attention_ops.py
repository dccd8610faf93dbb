"""Attention's autograd pairing and its registered torch ops (see dispatch/torch_ops.py for the scheme)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from fmcore import masks
from fmcore.dispatch import policy, table
from fmcore.dispatch.registry import Impl
from fmcore.dispatch.tensors import wants_grad
from fmcore.dispatch.torch_ops import LIBRARY, NAMESPACE, impl_by_id, refuse_transforms
from fmcore.ops import _attention_args as arguments
from fmcore.ops._attention_spec import SPEC, features
from fmcore.ops._once import sealed

_TAGS = (torch.Tag.pt2_compliant_tag,)
_STATIC = "int mode, str kind, float softmax_scale, float softcap, bool deterministic, str impl"
_defined = False


class Paired(torch.autograd.Function):
    """Keeps the chosen implementation's backward with the forward: a later policy change cannot part them."""

    @staticmethod
    def forward(
        ctx: Any,
        impl: Impl,
        mask: Any,
        scale: float,
        softcap: float,
        deterministic: bool,
        q: Any,
        k: Any,
        v: Any,
        sink: Any,
    ) -> Any:
        out, lse = impl.fn(q, k, v, mask, softmax_scale=scale, softcap=softcap, sink=sink, deterministic=deterministic)
        ctx.impl, ctx.mask = impl, mask
        ctx.scalars = {"softmax_scale": scale, "softcap": softcap, "deterministic": deterministic}
        ctx.save_for_backward(q, k, v, sink, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        if dout is None and dlse is None:
            return (None,) * 9
        q, k, v, sink, out, lse = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        with torch.no_grad():
            found = ctx.impl.backward(dout, dlse, q, k, v, out, lse, ctx.mask, sink=sink, **ctx.scalars)
        found = sealed(SPEC.name, found, (q, k, v, sink, dout, dlse))
        return (
            None,
            None,
            None,
            None,
            None,
            *(g if need else None for g, need in zip(found, ctx.needs_input_grad[5:], strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A full or causal mask while a call is traced: lengths may be symbolic, so nothing of their size is built."""

    s_q: Any
    s_k: Any
    is_causal_only: bool
    heads: int = 1
    mode: int = 1
    block_mask: None = None

    @property
    def is_full(self) -> bool:
        """Whether nothing is hidden."""
        return not self.is_causal_only

    @property
    def kind(self) -> str:
        """The mask's tag."""
        return "causal" if self.is_causal_only else "full"


def autocast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cast to autocast's dtype where it is on for the device, as torch's own attention does; float64 stays."""
    kind = q.device.type
    if torch.is_autocast_enabled(kind) and q.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(kind)
        return q.to(dtype), k.to(dtype), v.to(dtype)
    return q, k, v


def outer() -> Any:
    """Return ``torch.ops.fmcore.flashmask_attention``, registered if that has not happened."""
    if not _defined:
        define()
    return torch.ops.fmcore.flashmask_attention


def define() -> None:
    """Register outer, forward and backward op, their fakes, the gradient, and the FLOP formula; once."""
    global _defined  # noqa: PLW0603 (a library can be defined once per process)
    if _defined:
        return
    _defined = True
    LIBRARY.define(
        "flashmask_attention(Tensor query, Tensor key, Tensor value, Tensor? bounds, Tensor? planes, "
        "Tensor? block_mask, Tensor? sink, int mode, str kind, bool causal, int[]? window, float? softmax_scale, "
        "float softcap, bool? deterministic, str? backend) -> (Tensor, Tensor)",
        tags=_TAGS,
    )
    LIBRARY.define(
        "flashmask_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? planes, Tensor? block_mask, "
        f"Tensor? sink, {_STATIC}) -> (Tensor, Tensor)",
        tags=_TAGS,
    )
    LIBRARY.define(
        "flashmask_attention_backward(Tensor? dout, Tensor? dlse, Tensor query, Tensor key, Tensor value, Tensor out, "
        f"Tensor lse, Tensor? planes, Tensor? block_mask, Tensor? sink, {_STATIC}) -> (Tensor, Tensor, Tensor, Tensor)",
        tags=_TAGS,
    )
    LIBRARY.impl("flashmask_attention", _outer, "CompositeImplicitAutograd")
    LIBRARY.impl("flashmask_attention_forward", _forward, "CompositeExplicitAutograd")
    LIBRARY.impl("flashmask_attention_backward", _backward, "CompositeExplicitAutograd")
    forward, backward = f"{NAMESPACE}::flashmask_attention_forward", f"{NAMESPACE}::flashmask_attention_backward"
    torch.library.register_fake(forward, _fake_forward, lib=LIBRARY)
    torch.library.register_fake(backward, _fake_backward, lib=LIBRARY)
    torch.library.register_autograd(forward, _gradient, setup_context=_setup, lib=LIBRARY)
    _register_flops()


def _outer(
    q: Any, k: Any, v: Any, bounds: Any = None, planes: Any = None, block_mask: Any = None, sink: Any = None,
    mode: int = 0, kind: str = "", causal: bool = False, window: Any = None, softmax_scale: Any = None,
    softcap: float = 0.0, deterministic: Any = None, backend: Any = None,
) -> Any:  # fmt: skip
    arguments.check_tensors(q, k, v)
    arguments.check_scalars(q, softmax_scale, softcap, sink)
    b, s_q, h_q, d = q.shape
    s_k, h_kv = k.shape[1], k.shape[2]
    given = _mask(q, k, planes, block_mask, mode, kind) if kind else None
    stated = bounds is not None or given is not None or window is not None
    mask = Unbuilt(s_q, s_k, causal) if not stated else arguments.as_mask(
        s_q, s_k, bounds, given, causal=causal, window_size=None if window is None else tuple(window),
        b=b, h_q=h_q, h_kv=h_kv, device=q.device,
    )  # fmt: skip
    demanded = torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic
    impl = _choose(q, k, v, sink, mask, softcap, backend, demanded)
    scale = 1.0 / math.sqrt(d) if softmax_scale is None else softmax_scale
    if impl.autograd != "paired":
        if isinstance(mask, Unbuilt):
            mask = arguments.plain_mask(int(s_q), int(s_k), causal=causal)
        return impl.fn(q, k, v, mask, softmax_scale=scale, softcap=softcap, sink=sink, deterministic=demanded)
    refuse_transforms(SPEC.name, impl)
    lean = (mask.is_full or mask.is_causal_only) and mask.block_mask is None
    columns = None if lean or isinstance(mask, Unbuilt) else mask.planes_on(q.device)
    return torch.ops.fmcore.flashmask_attention_forward(
        q, k, v, columns, mask.block_mask, sink, mask.mode, mask.kind, scale, softcap, demanded, impl.id
    )


def _choose(q: Any, k: Any, v: Any, sink: Any, mask: Any, softcap: float, backend: Any, deterministic: bool) -> Impl:
    """Resolve while tracing; decisions are stored in the same table under the request itself."""
    from fmcore.ops._call import build_request

    modes = {
        "needs_grad": wants_grad((q, k, v, sink)),
        "deterministic": deterministic,
        "capturing": False,
        "compiling": torch.compiler.is_compiling(),
    }
    found = features(q, k, v, sink, mask, softcap)
    number = policy.current_id()
    key = ("traced", number, backend, q.dtype, q.device, *found.values(), *modes.values())
    impl = table.STATE.entries.get(key)
    if impl is None:
        impl = table.miss(key, lambda: build_request(SPEC, q.device, (q, k, v, sink), found, **modes), backend, number)
    return impl


def _mask(q: Any, k: Any, planes: Any, block_mask: Any, mode: int, kind: str) -> Any:
    if planes is None:
        return arguments.plain_mask(q.shape[1], k.shape[1], causal=kind == "causal")
    return masks.Mask.from_planes(planes.to(q.device), s_q=q.shape[1], mode=mode, kind=kind, block_mask=block_mask)


def _forward(
    q: Any, k: Any, v: Any, planes: Any, block_mask: Any, sink: Any, mode: int, kind: str,
    softmax_scale: float, softcap: float, deterministic: bool, impl: str,
) -> Any:  # fmt: skip
    mask = _mask(q, k, planes, block_mask, mode, kind)
    out, lse = impl_by_id(SPEC.name, impl).fn(
        q, k, v, mask, softmax_scale=softmax_scale, softcap=softcap, sink=sink, deterministic=deterministic
    )
    return out.contiguous(), lse.contiguous()


def _fake_forward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    b, s_q, h_q, _ = q.shape
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(b, s_q, h_q, v.shape[3]), q.new_empty(b, h_q, s_q, dtype=kind)


def _backward(
    dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, planes: Any, block_mask: Any, sink: Any,
    mode: int, kind: str, softmax_scale: float, softcap: float, deterministic: bool, impl: str,
) -> Any:  # fmt: skip
    chosen = impl_by_id(SPEC.name, impl)
    mask = _mask(q, k, planes, block_mask, mode, kind)
    dout = torch.zeros_like(out) if dout is None else dout
    found = chosen.backward(  # type: ignore[misc]
        dout,
        dlse,
        q,
        k,
        v,
        out,
        lse,
        mask,
        softmax_scale=softmax_scale,
        softcap=softcap,
        sink=sink,
        deterministic=deterministic,
    )
    dsink = q.new_empty(0) if found[3] is None else found[3]
    return (*(g.contiguous() for g in found[:3]), dsink.contiguous())


def _fake_backward(
    dout: Any,
    dlse: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    planes: Any,
    block_mask: Any,
    sink: Any,
    *rest: Any,
) -> Any:
    def like(tensor: Any) -> Any:
        return tensor.new_empty(tensor.shape)

    return like(q), like(k), like(v), q.new_empty(0) if sink is None else like(sink)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    q, k, v, planes, block_mask, sink, *static = inputs
    ctx.static = static
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, planes, block_mask, sink, *output)


def _gradient(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
    q, k, v, planes, block_mask, sink, out, lse = ctx.saved_tensors
    if dout is None and dlse is None:
        return (None,) * 12
    dq, dk, dv, dsink = torch.ops.fmcore.flashmask_attention_backward(
        dout, dlse, q, k, v, out, lse, planes, block_mask, sink, *ctx.static
    )
    return dq, dk, dv, None, None, (dsink if sink is not None else None), *((None,) * len(ctx.static))


def _register_flops() -> None:
    """Count multiply-adds over visible pairs: two products forward, five backward."""
    from torch.utils.flop_counter import register_flop_formula

    def visible(q: Any, k: Any, planes: Any, mode: int, kind: str) -> float:
        rows, columns = q.shape[1], k.shape[1]
        if planes is None:
            if kind != "causal":
                return float(rows) * float(columns)
            seen = min(rows, columns)
            return float(rows * columns - rows * (rows - 1) // 2) if columns >= rows else float(seen * (seen + 1) // 2)
        if isinstance(planes, torch._subclasses.FakeTensor):  # noqa: SLF001 (no values to count: the dense figure is the bound)
            return float(rows * columns)
        edges = planes.to(torch.int64)
        inside: float = float((edges[:, :, 1::2] - edges[:, :, 0::2]).clamp_min(0).sum()) / (
            planes.shape[0] * planes.shape[1]
        )
        return inside if mode == 1 else float(rows) * float(columns) - inside

    @register_flop_formula(torch.ops.fmcore.flashmask_attention_forward, get_raw=True)
    def forward(
        q: Any, k: Any, v: Any, planes: Any, block_mask: Any, sink: Any, mode: int, kind: str, *_: Any, **__: Any
    ) -> int:
        pairs = visible(q, k, planes, mode, kind) * q.shape[0] * q.shape[2]
        return int(2 * pairs * (q.shape[3] + v.shape[3]))

    @register_flop_formula(torch.ops.fmcore.flashmask_attention_backward, get_raw=True)
    def backward(
        dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, planes: Any, block_mask: Any, sink: Any,
        mode: int, kind: str, *_: Any, **__: Any,
    ) -> int:  # fmt: skip
        pairs = visible(q, k, planes, mode, kind) * q.shape[0] * q.shape[2]
        return int(2 * pairs * (3 * q.shape[3] + 2 * v.shape[3]))
