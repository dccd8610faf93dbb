"""Comparisons fail on what they are there for, and say where."""

from __future__ import annotations

import math

import pytest
import torch

from fmcore_conformance import measure
from fmcore_conformance.model import Mismatch


def test_bits_tell_zeros_and_place():
    measure.check_bits(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]), "x")
    with pytest.raises(Mismatch, match=r"1 of 2 elements differ bitwise, first at \(0,\)"):
        measure.check_bits(torch.tensor([-0.0, 1.0]), torch.tensor([0.0, 1.0]), "x")
    with pytest.raises(Mismatch, match="dtype float32, expected float64"):
        measure.check_bits(torch.zeros(1), torch.zeros(1, dtype=torch.float64), "x")


def test_rows_find_one_wrong_row_among_many():
    want = torch.randn(64, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = want.to(torch.bfloat16)
    assert max(m.measured / m.bound for m in measure.check_rows(got, want, units=1.0, dtype="bfloat16", what="x")) < 1
    got[17] = 0
    with pytest.raises(Mismatch, match=r"256 u at \(17,\)"):
        measure.check_rows(got, want, units=2.0, dtype="bfloat16", what="x")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_never_close(bad):
    want = torch.ones(3, dtype=torch.float64)
    got = torch.tensor([1.0, bad, 1.0])
    with pytest.raises(Mismatch, match="special values differ"):
        measure.check_rows(got, want, units=1e9, dtype="float32", what="x")
    with pytest.raises(Mismatch, match="special values differ"):
        measure.check_absolute(got, want, torch.full((3,), 1e9, dtype=torch.float64), "x")
    with pytest.raises(Mismatch, match="special values differ"):
        measure.check_ulp(got, want, 1e9, "x")


def test_a_floor_forgives_cancellation_and_nothing_else():
    want = torch.zeros(1, 4, dtype=torch.float64)
    got = torch.full((1, 4), 1e-3).to(torch.bfloat16)
    measure.check_rows(got, want, units=4, dtype="bfloat16", what="dq", floor=torch.ones(1))
    with pytest.raises(Mismatch):
        measure.check_rows(got, want, units=4, dtype="bfloat16", what="dq", floor=torch.full((1,), 0.01))


def test_ulp():
    one = torch.ones(1)
    above = torch.nextafter(one, torch.tensor([2.0]))
    assert measure.check_ulp(above, one.double(), 1.0, "x").measured == pytest.approx(1.0)
    with pytest.raises(Mismatch, match="1 ulp"):
        measure.check_ulp(above, one.double(), 0.5, "x")
    tiny = torch.tensor([1e-40], dtype=torch.float64)
    measure.check_ulp(torch.zeros(1), tiny, 3.0, "flushed where that is allowed")
    with pytest.raises(Mismatch):
        measure.check_ulp(torch.zeros(1, dtype=torch.float16), torch.tensor([1e-6], dtype=torch.float64), 3.0, "x")


def test_memory_around_a_view_is_watched():
    base = torch.zeros(10)
    watch = measure.Untouched(base[2:4])
    watch.check("op")
    base[9] = 1
    with pytest.raises(Mismatch, match="overwritten"):
        watch.check("op")


def test_shared_storage_is_found():
    x = torch.zeros(4)
    measure.check_no_alias([torch.zeros(4)], [x], "op")
    with pytest.raises(Mismatch, match="shares its memory"):
        measure.check_no_alias([x[2:]], [x], "op")
