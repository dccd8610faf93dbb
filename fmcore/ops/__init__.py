"""What each op means: signature, validation, cache key, fake and autograd pairing. Implementations live in backends."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcore.ops._spec import OpSpec

_MODULES = ("fmcore.ops.attention", "fmcore.ops.math", "fmcore.ops.moe")


@lru_cache(maxsize=1)
def specs() -> dict[str, OpSpec]:
    """Return every op's declaration by name. Imports torch."""
    found: dict[str, OpSpec] = {}
    for module in _MODULES:
        for spec in import_module(module).SPECS:
            found[spec.name] = spec
    return found


def feature_names() -> dict[str, tuple[str, ...]]:
    """Return the request features of every op."""
    return {name: spec.feature_names for name, spec in specs().items()}


def define_all() -> None:
    """Register the torch ops of every traceable op; importing fmcore does this where torch is imported already."""
    from fmcore.ops import attention
    from fmcore.ops._call import ensure_defined

    attention.define()
    for spec in specs().values():
        if spec.traceable:
            ensure_defined(spec)
