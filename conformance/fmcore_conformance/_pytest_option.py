"""The suite's pytest options, in a module that imports nothing so that every pytest run can afford it.

An option defined in a conftest inside the package would be unknown on the command line under ``--pyargs``.
"""

from __future__ import annotations


def pytest_addoption(parser) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001 (naming the type would import pytest)
    """Define what selects a backend and a part of the suite."""
    group = parser.getgroup("fmcore conformance")
    group.addoption("--fmcore-backend", default=None, help="backend under test; default: automatic selection")
    group.addoption("--fmcore-level", default="L3", help="highest level whose cases are run: L0 to L4 (default L3)")
    group.addoption("--fmcore-ops", default="*", help="glob over op names, such as 'moe.*'; several with commas")
    group.addoption("--fmcore-dtypes", default="", help="dtypes, such as bool,bf16,complex64; default: all")
    group.addoption("--fmcore-fraction", default="1", help="share of the cases, such as 1/8; mandatory ones are kept")
