"""The ten dtypes of the matrix, their kinds, and which of them mix (array API type promotion)."""

from __future__ import annotations

from typing import Final

import torch

from fmcore.errors import InvalidInputError, UnsupportedError

__all__ = [
    "ACCUMULATOR",
    "COMPLEX_OF",
    "DTYPES",
    "INTEGER",
    "KINDS",
    "NAMES",
    "NUMERIC",
    "REAL",
    "TORCH",
    "dtype_name",
    "real_of",
    "result_type",
    "scalar_dtype",
]

TORCH: Final = {
    "bool": torch.bool,
    "int8": torch.int8,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
"""torch dtype of each name, in the order of the matrix."""
DTYPES: Final = tuple(TORCH)
NAMES: Final = {dtype: name for name, dtype in TORCH.items()}
KINDS: Final = {
    "bool": ("bool",),
    "integer": ("int8", "int32", "int64"),
    "real": ("float16", "bfloat16", "float32", "float64"),
    "complex": ("complex64", "complex128"),
}
KIND: Final = {TORCH[name]: kind for kind, names in KINDS.items() for name in names}

INTEGER: Final = frozenset(TORCH[n] for n in KINDS["integer"])
REAL: Final = frozenset(TORCH[n] for n in KINDS["real"])
NUMERIC: Final = frozenset(TORCH.values()) - {torch.bool}

_REAL_OF: Final = {torch.complex64: torch.float32, torch.complex128: torch.float64}
COMPLEX_OF: Final = {
    torch.float16: torch.complex64,
    torch.bfloat16: torch.complex64,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
    torch.complex64: torch.complex64,
    torch.complex128: torch.complex128,
}
"""Complex dtype that holds the values of each floating-point dtype."""
ACCUMULATOR: Final = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""What half precision is accumulated in; every other dtype accumulates in itself."""


def dtype_name(dtype: object) -> str:
    """Name of a dtype, without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def real_of(dtype: torch.dtype) -> torch.dtype:
    """Dtype of a real or imaginary part; a real dtype is its own."""
    return _REAL_OF.get(dtype, dtype)


def _combine(a: torch.dtype, b: torch.dtype) -> torch.dtype | str:
    if a == b:
        return a
    kinds = {KIND[a], KIND[b]}
    if kinds == {"integer"}:
        return max(a, b, key=lambda d: d.itemsize)
    if kinds == {"real"}:
        if a.itemsize == b.itemsize:
            return "neither of float16 and bfloat16 holds the other's values"
        return max(a, b, key=lambda d: d.itemsize)
    if kinds <= {"real", "complex"}:
        return max(COMPLEX_OF[a], COMPLEX_OF[b], key=lambda d: d.itemsize)
    return f"{KIND[a]} and {KIND[b]} dtypes do not mix (array API: no promotion between kinds)"


PROMOTION: Final = {(a, b): _combine(a, b) for a in TORCH.values() for b in TORCH.values()}
"""Common dtype of each pair, or the sentence that says why there is none."""


def result_type(op: str, *dtypes: torch.dtype) -> torch.dtype:
    """Common dtype of arrays by the array API's promotion table.

    Bool mixes with bool, integers with integers, real and complex floating-point dtypes with each
    other; ranks and values play no part. Source: array API standard, "Type promotion rules"; the
    half dtypes, which the standard lacks, widen to float32 and to complex64.

    Args:
        op: Name of the op, for the message.
        dtypes: At least one dtype of the matrix.

    Raises:
        UnsupportedError: A dtype is outside the matrix.
        InvalidInputError: The dtypes have no common type.
    """
    for dtype in dtypes:
        if dtype not in NAMES:
            raise UnsupportedError(
                f"math.{op}: dtype {dtype_name(dtype)} is outside the matrix ({', '.join(DTYPES)}); cast first"
            )
    common = dtypes[0]
    for dtype in dtypes[1:]:
        step = PROMOTION[common, dtype]
        if isinstance(step, str):
            asked = ", ".join(map(dtype_name, dtypes))
            raise InvalidInputError(f"math.{op}({asked}): {step}; cast one side with fm.math.astype")
        common = step
    return common


def scalar_dtype(op: str, value: complex, dtype: torch.dtype) -> torch.dtype:
    """Dtype that a Python scalar takes beside an array of ``dtype``.

    A scalar takes the array's dtype and never widens it, except a complex scalar beside a float32
    or float64 array, which makes the complex dtype of the same precision (array API).

    Raises:
        InvalidInputError: The scalar's kind does not mix with the array's, or an integer is out of range.
        UnsupportedError: The array's dtype is outside the matrix.
    """
    kind = KIND.get(result_type(op, dtype))
    refused = f"math.{op}: the Python scalar {value!r} does not mix with a {dtype_name(dtype)} array"
    if isinstance(value, bool):
        if kind == "bool":
            return dtype
        raise InvalidInputError(f"{refused} (array API: bool scalars go with bool arrays); pass a number")
    if kind == "bool":
        raise InvalidInputError(f"{refused} (array API: only True and False do); cast the array first")
    if isinstance(value, int):
        if kind == "integer" and not torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max:
            raise InvalidInputError(f"{refused}: out of its range; cast the array to a wider dtype")
        return dtype
    if kind == "integer":
        raise InvalidInputError(f"{refused} (array API: integer arrays take int scalars); cast the array first")
    if isinstance(value, complex) and kind == "real":
        if dtype.itemsize < 4:
            raise InvalidInputError(f"{refused}: there is no complex half precision; cast the array to float32")
        return COMPLEX_OF[dtype]
    return dtype
