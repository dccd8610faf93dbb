"""Is this a Kunlun machine, and can torch drive it? Kunlun devices call themselves "cuda" in torch."""

from __future__ import annotations

import re
from typing import Any

from fmcore.dispatch.arch import Arch
from fmcore.dispatch.probes import DeviceClaim, ProbeEnv, ProbeReport
from fmcore.dispatch.probing import (
    Notebook,
    ask,
    first_choice,
    parse_version,
    pci_functions,
    torch_problem,
)

BACKEND = "kunlun_xpu"
PCI_VENDOR = "0x1d22"
SUPPORTED = (3,)
_NVIDIA_CARDS = "/proc/driver/nvidia/gpus/*"
_ACCELERATOR_CLASSES = (0x03, 0x12)
_YES = ("1", "true")


def probe(env: ProbeEnv, *, deep: bool) -> ProbeReport:
    """Look for Kunlun devices, one sign after the other.

    A device is claimed only when ``torch_xmlir`` itself says that it drives it. Nodes, PCI ids, the runtime library
    and ``xpu-smi`` show that a device is there; variables and installed hooks are hints; ``torch.version.cuda``,
    the name of a cuda device and ``torch.xpu`` (which is Intel's) are no evidence at all.

    Args:
        env: The machine.
        deep: Whether frameworks, the runtime library and commands may be asked.
    """
    return _Probe(env).run(deep=deep)


class _Probe:
    def __init__(self, env: ProbeEnv) -> None:
        self.env = env
        self.notes = Notebook()
        self.device: list[str] = []
        self.paddle_works = False

    def run(self, *, deep: bool) -> ProbeReport:
        choice = first_choice(self.env)
        if choice == BACKEND:
            self.notes.write("FMCORE_BACKEND", choice, "for")
        self._nodes()
        self._pci()
        if deep:
            self._paddle()
            claims, generation, torch_error = self._torch()
            self._runtime_library()
            self._smi(confirmed=bool(claims))
        self._variables()
        if not deep:
            return self._report(self._seen("its frameworks were not asked, this look was shallow"))
        self._nvidia_driver()
        if claims and self._settled_for_another(choice):
            return self._report(f"FMCORE_BACKEND={choice} settles a conflict: the devices are another vendor's")
        return self._conclude(claims, generation, torch_error)

    def _report(self, reason: str, *, available: bool = False, claims: tuple[DeviceClaim, ...] = ()) -> ProbeReport:
        return ProbeReport(available=available, reason=reason, evidence=self.notes.evidence, claims=claims)

    def _seen(self, problem: str) -> str:
        if not self.device:
            signs = f"no /dev/xpu* with /dev/xpuctrl, no PCI accelerator of vendor {PCI_VENDOR}"
            return f"no Kunlun device found: {signs}; {problem}"
        return f"Kunlun device found ({', '.join(self.device)}) but {problem}"

    # -- signs of the device ------------------------------------------------------------------------------------

    def _nodes(self) -> None:
        nodes = self.env.glob("/dev/xpu[0-9]*")
        control = self.env.exists("/dev/xpuctrl")
        if nodes and control:
            self.device.append(nodes[0])
            self.notes.write("/dev/xpu*", f"{', '.join(nodes)} with /dev/xpuctrl", "for")
        elif nodes or control:
            self.notes.write(
                "/dev/xpu*",
                f"{', '.join(nodes) or 'no device'}, control node {'present' if control else 'absent'}",
                "hint",
            )
        else:
            self.notes.write("/dev/xpu*", "absent (a container may hide them)", "unknown")

    def _pci(self) -> None:
        functions = pci_functions(self.env, PCI_VENDOR)
        ours = [f for f in functions if f.base_class in _ACCELERATOR_CLASSES]
        if ours and not self.device:
            self.device.append(f"PCI {ours[0].address}")
        listed = ", ".join(f"{f.address} {f.device} class {f.class_code:#08x}" for f in functions)
        self.notes.write(
            f"PCI vendor {PCI_VENDOR}", listed or "none", "for" if ours else "hint" if functions else "unknown"
        )

    def _runtime_library(self) -> None:
        from fmcore_kunlun_xpu import xpurt

        found = xpurt.devices(self.env)
        if isinstance(found, str):
            self.notes.write(xpurt.LIBRARY, found, "unknown")
            return
        if found and not self.device:
            self.device.append(f"{xpurt.LIBRARY}, {len(found)} devices")
        listed = ", ".join(f"{d.index}: model {d.model}, memory {d.memory}" for d in found)
        self.notes.write(xpurt.LIBRARY, listed or "no device", "for" if found else "against")

    def _smi(self, *, confirmed: bool) -> None:
        if confirmed:
            self.notes.write("xpu-smi", "not run: torch_xmlir has confirmed the device", "unknown")
            return
        from fmcore_kunlun_xpu import smi

        text = self.env.run(["xpu-smi"])
        report = smi.parse(text) if text else None
        if report is not None:
            if not self.device:
                self.device.append(f"xpu-smi, {report.names[0]}" if report.names else "xpu-smi")
            if report.runtime:
                self.device.append(f"XPU-RT {report.runtime}")
            value = f"driver {report.driver or 'N/A'}, XPU-RT {report.runtime or 'N/A'}, {len(report.names)} devices"
            self.notes.write("xpu-smi", f"{value}: {', '.join(report.names)}" if report.names else value, "for")
        elif text:
            value = "Intel's tool of the same name" if smi.is_intel(text) else "printed something else"
            self.notes.write("xpu-smi", value, "against" if smi.is_intel(text) else "unknown")
        else:
            self.notes.write("xpu-smi", "absent or failed", "unknown")

    def _variables(self) -> None:
        seen = [f"{name}={value}" for name in ("XPU_HOME", "KUNLUN_HOME") if (value := self.env.getenv(name))]
        if (self.env.getenv("XPU") or "").lower() in _YES:
            seen.append("XPU=1")
        hooks = [name for name in ("torch_plugin", "xpytorch_import_hook") if self.env.find_spec(name)]
        self.notes.write(
            "variables and hooks", ", ".join(seen + hooks) or "none", "hint" if seen or hooks else "unknown"
        )

    # -- frameworks ---------------------------------------------------------------------------------------------

    def _worth_importing(self, name: str) -> bool:
        """Whether a vendor module may be imported: loading these touches hardware, so only where a device was seen."""
        return self.env.loaded(name) or bool(self.device) or first_choice(self.env) == BACKEND

    def _paddle(self) -> None:
        if not self.env.find_spec("paddle"):
            self.notes.write("paddle", "not installed", "unknown")
            return
        if not self._worth_importing("paddle"):
            self.notes.write("paddle", "installed, not imported: no Kunlun device was seen", "unknown")
            return
        paddle = self.env.module("paddle")
        compiled, error = ask(paddle, "is_compiled_with_xpu")
        if not compiled:
            self.notes.write("paddle.is_compiled_with_xpu", error or compiled, "against")
            return
        count, error = ask(paddle, "base.core.get_xpu_device_count")
        self.paddle_works = bool(count)
        text, _ = ask(paddle, "version.xpu_xre")
        version = parse_version(text)
        value = f"{error or count} devices, XRE {text if version else 'version not given'}"
        self.notes.write("paddle get_xpu_device_count", value, "for" if count else "against")

    def _torch(self) -> tuple[tuple[DeviceClaim, ...], str, str]:
        """Return the claimed devices, their generation and, where torch cannot drive them, why."""
        torch = self.env.torch()
        if not self.env.find_spec("torch_xmlir"):
            self.notes.write("torch_xmlir", "not installed", "unknown")
            return (), "", "torch_xmlir is not importable"
        if not self._worth_importing("torch_xmlir"):
            self.notes.write("torch_xmlir", "installed, not imported: no Kunlun device was seen", "hint")
            return (), "", "torch_xmlir is installed, but no device was seen"
        module = self.env.module("torch_xmlir") if torch is not None else None
        if module is None:
            self.notes.write("torch_xmlir", "installed, but it does not import", "hint")
            return (), "", "torch_xmlir is installed, but it does not import"
        working, error = ask(module, "xpu.is_available")
        if working is not True:
            self.notes.write("torch_xmlir.xpu.is_available", error or working, "against")
            return (), "", f"torch_xmlir sees no device{f' ({error})' if error else ''}"
        self.notes.write("torch_xmlir.xpu.is_available", working, "for")
        generation, error = ask(module, "get_xpu_version")
        generation = str(generation) if generation else ""
        self.notes.write(
            "torch_xmlir.get_xpu_version", error or generation, "for" if generation == "KL3" else "against"
        )
        return self._claims(torch, generation), generation, torch_problem(torch)

    def _claims(self, torch: Any, generation: str) -> tuple[DeviceClaim, ...]:
        count, error = ask(torch, "cuda.device_count")
        self.notes.write("torch.cuda.device_count", error or count, "for" if count else "against")
        match = re.fullmatch(r"KL(\d+)", generation)
        arch = Arch("kunlun", (int(match.group(1)),), generation) if match else None
        return tuple(
            DeviceClaim("cuda", index, "kunlun", arch, f"Kunlun {generation}".rstrip()) for index in range(count or 0)
        )

    # -- conclusion ---------------------------------------------------------------------------------------------

    def _nvidia_driver(self) -> None:
        cards = self.env.glob(_NVIDIA_CARDS)
        value = f"{len(cards)} cards" if cards else "none"
        self.notes.write("/proc/driver/nvidia/gpus", value, "against" if cards else "unknown")

    def _settled_for_another(self, choice: str) -> bool:
        """Whether the user names another vendor of which there are signs too; without them the word is ignored."""
        if choice == "cuda_hopper":
            return bool(self.env.glob(_NVIDIA_CARDS))
        torch = self.env.torch()
        return choice == "hygon_dcu" and bool(getattr(getattr(torch, "version", None), "hip", None))

    def _conclude(self, claims: tuple[DeviceClaim, ...], generation: str, torch_error: str) -> ProbeReport:
        if not claims:
            if self.paddle_works:
                return self._report(
                    self._seen(
                        f"paddle-xpu drives it, fmcore takes torch tensors, and {torch_error or 'torch sees no device'}"
                    )
                )
            if torch_error == "torch_xmlir is not importable":
                torch_error = "neither paddle-xpu nor torch_xmlir is importable"
            return self._report(self._seen(torch_error or "torch.cuda lists no device"))
        if torch_error:
            return self._report(f"Kunlun {generation} found, driven by torch_xmlir, but {torch_error}", claims=claims)
        arch = claims[0].arch
        if arch is None or arch.version != SUPPORTED:
            return self._report(
                f"Kunlun {generation or 'of unknown generation'} found; this backend is written for KL3 (P800)",
                claims=claims,
            )
        return self._report(
            f"Kunlun {generation} on {len(claims)} cuda devices, driven by torch_xmlir", available=True, claims=claims
        )
