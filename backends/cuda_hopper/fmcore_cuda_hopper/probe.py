"""Is a torch "cuda" device NVIDIA's, and is it a Hopper? Other vendors present themselves as "cuda" too."""

from __future__ import annotations

import re
from typing import Any

from fmcore.dispatch.arch import Arch
from fmcore.dispatch.probes import DeviceClaim, ProbeEnv, ProbeReport
from fmcore.dispatch.probing import Notebook, ask, blocked, first_choice, torch_problem

BACKEND = "cuda_hopper"
HOPPER = (9, 0)
# Backends whose devices also call themselves "cuda"; naming one of them in FMCORE_BACKEND settles a conflict.
RIVALS = ("kunlun_xpu", "hygon_dcu")


def probe(env: ProbeEnv, *, deep: bool) -> ProbeReport:
    """Look for NVIDIA devices.

    Args:
        env: The machine.
        deep: Whether torch may be imported and asked; without it nothing is claimed.

    Returns:
        Claims for every NVIDIA device, of whatever generation; available only if one is a Hopper.
    """
    return _Probe(env).run(deep=deep)


class _Probe:
    def __init__(self, env: ProbeEnv) -> None:
        self.env = env
        self.notes = Notebook()
        self.driver = ""
        self.cards: tuple[str, ...] = ()
        self.kernel_cards: tuple[str, ...] = ()
        self.foreign: list[str] = []

    def run(self, *, deep: bool) -> ProbeReport:
        choice = self._override()
        self._kernel_driver()
        self._management_library()
        self._other_vendor(choice)
        if not deep:
            return self._report(self._without_torch("torch was not asked, this look was shallow"))
        torch = self.env.torch()
        problem = torch_problem(torch)
        self.notes.write("torch", problem or torch.__version__, "against" if problem else "for")
        if torch is None:
            return self._report(self._without_torch(problem))
        if choice in RIVALS:
            return self._report(f"FMCORE_BACKEND={choice} says that the devices are another vendor's")
        refusal = self._build_of(torch)
        if refusal:
            return self._report(self._without_torch(refusal))
        return self._devices(torch, problem)

    def _report(self, reason: str, *, available: bool = False, claims: tuple[DeviceClaim, ...] = ()) -> ProbeReport:
        return ProbeReport(available=available, reason=reason, evidence=self.notes.evidence, claims=claims)

    def _without_torch(self, problem: str) -> str:
        if not self.driver and not self.cards:
            return f"no NVIDIA device found: no /proc/driver/nvidia and no answer from NVML; {problem}"
        seen = ", ".join(filter(None, (*dict.fromkeys(self.cards), f"driver {self.driver}" if self.driver else "")))
        return f"NVIDIA device found ({seen}) but {problem}"

    def _override(self) -> str:
        choice = first_choice(self.env)
        if choice == BACKEND:
            self.notes.write("FMCORE_BACKEND", choice, "for")
        elif choice in RIVALS:
            self.notes.write("FMCORE_BACKEND", choice, "against")
        return choice

    def _kernel_driver(self) -> None:
        text = self.env.read_text("/proc/driver/nvidia/version")
        match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text or "")
        self.driver = match.group(1) if match else ""
        value = self.driver or ("present, version not understood" if text else "absent")
        self.notes.write("/proc/driver/nvidia/version", value, "for" if text else "unknown")
        found = []
        for path in self.env.glob("/proc/driver/nvidia/gpus/*/information"):
            model = re.search(r"^Model:\s*(.+?)\s*$", self.env.read_text(path) or "", re.MULTILINE)
            found.append(model.group(1) if model else "unnamed")
        self.cards = self.kernel_cards = tuple(found)
        self.notes.write("/proc/driver/nvidia/gpus", ", ".join(found) or "none listed", "for" if found else "unknown")

    def _management_library(self) -> None:
        """Ask NVML where the kernel's listing is hidden; it creates no device context."""
        if self.cards:
            return
        from fmcore_cuda_hopper import nvml

        listing = nvml.listing(self.env)
        if isinstance(listing, str):
            self.notes.write("NVML", listing, "unknown")
            return
        self.driver = self.driver or listing.driver
        self.cards = listing.names
        self.notes.write(
            "NVML", ", ".join(map(str, listing.cards)) or "no device", "for" if listing.cards else "against"
        )

    def _other_vendor(self, choice: str) -> None:
        """Look for a stack that keeps ``torch.version.cuda`` set while the device is not NVIDIA's."""
        nodes = self.env.glob("/dev/xpu[0-9]*")
        if nodes and self.env.exists("/dev/xpuctrl"):
            self.foreign.append(f"{nodes[0]} with /dev/xpuctrl")
        if self.env.find_spec("torch_xmlir"):
            self.foreign.append("torch_xmlir is installed")
        lifted = choice == BACKEND or "kunlun_xpu" in blocked(self.env)
        value = ", ".join(self.foreign) or "none"
        self.notes.write("signs of a Kunlun stack", value, ("hint" if lifted else "against") if self.foreign else "for")
        if lifted:
            self.foreign.clear()

    def _build_of(self, torch: Any) -> str:
        """Return why this torch build cannot drive an NVIDIA device, or an empty string."""
        version = getattr(torch, "version", None)
        hip, cuda = getattr(version, "hip", None), getattr(version, "cuda", None)
        hcu = hasattr(torch, "__hcu_version__")
        self.notes.write("torch.version.hip", hip, "against" if hip or hcu else "for")
        self.notes.write("torch.version.cuda", cuda, "hint" if cuda else "against")
        if hip or hcu:
            return f"torch {torch.__version__} is a HIP build (hip {hip}); its cuda devices are not NVIDIA's"
        if not cuda:
            return f"torch {torch.__version__} is built without CUDA; install a CUDA build"
        return ""

    def _devices(self, torch: Any, problem: str) -> ProbeReport:
        count, error = ask(torch, "cuda.device_count")
        self.notes.write("torch.cuda.device_count", error or count, "for" if count else "against")
        if not count:
            return self._report(
                self._without_torch(f"torch {torch.__version__} sees no cuda device{f' ({error})' if error else ''}")
            )
        claims, strangers = [], []
        for index in range(count):
            claim, seen = self._device(torch, index)
            if claim is None:
                strangers.append(f"cuda:{index} ({seen})")
            else:
                claims.append(claim)
        if not claims:
            return self._report(f"no cuda device is NVIDIA's by name: {', '.join(strangers)}")
        if self.foreign:
            return self._conflict(tuple(claims))
        return self._verdict(tuple(claims), problem)

    def _device(self, torch: Any, index: int) -> tuple[DeviceClaim | None, str]:
        name, error = ask(torch, "cuda.get_device_name", index)
        if error:
            self.notes.write(f"cuda:{index} name", error, "unknown")
            return None, error
        # Old boards are called "Tesla T4": the kernel driver that lists the same model vouches for those.
        ours = "NVIDIA" in name or name in self.kernel_cards
        self.notes.write(f"cuda:{index} name", name, "for" if ours else "against")
        if not ours:
            return None, f"named {name!r}"
        capability, error = ask(torch, "cuda.get_device_capability", index)
        if error:
            self.notes.write(f"cuda:{index} capability", error, "unknown")
            return DeviceClaim("cuda", index, "nvidia", None, name), name
        major, minor = capability
        fits = (major, minor) == HOPPER
        self.notes.write(f"cuda:{index} capability", f"{major}.{minor}", "for" if fits else "against")
        return DeviceClaim("cuda", index, "nvidia", Arch("nvidia", (major, minor), f"sm_{major}{minor}"), name), name

    def _conflict(self, claims: tuple[DeviceClaim, ...]) -> ProbeReport:
        """Two vendors' signs on one machine: refuse, and show both.

        Where NVIDIA's own kernel driver lists the card, the claim is made all the same: if the other vendor's runtime
        claims the device too, the dispatcher sees both and raises at the first call, instead of believing one.
        """
        runtime = "torch_xmlir is installed" in self.foreign
        reason = (
            f"conflict: cuda:{claims[0].index} is named {claims[0].name!r}, but there are signs of a Kunlun stack "
            f"({', '.join(self.foreign)}); say which it is with FMCORE_BACKEND={BACKEND} or FMCORE_BACKEND=kunlun_xpu"
        )
        return self._report(reason, claims=claims if self.kernel_cards and runtime else ())

    def _verdict(self, claims: tuple[DeviceClaim, ...], problem: str) -> ProbeReport:
        hoppers = [claim for claim in claims if claim.arch is not None and claim.arch.version == HOPPER]
        if not hoppers:
            seen = ", ".join(
                dict.fromkeys(f"{c.name}, {c.arch.name if c.arch else 'capability unknown'}" for c in claims)
            )
            return self._report(
                f"NVIDIA device found ({seen}), but these kernels are for Hopper, sm_90, only", claims=claims
            )
        if problem:
            return self._report(f"Hopper found ({hoppers[0].name}) but {problem}", claims=claims)
        places = ", ".join(f"cuda:{claim.index}" for claim in hoppers)
        return self._report(f"{hoppers[0].name} on {places}", available=True, claims=claims)
