"""Kunlun's runtime library by ctypes: device count and attributes, from the public C interface."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcore.dispatch.probes import ProbeEnv

LIBRARY = "libxpurt.so"
FIRST_SIMULATOR = 64
_MODEL, _MEMORY = 4, 5


@dataclass(frozen=True, slots=True)
class XpuDevice:
    """One device; ``model`` and ``memory`` are the runtime's own numbers, or None where it gives none."""

    index: int
    model: int | None
    memory: int | None


def devices(env: ProbeEnv) -> tuple[XpuDevice, ...] | str:
    """Ask the runtime which devices there are.

    Returns:
        The real devices (ids from 64 on are simulators and are never chosen), or a sentence on why there is no answer.
    """
    library = env.library(LIBRARY)
    if library is None:
        return f"{LIBRARY} is not on the loader's path"
    count = ctypes.c_int(0)
    try:
        status = library.xpu_device_count(ctypes.byref(count))
    except AttributeError as error:
        return f"{LIBRARY} lacks a function: {error}"
    if status != 0:
        return f"xpu_device_count returned {status}"
    found = []
    for index in range(min(count.value, FIRST_SIMULATOR)):
        values = []
        for attribute in (_MODEL, _MEMORY):
            value = ctypes.c_uint64(0)
            try:
                status = library.xpu_device_get_attr(ctypes.byref(value), ctypes.c_int(attribute), ctypes.c_int(index))
            except AttributeError:
                status = -1
            values.append(value.value if status == 0 else None)
        found.append(XpuDevice(index, *values))
    return tuple(found)
