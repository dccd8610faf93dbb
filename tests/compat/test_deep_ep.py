"""A caller written from DeepEP V1's public documentation, with its import changed, over two and three processes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from fmcore.compat import deep_ep
from fmcore.errors import InvalidInputError, UnsupportedError
from fmcore.moe.low_latency import dequantise_fp8, quantise_fp8
from fmcore_conformance.distributed import run_world, values

TOKENS, HIDDEN, TOPK, LOCAL = 17, 256, 3, 4


def inputs(group: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    generator = torch.Generator().manual_seed(group.rank())
    experts = LOCAL * group.size()
    tokens = TOKENS - group.rank()
    x = torch.randn(tokens, HIDDEN, generator=generator).to(torch.bfloat16)
    idx = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :TOPK].to(deep_ep.topk_idx_t)
    idx[0] = -1
    return x, idx, torch.rand(tokens, TOPK, generator=generator), experts


def normal_mode(group: Any) -> str:
    """Layout, dispatch, experts, combine, and both backward directions, as the documentation's example does."""
    x, topk_idx, topk_weights, num_experts = inputs(group)
    deep_ep.Buffer.set_num_sms(24)
    config = deep_ep.Buffer.get_dispatch_config(group.size())
    size = max(
        config.get_nvl_buffer_size_hint(HIDDEN * 2, group.size()),
        deep_ep.Buffer.get_combine_config(group.size()).get_nvl_buffer_size_hint(HIDDEN * 2, group.size()),
    )
    buffer = deep_ep.Buffer(group, size, 0)
    previous_event = deep_ep.Buffer.capture()

    per_rank, per_rdma_rank, per_expert, in_rank, previous_event = buffer.get_dispatch_layout(
        topk_idx,
        num_experts,
        previous_event=previous_event,
        async_finish=True,
        allocate_on_comm_stream=previous_event is not None,
    )
    assert per_rdma_rank is None
    recv_x, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(
        x, topk_idx=topk_idx, topk_weights=topk_weights, num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_rdma_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
        previous_event=previous_event, async_finish=True,
        allocate_on_comm_stream=True, expert_alignment=8,
    )  # fmt: skip
    event.current_stream_wait()
    assert isinstance(counts, list)
    assert counts == [-(-int((recv_idx == e).sum()) // 8) * 8 for e in range(LOCAL)]
    prefix, channels, recv_channels, src_idx, same_in_rank, send_head = handle
    assert prefix.shape == (group.size(), group.size())
    assert int(prefix[-1, group.rank()]) == recv_x.shape[0] == src_idx.shape[0]
    assert torch.equal(channels[:, -1], per_rank)
    assert recv_channels.shape == channels.shape
    assert torch.equal(same_in_rank, in_rank)
    assert torch.equal(send_head >= 0, in_rank)
    assert torch.equal(send_head.max(0).values + 1, per_rank)

    scale = torch.where(recv_idx >= 0, recv_weights, 0).sum(1, keepdim=True)
    combined_x, combined_weights, event = buffer.combine(
        (recv_x.float() * scale).to(torch.bfloat16), handle, topk_weights=recv_weights, async_finish=True
    )
    with event:
        pass
    want = torch.where(topk_idx >= 0, topk_weights, 0)
    assert torch.equal(combined_weights, want)
    expected = x.float() * want.sum(1, keepdim=True)
    assert float((combined_x.float() - expected).abs().max()) < 0.05 * float(expected.abs().max())

    cached = buffer.dispatch(x, handle=handle, config=config, async_finish=False)
    assert len(cached) == 6
    assert torch.equal(cached[0], recv_x)
    assert cached[1:5] == (None, None, None, None)
    bias = (torch.ones_like(x), x)
    with_bias, none, _ = buffer.combine(recv_x, handle, bias=bias)
    assert none is None
    reach = in_rank.sum(1, keepdim=True)
    assert torch.allclose(with_bias.float(), 1 + x.float() * (1 + reach), atol=0.05)
    padded = buffer.dispatch(
        x,
        topk_idx=topk_idx,
        topk_weights=topk_weights,
        num_tokens_per_rank=per_rank,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        num_worst_tokens=TOKENS * group.size(),
    )
    assert padded[3] == []
    assert torch.equal(padded[0][: recv_x.shape[0]], recv_x)
    assert bool((padded[1][recv_x.shape[0] :] == -1).all())
    buffer.destroy()
    try:
        buffer.combine(recv_x, handle)
    except InvalidInputError:
        return "ok"
    return "a destroyed buffer still works"


def low_latency_mode(group: Any, use_fp8: bool) -> str:
    x, topk_idx, topk_weights, num_experts = inputs(group)
    ranks, most = group.size(), TOKENS
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(most, HIDDEN, ranks, num_experts)
    buffer = deep_ep.Buffer(group, 0, size, low_latency_mode=True, num_qps_per_rank=num_experts // ranks)
    buffer.clean_low_latency_buffer(most, HIDDEN, num_experts)
    stats = torch.zeros(LOCAL, dtype=torch.int32)
    recv_x, recv_count, handle, event, hook = buffer.low_latency_dispatch(
        x, topk_idx, most, num_experts, cumulative_local_expert_recv_stats=stats, use_fp8=use_fp8, return_recv_hook=True
    )
    hook()
    event.current_stream_wait()
    src_info, layout_range, m, h, e = handle
    assert (m, h, e) == (most, HIDDEN, num_experts)
    assert torch.equal(stats, recv_count)
    if use_fp8:
        assert recv_x[0].dtype == torch.float8_e4m3fn
        assert recv_x[1].shape == (LOCAL, ranks * most, HIDDEN // 128)
        assert recv_x[1].stride(1) == 1
        rows = dequantise_fp8(recv_x[0], recv_x[1]).to(torch.bfloat16)
    else:
        rows = recv_x
    assert rows.shape == (LOCAL, ranks * most, HIDDEN)
    sources = [inputs(_As(rank, ranks)) for rank in range(ranks)]
    for expert in range(LOCAL):
        begin = 0
        for rank, (sx, sidx, _, _) in enumerate(sources):
            tokens = (sidx == group.rank() * LOCAL + expert).any(1).nonzero()[:, 0]
            word = int(layout_range[expert, rank])
            assert (word >> 32, word & 0xFFFFFFFF) == (begin, len(tokens))
            assert src_info[expert, begin : begin + len(tokens)].tolist() == tokens.tolist()
            got, want = rows[expert, begin : begin + len(tokens)].float(), sx[tokens].float()
            if use_fp8:
                assert bool(((got - want).abs() <= 0.07 * want.abs().amax(-1, keepdim=True)).all())
            else:
                assert torch.equal(got, want)
            begin += len(tokens)
        assert int(recv_count[expert]) == begin
    zero_copy = buffer.get_next_low_latency_combine_buffer(handle)
    zero_copy[:] = rows
    out = torch.empty_like(x)
    combined, event, hook = buffer.low_latency_combine(
        zero_copy, topk_idx, topk_weights, handle, zero_copy=True, out=out
    )
    hook()
    assert combined is out
    expected = x.float() * torch.where(topk_idx >= 0, topk_weights, 0).sum(1, keepdim=True)
    error = float((combined.float() - expected).norm() / expected.norm())
    assert error < (0.04 if use_fp8 else 0.004), error
    assert bool((combined[0] == 0).all())
    return "ok"


class _As:
    """The seat of another rank."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


@pytest.mark.parametrize("ranks", [2, 3])
def test_normal_mode(ranks: int) -> None:
    assert values(run_world(normal_mode, ranks, timeout=60.0, group_timeout=15.0)) == ["ok"] * ranks


@pytest.mark.parametrize("use_fp8", [False, True])
def test_low_latency_mode(use_fp8: bool) -> None:
    assert values(run_world(low_latency_mode, 2, use_fp8, timeout=60.0, group_timeout=15.0)) == ["ok"] * 2


SIGNATURES = {
    "__init__": (
        "group num_nvl_bytes num_rdma_bytes low_latency_mode num_qps_per_rank "
        "allow_nvlink_for_low_latency_mode allow_mnnvl use_fabric explicitly_destroy enable_shrink comm"
    ),
    "get_dispatch_layout": ("topk_idx num_experts previous_event async_finish allocate_on_comm_stream"),
    "dispatch": (
        "x handle num_tokens_per_rank num_tokens_per_rdma_rank is_token_in_rank num_tokens_per_expert "
        "topk_idx topk_weights expert_alignment num_worst_tokens config previous_event async_finish "
        "allocate_on_comm_stream"
    ),
    "combine": ("x handle topk_weights bias config previous_event async_finish allocate_on_comm_stream"),
    "low_latency_dispatch": (
        "x topk_idx num_max_dispatch_tokens_per_rank num_experts cumulative_local_expert_recv_stats "
        "dispatch_wait_recv_cost_stats use_fp8 round_scale use_ue8m0 async_finish return_recv_hook"
    ),
    "low_latency_combine": (
        "x topk_idx topk_weights handle use_logfmt zero_copy async_finish return_recv_hook out "
        "combine_wait_recv_cost_stats"
    ),
}


@pytest.mark.parametrize("method", SIGNATURES)
def test_signatures(method: str) -> None:
    names = list(inspect.signature(getattr(deep_ep.Buffer, method)).parameters)[1:]
    assert names == SIGNATURES[method].split()


def test_what_cannot_be_honoured_raises() -> None:
    with pytest.raises(UnsupportedError, match="mpi4py"):
        deep_ep.Buffer(None, comm=object())
    with pytest.raises(UnsupportedError, match="dead ranks"):
        deep_ep.Buffer(None, enable_shrink=True)
    buffer = deep_ep.Buffer(None, low_latency_mode=True)
    x, idx = torch.ones(2, 128), torch.tensor([[0], [1]])
    with pytest.raises(UnsupportedError, match="use_ue8m0"):
        buffer.low_latency_dispatch(x, idx, 2, 2, use_ue8m0=True)
    with pytest.raises(InvalidInputError, match="multiple of 128"):
        buffer.low_latency_dispatch(x[:, :100], idx, 2, 2)
    with pytest.raises(InvalidInputError, match="more than num_max"):
        buffer.low_latency_dispatch(x, idx, 1, 2)
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, 2, 2, use_fp8=False)
    with pytest.raises(UnsupportedError, match="logfmt"):
        buffer.low_latency_combine(rows, idx, torch.ones(2, 1), handle, use_logfmt=True)
    with pytest.raises(InvalidInputError, match="not what was dispatched"):
        buffer.low_latency_combine(rows, idx.flip(0), torch.ones(2, 1), handle)
    with pytest.raises(InvalidInputError, match="exclude each other"):
        buffer.low_latency_dispatch(x, idx, 2, 2, async_finish=True, return_recv_hook=True)
    with pytest.raises(InvalidInputError, match="even"):
        deep_ep.Buffer.set_num_sms(7)
    with pytest.raises(InvalidInputError, match="low_latency_mode=True"):
        deep_ep.Buffer(None).low_latency_dispatch(x, idx, 2, 2)


def fp8_from_one_rank(group: Any) -> tuple[list[int], float]:
    tokens = 0 if group.rank() == 1 else 3
    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    idx = torch.ones(tokens, 1, dtype=torch.int64)
    x = torch.ones(tokens, 256, dtype=torch.bfloat16)
    rows, count, handle, _, hook = buffer.low_latency_dispatch(x, idx, 3, 2, use_fp8=True, return_recv_hook=True)
    hook()
    back, _, _ = buffer.low_latency_combine(
        dequantise_fp8(*rows).to(torch.bfloat16), idx, torch.ones(tokens, 1), handle
    )
    return count.tolist(), float(back.sum())


def test_a_rank_without_tokens_quantises_nothing() -> None:
    assert values(run_world(fp8_from_one_rank, 2, timeout=60.0)) == [([0], 768.0), ([3], 0.0)]


def test_quantising_heeds_strides() -> None:
    x = torch.randn(256, 6, dtype=torch.bfloat16).t()
    for strided, dense in zip(quantise_fp8(x), quantise_fp8(x.contiguous()), strict=True):
        assert torch.equal(strided.to(torch.float32), dense.to(torch.float32))
