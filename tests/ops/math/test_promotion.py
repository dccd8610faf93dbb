"""Array API promotion: the table, Python scalars, and where fm.math differs from torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fmcore as fm
from fmcore.errors import InvalidInputError, UnsupportedError
from fmcore.ops.math import DTYPES, TORCH, result_type
from fmcore.ops.math.dtypes import KIND

STANDARD = [name for name in DTYPES if name not in ("float16", "bfloat16")]
dtypes = st.sampled_from(DTYPES)


def promote(*names):
    try:
        return str(result_type("op", *(TORCH[n] for n in names))).removeprefix("torch.")
    except InvalidInputError:
        return None


@pytest.mark.parametrize("a", STANDARD)
@pytest.mark.parametrize("b", STANDARD)
def test_agrees_with_numpy_where_the_standard_promotes(a, b):
    kinds = {KIND[TORCH[a]], KIND[TORCH[b]]}
    if len(kinds) == 1 or kinds == {"real", "complex"}:
        assert promote(a, b) == str(np.promote_types(a, b))
    else:
        assert promote(a, b) is None


@settings(deadline=None)
@given(dtypes, dtypes)
def test_symmetric_and_idempotent(a, b):
    assert promote(a, b) == promote(b, a)
    assert promote(a, a) == a
    common = promote(a, b)
    if common is not None:
        assert promote(common, a) == promote(common, b) == common


@settings(deadline=None)
@given(dtypes, dtypes, dtypes)
def test_associative_where_defined(a, b, c):
    left, right = promote(a, b), promote(b, c)
    if left and right:
        assert promote(left, c) == promote(a, right)


@settings(deadline=None)
@given(dtypes, dtypes, st.lists(st.integers(0, 3), max_size=2), st.lists(st.integers(0, 3), max_size=2))
def test_the_dispatched_dtype_is_the_tables(a, b, s1, s2):
    x1, x2 = torch.zeros(s1).to(TORCH[a]), torch.zeros(s2).to(TORCH[b])
    common = promote(a, b)
    try:
        shape = torch.broadcast_shapes(x1.shape, x2.shape)
    except RuntimeError:
        shape = None
    if common is None or shape is None:
        with pytest.raises(InvalidInputError, match=r"do not mix|neither|broadcast"):
            fm.math.equal(x1, x2)
        return
    assert fm.math.equal(x1, x2).shape == shape
    if common != "bool":
        result = fm.math.add(x1, x2)
        assert (result.dtype, result.shape) == (TORCH[common], shape)


def test_a_0d_array_promotes_like_any_other():
    x = fm.math.add(torch.ones(2), torch.ones((), dtype=torch.float64))
    assert x.dtype == torch.float64
    assert (torch.ones(2) + torch.ones((), dtype=torch.float64)).dtype == torch.float32


@pytest.mark.parametrize(
    ("dtype", "scalar", "expected"),
    [
        ("bool", True, "bool"),
        ("int8", 100, "int8"),
        ("int32", -5, "int32"),
        ("float16", 2, "float16"),
        ("bfloat16", 0.5, "bfloat16"),
        ("float32", 0.25, "float32"),
        ("complex64", 1.5, "complex64"),
        ("complex64", 3, "complex64"),
        ("float32", 1j, "complex64"),
        ("float64", 1j, "complex128"),
        ("complex128", 1j, "complex128"),
        ("bool", 1, None),
        ("bool", 1.0, None),
        ("int8", 1.0, None),
        ("int8", True, None),
        ("float32", True, None),
        ("int8", 300, None),
        ("int64", 1j, None),
        ("float16", 1j, None),
    ],
)
def test_python_scalars(dtype, scalar, expected):
    x = torch.ones(3).to(TORCH[dtype])
    for pair in ((x, scalar), (scalar, x)):
        if expected is None:
            with pytest.raises(InvalidInputError, match="scalar"):
                fm.math.not_equal(*pair)
        else:
            chosen = fm.math.where(torch.tensor([True, False, True]), *pair)
            assert chosen.dtype == TORCH[expected]
            assert chosen.tolist() == ([1, scalar, 1] if pair[0] is x else [scalar, 1, scalar])


def test_two_scalars_are_refused():
    with pytest.raises(InvalidInputError, match=r"at least one operand must be a torch\.Tensor, got int and float"):
        fm.math.add(1, 2.0)
    with pytest.raises(InvalidInputError, match="got list"):
        fm.math.add(torch.ones(1), [1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float8_e4m3fn])
def test_dtypes_outside_the_matrix_are_refused(dtype):
    x = torch.zeros(2).to(dtype)
    for call in (
        lambda: fm.math.add(x, x),
        lambda: fm.math.add(x, torch.ones(2)),
        lambda: fm.math.negative(x),
        lambda: fm.math.add(x, 1),
    ):
        with pytest.raises(UnsupportedError, match="outside the matrix"):
            call()


def test_int64_and_float_do_not_mix_though_torch_would():
    with pytest.raises(InvalidInputError, match=r"math.multiply\(int64, float32\).*integer and real.*astype"):
        fm.math.multiply(torch.ones(2, dtype=torch.int64), torch.ones(2))
