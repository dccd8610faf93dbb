"""HML: the CPU's maker, the library's places, the 50 functions; a DCU is never concluded from it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from fmcore.dispatch.probes import ProbeEnv
from fmcore_hygon_dcu import fmcore_probe, hml

HYGON = {"/proc/cpuinfo": "processor\t: 0\nvendor_id\t: HygonGenuine\ncpu family\t: 24\n"}
INTEL = {"/proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\n"}
FULL = SimpleNamespace(**dict.fromkeys(hml.SYMBOLS, object()))


def test_the_interface_has_fifty_functions():
    assert len(hml.SYMBOLS) == len(set(hml.SYMBOLS)) == 50
    assert {"cblas_cgemm", "cblas_zgemm_batch", "cblas_ddot", "cblas_isamax", "vsExp", "vdPowx"} < set(hml.SYMBOLS)


def test_hygon_cpu_with_the_library(machine):
    report = hml.probe(machine(HYGON, libraries={"libhml_rt.so": FULL}), deep=True)
    assert report.available
    assert report.reason == "libhml_rt.so with 50 of 50 functions on a HygonGenuine CPU"
    assert report.claims == ()


def test_hygon_cpu_without_the_library(machine):
    report = hml.probe(machine(HYGON), deep=True)
    assert report.reason == (
        "HML's library does not load (tried libhml_rt.so); set HML_DIR to its folder, or FMCORE_HML_LIBRARY to its file"
    )


@pytest.mark.parametrize("variable", ["HML_DIR", "FLAGS_hml_dir"])
def test_a_folder_comes_before_the_loader(machine, variable):
    env = machine(
        {**HYGON, "/opt/hml/lib/libhml_rt.so": ""},
        environ={variable: "/opt/hml/"},
        libraries={"/opt/hml/lib/libhml_rt.so": FULL, "libhml_rt.so": SimpleNamespace()},
    )
    assert hml.places(env) == ("/opt/hml/lib/libhml_rt.so", "libhml_rt.so")
    assert hml.load(env).path == "/opt/hml/lib/libhml_rt.so"


def test_another_cpu_is_refused_even_with_the_library(machine):
    report = hml.probe(machine(INTEL, libraries={"libhml_rt.so": FULL}), deep=True)
    assert report.reason == (
        "HML is for Hygon's CPUs, this one is GenuineIntel; FMCORE_HML_LIBRARY names a library to use all the same"
    )


def test_the_users_own_library_serves_any_cpu(machine):
    some = SimpleNamespace(cblas_cgemm=object(), vsExp=object())
    env = machine(INTEL, environ={"FMCORE_HML_LIBRARY": "/opt/blas.so"}, libraries={"/opt/blas.so": some})
    report = hml.probe(env, deep=True)
    assert report.available
    assert report.reason == "/opt/blas.so with 2 of 50 functions on a GenuineIntel CPU"
    loaded = hml.load(env)
    assert loaded.has("vsExp")
    assert not loaded.has("vdExp")
    assert not loaded.has("unrelated")


def test_a_few_missing_functions_are_named(machine):
    lacking = SimpleNamespace(**{name: object() for name in hml.SYMBOLS if name not in hml.THREADS})
    report = hml.probe(machine(HYGON, libraries={"libhml_rt.so": lacking}), deep=True)
    assert report.evidence[-1].value == "48 of 50 functions, without hml_blas_set_num_threads, hml_blas_get_num_threads"


def test_a_real_library_with_none_of_them(machine):
    libc = ctypes.CDLL(None)
    env = machine(HYGON, libraries={"libhml_rt.so": libc})
    present = [name for name in hml.SYMBOLS if hasattr(libc, name)]
    report = hml.probe(env, deep=True)
    assert report.available is bool(present)
    assert present or report.reason == "libhml_rt.so has none of HML's functions"


def test_hml_says_nothing_of_a_dcu(machine):
    reports = fmcore_probe(machine(HYGON, libraries={"libhml_rt.so": FULL}), deep=True)
    assert reports["hygon_hml"].available
    assert not reports["hygon_dcu"].available


def test_a_shallow_look_loads_no_library(machine):
    class Trap:
        def get(self, _name):
            raise AssertionError("a library was loaded")

    env = machine(HYGON)
    env = ProbeEnv(env.root, env.environ, env.modules, env.outputs, Trap())
    assert "shallow" in hml.probe(env, deep=False).reason
