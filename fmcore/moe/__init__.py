"""Mixture-of-experts routing: layout, dispatch and combine over one process or many.

>>> import torch, fmcore as fm
>>> idx = torch.tensor([[0, 2], [1, -1]])
>>> sent = fm.moe.dispatch(torch.eye(2), fm.moe.layout(idx, num_experts=4), idx)
>>> fm.moe.combine(sent.x, sent.handle)[0]
tensor([[1., 0.],
        [0., 1.]])
"""

from __future__ import annotations

from fmcore.moe.api import combine, dispatch, layout
from fmcore.moe.buffer import Buffer, EventOverlap
from fmcore.moe.experts import Grouped, from_experts, to_experts
from fmcore.ops.moe.types import DEFAULT_TIMEOUT, Dispatched, Handle, Layout

__all__ = [
    "DEFAULT_TIMEOUT",
    "Buffer",
    "Dispatched",
    "EventOverlap",
    "Grouped",
    "Handle",
    "Layout",
    "combine",
    "dispatch",
    "from_experts",
    "layout",
    "to_experts",
]
