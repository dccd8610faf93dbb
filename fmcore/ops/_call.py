"""The way of a call from a public function to an implementation; shared by all ops except attention's tuned one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fmcore.dispatch import policy, table, torch_ops
from fmcore.dispatch import tensors as facts
from fmcore.dispatch.devices import lookup
from fmcore.dispatch.registry import REGISTRY, Impl
from fmcore.dispatch.request import Request
from fmcore.errors import InvalidInputError
from fmcore.ops._once import sealed
from fmcore.ops._spec import OpSpec

_defined: set[str] = set()


def call(
    spec: OpSpec, tensors: tuple[Any, ...], params: Mapping[str, Any], backend: str | None = None, world_size: int = 1
) -> Any:
    """Validate, choose an implementation and run it.

    Args:
        spec: The op's declaration.
        tensors: One entry per role; None for an absent optional one.
        params: The other arguments, complete and in the declared order.
        backend: Strict choice of a backend, or None.
        world_size: Ranks that take part, for distributed ops.

    Returns:
        What the implementation returns: a tensor, or a tuple.

    Raises:
        InvalidInputError: The arguments break the op's contract.
        UnsupportedError: Nobody permitted can serve the call.
    """
    spec.validate(*tensors, **params)
    if spec.traceable and (facts.traced() or not facts.plain(tensors)):
        ensure_defined(spec)
        return getattr(torch.ops.fmcore, spec.torch_name)(*tensors, *params.values(), backend)
    impl = choose(spec, tensors, params, backend, world_size=world_size)
    if impl.autograd == "paired" and facts.wants_grad(tensors):
        return _Paired.apply(impl, params, spec.outputs, *tensors)  # type: ignore[no-untyped-call]
    return impl.fn(*tensors, **params)


def choose(
    spec: OpSpec, tensors: tuple[Any, ...], params: Mapping[str, Any], backend: str | None = None, *,
    compiling: bool = False, world_size: int = 1,
) -> Impl:  # fmt: skip
    """Return the implementation for a call: from the table, or by a resolution that is stored there."""
    first = tensors[0] if tensors[0] is not None else _first(spec, tensors)
    number = policy.current_id()
    features = spec.features(tensors, params)
    needs_grad = spec.differentiable and facts.wants_grad(tensors)
    deterministic = torch.are_deterministic_algorithms_enabled()
    device = first.device
    capturing = facts.capturing(device.type)
    dtypes = tuple([None if t is None else t.dtype for t in tensors])
    key = (
        number,
        spec.name,
        backend,
        device,
        dtypes,
        needs_grad,
        deterministic,
        capturing,
        compiling,
        world_size,
        *features.values(),
    )
    impl = table.STATE.entries.get(key)
    if impl is None:
        request = partial(
            build_request, spec, device, tensors, features, needs_grad=needs_grad, deterministic=deterministic,
            capturing=capturing, compiling=compiling, world_size=world_size,
        )  # fmt: skip
        impl = table.miss(key, request, backend, number)
    return impl


def build_request(
    spec: OpSpec, device: torch.device, tensors: tuple[Any, ...], features: Mapping[str, Any], **modes: Any
) -> Request:
    """Return the request of a call, with the device's vendor from the table of probes."""
    info = lookup(REGISTRY.snapshot, device.type, 0 if device.index is None else device.index)
    dtypes = {r: facts.dtype_name(t.dtype) for r, t in zip(spec.roles, tensors, strict=True) if t is not None}
    return Request(spec.name, device.type, info.vendor, info.arch, dtypes, features=features, **modes)


def ensure_defined(spec: OpSpec) -> None:
    """Register the op's torch ops, once."""
    if spec.name in _defined:
        return
    _defined.add(spec.name)

    def resolve(tensors: tuple[Any, ...], params: Mapping[str, Any], backend: str | None) -> Impl:
        return choose(spec, tensors, params, backend, compiling=torch.compiler.is_compiling())

    torch_ops.define(spec, resolve)


def check_tensors(
    spec_name: str, roles: tuple[str, ...], tensors: tuple[Any, ...], optional: tuple[str, ...] = ()
) -> None:
    """Raise InvalidInputError unless all are tensors on one device."""
    device = None
    for role, tensor in zip(roles, tensors, strict=True):
        if tensor is None and role in optional:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise InvalidInputError(f"{spec_name}: {role} must be a torch tensor, got {type(tensor).__name__}")
        if device is None:
            device = tensor.device
        elif tensor.device != device:
            raise InvalidInputError(
                f"{spec_name}: {role} is on {tensor.device}, {roles[0]} on {device}; move them to one device"
            )


def _first(spec: OpSpec, tensors: tuple[Any, ...]) -> torch.Tensor:
    for tensor in tensors:
        if tensor is not None:
            return tensor  # type: ignore[no-any-return]
    raise InvalidInputError(f"{spec.name}: at least one of {', '.join(spec.roles)} must be a tensor")


class _Paired(torch.autograd.Function):
    """Keeps the chosen implementation's backward with the forward: a later policy change cannot part them."""

    @staticmethod
    def forward(ctx: Any, impl: Impl, params: Mapping[str, Any], outputs: int, *tensors: Any) -> Any:
        result = impl.fn(*tensors, **params)
        results = (result,) if outputs == 1 else result
        ctx.impl, ctx.params, ctx.count = impl, params, len(tensors)
        ctx.save_for_backward(*tensors, *results)
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if all(grad is None for grad in grads):
            return (None,) * (3 + ctx.count)
        saved = ctx.saved_tensors
        inputs, outputs = saved[: ctx.count], saved[ctx.count :]
        with torch.no_grad():
            found = ctx.impl.backward(grads, inputs, outputs, **ctx.params)
        found = sealed(ctx.impl.op, found, (*inputs, *grads))
        return (None, None, None, *(g if n else None for g, n in zip(found, ctx.needs_input_grad[3:], strict=True)))
