"""The files of a new vendor plugin: the same as ``examples/vendor_plugin``, with another name."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from fmcore.errors import InvalidInputError

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "fmcore-$name"
version = "0.1.0"
requires-python = ">=3.10"

[project.entry-points."fmcore.backends"]
$name = "fmcore_$name"

[tool.setuptools]
packages = ["fmcore_$name"]
package-data = { "*" = ["*.toml"] }
"""

_METADATA = """\
# fmcore reads this file without importing the package.
[[backend]]
name = "$name"
vendor = "cpu"           # the vendor of the devices that it serves; host tensors are the CPU's
band = "native"          # native, portable or framework: native is preferred
spec_version = ">=1,<2"  # versions of the plugin API that it was written for
shallow = [{ kind = "platform", any = ["linux", "darwin", "win32"] }]
"""

_PACKAGE = '''\
"""Backend "$name": an RMS norm for host tensors that makes no squared copy of its input."""

from __future__ import annotations

from typing import Any

from fmcore.dispatch import Evidence, ProbeEnv, ProbeReport, hookimpl
from fmcore.dispatch.caps import Caps, Range


@hookimpl
def fmcore_probe(env: ProbeEnv, deep: bool) -> dict[str, ProbeReport]:  # noqa: FBT001 (the hook's signature)
    """Look at the machine through ``env`` alone; ``deep`` permits to import a framework and to touch a device."""
    torch = env.torch() if deep else None
    seen = Evidence("torch", torch.__version__ if torch else "not asked or not there", "for" if torch else "unknown")
    return {"$name": ProbeReport(available=torch is not None, reason="host tensors of torch", evidence=(seen,))}


@hookimpl
def fmcore_register_impls(registrar: Any) -> None:
    """Register each kernel with what it supports; kernels are imported here, not at the top of the file."""
    import torch

    real = {"float32", "float64"}
    caps = Caps(dtypes={"x": real, "weight": real}, device_types={"cpu"}, where={"width": Range(1, 1 << 20)})

    @registrar.impl("math.rms_norm", name="one_copy", priority=10, caps=caps, autograd="native")
    def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, *, eps: float) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scaled = x * torch.rsqrt(norm * norm / x.shape[-1] + eps)
        return scaled if weight is None else (scaled * weight).to(x.dtype)
'''

_README = """\
# fmcore-$name

A backend plugin of fmcore. `fmcore plugin check .` judges it. After `pip install .`, `fmcore doctor` shows it,
`fmcore list --backend $name` its kernels, and `fmcore conform run --backend $name` proves what they compute.
"""

FILES = {
    "pyproject.toml": _PYPROJECT,
    "README.md": _README,
    "fmcore_$name/fmcore_backend.toml": _METADATA,
    "fmcore_$name/__init__.py": _PACKAGE,
}


def render(name: str) -> dict[str, str]:
    """Return path and text of each file of a plugin.

    Raises:
        InvalidInputError: The name cannot be a backend's and a package's.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InvalidInputError(
            f"plugin name {name!r} cannot be a package; use lower-case letters, digits and underscores, a letter first"
        )
    return {Template(path).substitute(name=name): Template(text).substitute(name=name) for path, text in FILES.items()}


def write(name: str, folder: Path) -> list[Path]:
    """Write a new plugin.

    Args:
        name: Name of its backend; the package is ``fmcore_<name>``.
        folder: New or empty folder.

    Raises:
        InvalidInputError: The name does not fit, or the folder holds something.
    """
    files = render(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInputError(f"{folder} exists and is not an empty folder; choose another with --dir")
    written = []
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        written.append(target)
    return written
