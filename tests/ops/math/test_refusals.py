"""The dtype matrix tells the truth in both directions, through the dispatcher; errors echo the request."""

from __future__ import annotations

import pytest
import torch

import fmcore as fm
from fmcore.errors import InvalidInputError, UnsupportedError
from fmcore.ops.math import DTYPES, OPS, SUPPORTED, TORCH, get, matrix
from fmcore.ops.math._op import EXACT, MathOp

WORKING = "float32"


def arguments(name, dtype):
    """The least call of an op whose main roles have the dtype."""
    x = torch.ones(2, 2).to(dtype)
    rows = torch.ones(1, 2, 1, 2).to(dtype)
    special = {
        "where": lambda: ((torch.tensor([True, False]), x, x), {}),
        "astype": lambda: ((x, dtype), {}),
        "cumulative_sum": lambda: ((x,), {"axis": 0}),
        "grouped_matmul": lambda: ((x, x[None], torch.tensor([2])), {}),
        "rotary": lambda: ((rows, torch.ones(2, 1).to(dtype), torch.ones(2, 1).to(dtype)), {}),
        "rotary_complex": lambda: (
            (
                rows,
                torch.ones(
                    2,
                    2 if dtype.is_complex else 1,
                    dtype=torch.complex128 if dtype in (torch.float64, torch.complex128) else torch.complex64,
                ),
            ),
            {},
        ),
        "topk_gate": lambda: ((x, 1), {}),
    }
    if name in special:
        return special[name]()
    return ((x, x) if len(OPS[name].main) == 2 else (x,)), {}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPS)
def test_every_cell_works_or_refuses_with_its_reason(name, dtype, monkeypatch):
    args, kwargs = arguments(name, TORCH[dtype])
    verdict = SUPPORTED[name][dtype]
    function = getattr(fm.math, name)
    if verdict is True:
        result = function(*args, **kwargs, backend="torch")
        assert all(isinstance(r, torch.Tensor) for r in (result if OPS[name].outputs > 1 else (result,)))
        return

    def kernel(*_args, **_kwargs):
        raise AssertionError("a refused dtype reached an implementation")

    monkeypatch.setattr("fmcore.ops._call.choose", kernel)
    with pytest.raises(UnsupportedError) as caught:
        function(*args, **kwargs)
    message = str(caught.value)
    assert message.startswith(f"math.{name} refuses {dtype}: {verdict}")
    assert caught.value.decision is None


def test_the_matrix_is_complete():
    assert set(SUPPORTED) == set(OPS) == set(fm.math.__all__)
    for row in SUPPORTED.values():
        assert tuple(row) == DTYPES
        assert all(v is True or len(v) > 15 for v in row.values())
    assert matrix().count("\n| `") == len(OPS)


def test_a_table_without_a_reason_cannot_be_declared():
    with pytest.raises(ValueError, match=r"math.x refuses \['bool'.* without a reason"):
        MathOp(
            name="x", kind="elementwise", summary="", domain=frozenset({torch.float32}), refusals={}, meta=lambda x: (),
            accuracy=EXACT, features=lambda tensors, params: {}, feature_names=(),
        )  # fmt: skip


def test_every_casting_pair_works_or_refuses():
    for source in DTYPES:
        for target in DTYPES:
            x = torch.ones(3).to(TORCH[source])
            if source.startswith("complex") and not target.startswith(("complex", "bool")):
                with pytest.raises(UnsupportedError, match=f"{source} to {target}.*real, imag or abs"):
                    fm.math.astype(x, TORCH[target])
            else:
                y = fm.math.astype(x, TORCH[target])
                assert y.dtype == TORCH[target]
                assert y.data_ptr() != x.data_ptr()
    assert fm.math.astype(x, torch.complex128, copy=False) is x


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda m, x: m.sum(x, axis=2), InvalidInputError, r"axis=2 is outside \[-2, 2\) for 2 dimension"),
        (lambda m, x: m.sum(x, axis=(0, -2)), InvalidInputError, r"axis=\(0, -2\) names an axis twice"),
        (lambda m, x: m.sum(x, axis="a"), InvalidInputError, "axis='a'|axis=a|'a' is not an integer"),
        (lambda m, x: m.sum(x, axis=1.5), InvalidInputError, "axis=1.5 is not an integer"),
        (lambda m, x: m.sum(x, dtype="float32"), InvalidInputError, "dtype='float32' is not a torch.dtype"),
        (lambda m, x: m.sum(x, dtype=torch.int64), UnsupportedError, "dtype=int64 would cut float32"),
        (lambda m, x: m.sum(x, dtype=torch.bool), UnsupportedError, "dtype=bool is not one of"),
        (lambda m, x: m.max(x[:0]), InvalidInputError, r"axis 0 of shape \(0, 3\) is empty"),
        (lambda m, x: m.argmin(x[:, :0], axis=1), InvalidInputError, r"axis 1 of shape \(2, 0\) is empty"),
        (lambda m, x: m.cumulative_sum(x), InvalidInputError, r"shape \(2, 3\) needs an axis"),
        (lambda m, x: m.softmax(x[0, 0]), InvalidInputError, "axis=-1 is outside"),
        (lambda m, x: m.add(x, x.T), InvalidInputError, r"\(2, 3\) and \(3, 2\) do not broadcast"),
        (lambda m, x: m.add(x, x.to("meta")), InvalidInputError, "x1 is on cpu, x2 on meta; move"),
        (lambda m, x: m.where(x, x, x), InvalidInputError, "condition must be bool, got float32"),
        (lambda m, x: m.matmul(x, x), InvalidInputError, r"\(2, 3\) @ \(2, 3\): the inner sizes 3 and 2 differ"),
        (lambda m, x: m.matmul(x, x[0, 0]), InvalidInputError, "0-d array is no matrix"),
        (
            lambda m, x: m.matmul(x.expand(2, 2, 3), x.T.expand(3, 3, 2)),
            InvalidInputError,
            "batch shapes do not broadcast",
        ),
        (lambda m, x: m.grouped_matmul(x, x[None], torch.tensor([2])), InvalidInputError, "inner sizes 3 and 2"),
        (lambda m, x: m.grouped_matmul(x, x.T[None], torch.tensor([1, 2])), InvalidInputError, "2 ends for 1 groups"),
        (
            lambda m, x: m.grouped_matmul(x, x.T[None], torch.tensor([3])),
            InvalidInputError,
            r"offsets\[0\] = 3 after 0 for 2 rows",
        ),
        (
            lambda m, x: m.grouped_matmul(x, x.T.expand(2, 3, 2), torch.tensor([2, 1])),
            InvalidInputError,
            r"offsets\[1\] = 1 after 2",
        ),
        (
            lambda m, x: m.grouped_matmul(x, x.T[None], torch.tensor([2.0])),
            InvalidInputError,
            "offsets must be int32 or int64",
        ),
        (lambda m, x: m.fft(x, n=0), InvalidInputError, r"n=0 for shape \(2, 3\)"),
        (lambda m, x: m.fft(x, n=2.5), InvalidInputError, "n=2.5 is not an integer"),
        (lambda m, x: m.fft(x, norm="unit"), InvalidInputError, "norm='unit' is not one of backward"),
        (lambda m, x: m.fft(x[0, 0]), InvalidInputError, "0-d array has no axis"),
        (lambda m, x: m.irfft(x[:, :1] + 0j), InvalidInputError, "n=0"),
        (lambda m, x: m.rms_norm(x, x), InvalidInputError, r"weight \(2, 3\) for x \(2, 3\); it must be \(3,\)"),
        (lambda m, x: m.rms_norm(x, eps=-1.0), InvalidInputError, "eps=-1.0"),
        (lambda m, x: m.rms_norm(x, eps="small"), InvalidInputError, "eps='small' is not a number"),
        (lambda m, x: m.rms_norm(x, eps=None), InvalidInputError, "eps=None is not a number"),
        (lambda m, x: m.topk_gate(x, 1, scale=(2,)), InvalidInputError, "scale=.* is not a number"),
        (
            lambda m, x: m.rms_norm(x, x[0].half()),
            InvalidInputError,
            "weight must be float32, float32 or float64, got float16|weight must be",
        ),
        (lambda m, x: m.rotary(x, x, x), InvalidInputError, "must have four axes"),
        (
            lambda m, x: m.rotary(x[None, :, None], x, x),
            InvalidInputError,
            "3 pairs of angles turn 6 features, but head_dim is 3",
        ),
        (
            lambda m, x: m.rotary(x[None, :, None], x[:1, :1], x[:1, :1]),
            InvalidInputError,
            r"cos \(1, 1\) for x \(1, 2, 1, 3\)",
        ),
        (lambda m, x: m.rotary_complex(x[None, :, None], x + 0j), InvalidInputError, "head_dim 3 of a real x is odd"),
        (lambda m, x: m.topk_gate(x, 4), InvalidInputError, r"k=4 of 3 experts; it must lie in \[1, 3\]"),
        (
            lambda m, x: m.topk_gate(x, 1, score="hard"),
            InvalidInputError,
            "score='hard' is not one of softmax, sigmoid",
        ),
        (lambda m, x: m.topk_gate(x, 1, bias=x), InvalidInputError, r"bias \(2, 3\) must be \(3,\)"),
        (lambda m, x: m.exp([1.0]), InvalidInputError, "x must be a torch.Tensor, got list"),
        (lambda m, x: m.exp(x, backend="nobody"), Exception, "nobody"),
    ],
)
def test_errors_echo_the_request(call, error, match):
    with pytest.raises(error, match=match):
        call(fm.math, torch.ones(2, 3))


def test_an_unknown_op_names_the_known_ones():
    with pytest.raises(InvalidInputError, match=r"math\.tan does not exist; the ops are add"):
        get("tan")
