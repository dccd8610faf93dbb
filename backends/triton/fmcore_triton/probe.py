"""Whether Triton kernels can run here: Triton installed, torch with a GPU, and a Triton driver for that GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fmcore.dispatch.probes import Evidence, ProbeEnv, ProbeReport

OLDEST_TRITON = (3, 3)
TARGETS = ("cuda", "hip")


def probe(env: ProbeEnv, *, deep: bool) -> ProbeReport:
    """Look, in the order of cost, for what is needed; nothing is imported unless `deep`."""
    evidence: list[Evidence] = []

    def no(reason: str, name: str, value: str) -> ProbeReport:
        evidence.append(Evidence(name, value, "against"))
        return ProbeReport(available=False, reason=reason, evidence=tuple(evidence))

    if not env.find_spec("triton"):
        return no(
            "Triton is not installed; it comes with torch's GPU builds, or `pip install fmcore-kernels[cuda]`",
            "module triton",
            "missing",
        )
    evidence.append(Evidence("module triton", "installed", "for"))
    if not deep:
        return ProbeReport(available=False, reason="not looked at closely yet", evidence=tuple(evidence))
    torch = env.torch()
    if torch is None:
        return no("torch is not installed or does not load", "import torch", "failed")
    if not torch.cuda.is_available():
        return no(
            "torch sees no GPU (torch.cuda.is_available() is False); this backend runs on GPUs only",
            "torch.cuda",
            "no device",
        )
    evidence.append(Evidence("torch.cuda", f"{torch.cuda.device_count()} device(s)", "for"))
    triton = env.module("triton")
    if triton is None:
        return no("Triton is installed but does not import", "import triton", "failed")
    version = str(triton.__version__)
    if tuple(int(part) for part in version.split("+", maxsplit=1)[0].split(".")[:2]) < OLDEST_TRITON:
        return no(f"Triton {version} is older than 3.3, whose language the kernels use", "triton.__version__", version)
    evidence.append(Evidence("triton.__version__", version, "for"))
    target = _target(triton)
    if isinstance(target, str):
        return no(f"Triton {version} has no usable driver: {target}", "triton driver", target)
    name = f"{target.backend} {target.arch}"
    if target.backend not in TARGETS:
        return no(
            f"Triton compiles for {name} here; these kernels are checked for {' and '.join(TARGETS)} only",
            "triton target",
            name,
        )
    evidence.append(Evidence("triton target", name, "for"))
    return ProbeReport(available=True, reason=f"Triton {version} compiles for {name}", evidence=tuple(evidence))


def _target(triton: Any) -> Any:
    """Return the active target, or a sentence where there is none."""
    try:
        return triton.runtime.driver.active.get_current_target()
    except (RuntimeError, ImportError, OSError, AssertionError) as error:
        return str(error) or type(error).__name__


def doctor() -> Mapping[str, str]:
    """Return lines for `fmcore doctor`."""
    import triton

    from fmcore_triton.launch import device_family, tables

    lines = {"triton": str(triton.__version__), "launch tables": ", ".join(sorted(tables()))}
    target = _target(triton)
    if not isinstance(target, str):
        lines["target"] = f"{target.backend} {target.arch}"
        lines["launch table in use"] = device_family(0)
    return lines
