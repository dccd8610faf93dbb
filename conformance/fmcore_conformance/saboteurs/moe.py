"""MoE saboteurs: the framework backend in one process, with its arguments or results changed on the way."""

# ruff: noqa: ARG001, D101 (each class is one planted fault: its name and kind say which)

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fmcore.dispatch.plugins import MANAGER, impls_of
from fmcore.ops.moe.types import Handle
from fmcore_conformance.saboteurs.base import Saboteur
from fmcore_conformance.unclaimed import register_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcore.dispatch.registrar import Registrar


class Honest:
    """Calls the framework's functions; a fault overrides one method."""

    kind: str | None = None
    globs: tuple[str, ...] = ("moe/local/*", "moe/train/*", "moe/dtypes/*")

    def layout(self, fn: Callable[..., Any], topk_idx: Any, **params: Any) -> Any:
        return fn(topk_idx, **params)

    def dispatch(self, fn: Callable[..., Any], x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        return fn(x, scales, topk_idx, weights, **params)

    def combine(self, fn: Callable[..., Any], y: Any, weights: Any, bias0: Any, bias1: Any, **params: Any) -> Any:
        return fn(y, weights, bias0, bias1, **params)


def _again(fn: Callable[..., Any], topk_idx: Any, target: Any) -> Any:
    """A layout made anew from changed indices."""
    layout = next(i.fn for i in impls_of("torch") if i.op == "moe.layout")
    return layout(topk_idx, num_experts=target.num_experts, group=target.group)


class TokenLost(Honest):
    kind = "token-lost"
    globs = ("moe/local/D1-D4/*", "moe/local/S1/*")

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        if topk_idx is not None and not isinstance(params["target"], Handle) and topk_idx.shape[0]:
            topk_idx = topk_idx.clone()
            topk_idx[-1] = -1
            params["target"] = _again(fn, topk_idx, params["target"])
        return fn(x, scales, topk_idx, weights, **params)


class MinusOneIsZero(Honest):
    kind = "minus-one-expert"
    globs = ("moe/local/D1-D4/*", "moe/local/L*")

    def layout(self, fn: Any, topk_idx: Any, **params: Any) -> Any:
        return fn(torch.where(topk_idx == -1, 0, topk_idx), **params)


class PayloadTouched(Honest):
    kind = "payload-touched"
    globs = ("moe/local/dispatch-*", "moe/local/D1-D4/*")

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        if x.is_floating_point() and x.element_size() > 1:
            x = torch.nan_to_num(x)
        return fn(x, scales, topk_idx, weights, **params)


class RowsReversed(Honest):
    kind = "row-order"
    globs = ("moe/local/D1-D4/*",)

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        sent = fn(x, scales, topk_idx, weights, **params)
        return replace(sent, x=sent.x.flip(0)) if isinstance(sent.x, torch.Tensor) else sent


class TokenDuplicated(Honest):
    kind = "token-duplicated"
    globs = ("moe/local/D8/*", "moe/dtypes/dispatch-call/*")

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        sent = fn(x, scales, topk_idx, weights, **params)
        if not isinstance(sent.x, torch.Tensor) or sent.x.shape[0] == 0:
            return sent
        handle = sent.handle
        twice = replace(
            handle,
            num_rows=handle.num_rows + 1,
            src_rank=torch.cat([handle.src_rank, handle.src_rank[-1:]]),
            src_token=torch.cat([handle.src_token, handle.src_token[-1:]]),
        )
        more = {n: torch.cat([t, t[-1:]]) for n in ("topk_idx", "topk_weights") if (t := getattr(sent, n)) is not None}
        return replace(sent, x=torch.cat([sent.x, sent.x[-1:]]), handle=twice, **more)


class WeightTwice(Honest):
    kind = "weight-twice"
    globs = ("moe/local/C3/*", "moe/local/C1/*")

    def combine(self, fn: Any, y: Any, weights: Any, bias0: Any, bias1: Any, **params: Any) -> Any:
        if params["weighted"] and weights is not None:
            weights = weights * weights
        return fn(y, weights, bias0, bias1, **params)


class HandleShared(Honest):
    kind = "handle-shared"
    globs = ("moe/train/R2/*",)

    def __init__(self) -> None:
        self._last: Handle | None = None

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        sent = fn(x, scales, topk_idx, weights, **params)
        self._last = sent.handle
        return sent

    def combine(self, fn: Any, y: Any, weights: Any, bias0: Any, bias1: Any, **params: Any) -> Any:
        last = self._last or params["handle"]
        rows = y.new_zeros((last.num_rows, *y.shape[1:]))
        rows[: y.shape[0]] = y[: last.num_rows]
        return fn(rows, weights, bias0, bias1, handle=last, weighted=params["weighted"])


class Unaligned(Honest):
    kind = "counts-alignment"
    globs = ("moe/local/D5/*",)

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        return fn(x, scales, topk_idx, weights, **{**params, "expert_alignment": 1})


class CountsDeduplicated(Honest):
    kind = "counts-dedup"
    globs = ("moe/local/L1/*",)

    def layout(self, fn: Any, topk_idx: Any, **params: Any) -> Any:
        made = fn(topk_idx, **params)
        return replace(made, num_tokens_per_expert=fn(topk_idx[:, :1], **params).num_tokens_per_expert)


class ScalesLost(Honest):
    kind = "scales-lost"
    globs = ("moe/local/pair-*", "moe/local/S6/*")

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        return fn(x, None if scales is None else torch.ones_like(scales), topk_idx, weights, **params)


class SlotsSorted(Honest):
    kind = "slot-order"
    globs = ("moe/local/D1-D4/*",)

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        sent = fn(x, scales, topk_idx, weights, **params)
        if sent.topk_idx is None:
            return sent
        return replace(sent, topk_idx=sent.topk_idx.sort(1, descending=True).values)


class GlobalExpertIds(Honest):
    """One process has equal local and global numbers: planted as an offset that a second rank would see."""

    kind = "local-expert-ids"
    globs = ("moe/local/D1-D4/*",)

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        sent = fn(x, scales, topk_idx, weights, **params)
        if sent.topk_idx is None:
            return sent
        return replace(sent, topk_idx=torch.where(sent.topk_idx >= 0, sent.topk_idx + sent.handle.num_experts, -1))


class WeightsNotReturned(Honest):
    kind = "combine-weights"
    globs = ("moe/local/C1/*",)

    def combine(self, fn: Any, y: Any, weights: Any, bias0: Any, bias1: Any, **params: Any) -> Any:
        out, back = fn(y, weights, bias0, bias1, **params)
        return out, None if back is None else torch.zeros_like(back)


class BiasDropped(Honest):
    kind = "bias-dropped"
    globs = ("moe/local/C4/*",)

    def combine(self, fn: Any, y: Any, weights: Any, bias0: Any, bias1: Any, **params: Any) -> Any:
        out, back = fn(y, weights, bias0, bias1, **params)
        nowhere = ~params["handle"].is_token_in_rank.any(1)
        return out.masked_fill(nowhere.unsqueeze(1), 0), back


class NotAdjoint(Honest):
    kind = "adjoint"
    globs = ("moe/train/A1/*", "moe/train/A2/*")

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        sent = fn(x, scales, topk_idx, weights, **params)
        return replace(sent, x=sent.x + 0 * sent.x.sum() + sent.x - sent.x.detach()) if sent.x.requires_grad else sent


class LowSum(Honest):
    kind = "low-accumulation"
    globs = ("moe/local/C2/*", "moe/local/combine-bfloat16/*")

    def combine(self, fn: Any, y: Any, weights: Any, bias0: Any, bias1: Any, **params: Any) -> Any:
        out, back = fn(y, weights, None, None, **params)
        for bias in (bias0, bias1):
            out = out if bias is None else out + bias
        return out, back


class Unstable(Honest):
    kind = "nondeterministic"
    globs = ("moe/train/R1/*",)
    turn = 0

    def combine(self, fn: Any, y: Any, weights: Any, bias0: Any, bias1: Any, **params: Any) -> Any:
        self.turn += 1
        out, back = fn(y, weights, bias0, bias1, **params)
        return out * (1 + 2.0**-7 * (self.turn % 2)), back


class IgnoresStrides(Honest):
    kind = "swapped-strides"
    globs = ("moe/local/S6/*",)

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        if not x.is_contiguous() and x.dim() == 2 and x.stride(0) == 1:
            x = x.t().contiguous().view(x.shape)
        return fn(x, scales, topk_idx, weights, **params)


class WrongDtype(Honest):
    kind = "wrong-dtype"
    globs = ("moe/dtypes/combine-call/*",)

    def combine(self, fn: Any, y: Any, weights: Any, bias0: Any, bias1: Any, **params: Any) -> Any:
        out, back = fn(y, weights, bias0, bias1, **params)
        return out.to(torch.float32) if out.dtype == torch.bfloat16 else out, back


class AliasedRows(Honest):
    """Received rows are laid over the input's memory."""

    kind = "output-alias"
    globs = ("moe/dtypes/dispatch-call/*",)

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        sent = fn(x, scales, topk_idx, weights, **params)
        rows = sent.x
        if not isinstance(rows, torch.Tensor) or not x.is_contiguous() or rows.shape[0] > x.shape[0]:
            return sent
        return replace(sent, x=x.detach()[: rows.shape[0]].copy_(rows))


class InputZeroed(Honest):
    kind = "input-written"
    globs = ("moe/dtypes/dispatch-call/*",)

    def dispatch(self, fn: Any, x: Any, scales: Any, topk_idx: Any, weights: Any, **params: Any) -> Any:
        sent = fn(x, scales, topk_idx, weights, **params)
        x.detach()[-1:].zero_()
        return sent


def _name(implementation: type[Honest]) -> str:
    return "sabotage_moe" + "".join(f"_{c.lower()}" if c.isupper() else c for c in implementation.__name__)


def _wrapped(method: Callable[..., Any], fn: Callable[..., Any], maker: str, *tensors: Any, **params: Any) -> Any:
    """The changed call; the handle names this backend, so that combine comes back here."""
    result = method(fn, *tensors, **params)
    if hasattr(result, "handle"):
        return replace(result, handle=replace(result.handle, impl=maker))
    return result


def _registration(name: str, implementation: type[Honest]) -> Callable[[Registrar], None]:
    def register(registrar: Registrar) -> None:
        MANAGER.load_all()
        made = implementation()
        for impl in impls_of("torch"):
            if impl.op.startswith("moe."):
                method = getattr(made, impl.op.removeprefix("moe."))
                register_again(registrar, impl, fn=partial(_wrapped, method, impl.fn, f"{name}/{impl.name}"))

    return register


def saboteurs() -> list[Saboteur]:
    """Every fault, and the honest twin."""
    honest = Saboteur("honest_moe", None, "moe", _registration("honest_moe", Honest))
    faulty = Honest.__subclasses__()
    return [honest, *(Saboteur(_name(c), c.kind, "moe", _registration(_name(c), c), c.globs) for c in faulty)]
