"""A tiny decoder whose arithmetic is all fmcore: document mask, rms_norm, rotary, swiglu and experts over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import fmcore as fm


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model."""

    vocabulary: int = 128
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    layers: int = 2
    experts: int = 4
    topk: int = 2
    hidden: int = 96
    sequence: int = 128

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.width // self.heads


def weights(*shape: int, seed: int) -> nn.Parameter:
    """Make a parameter; ``seed`` makes it the same, or different, on the ranks."""
    generator = torch.Generator().manual_seed(seed)
    return nn.Parameter(torch.randn(*shape, generator=generator) * shape[-2] ** -0.5)


class Experts(nn.Module):
    """Top-k of E gated experts; this rank holds E / R of them."""

    def __init__(self, shape: Shape, group: Any, seed: int) -> None:
        super().__init__()
        self.shape, self.group = shape, group
        rank, ranks = (0, 1) if group is None else (group.rank(), group.size())
        local = shape.experts // ranks
        self.router = weights(shape.width, shape.experts, seed=seed)
        for n, name in enumerate(("gate", "up")):
            every = weights(shape.experts, shape.width, shape.hidden, seed=seed + 1 + n)
            setattr(self, name, nn.Parameter(every[rank * local : (rank + 1) * local].detach().clone()))
        every = weights(shape.experts, shape.hidden, shape.width, seed=seed + 3)
        self.down = nn.Parameter(every[rank * local : (rank + 1) * local].detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts for rows [T, width]."""
        weight, idx = fm.math.topk_gate(fm.math.matmul(x, self.router), self.shape.topk)
        sent = fm.moe.dispatch(x, fm.moe.layout(idx, self.shape.experts, group=self.group), idx, weight, timeout=60.0)
        rows = fm.moe.to_experts(sent)
        inner = fm.math.swiglu(
            fm.math.grouped_matmul(rows.rows, self.gate, rows.ends),
            fm.math.grouped_matmul(rows.rows, self.up, rows.ends),
        )
        slots = fm.moe.from_experts(fm.math.grouped_matmul(inner, self.down, rows.ends), rows)
        return fm.moe.combine(slots, sent.handle, sent.topk_weights, weighted=True)[0]


class Layer(nn.Module):
    """Attention and experts, each behind an rms_norm, with residuals."""

    def __init__(self, shape: Shape, group: Any, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.norms = nn.ParameterList([nn.Parameter(torch.ones(shape.width)) for _ in range(2)])
        kv = shape.kv_heads * shape.head_dim
        self.q, self.k = weights(shape.width, shape.width, seed=seed), weights(shape.width, kv, seed=seed + 1)
        self.v, self.o = weights(shape.width, kv, seed=seed + 2), weights(shape.width, shape.width, seed=seed + 3)
        self.experts = Experts(shape, group, seed + 10)

    def forward(self, x: Tensor, mask: Any, cos: Tensor, sin: Tensor) -> Tensor:
        """Return [b, s, width]."""
        normed = fm.math.rms_norm(x, self.norms[0])
        q, k, v = (fm.math.matmul(normed, w).unflatten(-1, (-1, self.shape.head_dim)) for w in (self.q, self.k, self.v))
        q, k = fm.math.rotary(q, cos, sin), fm.math.rotary(k, cos, sin)
        seen = fm.flashmask_attention(q, k, v, mask=mask).flatten(2)
        x = fm.math.add(x, fm.math.matmul(seen, self.o))
        rows = fm.math.rms_norm(x, self.norms[1]).flatten(0, 1)
        return fm.math.add(x, self.experts(rows).view_as(x))


class Decoder(nn.Module):
    """Bytes in, logits over the next byte out."""

    def __init__(self, shape: Shape, group: Any) -> None:
        super().__init__()
        self.embedding = weights(shape.vocabulary, shape.width, seed=1)
        self.layers = nn.ModuleList([Layer(shape, group, 100 * (n + 1)) for n in range(shape.layers)])
        self.norm = nn.Parameter(torch.ones(shape.width))
        self.head = weights(shape.width, shape.vocabulary, seed=2)
        angle = torch.arange(shape.sequence)[:, None] * 1e4 ** -(
            torch.arange(shape.head_dim // 2) / (shape.head_dim // 2)
        )
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, hot: Tensor, mask: Any) -> Tensor:
        """Return logits [b, s, vocabulary] of one-hot tokens [b, s, vocabulary]."""
        x = fm.math.matmul(hot, self.embedding)
        for layer in self.layers:
            x = layer(x, mask, self.cos, self.sin)
        return fm.math.matmul(fm.math.rms_norm(x, self.norm), self.head)


def one_hot(tokens: Tensor, vocabulary: int) -> Tensor:
    """Return fp32 [..., vocabulary]."""
    return fm.math.astype(
        fm.math.equal(tokens[..., None], torch.arange(vocabulary, device=tokens.device)), torch.float32
    )


def cross_entropy(logits: Tensor, hot: Tensor) -> Tensor:
    """Return the mean of ``logsumexp(logits) - logits[target]``."""
    chosen = fm.math.sum(fm.math.multiply(logits, hot), axis=-1)
    return fm.math.mean(fm.math.subtract(fm.math.logsumexp(logits, axis=-1), chosen))
