"""The math ops as tables: what each means, which dtypes it takes and how exact it is."""

from __future__ import annotations

from typing import Final, Literal

from fmcore.errors import InvalidInputError
from fmcore.ops.math import elementwise, fourier, linalg, nn, reductions
from fmcore.ops.math._op import Accuracy, MathOp
from fmcore.ops.math.dtypes import DTYPES, KINDS, TORCH, result_type

__all__ = [
    "DTYPES",
    "KINDS",
    "OPS",
    "SPECS",
    "SUPPORTED",
    "TORCH",
    "Accuracy",
    "MathOp",
    "get",
    "matrix",
    "result_type",
]

OPS: Final[dict[str, MathOp]] = {
    op.name: op for module in (elementwise, reductions, linalg, fourier, nn) for op in module.OPS
}
"""Every op by its name in ``fm.math``."""
SPECS: Final = tuple(op.spec for op in OPS.values())
"""What the dispatcher registers."""
SUPPORTED: Final[dict[str, dict[str, Literal[True] | str]]] = {
    name: {dtype: op.support(dtype) for dtype in DTYPES} for name, op in OPS.items()
}
"""``SUPPORTED[op][dtype]`` is True, or the reason of the refusal."""


def get(name: str) -> MathOp:
    """Return an op by name.

    Raises:
        InvalidInputError: There is no such op.
    """
    try:
        return OPS[name]
    except KeyError:
        raise InvalidInputError(f"math.{name} does not exist; the ops are {', '.join(OPS)}") from None


def matrix() -> str:
    """Render ``SUPPORTED`` as a Markdown table with numbered reasons."""
    notes: dict[str, int] = {}
    lines = [f"| op | {' | '.join(DTYPES)} |", f"|---|{'---|' * len(DTYPES)}"]
    for name, row in SUPPORTED.items():
        cells = ["yes" if v is True else f"no ({notes.setdefault(v, len(notes) + 1)})" for v in row.values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {reason}." for reason, number in notes.items())]
    return "\n".join(lines) + "\n"
