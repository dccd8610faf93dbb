"""The MoE cases: every property in one process and over worlds of 2 to 8, dtype coverage, late and missing ranks.

The properties themselves are in ``fmcore_conformance.moe``: id-coded payloads compared bit for bit with the oracle.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import fmcore
from fmcore.ops.moe.checks import no_sum_reason
from fmcore_conformance.cases import moe_worlds as worlds
from fmcore_conformance.kinds import check_kinds
from fmcore_conformance.measure import check_bits, exact
from fmcore_conformance.model import DTYPES, Case, Measurement, Mismatch
from fmcore_conformance.moe import PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcore_conformance.target import Target

#: Fault kinds that a property is written to detect.
KINDS_OF: dict[str, tuple[str, ...]] = {
    "L1": ("counts-dedup", "minus-one-expert"),
    "L2": ("minus-one-expert",),
    "D1-D4": ("token-lost", "row-order", "local-expert-ids", "slot-order", "minus-one-expert", "payload-touched"),
    "D5": ("counts-alignment", "counts-dedup"),
    "D6": ("token-lost",),
    "D7": ("handle-shared", "payload-touched"),
    "D8": ("token-duplicated",),
    "C1": ("combine-weights", "weight-twice", "token-duplicated"),
    "C2": ("low-accumulation",),
    "C3": ("weight-twice", "slot-order"),
    "C4": ("bias-dropped",),
    "A1": ("adjoint",),
    "A2": ("adjoint",),
    "S1": ("token-lost",),
    "S6": ("swapped-strides", "scales-lost"),
    "R1": ("nondeterministic",),
    "R2": ("handle-shared",),
    "R7": ("one-sided-error",),
}
#: What the ops' own contract excludes: indices are integers of 32 or 64 bits, and some rows have no sum.
REFUSED: dict[str, frozenset[str]] = {
    "moe.layout": frozenset(DTYPES) - {"int32", "int64"},
    "moe.dispatch": frozenset(),
    "moe.combine": frozenset(d for d in DTYPES if no_sum_reason(getattr(torch, d))),
}
TRAIN = frozenset({"A1", "A2", "R1", "R2", "R7"})
SIZES = (2, 3, 4, 8)
#: At 8 ranks on a small machine: the properties that depend on the number of ranks most.
AT_EIGHT = frozenset({"D1-D4", "D5", "D8", "C1", "C2", "S1", "R7"})


def cases(target: Target) -> Iterator[Case]:
    """All MoE cases."""
    yield from _coverage()
    for name in PROPERTIES:
        topic, level = ("train", "L3") if name in TRAIN else ("local", "L2")
        yield _case(topic, name, level, partial(_local, name))
    if torch.device(target.device).type != "cpu":  # the worlds of this suite speak gloo over host memory
        return
    for ranks in SIZES:
        for name in PROPERTIES:
            if ranks < 8 or name in AT_EIGHT:
                first = ranks == 2 and name in (
                    "D1-D4",
                    "C2",
                    "dispatch/bool",
                    "dispatch/complex64",
                    "combine/bfloat16",
                )
                yield _case(
                    f"world{ranks}",
                    name,
                    "L4",
                    partial(_world, name, ranks),
                    world=ranks,
                    timeout=240.0,
                    mandatory=first,
                )
    yield _failure("late-rank", worlds.late, 3)
    for how in ("dies", "sleeps"):
        for phase in ("dispatch", "combine"):
            yield _failure(f"missing-rank-{how}-in-{phase}", partial(worlds.missing, how, phase), 3)


def _split(name: str) -> tuple[str, str]:
    """Op and dtype of a property."""
    call, _, dtype = name.partition("/")
    if call in ("dispatch", "pair"):
        return "moe.dispatch", dtype.removesuffix("_flat")
    if call == "combine":
        return "moe.combine", dtype
    return {"L": "moe.layout", "C": "moe.combine", "A": "moe.combine"}.get(name[0], "moe.dispatch"), "any"


def _kinds(name: str) -> tuple[str, ...]:
    if name.startswith("dispatch/"):
        return ("payload-touched",)
    if name.startswith("pair/"):
        return ("scales-lost", "payload-touched")
    if name.startswith("combine/"):
        return ("low-accumulation",) if name.endswith(("bfloat16", "float16")) else ("wrong-dtype",)
    return KINDS_OF.get(name, ())


def _case(topic: str, name: str, level: str, run: Callable[[Target], Any], **more: Any) -> Case:
    op, dtype = _split(name)
    return Case(
        f"moe/{topic}/{name.replace('/', '-')}/{dtype}", op, dtype, level, run, check_kinds(_kinds(name)), **more
    )


def _failure(name: str, run: Callable[[Target, int], list[Measurement]], ranks: int) -> Case:
    def go(target: Target) -> list[Measurement]:
        return run(target, ranks)

    return Case(
        f"moe/world{ranks}/{name}/any",
        "moe.dispatch",
        "any",
        "L4",
        go,
        ("one-sided-error",),
        world=ranks,
        timeout=120.0,
    )


def _local(name: str, target: Target) -> list[Measurement]:
    try:
        PROPERTIES[name](None, target.backend, target.device)
    except AssertionError as finding:
        raise Mismatch(f"{name}: {finding}") from finding
    return [exact(name)]


def _world(name: str, ranks: int, target: Target) -> list[Measurement]:
    worlds.check(name, ranks, target)
    return [exact(f"{name} over {ranks} ranks")]


def _coverage() -> Iterator[Case]:
    for dtype in DTYPES:
        for op, run in (("moe.layout", _layout), ("moe.dispatch", _dispatch), ("moe.combine", _combine)):
            yield Case(
                f"moe/dtypes/{op.removeprefix('moe.')}-call/{dtype}",
                op,
                dtype,
                "L1",
                partial(run, dtype),
                (
                    "wrong-dtype",
                    "output-alias",
                    "input-written",
                    *(("token-duplicated", "row-order") if op == "moe.dispatch" else ()),
                ),
                probe_unclaimed=True,
                may_refuse=dtype in REFUSED[op],
                mandatory=True,
            )


def _routes(target: Target) -> tuple[torch.Tensor, torch.Tensor]:
    idx = torch.tensor([[0, 2], [1, -1], [-1, -1], [3, 0], [2, 3]])
    return target.put(idx), target.put(torch.tensor([[0.5, 0.25], [1.0, 0.0], [0.0, 0.0], [2.0, 0.5], [0.25, 4.0]]))


def _layout(dtype: str, target: Target) -> list[Measurement]:
    idx, _ = _routes(target)
    found = fmcore.moe.layout(idx.to(getattr(torch, dtype)), 4, backend=target.backend)
    check_bits(found.num_tokens_per_expert.cpu(), torch.tensor([2, 1, 2, 2], dtype=torch.int32), "tokens per expert")
    check_bits(found.num_tokens_per_rank.cpu(), torch.tensor([4], dtype=torch.int32), "tokens per rank")
    return [exact("layout")]


def _payload(dtype: str, target: Target) -> torch.Tensor:
    kind = getattr(torch, dtype)
    g = target.generator(f"payload {dtype}")
    x = torch.randint(-100, 100, (5, 6), generator=g).to(torch.float32)
    if kind == torch.bool:
        return target.put(x > 0)
    return target.put(torch.complex(x, x.flip(0)).to(kind) if kind.is_complex else x.to(kind))


def _dispatch(dtype: str, target: Target) -> list[Measurement]:
    idx, weights = _routes(target)
    x = _payload(dtype, target)
    kept = x.clone()
    sent = fmcore.moe.dispatch(
        x, fmcore.moe.layout(idx, 4, backend=target.backend), idx, weights, backend=target.backend
    )
    rows = sent.x if isinstance(sent.x, torch.Tensor) else sent.x[0]
    check_bits(rows.cpu(), x[[0, 1, 3, 4]].cpu(), "rows")
    rows.view(torch.uint8).bitwise_not_()
    check_bits(x.cpu(), kept.cpu(), "the input after its received rows were overwritten")
    return [exact("dispatch")]


def _combine(dtype: str, target: Target) -> list[Measurement]:
    idx, weights = _routes(target)
    kind = getattr(torch, dtype)
    sent = fmcore.moe.dispatch(
        target.put(torch.zeros(5, 1)),
        fmcore.moe.layout(idx, 4, backend=target.backend),
        idx,
        weights,
        backend=target.backend,
    )
    y = _payload(dtype, target)[:4].contiguous()
    got, _ = fmcore.moe.combine(y, sent.handle)
    want = torch.zeros(5, 6, dtype=kind)
    want[[0, 1, 3, 4]] = y.cpu()
    return [check_bits(got.cpu(), want, "combined rows")]
