"""NVIDIA's management library by ctypes: names and capabilities without torch and without a device context."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv

LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96


@dataclass(frozen=True, slots=True)
class Card:
    """A device as NVML lists it; ``capability`` is None where an old driver cannot say."""

    name: str
    capability: tuple[int, int] | None

    def __str__(self) -> str:
        return f"{self.name} ({self.capability[0]}.{self.capability[1]})" if self.capability else self.name


@dataclass(frozen=True, slots=True)
class Listing:
    """What NVML says of the machine."""

    driver: str
    cards: tuple[Card, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Product names in NVML's order, which is not torch's."""
        return tuple(card.name for card in self.cards)


def listing(env: ProbeEnv) -> Listing | str:
    """Ask NVML for driver and devices.

    Returns:
        The listing, or a sentence on why there is none.
    """
    library = env.library(LIBRARY)
    if library is None:
        return f"{LIBRARY} is not on the loader's path"
    try:
        status = library.nvmlInit_v2()
        if status != 0:
            return f"nvmlInit_v2 returned {status}"
        try:
            return Listing(_driver(library), _cards(library))
        finally:
            library.nvmlShutdown()
    except AttributeError as error:
        return f"{LIBRARY} lacks a function: {error}"


def _driver(library: Any) -> str:
    text = ctypes.create_string_buffer(_NAME_BYTES)
    return text.value.decode() if library.nvmlSystemGetDriverVersion(text, _NAME_BYTES) == 0 else ""


def _cards(library: Any) -> tuple[Card, ...]:
    count = ctypes.c_uint(0)
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return ()
    found = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        text = ctypes.create_string_buffer(_NAME_BYTES)
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
            continue
        if library.nvmlDeviceGetName(handle, text, _NAME_BYTES) != 0:
            continue
        major, minor = ctypes.c_int(0), ctypes.c_int(0)
        known = library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
        found.append(Card(text.value.decode(errors="replace"), (major.value, minor.value) if known else None))
    return tuple(found)
