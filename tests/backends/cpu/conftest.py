"""The compiled kernels are needed by every test here but those of the probe."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fmcore_cpu import _native


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for ``isa`` once for each instruction set that this processor can run."""
    if "isa" in metafunc.fixturenames:
        able = [] if _native.load_error() else [name for name, runs in _native.kernels().isa_list() if runs]
        metafunc.parametrize("isa", able, indirect=True)


@pytest.fixture
def kernels() -> Iterator[None]:
    """Skip where there are no kernels; put threads and instruction set back afterwards."""
    error = _native.load_error()
    if error:
        pytest.skip(error)
    threads, before = torch.get_num_threads(), _native.isa()
    yield
    torch.set_num_threads(threads)
    _native.use_isa(before)


@pytest.fixture
def isa(kernels: None, request: pytest.FixtureRequest) -> str:
    """Force one instruction set for the length of a test."""
    _native.use_isa(request.param)
    return str(request.param)
