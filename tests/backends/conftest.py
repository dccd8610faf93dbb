"""A fake machine for the vendors' probes: files, modules, commands and libraries in one value."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fmcore.dispatch.probes import ProbeEnv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FRAMEWORKS = ("torch", "paddle", "torch_xmlir", "torch_plugin", "xpytorch_import_hook")


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., ProbeEnv]:
    """Build a ProbeEnv that sees nothing of the real machine: ``machine(files=..., modules=..., ...)``."""

    def build(
        files: dict[str, str] | None = None,
        modules: dict[str, Any] | None = None,
        outputs: dict[str, str] | None = None,
        libraries: dict[str, Any] | None = None,
        environ: dict[str, str] | None = None,
    ) -> ProbeEnv:
        for name, text in (files or {}).items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return ProbeEnv(
            root=tmp_path,
            environ=environ or {},
            modules={**dict.fromkeys(FRAMEWORKS), **(modules or {})},
            outputs=outputs or {},
            libraries=libraries or {},
        )

    return build


@pytest.fixture
def pci() -> Callable[..., dict[str, str]]:
    """Files of one PCI function in sysfs: ``pci("0000:01:00.0", "0x10de", "0x2335", "0x030200")``."""

    def files(address: str, vendor: str, device: str, code: str) -> dict[str, str]:
        folder = f"/sys/bus/pci/devices/{address}"
        return {f"{folder}/vendor": f"{vendor}\n", f"{folder}/device": f"{device}\n", f"{folder}/class": f"{code}\n"}

    return files


@pytest.fixture
def fake_torch() -> Callable[..., SimpleNamespace]:
    """Build a torch: ``devices`` are (name, capability, gcnArchName) of each cuda device."""

    def build(
        version: str = "2.9.0+cu129",
        cuda: str | None = None,
        hip: str | None = None,
        devices: tuple[tuple[str, tuple[int, int], str], ...] = (),
        **more: Any,
    ) -> SimpleNamespace:
        def properties(index: int) -> SimpleNamespace:
            name, (major, minor), gcn = devices[index]
            return SimpleNamespace(name=name, major=major, minor=minor, gcnArchName=gcn)

        return SimpleNamespace(
            __version__=version,
            version=SimpleNamespace(cuda=cuda, hip=hip),
            cuda=SimpleNamespace(
                is_available=lambda: bool(devices),
                device_count=lambda: len(devices),
                get_device_name=lambda index: devices[index][0],
                get_device_capability=lambda index: devices[index][1],
                get_device_properties=properties,
            ),
            **more,
        )

    return build


@pytest.fixture
def verdicts() -> Callable[[Any], dict[str, str]]:
    """Map each probe of a report to its verdict."""
    return lambda report: {item.probe: item.verdict for item in report.evidence}
