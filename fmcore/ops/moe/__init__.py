"""The MoE ops: layout, dispatch and combine. They carry a process group and handles, so they are no torch schemas.

Checks that only one rank could fail are not made here: an exception on one rank would leave the others waiting. The
implementations make them (:mod:`fmcore.ops.moe.checks`) and raise on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fmcore.errors import InvalidInputError, UnsupportedError
from fmcore.ops._spec import OpSpec, ParamSpec
from fmcore.ops.moe.checks import layout_problem, no_sum_reason
from fmcore.ops.moe.types import DEFAULT_TIMEOUT, Handle, group_facts

__all__ = ["COMBINE", "DISPATCH", "LAYOUT", "SPECS"]


def _layout_features(tensors: tuple[Any, ...], params: Mapping[str, Any]) -> dict[str, Any]:
    ranks = group_facts(params["group"])[1]
    return {"topk": tensors[0].shape[-1] if tensors[0].ndim else 0, "local_experts": params["num_experts"] // ranks}


def _dispatch_features(tensors: tuple[Any, ...], params: Mapping[str, Any]) -> dict[str, Any]:
    x, _, topk_idx, _ = tensors
    target = params["target"]
    return {
        "topk": 0 if topk_idx is None or not topk_idx.ndim else topk_idx.shape[-1],
        "hidden": x.shape[-1] if x.ndim else 0,
        "local_experts": target.num_experts // target.num_ranks,
        "cached": isinstance(target, Handle),
        "worst_case": bool(params["num_worst_tokens"]),
    }


def _combine_features(tensors: tuple[Any, ...], params: Mapping[str, Any]) -> dict[str, Any]:
    y, _, first, second = tensors
    return {
        "hidden": y.shape[-1] if y.ndim else 0,
        "weighted": params["weighted"],
        "biases": (first is not None) + (second is not None),
    }


def _validate_layout(topk_idx: Any, *, num_experts: Any, group: Any) -> None:
    _, ranks = group_facts(group)
    problem = layout_problem(topk_idx, num_experts, ranks)
    if problem:
        # Shapes, E and R are the same program text on every rank: all raise here alike, before anything is sent.
        raise InvalidInputError(f"moe.layout: {problem}")


def _validate_combine(y: Any, *_: Any, handle: Any, weighted: bool) -> None:  # noqa: ARG001
    reason = no_sum_reason(y.dtype)
    if reason:
        raise UnsupportedError(f"moe.combine: rows of {y.dtype} cannot be combined by any backend: {reason}")


LAYOUT = OpSpec(
    name="moe.layout",
    family="moe",
    roles=("topk_idx",),
    params=(ParamSpec("num_experts", "int"), ParamSpec("group", "object")),
    feature_names=("topk", "local_experts"),
    features=_layout_features,
    validate=_validate_layout,
    differentiable=False,
    summary="Counts of tokens per rank and per expert, and the token-to-rank map; local.",
)

DISPATCH = OpSpec(
    name="moe.dispatch",
    family="moe",
    roles=("x", "scales", "topk_idx", "topk_weights"),
    optional=("scales", "topk_idx", "topk_weights"),
    params=(
        ParamSpec("target", "object"),
        ParamSpec("expert_alignment", "int", 1),
        ParamSpec("num_worst_tokens", "int", 0),
        ParamSpec("timeout", "float", DEFAULT_TIMEOUT),
    ),
    feature_names=("topk", "hidden", "local_experts", "cached", "worst_case"),
    features=_dispatch_features,
    summary="Send each token once to every rank that holds one of its experts.",
)

COMBINE = OpSpec(
    name="moe.combine",
    family="moe",
    roles=("y", "topk_weights", "bias0", "bias1"),
    optional=("topk_weights", "bias0", "bias1"),
    params=(ParamSpec("handle", "object"), ParamSpec("weighted", "bool", default=False)),
    outputs=2,
    feature_names=("hidden", "weighted", "biases"),
    features=_combine_features,
    validate=_validate_combine,
    summary="Sum a dispatch's rows back at their tokens: fp32, ranks ascending, bias first, one rounding.",
)

SPECS = (LAYOUT, DISPATCH, COMBINE)
