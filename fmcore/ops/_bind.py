"""Bound handles: an op with its backend fixed, still checked on every call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fmcore.dispatch.plugins import MANAGER
from fmcore.dispatch.registry import REGISTRY
from fmcore.errors import InvalidInputError
from fmcore.ops import specs


def bind(op: str, *, backend: str) -> Callable[..., Any]:
    """Return the public function of an op with the backend fixed: strict, and unaffected by any policy.

    Args:
        op: Name of the op, such as ``"flashmask_attention"`` or ``"math.softmax"``.
        backend: Name of a backend, or ``backend/implementation``.

    Raises:
        InvalidInputError: There is no such op or backend.

    Example:
        >>> import torch, fmcore as fm
        >>> softmax = fm.bind("math.softmax", backend="torch")
        >>> softmax(torch.zeros(2)).tolist()
        [0.5, 0.5]
    """
    if op not in specs():
        raise InvalidInputError(f"bind: there is no op {op!r}; there are {', '.join(sorted(specs()))}")
    MANAGER.discover()
    if backend.split("/", maxsplit=1)[0] not in REGISTRY.snapshot.backends:
        raise InvalidInputError(f"bind: backend {backend!r} is unknown; known are {sorted(REGISTRY.snapshot.backends)}")
    import fmcore

    family, _, name = op.rpartition(".")
    return functools.partial(getattr(getattr(fmcore, family) if family else fmcore, name), backend=backend)
