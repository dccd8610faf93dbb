"""The oracle of the math ops: literal, in float64 and complex128, exact for bool and integers.

``ORACLE[name](*tensors, **params)`` takes arguments in canonical form and returns *wide* results: float64
or complex128 where the op returns a floating-point dtype, the declared dtype otherwise. ``rounded(name)``
is the same function with its result rounded once to the declared dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fmcore.ops.math import OPS
from fmcore.reference.math import elementwise, fourier, linalg, nn, reductions
from fmcore.reference.math._wide import round_to

__all__ = ["ORACLE", "rounded"]

ORACLE: Final[dict[str, Callable[..., Any]]] = {
    **elementwise.ORACLE,
    **reductions.ORACLE,
    **linalg.ORACLE,
    **fourier.ORACLE,
    **nn.ORACLE,
}


def rounded(name: str) -> Callable[..., Any]:
    """Oracle of an op with the op's own output dtypes.

    >>> import torch
    >>> rounded("add")(torch.ones(2), torch.ones(2)).dtype
    torch.float32
    """
    op, oracle = OPS[name], ORACLE[name]

    def call(*tensors: Any, **params: Any) -> Any:
        result = oracle(*tensors, **params)
        many = result if op.outputs > 1 else (result,)
        out = tuple(
            round_to(r, dtype).contiguous() if dtype.is_floating_point or dtype.is_complex else r.contiguous()
            for r, (_, dtype) in zip(many, op.meta(*tensors, **params), strict=True)
        )
        return out if op.outputs > 1 else out[0]

    call.__name__ = call.__qualname__ = name
    return call
