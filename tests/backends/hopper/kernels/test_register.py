"""What attention on Hopper claims to support, and that every refusal names its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton.experimental.gluon")

from fmcore.dispatch.arch import Arch
from fmcore.dispatch.request import Request
from fmcore.errors import UnsupportedError
from fmcore.ops._attention_spec import FEATURES
from fmcore_cuda_hopper import register, versions

GOOD = Request(
    "flashmask_attention",
    "cuda",
    "nvidia",
    Arch("nvidia", (9, 0), "sm_90"),
    {"query": "bfloat16", "key": "bfloat16", "value": "bfloat16"},
    needs_grad=True,
    features={
        **dict.fromkeys(FEATURES, False),
        "head_dim": 128,
        "head_dim_v": 128,
        "group": 3,
        "mask_mode": 2,
        "mask_kind": "custom",
        "mask_heads": "query",
        "block_mask": True,
    },
)


def reasons(request: Request) -> set[str]:
    return {reason.code for reason in register.ATTENTION.why_not(request)}


def with_features(**features: object) -> Request:
    return replace(GOOD, features={**GOOD.features, **features})


@pytest.fixture(autouse=True)
def good_triton(monkeypatch):
    monkeypatch.setattr(register, "triton_problem", lambda: "")


def test_what_is_served():
    register.ATTENTION.check_against(FEATURES)
    assert not reasons(GOOD)
    assert not reasons(with_features(head_dim=64, head_dim_v=64, mask_heads="kv", contiguous=True))
    assert not reasons(replace(GOOD, capturing=True, compiling=True))
    assert not reasons(replace(GOOD, needs_grad=False, deterministic=True)), "the forward is deterministic"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (with_features(head_dim=96, head_dim_v=96), "head_dim"),
        (with_features(head_dim_v=64), "head_dim_v"),
        (with_features(softcap=True), "softcap"),
        (with_features(sink=True), "sink"),
        (with_features(empty=True), "empty"),
        (replace(GOOD, deterministic=True), "determinism"),
        (replace(GOOD, dtypes={"query": "float32"}), "dtype"),
        (replace(GOOD, arch=Arch("nvidia", (10, 0), "sm_100")), "arch"),
        (replace(GOOD, vendor="hygon", arch=Arch("hygon", (9, 0))), "vendor"),
    ],
)
def test_what_is_refused_and_why(request_, code):
    assert code in reasons(request_)


@pytest.mark.parametrize(
    ("version", "said"),
    [("3.6.0", ""), ("3.9.1+git", ""), ("3.5.1", "found 3.5.1"), ("4.0", "found 4.0"), ("main", "is no version")],
)
def test_triton_versions(version, said):
    problem = versions.problem_of(version)
    assert (said in problem) if said else problem == ""


def test_a_triton_that_does_not_fit_is_a_reason(monkeypatch):
    monkeypatch.setattr(register, "triton_problem", lambda: versions.problem_of("3.3.0"))
    assert reasons(GOOD) == {"triton"}


def test_a_direct_call_drops_no_argument():
    from fmcore.masks import full
    from fmcore_cuda_hopper import attention

    q = torch.zeros(1, 4, 1, 64, dtype=torch.bfloat16)
    lse = torch.zeros(1, 1, 4)
    plain = {"softmax_scale": 1.0, "softcap": 0.0, "sink": None, "deterministic": False}
    for wrong in ({"softcap": 3.0}, {"sink": torch.zeros(1)}):
        with pytest.raises(UnsupportedError, match="no softcap and no sink"):
            attention.forward(q, q, q, full(4), **{**plain, **wrong})
    with pytest.raises(UnsupportedError, match="no fixed order"):
        attention.backward(q, None, q, q, q, q, lse, full(4), **{**plain, "deterministic": True})
