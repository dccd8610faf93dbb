"""L0 and L1 of a plugin: metadata, a clean import, probes with reasons, claims that can be evaluated, strictness."""

# ruff: noqa: ARG001 (every check is called with the target)

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import fmcore
from fmcore.dispatch.plugins import MANAGER, impls_of
from fmcore.dispatch.registry import REGISTRY
from fmcore.errors import UnsupportedError
from fmcore_conformance.kinds import check_kinds
from fmcore_conformance.measure import check_form, exact
from fmcore_conformance.model import Case, Measurement, Mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcore_conformance.target import Target

IMPORT = """
import json, sys, time
import fmcore
before = set(sys.modules)
torch_early = "torch" in sys.modules
import torch
fmcore.config.reload()
cuda = torch.cuda.is_initialized()
began = time.perf_counter()
backends = fmcore.backends()
elapsed = time.perf_counter() - began
fmcore.explain("flashmask_attention", *(torch.zeros(1, 4, 1, 8) for _ in range(3)))
print(json.dumps({
    "torch_early": torch_early,
    "cuda": cuda,
    "states": {b.name: [b.state, b.reason] for b in fmcore.backends()},
}))
"""

FORK = """
import os, torch, fmcore
q = torch.randn(1, 8, 1, 16)
pid = os.fork()
if pid == 0:
    out = fmcore.flashmask_attention(q, q, q, causal=True)
    os._exit(0 if bool(out.isfinite().all()) else 9)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status))
"""


def cases(target: Target) -> Iterator[Case]:
    """All engine cases."""
    discover: tuple[tuple[str, Callable[[Target], Any], tuple[str, ...]], ...] = (
        ("metadata", _metadata, ()),
        ("import-is-clean", _import, ("import-side-effect",)),
        ("probes-give-reasons", _reasons, ("probe-silent",)),
        ("fork-after-import", _fork, ("import-side-effect",)),
    )
    for name, run, kinds in discover:
        yield Case(f"engine/discover/{name}/any", "engine", "any", "L0", run, check_kinds(kinds), mandatory=True)
    contract: tuple[tuple[str, Callable[[Target], Any], tuple[str, ...]], ...] = (
        ("claims-can-be-evaluated", _claims, ("claim-unparsable",)),
        ("explain-is-stable", _explain, ()),
        ("named-backend-or-error", _strict, ("silent-fallback",)),
        ("preference-order", _preference, ("silent-fallback",)),
        ("fake-attention", _fake, ("fake-mismatch",)),
    )
    for name, run, kinds in contract:
        yield Case(f"engine/contract/{name}/any", "engine", "any", "L1", run, check_kinds(kinds), mandatory=True)
    for op in ("flashmask_attention", "math.matmul"):
        yield Case(
            f"engine/contract/opcheck-{op}/any",
            "engine",
            "any",
            "L1",
            partial(_opcheck, op),
            check_kinds(("fake-mismatch",)),
        )


def _names(target: Target) -> list[str]:
    return [target.backend] if target.backend else [b.name for b in fmcore.backends()]


def _child(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise Mismatch(f"a fresh process ended with status {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def _metadata(target: Target) -> list[Measurement]:
    for name in _names(target):
        backend = REGISTRY.snapshot.backends.get(name)
        if backend is None:
            raise Mismatch(f"there is no backend {name!r}; there are {sorted(REGISTRY.snapshot.backends)}")
        if backend.state == "broken":
            raise Mismatch(f"{name} is broken: {backend.reason}")
        if not backend.meta.vendor or not backend.meta.accepts_spec():
            raise Mismatch(f"{name}: vendor {backend.meta.vendor!r}, plugin API {backend.meta.spec_version!r}")
    return [exact("metadata")]


def _import(target: Target) -> list[Measurement]:
    """In a fresh process: nothing printed, torch not imported by fmcore, no device context until a closer look."""
    lines = _child(IMPORT).strip().splitlines()
    if len(lines) != 1:
        raise Mismatch(f"importing or probing printed {len(lines) - 1} lines: {lines[0][:200]!r}")
    found = json.loads(lines[0])
    if found["torch_early"]:
        raise Mismatch("import fmcore imported torch")
    if found["cuda"]:
        raise Mismatch("a device context exists after import")
    return [exact("import")]


def _fork(target: Target) -> list[Measurement]:
    status = _child(FORK).strip()
    if status != "0":
        raise Mismatch(f"a forked child could not use the op: exit status {status}")
    return [exact("fork")]


def _reasons(target: Target) -> list[Measurement]:
    MANAGER.load_all()
    for backend in fmcore.backends():
        if target.backend in (None, backend.name) and not backend.reason.strip():
            raise Mismatch(f"{backend.name} is {backend.state} without a reason")
    return [exact("reasons")]


def _claims(target: Target) -> list[Measurement]:
    """Every claim serialises, and reads only what the op's key holds."""
    from fmcore import ops

    MANAGER.load_all()
    features = ops.feature_names()
    broken = [b for b in REGISTRY.snapshot.broken if b.backend in _names(target)]
    if broken:
        raise Mismatch(
            f"{broken[0].backend}: {broken[0].op} {broken[0].name} was refused at registration: "
            f"{broken[0].why.strip()[-300:]}"
        )
    for name in _names(target):
        for impl in impls_of(name):
            json.dumps(impl.caps.to_json())
            impl.caps.check_against(features[impl.op])
    return [exact("claims")]


def _explain(target: Target) -> list[Measurement]:
    """Two explanations of one call are equal, and name every candidate with a reason unless it could serve."""
    q = target.put(torch.zeros(1, 8, 2, 16))
    first, second = (fmcore.explain("flashmask_attention", q, q, q).to_json() for _ in range(2))
    if first != second:
        raise Mismatch("explain gave two different answers to one question")
    for row in first["candidates"]:
        if row["verdict"] in ("unsupported", "disabled", "unavailable", "broken") and not row["reasons"]:
            raise Mismatch(f"{row['backend']} {row['name']} is {row['verdict']} without a reason")
    return [exact("explain")]


def _strict(target: Target) -> list[Measurement]:
    """A backend that cannot serve a call raises when it is named; nobody else answers."""
    name = target.backend or "no-such-backend"
    try:
        fmcore.flashmask_attention(
            *(target.put(torch.zeros(1, 4, 1, 8, dtype=torch.int64)) for _ in range(3)), backend=name
        )
    except (UnsupportedError, ValueError):
        return [exact("strict")]
    raise Mismatch(
        f"attention on int64 tensors was answered although backend={name!r} was named and claims no such thing"
    )


def _preference(target: Target) -> list[Measurement]:
    """``use`` prefers, ``use(strict=True)`` insists, and both end with their block."""
    q = target.put(torch.randn(1, 8, 2, 16))
    before = fmcore.explain("flashmask_attention", q, q, q).selected
    if before is None:
        raise Mismatch("nobody serves a plain attention call")
    with fmcore.use(before.backend, strict=True):
        inside = fmcore.explain("flashmask_attention", q, q, q).selected
        if inside is None or inside.backend != before.backend:
            raise Mismatch(f"use({before.backend!r}, strict=True) selected {inside.id if inside else 'nobody'}")
    after = fmcore.explain("flashmask_attention", q, q, q).selected
    if after is None or after.id != before.id:
        raise Mismatch("the choice after a use() block differs from the one before it")
    return [exact("preference")]


def _serves_attention(target: Target) -> bool:
    MANAGER.load_all()
    return target.backend is None or any(i.op == "flashmask_attention" for i in impls_of(target.backend))


def _fake(target: Target) -> list[Measurement]:
    """Under FakeTensor: shapes and dtypes of the real call."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    if not _serves_attention(target):
        return [exact("no attention to fake")]
    q, k = (
        target.put(torch.randn(2, 9, 4, 16).to(torch.bfloat16)),
        target.put(torch.randn(2, 11, 2, 16).to(torch.bfloat16)),
    )
    real = target.attention(q, k, k, causal=True)
    with FakeTensorMode() as mode:
        fake = target.attention(*(mode.from_tensor(x) for x in (q, k, k)), causal=True)
    for got, want in zip(fake, real, strict=True):
        check_form(got, want.shape, want.dtype, "fake")
    return [exact("fake")]


def _opcheck(op: str, target: Target) -> list[Measurement]:
    """Torch's own check of the registered op: schema, fake, autograd registration."""
    from torch.library import opcheck

    from fmcore import ops

    ops.define_all()
    if op == "flashmask_attention":
        if not _serves_attention(target):
            return [exact("no attention to check")]
        q = target.put(torch.randn(1, 8, 2, 16))
        with fmcore.use(*([target.backend] if target.backend else [])):
            compiled = torch.compile(
                lambda q: fmcore.flashmask_attention(q, q, q, causal=True), backend="eager", fullgraph=True
            )
            check_form(compiled(q), q.shape, q.dtype, "traced attention")
        return [exact("traced")]
    if target.backend is not None and not any(i.op == op for i in impls_of(target.backend)):
        return [exact("no such op to check")]
    x, y = target.put(torch.randn(3, 4)), target.put(torch.randn(4, 5))
    opcheck(torch.ops.fmcore.math_matmul.default, (x, y, target.backend), test_utils=("test_schema", "test_faketensor"))
    return [exact("opcheck")]
