"""Chip names: which are Hygon's, which are AMD's, which are both."""

from __future__ import annotations

import re
from typing import Literal

from fmcore.dispatch.arch import Arch

HYGON = frozenset({"gfx926", "gfx928", "gfx936", "gfx938"})
# One name for an AMD card and for the first DCUs: it takes Hygon's own driver or toolkit to tell.
SHARED = frozenset({"gfx906"})
AMD = frozenset(
    {"gfx900", "gfx902", "gfx904", "gfx908", "gfx909", "gfx90a", "gfx90c", "gfx940", "gfx941", "gfx942", "gfx950"}
)

Kind = Literal["hygon", "shared", "unknown dcu", "other"]
_NAME = re.compile(r"gfx(\d+)(\d)([0-9a-f])")


def base_name(gcn_arch_name: str) -> str:
    """Strip the feature flags: ``gfx928:sramecc+:xnack-`` is ``gfx928``."""
    return gcn_arch_name.split(":", 1)[0].strip()


def kind(base: str) -> Kind:
    """Say whose chip a base name is; ``unknown dcu`` is a gfx9 name of neither vendor's lists.

    >>> kind("gfx936"), kind("gfx90a"), kind("gfx946"), kind("gfx1100")
    ('hygon', 'other', 'unknown dcu', 'other')
    """
    if base in HYGON:
        return "hygon"
    if base in SHARED:
        return "shared"
    return "unknown dcu" if re.fullmatch(r"gfx9[0-9a-f]{2}", base) and base not in AMD else "other"


def arch(base: str) -> Arch | None:
    """Return the generation, ``gfx928`` being ``(9, 2, 8)``; it compares with Hygon's own only."""
    match = _NAME.fullmatch(base)
    if match is None:
        return None
    major, minor, step = match.groups()
    return Arch("hygon", (int(major), int(minor), int(step, 16)), base)
