"""What is known of the compiled module without importing torch or loading it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FAILURE_FILE", "ISA_VARIABLE", "failure"]

ISA_VARIABLE = "FMCORE_CPU_ISA"
FAILURE_FILE = "_build_failure.txt"
"""Written beside this file by ``backends/cpu/build_kernels.py`` when the compiler fails."""


def failure() -> str:
    """What the compiler said when the package was installed, or an empty string."""
    note = Path(__file__).with_name(FAILURE_FILE)
    return note.read_text(encoding="utf-8").strip() if note.exists() else ""
