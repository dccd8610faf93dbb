"""``list`` and ``explain`` say the same as the registry and ``fm.explain``."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

import fmcore as fm
from fmcore.cli import _examples, main
from fmcore.cli.listing import limits
from fmcore.dispatch.caps import Caps, OneOf, Range
from fmcore.dispatch.registry import REGISTRY
from fmcore.errors import InvalidInputError
from fmcore.ops import specs


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def test_list_json_is_the_registry():
    fm.backends()
    result = run("list", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert set(data) == set(specs())
    for op, impls in data.items():
        assert [i["id"] for i in impls] == [i.id for i in REGISTRY.snapshot.impls.get(op, ())]
    assert data["math.add"][0]["caps"].keys() == Caps().to_json().keys()


def test_list_shows_ops_by_backends():
    result = run("list", "--op", "math.rms*")
    assert result.exit_code == 0
    assert "math.rms_norm" in result.stdout
    assert "torch" in result.stdout
    assert "math.add" not in result.stdout


def test_list_with_limits():
    result = run("list", "--op", "math.rms_norm", "--backend", "torch", "--caps")
    assert result.exit_code == 0
    assert "torch/compose" in result.stdout
    assert "float32" in result.stdout


def test_list_exit_codes():
    assert run("list", "--op", "no.such").exit_code == 3
    result = run("list", "--backend", "nobody")
    assert result.exit_code == 2
    assert "there is no backend 'nobody'" in result.output


def test_limits_in_words():
    caps = Caps(
        dtypes={"x": {"float32"}, "*": {"int64"}}, device_types={"cuda"}, vendors={"acme"}, grad=False,
        world_size=Range(1, 8), where={"head_dim": Range(8, 128, multiple_of=8), "softcap": OneOf(False)},
        predicate=lambda request: None, reads=("head_dim",),
    )  # fmt: skip
    assert limits(caps.to_json()) == (
        "x: float32; int64; on cuda; on acme; ranks 1..8; no grad; head_dim 8..128, a multiple of 8; "
        "softcap False; a rule over head_dim"
    )
    assert limits(Caps().to_json()) == "none"


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize("op", sorted(specs()))
def test_every_op_has_an_example_call_that_is_valid(op, device):
    tensors, options = _examples.build(op, _examples.Wish(device=device, grad=True))
    decision = fm.explain(op, *tensors, **options)
    assert decision.request.op == op
    assert decision.request.device_type == device.split(":")[0]
    assert decision.candidates


def test_examples_take_no_memory():
    tensors, _ = _examples.build("math.add", _examples.Wish(shapes={"x1": (1 << 20, 1 << 20)}, device="cuda"))
    assert tensors[0].shape == tensors[1].shape == (1 << 20, 1 << 20)


def test_explain_json_is_the_decision():
    result = run("explain", "math.rms_norm", "--dtype", "bfloat16", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    x = torch.empty(16, 4096, dtype=torch.bfloat16)
    expected = fm.explain("math.rms_norm", x, x[0])
    assert data == json.loads(json.dumps(expected.to_json()))


def test_explain_prints_every_candidate_with_reasons():
    result = run("explain", "math.rms_norm", "--grad")
    assert "served by" in result.stdout
    assert "selected" in result.stdout
    for name in ("kunlun_xpu", "hygon_dcu", "cuda_hopper"):
        assert name in result.stdout


def test_explain_takes_masks_and_settings():
    shapes = [f"--shape={role}=1x4096x{heads}x128" for role, heads in (("q", 32), ("k", 8), ("v", 8))]
    arguments = ("--mask", "causal_document:[3000,1096]", "--set", "softcap=30.0", *shapes, "--json")
    result = run("explain", "flashmask_attention", *arguments)
    features = json.loads(result.stdout)["request"]["features"]
    assert features["mask_kind"] == "causal_document"
    assert features["softcap"] is True
    assert features["group"] == 4


def test_explain_where_nobody_serves():
    result = run("explain", "math.add", "--backend", "kunlun_xpu")
    assert result.exit_code == 3
    assert "nobody" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no.such",), "there is no op 'no.such'"),
        (("math.add", "--shape", "z=3"), "math.add has no tensor 'z'; it takes x1, x2"),
        (("math.add", "--shape", "3x4"), "is not of the form NAME=VALUE"),
        (("math.add", "--shape", "x1=axb"), "--shape takes ROLE="),
        (("math.add", "--dtype", "float33"), "'float33' is no dtype of torch"),
        (("math.add", "--device", "gizmo"), "no tensor of shape"),
        (("math.add", "--set", "alpha=1"), "math.add has no parameter alpha; it has none"),
        (("math.add", "--mask", "causal"), "math.add takes no mask"),
        (("math.add", "--shape", "x1=3x4", "--shape", "x2=5"), "math.add"),
        (("math.add", "--backend", "nobody"), "backend='nobody' is unknown"),
        (("flashmask_attention", "--mask", "spiral"), "there is no mask builder 'spiral'"),
        (("flashmask_attention", "--mask", "sliding_window:x"), "cannot be built"),
    ],
)
def test_wrong_usage(arguments, words):
    result = run("explain", *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.output


def test_dtype_by_role():
    _, options = _examples.build("flashmask_attention", _examples.Wish(dtypes={"q": "float16"}))
    assert (options["query"].dtype, options["key"].dtype) == (torch.float16, torch.bfloat16)
    with pytest.raises(InvalidInputError, match="has no tensor"):
        _examples.build("math.add", _examples.Wish(dtypes={"q": "float16"}))
