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
    count = len(spec.roles)
    tensors = list(args[:count])
    tensors += [options.pop(role, None) for role in spec.roles[len(tensors) :]]
    params = {param.name: options.pop(param.name, param.default) for param in spec.params}
    if options or len(args) > count:
        raise InvalidInputError(
            f"explain: {op} takes {', '.join((*spec.roles, *params))}; got also {sorted(options) or args[count:]}"
        )
    spec.validate(*tensors, **params)
    first = next(t for t in tensors if t is not None)
    features = spec.features(tuple(tensors), params)

    def request() -> Any:
        return build_request(
            spec, first.device, tuple(tensors), features, needs_grad=spec.differentiable and facts.wants_grad(tensors),
            deterministic=torch.are_deterministic_algorithms_enabled(), world_size=world_size,
        )  # fmt: skip

    return table.decide(request, backend)
