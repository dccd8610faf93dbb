"""One distribution from several roots: the core, the in-tree plugins and the conformance suite."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "backends" / "cpu"))

from build_kernels import BuildKernels, extension  # noqa: E402  (beside the sources it builds)

PLUGINS = ("torch", "cpu", "triton", "cuda_hopper", "kunlun_xpu", "hygon_dcu")
ROOTS = {f"fmcore_{name}": f"backends/{name}/fmcore_{name}" for name in PLUGINS}
ROOTS["fmcore_conformance"] = "conformance/fmcore_conformance"


def packages() -> list[str]:
    """Every importable package; nothing named ``backends``, ``conformance`` or ``tests``."""
    found = list(find_packages(".", include=["fmcore", "fmcore.*"]))
    for folder in {str(Path(path).parent) for path in ROOTS.values()}:
        found += find_packages(folder, include=["fmcore_*"])
    return sorted(found)


setup(
    packages=packages(),
    ext_modules=[extension(ROOT)],
    cmdclass={"build_ext": BuildKernels},
    package_dir={"fmcore": "fmcore", **ROOTS},
    include_package_data=False,
    package_data={"": ["*.toml", "py.typed", "*.json", "configs/*.json", "templates/*"]},
)
