"""Inputs of attention cases: sizes, random tensors and the memory layouts that they may come in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from fmcore_conformance.cases import attention_masks

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from fmcore_conformance.cases.attention_masks import RawMask
    from fmcore_conformance.target import Target


@dataclass(frozen=True)
class Size:
    """Lengths of one call; ``dv`` None means ``d``."""

    b: int = 1
    s_q: int = 260
    s_k: int = 260
    h_q: int = 2
    h_kv: int = 2
    d: int = 64
    dv: int | None = None
    mask_heads: int = 1
    mask_batch: int = 1

    def vary(self, **changes: Any) -> Size:
        """A copy with some lengths changed."""
        return replace(self, **changes)

    @property
    def label(self) -> str:
        """The lengths in a case id."""
        text = f"b{self.b}-q{self.s_q}-k{self.s_k}-h{self.h_q}x{self.h_kv}-d{self.d}"
        text += f"x{self.dv}" if self.dv not in (None, self.d) else ""
        return text + (f"-m{self.mask_batch}x{self.mask_heads}" if (self.mask_heads, self.mask_batch) != (1, 1) else "")


@dataclass(frozen=True)
class Call:
    """Everything of one call, on the device under test."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: RawMask
    scale: float
    softcap: float = 0.0
    sink: Tensor | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def h_q(self) -> int:
        """Query heads."""
        return int(self.q.shape[2])

    def visible(self) -> Tensor:
        """Visible pairs for every query head, bool [1 or b, h_q, s_q, s_k], on the host."""
        return self.mask.for_heads(self.mask.dense(), self.h_q)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of the op."""
        found: dict[str, Any] = {"causal": self.mask.causal, "softmax_scale": self.scale, **self.extra}
        if self.softcap:
            found["softcap"] = self.softcap
        if self.sink is not None:
            found["sink"] = self.sink
        return found

    def startend(self) -> Tensor | None:
        """The bounds on the device of the query."""
        return None if self.mask.startend is None else self.mask.startend.to(self.q.device)

    def run(self, target: Target, **more: Any) -> tuple[Tensor, Tensor]:
        """The op under test."""
        return target.attention(self.q, self.k, self.v, self.startend(), **{**self.options(), **more})


def normal(g: Generator, *shape: int, dtype: str, scale: float = 1.0) -> Tensor:
    """Normal values rounded to ``dtype``."""
    return (torch.randn(*shape, generator=g, dtype=torch.float64) * scale).to(getattr(torch, dtype))


def make(
    target: Target,
    name: str,
    mask: str,
    size: Size,
    dtype: str,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    sink: bool = False,
    spread: float = 1.0,
    focus: bool = False,
    **extra: Any,
) -> Call:
    """A call with normal inputs.

    Args:
        target: Where the tensors go.
        name: Case name, the seed of the inputs.
        mask: A mask family.
        size: Lengths.
        dtype: Dtype of q, k and v.
        scale: Softmax scale; None for d ** -0.5.
        softcap: Soft cap.
        sink: Whether to give a sink.
        spread: Standard deviation of q, for large logits.
        focus: Whether one feature makes the scores, so that they are large without cancellation: the lse bound knows
            the size of a score and not that of its terms.
        **extra: Further keyword arguments of the op.
    """
    g = target.generator(name)
    dv = size.dv or size.d
    q = normal(g, size.b, size.s_q, size.h_q, size.d, dtype=dtype, scale=spread)
    if focus:
        q[..., 1:] *= 2.0**-8
    k = normal(g, size.b, size.s_k, size.h_kv, size.d, dtype=dtype)
    v = normal(g, size.b, size.s_k, size.h_kv, dv, dtype=dtype)
    raw = attention_masks.make(mask, s_q=size.s_q, s_k=size.s_k, g=g, batch=size.mask_batch, heads=size.mask_heads)
    extra_sink = torch.randn(size.h_q, generator=g, dtype=torch.float32) if sink else None
    return Call(
        target.put(q),
        target.put(k),
        target.put(v),
        raw,
        size.d**-0.5 if scale is None else scale,
        softcap,
        None if extra_sink is None else target.put(extra_sink),
        dict(extra),
    )


# Layouts: each takes a contiguous tensor and returns one with equal values and other strides or surroundings.


def heads_outside(x: Tensor) -> Tensor:
    """Stored as [b, h, s, d]."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def packed(x: Tensor) -> Tensor:
    """A slice of a packed projection [b, s, 3, h, d]."""
    big = torch.full((*x.shape[:2], 3, *x.shape[2:]), float("nan"), dtype=x.dtype, device=x.device)
    big[:, :, 1] = x
    return big[:, :, 1]


def padded(x: Tensor) -> Tensor:
    """The last dimension is a part of a longer one, filled with NaN behind."""
    big = torch.full((*x.shape[:-1], x.shape[-1] + 5), float("nan"), dtype=x.dtype, device=x.device)
    big[..., : x.shape[-1]] = x
    return big[..., : x.shape[-1]]


def every_other(x: Tensor) -> Tensor:
    """Last dimension with stride 2, NaN in between."""
    big = torch.full((*x.shape[:-1], x.shape[-1] * 2), float("nan"), dtype=x.dtype, device=x.device)
    big[..., ::2] = x
    return big[..., ::2]


def guarded(x: Tensor) -> Tensor:
    """Contiguous, with 1024 NaN elements of the same storage before and behind."""
    band = 1024
    big = torch.full((x.numel() + 2 * band,), float("nan"), dtype=x.dtype, device=x.device)
    big[band : band + x.numel()] = x.reshape(-1)
    return big[band : band + x.numel()].view(x.shape)


def far_apart(x: Tensor) -> Tensor:
    """Batch items more than 2**31 elements apart; only the pages that hold values are ever touched."""
    step = 2**31 + 4096
    inner = x[0].numel()
    big = torch.empty(step * (x.shape[0] - 1) + inner, dtype=x.dtype, device=x.device)
    view = big.as_strided(x.shape, (step, *x.stride()[1:]))
    view.copy_(x)
    return view


LAYOUTS = {
    "heads_outside": heads_outside,
    "packed": packed,
    "padded": padded,
    "stride_2": every_other,
    "guarded": guarded,
}
