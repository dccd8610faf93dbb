"""T1: a property per dtype and call (``dispatch/bool``, ``combine/bool``), and the quantised pairs (``pair/int8``)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from fmcore.errors import UnsupportedError
from fmcore.ops.moe.checks import no_sum_reason
from fmcore.reference import moe as oracle
from fmcore_conformance.moe.checking import (
    combine,
    combined_equals_oracle,
    compare_dispatch,
    everywhere,
    expected,
    prop,
    same,
    seat,
    send,
)
from fmcore_conformance.moe.inputs import DTYPES, coded, routing

PAIRS: dict[str, tuple[torch.dtype, int]] = {
    "float8_e4m3fn": (torch.float8_e4m3fn, 4),
    "float8_e5m2": (torch.float8_e5m2, 4),
    "int8": (torch.int8, 1),
    "int8_flat": (torch.int8, 0),
}
"""Quantised payloads and the number of scales of a row; 0 for scales without a second dimension."""


def travels(dtype: torch.dtype, group: Any, backend: str | None, device: str) -> None:
    """Rows of this dtype arrive bit for bit."""
    me, ranks = seat(group)
    r = routing("holes", ranks)
    sent = send(group, r, coded(dtype, r.tokens[me], 9, me), backend, device)
    compare_dispatch(sent, expected(r, dtype, 9)[me], str(dtype))


def sums(dtype: torch.dtype, group: Any, backend: str | None, device: str) -> None:
    """Rows of this dtype are summed by the recipe, with 0, 1 and 2 biases, or refused on every rank with the reason."""
    me, ranks = seat(group)
    reason = no_sum_reason(dtype)
    if not reason:
        for biases in (0, 1, 2):
            kind = "holes" if biases else "uniform"
            combined_equals_oracle(
                group, routing(kind, ranks, tokens=7, seed=biases), dtype, 19, backend, device, biases
            )
        return
    r = routing("holes", ranks)
    sent = send(group, r, coded(dtype, r.tokens[me], 9, me), backend, device)
    everywhere(group, partial(combine, sent.x, sent.handle), "cannot be combined", reason, kind=UnsupportedError)


def pair_travels(dtype: torch.dtype, width: int, group: Any, backend: str | None, device: str) -> None:
    """A quantised payload and its scales arrive together, bit for bit."""
    me, ranks = seat(group)
    r = routing("holes", ranks)
    scales = [coded(torch.float32, t, max(width, 1), rank, salt=1) for rank, t in enumerate(r.tokens)]
    mine = scales[me] if width else scales[me][:, 0]
    got_q, got_scales = send(group, r, (coded(dtype, r.tokens[me], 512, me), mine), backend, device).x
    same(got_q, expected(r, dtype, 512)[me].x, f"{dtype} payload")
    want = oracle.dispatch(scales, r.idx, None, r.num_experts)[me].x
    same(got_scales, want if width else want[:, 0], f"scales of {dtype}")


for _name, _dtype in DTYPES.items():
    prop(f"dispatch/{_name}")(partial(travels, _dtype))
    prop(f"combine/{_name}")(partial(sums, _dtype))
for _name, (_dtype, _width) in PAIRS.items():
    prop(f"pair/{_name}")(partial(pair_travels, _dtype, _width))
