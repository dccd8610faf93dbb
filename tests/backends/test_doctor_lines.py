"""Each vendor's own lines in ``doctor``: switches in force and packages, without importing any."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import fmcore_cuda_hopper
import fmcore_hygon_dcu
import fmcore_kunlun_xpu


@pytest.mark.parametrize(
    ("plugin", "backend", "variable"),
    [
        (fmcore_cuda_hopper, "cuda_hopper", "CUDA_VISIBLE_DEVICES"),
        (fmcore_kunlun_xpu, "kunlun_xpu", "XPU_PADDLE_FA_TGEMM_FLOAT"),
        (fmcore_hygon_dcu, "hygon_dcu", "HSA_FORCE_FINE_GRAIN_PCIE"),
        (fmcore_hygon_dcu, "hygon_hml", "HML_DIR"),
    ],
)
def test_switches_are_named(monkeypatch, plugin, backend, variable):
    monkeypatch.setenv(variable, "1")
    assert f"{variable}=1" in plugin.fmcore_doctor(backend)["switches"]


def test_the_two_backends_of_one_plugin_are_apart(monkeypatch):
    monkeypatch.setenv("HML_DIR", "/opt/hml")
    assert "HML_DIR" not in fmcore_hygon_dcu.fmcore_doctor("hygon_dcu").get("switches", "")


@pytest.mark.parametrize(("plugin", "backend"), [(fmcore_kunlun_xpu, "kunlun_xpu"), (fmcore_hygon_dcu, "hygon_dcu")])
def test_replaced_operations_are_named(monkeypatch, plugin, backend):
    assert "flag_gems" not in plugin.fmcore_doctor(backend)
    monkeypatch.setitem(sys.modules, "flag_gems", ModuleType("flag_gems"))
    assert "may be replaced" in plugin.fmcore_doctor(backend)["flag_gems"]


def test_packages_come_from_metadata():
    assert "torch " in fmcore_cuda_hopper.fmcore_doctor("cuda_hopper")["packages"]
