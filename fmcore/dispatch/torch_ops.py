"""The registered torch ops that calls go through under torch.compile, export, fake tensors, modes and functorch.

For each op there is an outer op, ``fmcore::<op>(..., backend)``, that is CompositeImplicit: it resolves while the call
is traced and then calls an inner op, ``fmcore::<op>_forward(..., impl)``, that carries the chosen implementation's name
as a constant, with ``fmcore::<op>_backward`` as its gradient: forward and backward stay one unit whatever the policy is
later. Implementations that torch differentiates by itself are called by the outer op directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fmcore.dispatch.registry import REGISTRY, Impl
from fmcore.dispatch.tensors import transformed
from fmcore.errors import UnsupportedError

if TYPE_CHECKING:
    from fmcore.ops._spec import OpSpec

NAMESPACE = "fmcore"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")

Resolver = Callable[[tuple[Any, ...], Mapping[str, Any], "str | None"], Impl]


def impl_by_id(op: str, impl_id: str) -> Impl:
    """Return an implementation by the name that a traced graph carries.

    Raises:
        UnsupportedError: It is not registered in this process.
    """
    found = REGISTRY.snapshot.impl(op, impl_id)
    if found is None:
        from fmcore.dispatch.plugins import MANAGER

        MANAGER.load_all()
        found = REGISTRY.snapshot.impl(op, impl_id)
    if found is None:
        raise UnsupportedError(
            f"{op}: a traced graph calls implementation {impl_id!r}, which is not registered here; "
            "install its plugin, or trace again under today's policy"
        )
    return found


def refuse_transforms(op: str, impl: Impl) -> None:
    """Raise UnsupportedError under torch.func: kernels with their own backward cannot be transformed.

    Raises:
        UnsupportedError: A torch.func transform is active.
    """
    if transformed():
        raise UnsupportedError(
            f"{op}: called under a torch.func transform (grad, vmap, jvp), and {impl.id} is a kernel with its own "
            "backward, which torch.func cannot transform; use torch.autograd.grad, or call it outside the transform"
        )


def define(spec: OpSpec, resolve: Resolver) -> None:
    """Register the outer and the inner ops of ``spec``.

    Args:
        spec: The op's declaration.
        resolve: ``resolve(tensors, params, backend) -> Impl``, called while tracing.
    """
    count = len(spec.roles)
    names = [param.name for param in spec.params]
    forward_name, backward_name = f"{spec.torch_name}_forward", f"{spec.torch_name}_backward"
    LIBRARY.define(spec.torch_name + spec.schema(impl=False), tags=(torch.Tag.pt2_compliant_tag,))

    def outer(*args: Any) -> Any:
        tensors, values, backend = args[:count], args[count:-1], args[-1]
        params = dict(zip(names, values, strict=True))
        impl = resolve(tensors, params, backend)
        if impl.autograd != "paired":
            return impl.fn(*tensors, **params)
        refuse_transforms(spec.name, impl)
        return getattr(torch.ops.fmcore, forward_name)(*tensors, *values, impl.id)

    LIBRARY.impl(spec.torch_name, _keyword_proof(outer, count, names), "CompositeImplicitAutograd")
    if spec.fake is None:
        return
    LIBRARY.define(forward_name + spec.schema(impl=True), tags=(torch.Tag.pt2_compliant_tag,))
    kinds = ", ".join(f"{param.schema_type} {param.name}" for param in spec.params)
    LIBRARY.define(
        f"{backward_name}(Tensor?[] grads, Tensor?[] inputs, Tensor[] outputs, "
        f"{kinds}{', ' if kinds else ''}str impl) -> Tensor[]",
        tags=(torch.Tag.pt2_compliant_tag,),
    )
    _define_inner(spec, count, names, forward_name, backward_name)


def _keyword_proof(function: Callable[..., Any], count: int, names: Sequence[str]) -> Callable[..., Any]:
    """Accept trailing arguments by keyword as well, as torch may pass them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            order = [*names, "backend"]
            rest = list(args[count:])
            args = (*args[:count], *rest, *(kwargs.get(name) for name in order[len(rest) :]))
        return function(*args)

    return call


def _define_inner(spec: OpSpec, count: int, names: list[str], forward_name: str, backward_name: str) -> None:
    fake = spec.fake
    if fake is None:
        return

    def forward(*args: Any) -> Any:
        impl = impl_by_id(spec.name, args[-1])
        return impl.fn(*args[:count], **dict(zip(names, args[count:-1], strict=True)))

    def fake_forward(*args: Any) -> Any:
        return fake(*args[:count], **dict(zip(names, args[count:-1], strict=True)))

    def backward(grads: Any, inputs: Any, outputs: Any, *rest: Any) -> list[torch.Tensor]:
        impl = impl_by_id(spec.name, rest[-1])
        if impl.backward is None:
            raise UnsupportedError(
                f"{spec.name}: {impl.id} has no backward, and a gradient is needed; call it under torch.no_grad()"
            )
        found = impl.backward(tuple(grads), tuple(inputs), tuple(outputs), **dict(zip(names, rest[:-1], strict=True)))
        return [_dense(grad, tensor) for grad, tensor in zip(found, inputs, strict=True)]

    def fake_backward(grads: Any, inputs: Any, outputs: Any, *rest: Any) -> list[torch.Tensor]:  # noqa: ARG001
        return [
            _dense(None, tensor) if not _differentiable(tensor) else torch.empty_like(tensor).contiguous()
            for tensor in inputs
        ]

    LIBRARY.impl(forward_name, forward, "CompositeExplicitAutograd")
    LIBRARY.impl(backward_name, backward, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{forward_name}", fake_forward, lib=LIBRARY)
    torch.library.register_fake(f"{NAMESPACE}::{backward_name}", fake_backward, lib=LIBRARY)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.rest = inputs[count:]
        ctx.save_for_backward(*inputs[:count], *outputs)

    def gradient(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        inputs, outputs = list(saved[:count]), list(saved[count:])
        found = getattr(torch.ops.fmcore, backward_name)(list(grads), inputs, outputs, *ctx.rest)
        wanted = [g if ctx.needs_input_grad[i] else None for i, g in enumerate(found)]
        return (*wanted, *(None for _ in ctx.rest))

    torch.library.register_autograd(f"{NAMESPACE}::{forward_name}", gradient, setup_context=setup, lib=LIBRARY)


def _differentiable(tensor: Any) -> bool:
    return tensor is not None and (tensor.is_floating_point() or tensor.is_complex())


def _dense(grad: Any, tensor: Any) -> torch.Tensor:
    """A list of tensors holds no None: an absent gradient is an empty tensor that autograd never asks for."""
    if grad is not None:
        return grad.contiguous()  # type: ignore[no-any-return]
    reference = tensor if tensor is not None else None
    if reference is None:
        return torch.empty(0)
    if _differentiable(reference):
        return torch.zeros_like(reference).contiguous()
    return torch.empty(0, device=reference.device)
