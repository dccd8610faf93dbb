"""Building ``fmcore_cpu._kernels``: one unit per instruction set, each with its own flags, and never a failed install.

A machine without a C++ compiler (or with one that fails) still gets the package; what the compiler said is kept in
``fmcore_cpu/_build_failure.txt``, where the backend's probe finds it. ``FMCORE_CPU_SKIP_BUILD=1`` leaves the kernels
out, ``FMCORE_CPU_REQUIRE_BUILD=1`` turns a failure into an error, ``FMCORE_CPU_SANITIZE=1`` builds with ASan and UBSan.
"""

from __future__ import annotations

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

HERE = Path(__file__).parent
NAME = "fmcore_cpu._kernels"
FAILURE_FILE = "_build_failure.txt"
COMMON = ["isa_baseline", "layout", "module", "pool"]
SANITIZED = os.environ.get("FMCORE_CPU_SANITIZE") == "1"
ISAS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"],
}
# Contraction gives the fused multiply-adds; the two -fno flags only drop errno and trap bookkeeping. -ffast-math would
# break the rounding trick of the exponential and the infinities of the masks.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-Wno-psabi",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
    "-g0",
]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-O1", "-g"]


def extension(root: Path) -> Extension:
    """The extension, with sources relative to ``root`` as setuptools wants them."""
    isas = list(ISAS) if platform.machine().lower() in ("x86_64", "amd64") else []
    info = Path("/proc/cpuinfo")
    if SANITIZED and info.exists():  # built to be run here and slow to build: leave out what cannot run
        flags = info.read_text(encoding="utf-8").split()
        isas = [isa for isa in isas if isa in flags or f"{isa}f" in flags]
    folder = (HERE / "csrc").relative_to(root)
    return Extension(
        NAME,
        sources=[str(folder / f"{name}.cpp") for name in [*COMMON, *(f"isa_{isa}" for isa in isas)]],
        depends=[str(path.relative_to(root)) for path in sorted((HERE / "csrc").iterdir())],
        define_macros=[(f"FM_HAVE_{isa.upper()}", "1") for isa in isas],
        language="c++",
        optional=True,
    )


class BuildKernels(build_ext):
    """``build_ext`` with flags by instruction set and a record of what failed."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link; on failure write the reason beside the package and go on."""
        if ext.name != NAME:
            super().build_extension(ext)
            return
        note = Path(self.get_ext_fullpath(NAME)).with_name(FAILURE_FILE)
        note.unlink(missing_ok=True)
        try:
            if os.environ.get("FMCORE_CPU_SKIP_BUILD") == "1":
                raise BaseError("FMCORE_CPU_SKIP_BUILD=1 was set")  # noqa: TRY301 (one way out for every reason)
            self._build(ext)
        except (BaseError, CCompilerError, ImportError, OSError) as error:
            if os.environ.get("FMCORE_CPU_REQUIRE_BUILD") == "1":
                raise
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{type(error).__name__}: {error}\n", encoding="utf-8")
            self.warn(f"{NAME} was not built ({error}); the cpu backend will report itself as unavailable")

    def _build(self, ext: Extension) -> None:
        import pybind11

        target = Path(self.get_ext_fullpath(NAME))
        extra = SANITIZE if SANITIZED else []

        def compile_one(source: str) -> list[str]:
            found: list[str] = self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                macros=list(ext.define_macros),
                include_dirs=[pybind11.get_include()],
                depends=list(ext.depends),
                extra_postargs=[*FLAGS, *ISAS.get(Path(source).stem.removeprefix("isa_"), []), *extra],
            )
            return found

        for source in ext.sources:
            Path(self.build_temp, source).parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            objects = [name for names in pool.map(compile_one, ext.sources) for name in names]
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            objects, str(target), target_lang="c++", extra_postargs=["-pthread", *extra[:2]], build_temp=self.build_temp
        )

    def copy_extensions_to_source(self) -> None:
        """Copy what was built; a kernel module that failed has its note instead."""
        built = [
            ext
            for ext in self.extensions
            if Path(self.build_lib, self.get_ext_filename(self.get_ext_fullname(ext.name))).exists()
        ]
        self.extensions, kept = built, self.extensions
        super().copy_extensions_to_source()
        self.extensions = kept
