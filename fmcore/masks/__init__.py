"""The column-wise attention mask: a value, its builders and converters, its plan and its pictures."""

from __future__ import annotations

from fmcore.masks.builders import causal, causal_document, document, full, sliding_window
from fmcore.masks.mask import Mask, canonicalize
from fmcore.masks.plan import Plan, build_plan, plan_builders, register_plan_builder

__all__ = [
    "Mask",
    "Plan",
    "build_plan",
    "canonicalize",
    "causal",
    "causal_document",
    "document",
    "full",
    "plan_builders",
    "register_plan_builder",
    "sliding_window",
]
