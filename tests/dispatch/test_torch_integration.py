"""Forward and backward stay one unit: eager, after leaving ``use``, compiled, exported, checkpointed."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import fmcore as fm
from fmcore.errors import UnsupportedError
from fmcore.ops import _attention_ops

COMPILERS = ["aot_eager", "inductor"]


def leaves(qkv):
    return [t.clone().requires_grad_() for t in qkv]


@pytest.fixture
def counted(plugin):
    """Two countable backends and the mask of two documents."""
    return plugin("first", priority=200), plugin("second", priority=150)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_eager_backward_after_leaving_use(counted, qkv):
    first, second = counted
    q, k, v = leaves(qkv)
    with fm.use("second"):
        out = fm.flashmask_attention(q, k, v)
    out.sum().backward()
    assert (first.forwards, first.backwards, second.forwards, second.backwards) == (0, 0, 1, 1)


def test_no_autograd_function_without_a_gradient(counted, qkv):
    q, k, v = leaves(qkv)
    with torch.no_grad():
        assert fm.flashmask_attention(q, k, v).grad_fn is None
    with torch.inference_mode():
        assert fm.flashmask_attention(*qkv).grad_fn is None
    assert fm.flashmask_attention(*qkv).grad_fn is None
    assert fm.flashmask_attention(q, k, v).grad_fn is not None


def test_a_backend_without_backward_is_passed_over_where_a_gradient_is_needed(alone, plugin, qkv):
    from fmcore.dispatch.caps import Caps
    from fmcore.errors import FallbackWarning

    plugin("inference", caps=Caps(grad=False), with_backward=False)
    training = plugin("training", band="portable")
    fm.flashmask_attention(*qkv)
    assert training.forwards == 0
    with pytest.warns(FallbackWarning, match="has no backward"):
        fm.flashmask_attention(*leaves(qkv)).sum().backward()
    assert (training.forwards, training.backwards) == (1, 1)


def test_second_derivatives_are_refused_clearly(counted, qkv):
    q, k, v = leaves(qkv)
    out = fm.flashmask_attention(q, k, v)
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        grad.sum().backward()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiled_fullgraph_equals_eager(counted, qkv, compiler):
    mask = fm.masks.document([5, 7])

    def step(q, k, v):
        out, lse = fm.flashmask_attention(q, k, v, mask=mask, return_softmax_lse=True)
        return (out * out).sum() + lse.sum()

    plain, traced = leaves(qkv), leaves(qkv)
    step(*plain).backward()
    torch.compile(step, backend=compiler, fullgraph=True)(*traced).backward()
    for a, b in zip(plain, traced, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiled_backward_belongs_to_the_traced_forward(counted, qkv, compiler):
    first, second = counted

    def step(q, k, v):
        return fm.flashmask_attention(q, k, v, causal=True).sum()

    compiled = torch.compile(step, backend=compiler, fullgraph=True)
    with fm.use("second"):
        loss = compiled(*leaves(qkv))
    with fm.use("first"):
        loss.backward()
    assert (first.forwards + first.backwards, second.forwards, second.backwards) == (0, 1, 1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"window_size": 3},
        {"window_size": (3, 2)},
        {"window_size": 3, "causal": True},
        {"softmax_scale": 0.3},
    ],
    ids=str,
)
def test_every_way_to_state_a_mask_compiles(counted, qkv, options):
    compiled = torch.compile(lambda *a: fm.flashmask_attention(*a, **options), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*qkv), fm.flashmask_attention(*qkv, **options))


def test_raw_bounds_compile(counted, qkv):
    bounds = torch.full((1, 1, 12, 1), 9, dtype=torch.int32)
    compiled = torch.compile(
        lambda b, *a: fm.flashmask_attention(*a, b, causal=True), backend="aot_eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(bounds, *qkv), fm.flashmask_attention(*qkv, bounds, causal=True))


def test_new_lengths_do_not_need_a_mask_object_to_recompile_wrongly(counted):
    compiled = torch.compile(
        lambda x: fm.flashmask_attention(x, x, x, causal=True), backend="aot_eager", fullgraph=True
    )
    for length in (4, 9, 17):
        x = torch.randn(1, length, 2, 8)
        torch.testing.assert_close(compiled(x), fm.flashmask_attention(x, x, x, causal=True))


def test_errors_inside_a_compiled_region_name_the_shapes(counted, qkv):
    q, k, v = qkv
    with pytest.raises(Exception, match="head_dim differ"):
        torch.compile(lambda: fm.flashmask_attention(q[..., :8], k, v), backend="aot_eager", fullgraph=True)()


def test_export_keeps_the_op(counted, qkv):
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return fm.flashmask_attention(q, k, v, causal=True)

    program = torch.export.export(Block(), qkv).run_decompositions()
    assert "flashmask_attention_forward" in str(program.graph)
    torch.testing.assert_close(program.module()(*qkv), fm.flashmask_attention(*qkv, causal=True))


def test_fake_tensors(counted, qkv):
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in qkv]
        out, lse = fm.flashmask_attention(*fakes, causal=True, return_softmax_lse=True)
    assert out.shape == (2, 12, 4, 16)
    assert (lse.shape, lse.dtype) == ((2, 4, 12), torch.float32)
    assert counted[0].forwards == 0


def test_fake_tensors_of_a_device_that_is_not_there(counted):
    with FakeTensorMode():
        q = torch.empty(1, 6, 2, 8, device="cuda", dtype=torch.bfloat16)
        assert fm.flashmask_attention(q, q, q).device.type == "cuda"


def test_opcheck(counted, qkv):
    _attention_ops.define()
    q, k, v = leaves(qkv)
    mask = fm.masks.document([5, 7])
    args = (q, k, v, mask.planes, None, None, mask.mode, mask.kind, 0.25, 0.0, False, "first/dense")
    torch.library.opcheck(torch.ops.fmcore.flashmask_attention_forward.default, args)


def test_selective_checkpointing_runs_the_kernel_once(counted, qkv):
    first, _ = counted
    _attention_ops.define()
    saved = {torch.ops.fmcore.flashmask_attention_forward.default}

    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE

    def block(q, k, v):
        return fm.flashmask_attention(q * 2, k, v, causal=True).sin()

    plain, kept = leaves(qkv), leaves(qkv)
    block(*plain).sum().backward()
    count = first.forwards
    out = checkpoint(block, *kept, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))
    out.sum().backward()
    assert first.forwards == count + 1
    for a, b in zip(plain, kept, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_full_checkpointing_recomputes(counted, qkv):
    first, _ = counted
    plain, kept = leaves(qkv), leaves(qkv)
    fm.flashmask_attention(*plain).sum().backward()
    checkpoint(fm.flashmask_attention, *kept, use_reentrant=False).sum().backward()
    assert first.forwards == 3
    torch.testing.assert_close(plain[0].grad, kept[0].grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_torch_does(counted, qkv, dtype):
    with torch.autocast("cpu", dtype=dtype):
        out = fm.flashmask_attention(*qkv)
        assert out.dtype == dtype
        assert fm.flashmask_attention(*(t.double() for t in qkv)).dtype == torch.float64
    torch.testing.assert_close(out, fm.flashmask_attention(*(t.to(dtype) for t in qkv)))


def test_autocast_under_compile(counted, qkv):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return fm.flashmask_attention(q, k, v)

    assert step(*qkv).dtype == torch.bfloat16


def test_func_grad_is_refused_clearly(counted, qkv):
    q, k, v = qkv
    with pytest.raises(UnsupportedError, match=r"torch\.func transform.*torch\.autograd\.grad"):
        torch.func.grad(lambda x: fm.flashmask_attention(x, k, v).sum())(q)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_func_vmap_loops_over_the_kernel(counted, qkv):
    stacked = [torch.stack([t, t + 1]) for t in qkv]
    found = torch.func.vmap(fm.flashmask_attention)(*stacked)
    for index in range(2):
        torch.testing.assert_close(found[index], fm.flashmask_attention(*(t[index] for t in stacked)))


def test_flops_count_visible_pairs(counted):
    x = torch.randn(1, 12, 2, 16)
    for mask, pairs in ((fm.masks.full(12, 12), 144), (fm.masks.causal(12, 12), 78), (fm.masks.document([5, 7]), 74)):
        with FlopCounterMode(display=False) as counter:
            fm.flashmask_attention(x, x, x, mask=mask)
        assert counter.get_total_flops() == 2 * pairs * 2 * (16 + 16)


def test_a_graph_that_names_a_missing_implementation_says_so(plugin, qkv):
    _attention_ops.define()
    with pytest.raises(Exception, match=r"'gone/dense', which is not registered here.*trace again"):
        torch.ops.fmcore.flashmask_attention_forward(*qkv, None, None, None, 1, "full", 0.25, 0.0, False, "gone/dense")
