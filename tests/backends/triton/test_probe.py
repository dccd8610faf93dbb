"""The probe says what is missing, on machines that are not here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fmcore.dispatch.metadata import read_package
from fmcore.dispatch.probes import ProbeEnv
from fmcore_triton.probe import probe


def torch_with(count: int) -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count))


def triton_of(version: str, target: Any) -> Any:
    def get_current_target():
        if isinstance(target, Exception):
            raise target
        return target

    active = SimpleNamespace(get_current_target=get_current_target)
    return SimpleNamespace(__version__=version, runtime=SimpleNamespace(driver=SimpleNamespace(active=active)))


HOPPER = SimpleNamespace(backend="cuda", arch=90)


@pytest.mark.parametrize(
    ("modules", "available", "reason"),
    [
        ({"triton": None}, False, "Triton is not installed"),
        ({"triton": triton_of("3.6.0", HOPPER), "torch": None}, False, "torch is not installed"),
        ({"triton": triton_of("3.6.0", HOPPER), "torch": torch_with(0)}, False, "torch sees no GPU"),
        ({"triton": triton_of("3.2.0", HOPPER), "torch": torch_with(1)}, False, "Triton 3.2.0 is older than 3.3"),
        (
            {"triton": triton_of("3.6.0", RuntimeError("0 active drivers")), "torch": torch_with(1)},
            False,
            "0 active drivers",
        ),
        (
            {"triton": triton_of("3.3.1", SimpleNamespace(backend="xpu", arch="3")), "torch": torch_with(1)},
            False,
            "compiles for xpu 3",
        ),
        ({"triton": triton_of("3.6.0", HOPPER), "torch": torch_with(2)}, True, "compiles for cuda 90"),
        (
            {"triton": triton_of("3.3.1+git1", SimpleNamespace(backend="hip", arch="gfx942")), "torch": torch_with(1)},
            True,
            "hip gfx942",
        ),
    ],
)
def test_what_is_missing_is_said(modules, available, reason):
    report = probe(ProbeEnv(modules=modules), deep=True)
    assert report.available is available
    assert reason in report.reason
    assert not report.claims, "a portable backend claims no device for a vendor"
    assert report.evidence[-1].verdict == ("for" if available else "against")


def test_a_shallow_look_imports_nothing():
    class Trap:
        def __getattr__(self, name):
            raise AssertionError(f"touched {name}")

    assert not probe(ProbeEnv(modules={"triton": Trap(), "torch": Trap()}), deep=False).available


def test_metadata_is_valid_and_portable():
    (meta,) = read_package("fmcore_triton")
    assert (meta.name, meta.vendor, meta.band) == ("triton", "any", "portable")


def test_the_caps_name_fields_that_the_ops_have():
    from fmcore.ops._attention_spec import FEATURES
    from fmcore.ops.math import OPS
    from fmcore_triton.register import ATTENTION, _math_caps

    ATTENTION.check_against(FEATURES)
    for op, (caps, _, _) in _math_caps().items():
        caps.check_against(OPS[op].feature_names)


def test_registration_brings_every_implementation_with_its_backward():
    pytest.importorskip("triton")
    import fmcore_triton
    from fmcore.dispatch.registrar import Registrar
    from fmcore.masks import plan_builders
    from fmcore.ops._attention_spec import FEATURES
    from fmcore.ops.math import OPS

    (meta,) = read_package("fmcore_triton")
    features = {"flashmask_attention": FEATURES, **{f"math.{name}": op.feature_names for name, op in OPS.items()}}
    registrar = Registrar({"triton": meta}, ("triton",), features)
    fmcore_triton.fmcore_register_impls(registrar, (1, 0))
    assert registrar.broken == []
    math = {"rms_norm", "swiglu", "rotary", "rotary_complex", "softmax", "log_softmax", "logsumexp", "topk_gate"}
    assert {impl.op for impl in registrar.impls} == {"flashmask_attention", *(f"math.{name}" for name in math)}
    assert all(impl.backward is not None for impl in registrar.impls)
    assert plan_builders()["cuda"] == "triton"


def test_nothing_is_registered_where_the_backend_is_unavailable():
    import fmcore_triton
    from fmcore.dispatch.registrar import Registrar

    registrar = Registrar({}, ("triton",), {})
    fmcore_triton.fmcore_register_impls(registrar, (1, 0))
    assert (registrar.impls, registrar.broken) == ([], [])
