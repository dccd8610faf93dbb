"""Is this a Hygon DCU machine, and is torch Hygon's build? DCUs call themselves "cuda" in torch, as AMD's cards do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fmcore.dispatch.probes import DeviceClaim, ProbeEnv, ProbeReport, Verdict
from fmcore.dispatch.probing import Notebook, ask, first_choice, pci_functions, torch_problem
from fmcore_hygon_dcu import arch, smi

BACKEND = "hygon_dcu"
PCI_VENDOR = "0x1d94"
_DRIVER_FILES = ("/dev/mkfd", "/sys/module/hycu/version", "/sys/module/hydcu/version")
_TOOLKIT = ("/opt/dtk*", "/opt/hyhal", "/usr/local/hyhal")
_DEVICE_CLASSES = (0x03, 0x12)
_BRIDGE = 0x06


def probe(env: ProbeEnv, *, deep: bool) -> ProbeReport:
    """Look for DCUs, one sign after the other.

    A device is claimed only when torch is a HIP build that names it as a Hygon chip, or as one that Hygon shares
    with AMD while Hygon's driver or toolkit is there. A Hygon CPU is no sign of a DCU.

    Args:
        env: The machine.
        deep: Whether torch may be imported and commands may be run.
    """
    return _Probe(env).run(deep=deep)


@dataclass(slots=True)
class _Signs:
    """What was seen; ``device`` names it for people."""

    device: list[str]
    build: bool = False
    driver: bool = False
    toolkit: bool = False
    hip: str | None = None

    @property
    def hygon_software(self) -> bool:
        """Whether anything of Hygon's own is installed that tells its chips from AMD's."""
        return self.build or self.driver or self.toolkit


class _Probe:
    def __init__(self, env: ProbeEnv) -> None:
        self.env = env
        self.notes = Notebook()
        self.signs = _Signs([])

    def run(self, *, deep: bool) -> ProbeReport:
        choice = first_choice(self.env)
        if choice == BACKEND:
            self.notes.write("FMCORE_BACKEND", choice, "for")
        torch = self.env.torch() if deep else None
        names: tuple[str, ...] = ()
        if torch is not None:
            self._build(torch)
            names = self._arch_names(torch)
        self._driver()
        self._toolkit()
        self._pci()
        if deep:
            self._smi(confirmed=self.signs.build and bool(names))
            self._paddle()
        if not deep:
            return self._report(self._seen("torch was not asked, this look was shallow"))
        return self._conclude(torch, self._judge(names), names)

    def _report(self, reason: str, *, available: bool = False, claims: tuple[DeviceClaim, ...] = ()) -> ProbeReport:
        return ProbeReport(available=available, reason=reason, evidence=self.notes.evidence, claims=claims)

    def _seen(self, problem: str) -> str:
        if self.signs.device:
            return f"Hygon DCU found ({', '.join(self.signs.device)}) but {problem}"
        if self.signs.toolkit:
            return f"Hygon's toolkit is installed, but no DCU was found; {problem}"
        return f"no Hygon DCU found: no /dev/mkfd, no hycu module, no torch that names a Hygon chip; {problem}"

    # -- torch --------------------------------------------------------------------------------------------------

    def _build(self, torch: Any) -> None:
        hcu = getattr(torch, "__hcu_version__", None)
        self.notes.write(
            "torch.__hcu_version__", hcu if hcu is not None else "absent", "unknown" if hcu is None else "for"
        )
        version = str(getattr(torch, "__version__", ""))
        local = version.partition("+")[2]
        das = "das" in local and re.search(r"dtk\d+", local) is not None
        self.notes.write("torch.__version__", version, "for" if das else "unknown")
        self.signs.build = das or hcu is not None
        self.signs.hip = getattr(getattr(torch, "version", None), "hip", None) or None
        self.notes.write("torch.version.hip", self.signs.hip, "hint" if self.signs.hip else "against")

    def _arch_names(self, torch: Any) -> tuple[str, ...]:
        if not self.signs.hip:
            return ()
        count, error = ask(torch, "cuda.device_count")
        if error:
            self.notes.write("torch.cuda.device_count", error, "unknown")
        names = []
        for index in range(count or 0):
            properties, error = ask(torch, "cuda.get_device_properties", index)
            name = arch.base_name(str(getattr(properties, "gcnArchName", "")))
            names.append(name)
            verdicts: dict[str, Verdict] = {"hygon": "for", "shared": "hint", "unknown dcu": "hint", "other": "against"}
            self.notes.write(
                f"cuda:{index} gcnArchName", error or name or "absent", verdicts[arch.kind(name)] if name else "unknown"
            )
        return tuple(names)

    # -- signs outside torch ------------------------------------------------------------------------------------

    def _driver(self) -> None:
        seen = [path for path in _DRIVER_FILES if self.env.exists(path)]
        versions = [text.strip() for path in seen if path.startswith("/sys") and (text := self.env.read_text(path))]
        self.signs.driver = bool(seen)
        if seen:
            self.signs.device.append(seen[0] + (f", driver {versions[0]}" if versions else ""))
        value = ", ".join((*seen, *versions)) or (
            "/dev/kfd only, which is AMD's too" if self.env.exists("/dev/kfd") else "absent"
        )
        self.notes.write("/dev/mkfd, module hycu or hydcu", value, "for" if seen else "unknown")

    def _toolkit(self) -> None:
        variables = [f"{name}={value}" for name in ("DTK_ROOT", "DTK_PATH") if (value := self.env.getenv(name))]
        folders = [path for pattern in _TOOLKIT for path in self.env.glob(pattern)]
        self.signs.toolkit = bool(variables or folders)
        self.notes.write(
            "DTK and HYHAL", ", ".join(variables + folders) or "absent", "hint" if self.signs.toolkit else "unknown"
        )

    def _pci(self) -> None:
        functions = pci_functions(self.env, PCI_VENDOR)
        cards = [f for f in functions if f.base_class in _DEVICE_CLASSES]
        bridges = sum(f.base_class == _BRIDGE for f in functions)
        if cards:
            if not self.signs.device:
                self.signs.device.append(f"PCI {cards[0].address}")
            listed = ", ".join(f"{f.address} {f.device} class {f.class_code:#08x}" for f in cards)
            self.notes.write(f"PCI vendor {PCI_VENDOR}", listed, "for")
        elif functions:
            value = f"{len(functions)} functions, {bridges} of them bridges: every Hygon CPU has those"
            self.notes.write(f"PCI vendor {PCI_VENDOR}", value, "unknown")
        else:
            self.notes.write(f"PCI vendor {PCI_VENDOR}", "none", "unknown")

    def _smi(self, *, confirmed: bool) -> None:
        if confirmed:
            self.notes.write("hy-smi", "not run: torch has confirmed the device", "unknown")
            return
        tool, cards = smi.ask(self.env)
        if cards and not self.signs.device:
            self.signs.device.append(f"{tool}, {cards} cards")
        value = f"{cards} cards" if cards else ("printed nothing of a DCU" if tool else "absent or failed")
        self.notes.write(tool or "hy-smi", value, "for" if cards else "unknown")

    def _paddle(self) -> None:
        """A ROCm build of paddle is AMD's or Hygon's: a hint, and only where something of Hygon's was seen."""
        seen = self.signs.driver or self.signs.toolkit
        if not self.env.find_spec("paddle") or not (seen or self.env.loaded("paddle")):
            self.notes.write("paddle", "not asked", "unknown")
            return
        paddle = self.env.module("paddle")
        compiled, error = ask(paddle, "is_compiled_with_rocm")
        self.notes.write("paddle.is_compiled_with_rocm", error or compiled, "hint" if compiled and seen else "unknown")

    # -- conclusion ---------------------------------------------------------------------------------------------

    def _judge(self, names: tuple[str, ...]) -> tuple[DeviceClaim, ...]:
        claims = []
        for index, name in enumerate(names):
            whose = arch.kind(name)
            if whose == "hygon" or (whose in ("shared", "unknown dcu") and self.signs.hygon_software):
                claims.append(DeviceClaim("cuda", index, "hygon", arch.arch(name), f"Hygon DCU {name}"))
        return tuple(claims)

    def _conclude(self, torch: Any, claims: tuple[DeviceClaim, ...], names: tuple[str, ...]) -> ProbeReport:
        problem = torch_problem(torch)
        if torch is None:
            return self._report(self._seen(problem))
        if not self.signs.hip:
            conflict = "a Hygon build by its version, yet without HIP" if self.signs.build else "not a HIP build"
            return self._report(
                self._seen(f"torch {torch.__version__} is {conflict}; install the DAS build of torch for DTK")
            )
        if not names:
            return self._report(self._seen(f"torch {torch.__version__} sees no cuda device"))
        if not claims:
            return self._report(self._nothing_of_ours(names))
        if first_choice(self.env) == "kunlun_xpu" and self.env.find_spec("torch_xmlir"):
            return self._report("FMCORE_BACKEND=kunlun_xpu settles a conflict: the devices are another vendor's")
        return self._found(claims, names, problem)

    def _found(self, claims: tuple[DeviceClaim, ...], names: tuple[str, ...], problem: str) -> ProbeReport:
        chips = ", ".join(dict.fromkeys(claim.arch.name for claim in claims if claim.arch))
        if problem:
            return self._report(f"Hygon DCU {chips} found but {problem}", claims=claims)
        reason = f"Hygon DCU {chips} on {len(claims)} cuda devices"
        strange = ", ".join(dict.fromkeys(name for name in names if arch.kind(name) == "unknown dcu"))
        if strange:
            reason += f"; {strange} is in no list of chips and is taken for a DCU because Hygon's software is here"
        return self._report(reason, available=True, claims=claims)

    def _nothing_of_ours(self, names: tuple[str, ...]) -> str:
        listed = ", ".join(dict.fromkeys(name or "unnamed" for name in names))
        if self.signs.build:
            return f"conflict: torch is Hygon's build, but it names the devices {listed}, which are not Hygon's"
        if any(arch.kind(name) in ("shared", "unknown dcu") for name in names):
            return f"{listed} may be AMD's or Hygon's, and neither Hygon's driver nor its toolkit is here; not guessed"
        return f"the HIP devices are {listed}, which are not Hygon's"
