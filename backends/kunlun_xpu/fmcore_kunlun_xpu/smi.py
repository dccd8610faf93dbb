"""What ``xpu-smi`` prints. Intel ships a tool of the same name, so the text decides, not the exit code."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ROW = re.compile(r"^\|\s+(\d+)\s{2,}(\S.*?)\s{2,}\S+\s+\|", re.MULTILINE)
_HEADER = re.compile(r"XPU-SMI\s+Driver Version:\s*(\S+)\s+XPU-RT Version:\s*(\S+)")


@dataclass(frozen=True, slots=True)
class SmiReport:
    """The header and the rows of the table.

    Attributes:
        driver: Version of the kernel driver.
        runtime: Version of XPU-RT; empty where the tool prints ``N/A``, as it does in some containers.
        names: Product name of each device.
    """

    driver: str
    runtime: str
    names: tuple[str, ...]


def parse(text: str) -> SmiReport | None:
    """Parse the table, or return None where the text is not Kunlun's.

    >>> parse("| XPU-SMI  Driver Version: 5.0.21.26    XPU-RT Version: N/A  |").runtime
    ''
    """
    header = _HEADER.search(text)
    if header is None:
        return None
    driver, runtime = (value if re.match(r"\d", value) else "" for value in header.groups())
    return SmiReport(driver, runtime, tuple(name for _, name in _ROW.findall(text)))


def is_intel(text: str) -> bool:
    """Whether the text comes from Intel's tool of the same name."""
    return "Intel" in text or "Level Zero" in text or "| Device ID" in text
