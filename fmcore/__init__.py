"""One import for LLM kernels on every vendor's accelerator.

>>> import torch, fmcore as fm
>>> q = k = v = torch.randn(1, 8, 2, 16)
>>> fm.flashmask_attention(q, k, v, mask=fm.masks.causal_document([5, 3])).shape
torch.Size([1, 8, 2, 16])

Importing fmcore imports neither torch nor any vendor's package and creates no device context: it reads the metadata of
the installed plugins and chooses a backend by shallow signs. The first call looks closer.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fmcore import config, errors
from fmcore.dispatch.api import backend, backends, explain, register_backend, select_shallow, unregister_backend
from fmcore.dispatch.policy import set_policy, use

if TYPE_CHECKING:
    from fmcore import masks, math, moe, ops
    from fmcore.ops._bind import bind
    from fmcore.ops.attention import flashmask_attention

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "backend",
    "backends",
    "bind",
    "config",
    "errors",
    "explain",
    "flashmask_attention",
    "masks",
    "math",
    "moe",
    "ops",
    "register_backend",
    "set_policy",
    "unregister_backend",
    "use",
]

_LAZY = {
    "bind": ("fmcore.ops._bind", "bind"),
    "flashmask_attention": ("fmcore.ops.attention", "flashmask_attention"),
    "masks": ("fmcore.masks", None),
    "math": ("fmcore.math", None),
    "moe": ("fmcore.moe", None),
    "ops": ("fmcore.ops", None),
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'fmcore' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, attribute = _LAZY[name]
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"fmcore.{name} needs torch, which is not installed: install your vendor's build, "
            "or `pip install fmcore-kernels[torch]`"
        ) from error
    value = found if attribute is None else getattr(found, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


logging.getLogger("fmcore").addHandler(logging.NullHandler())
config.reload()
if config.current().log:
    logging.getLogger("fmcore").addHandler(logging.StreamHandler())
    logging.getLogger("fmcore").setLevel(config.current().log.upper())
select_shallow()
if "torch" in sys.modules and hasattr(sys.modules["torch"], "library"):
    import_module("fmcore.ops").define_all()
