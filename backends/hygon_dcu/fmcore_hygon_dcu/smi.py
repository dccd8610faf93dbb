"""What ``hy-smi`` and the old ``rocm-smi`` of a DCU driver print; AMD's tool has the same name as the latter."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv

HY_SMI = ("hy-smi", "/opt/hyhal/bin/hy-smi")
_CARD = re.compile(r'"card(\d+)"\s*:')
_ROW = re.compile(r"^[HD]CU\[(\d+)\]", re.MULTILINE)
_USE = re.compile(r"\b[HD]CU (?:memory )?use \(%\)")
# Header of the table of old drivers: a column called DCU where AMD's says GPU.
_HEADER = re.compile(r"^\s*(?:DCU|HCU)\s+Temp\b", re.MULTILINE)


def count_cards(text: str) -> int | None:
    """Return the number of cards that a Hygon tool lists, or None where the text is not Hygon's.

    The JSON of these tools is often not valid JSON, so keys are searched for.

    >>> count_cards('{"card0": {"HCU use (%)": "0.0"}, "card1": {"HCU use (%)": "0.0"}}')
    2
    """
    if _USE.search(text):
        return len(set(_CARD.findall(text)) or set(_ROW.findall(text)))
    if _HEADER.search(text):
        return len(re.findall(r"^\s*\d+\s+\S+C\b", text, re.MULTILINE))
    return None


def ask(env: ProbeEnv) -> tuple[str, int | None]:
    """Run the tools, Hygon's own first.

    Returns:
        The tool that answered, or an empty string, and its number of cards.
    """
    answered = ""
    for tool in HY_SMI:
        text = env.run([tool, "--showuse", "--json"])
        if text is not None:
            return tool, count_cards(text)
    text = env.run(["rocm-smi"])
    if text is not None:
        answered = "rocm-smi"
    return answered, count_cards(text or "")
