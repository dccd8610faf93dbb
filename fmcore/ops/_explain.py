"""``explain`` for every op: the same arguments as the call, and a decision in place of a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fmcore.dispatch import table
from fmcore.dispatch import tensors as facts
from fmcore.dispatch.decision import Decision
from fmcore.errors import InvalidInputError
from fmcore.ops import specs
from fmcore.ops._call import build_request
from fmcore.ops._spec import OpSpec


def explain(op: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Decision:
    """Return the decision for a call of ``op``."""
    known = specs()
    if op not in known:
        raise InvalidInputError(f"explain: there is no op {op!r}; there are {', '.join(sorted(known))}")
    if op == "flashmask_attention":
        from fmcore.ops.attention import explain_call

        return explain_call(*args, **kwargs)
    spec = known[op]
    options = dict(kwargs)
    backend = options.pop("backend", None)
    world_size = options.pop("world_size", 1)
    if spec.family == "math":
        from fmcore.math._canon import canonical

        tensors, params = canonical(op.removeprefix("math."), args, options)
    elif spec.family == "moe":
        from fmcore.moe.api import prepare

        made = prepare(op, args, kwargs)
        tensors, params, backend, world_size = made.tensors, dict(made.params), made.backend, made.world_size
    else:
        tensors, params = _as_declared(spec, args, options)
    spec.validate(*tensors, **params)
    first = next(t for t in tensors if t is not None)
    features = spec.features(tensors, params)

    def request() -> Any:
        return build_request(
            spec, first.device, tensors, features, needs_grad=spec.differentiable and facts.wants_grad(tensors),
            deterministic=torch.are_deterministic_algorithms_enabled(), world_size=world_size,
        )  # fmt: skip

    return table.decide(request, backend)


def _as_declared(
    spec: OpSpec, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Sort a call's arguments into the declaration's tensors and parameters."""
    count = len(spec.roles)
    tensors = list(args[:count])
    tensors += [options.pop(role, None) for role in spec.roles[len(tensors) :]]
    params = {param.name: options.pop(param.name, param.default) for param in spec.params}
    if options or len(args) > count:
        raise InvalidInputError(
            f"explain: {spec.name} takes {', '.join((*spec.roles, *params))}; "
            f"got also {sorted(options) or args[count:]}"
        )
    return tuple(tensors), params
