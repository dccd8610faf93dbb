"""What the properties share: who they are, exact comparison, and one way to send and to expect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import fmcore as fm
from fmcore.errors import InvalidInputError
from fmcore.reference import moe as oracle
from fmcore_conformance.moe.inputs import Routing, bits, coded, normal

Check = Callable[[Any, "str | None", str], None]
PROPERTIES: dict[str, Check] = {}
"""Every property by its id, in the order of the property list."""

dispatch: Any = fm.moe.dispatch
"""The public calls, loosely typed: a check looks at what it gets."""
combine: Any = fm.moe.combine


def prop(name: str) -> Callable[[Check], Check]:
    """Register a property."""

    def keep(check: Check) -> Check:
        PROPERTIES[name] = check
        return check

    return keep


def seat(group: Any) -> tuple[int, int]:
    return (0, 1) if group is None else (group.rank(), group.size())


def same(got: torch.Tensor | None, want: torch.Tensor | None, what: str) -> None:
    """Bitwise equality, with the place of the first difference."""
    assert got is not None, f"{what}: nothing was returned"
    assert want is not None
    got = got.detach().cpu()
    want = want.detach().cpu()
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, want {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, want {tuple(want.shape)}"
    if got.numel() == 0:
        return
    differs = (
        bits(got.reshape(got.shape[0], -1)).reshape(got.shape[0], -1)
        != bits(want.reshape(want.shape[0], -1)).reshape(got.shape[0], -1)
    ).any(1)
    if bool(differs.any()):
        row = int(differs.nonzero()[0, 0])
        raise AssertionError(
            f"{what}: row {row} of {got.shape[0]} differs: got {got[row].flatten()[:6]}, want {want[row].flatten()[:6]}"
        )


def send(
    group: Any,
    r: Routing,
    payload: Any,
    backend: str | None,
    device: str,
    *,
    idx_dtype: torch.dtype = torch.int64,
    **options: Any,
) -> Any:
    me, _ = seat(group)
    idx = r.idx[me].to(device, idx_dtype)
    move = payload.to(device) if isinstance(payload, torch.Tensor) else tuple(p.to(device) for p in payload)
    layout = fm.moe.layout(idx, r.num_experts, group=group, backend=backend)
    return dispatch(move, layout, idx, r.weights[me].to(device), backend=backend, **options)


def expected(r: Routing, dtype: torch.dtype, hidden: int, **options: Any) -> list[oracle.ReferenceRank]:
    xs = [coded(dtype, t, hidden, rank) for rank, t in enumerate(r.tokens)]
    return oracle.dispatch(xs, r.idx, r.weights, r.num_experts, **options)


def compare_dispatch(sent: Any, want: oracle.ReferenceRank, what: str) -> None:
    n = len(want.src)
    src = torch.tensor(want.src, dtype=torch.int32).reshape(-1, 2)
    same(sent.handle.src_rank[:n], src[:, 0], f"{what}: source ranks")
    same(sent.handle.src_token[:n], src[:, 1], f"{what}: source tokens")
    same(sent.x[:n], want.x, f"{what}: rows")
    same(sent.topk_idx[:n].to(torch.int64), want.topk_idx, f"{what}: local expert numbers")
    same(sent.topk_weights[:n], want.topk_weights, f"{what}: weights")


def everywhere(group: Any, call: Callable[[], Any], *words: str, kind: type[Exception] = InvalidInputError) -> None:
    """The call raises the same exception on every rank, and its text has the words."""
    said = "nothing was raised"
    try:
        call()
    except kind as error:
        said = f"{type(error).__name__}: {error}"
    texts = [said]
    if group is not None:
        texts = [""] * group.size()
        dist.all_gather_object(texts, said, group=group)
    assert len(set(texts)) == 1, f"the ranks say different things: {texts}"
    for word in words:
        assert word in said, f"{word!r} is missing from: {said}"


def combined_equals_oracle(
    group: Any, r: Routing, dtype: torch.dtype, hidden: int, backend: str | None, device: str, biases: int
) -> None:
    me, ranks = seat(group)
    want_ranks = oracle.dispatch([torch.zeros(t, 1) for t in r.tokens], r.idx, r.weights, r.num_experts)
    ys = [normal(dtype, len(w.src), hidden, seed=50 + rank) for rank, w in enumerate(want_ranks)]
    bias = [
        [normal(dtype, t, hidden, seed=70 + 10 * rank + n) for n in range(biases)] for rank, t in enumerate(r.tokens)
    ]
    want = oracle.combine(ys, want_ranks, r.tokens, bias=bias)
    sent = send(group, r, torch.zeros(r.tokens[me], 1), backend, device)
    got, _ = combine(ys[me].to(device), sent.handle, bias=[b.to(device) for b in bias[me]])
    same(got, want[me], f"combine of {dtype} over {ranks} ranks with {biases} biases")
