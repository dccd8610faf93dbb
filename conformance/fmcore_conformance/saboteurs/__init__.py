"""Backends with one planted fault each: the suite is tested by them, and nobody else sees them.

They are not in the entry points. See one caught with
``fmcore conform run --load fmcore_conformance.saboteurs --backend sabotage_lse_base2 --ops flashmask_attention``;
``honest_attention`` is the same code without a fault, and must pass.
"""

from __future__ import annotations

from fmcore_conformance.saboteurs.base import Saboteur, load, saboteurs, unload

EMULATED = "backends of fmcore_conformance.saboteurs have faults planted on purpose"

__all__ = ["EMULATED", "Saboteur", "load", "saboteurs", "unload"]
