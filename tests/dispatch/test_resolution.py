"""Reasons, refusals, keys: a decision explains itself and depends only on what it declares."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace

import pytest
import torch

import fmcore as fm
from fmcore.dispatch import Arch, ArchRange, DeviceClaim, ProbeReport
from fmcore.dispatch.caps import Caps, OneOf, Range, Reason
from fmcore.dispatch.policy import Policy
from fmcore.dispatch.registry import REGISTRY
from fmcore.dispatch.request import COMMON_FIELDS, Request
from fmcore.dispatch.resolve import resolve
from fmcore.dispatch.table import STATE
from fmcore.errors import UnsupportedError, VendorConflictError
from fmcore.ops import specs

OP = "flashmask_attention"


def test_why_not_gives_all_reasons():
    caps = Caps(
        dtypes={"float16"}, device_types={"cuda"}, vendors={"acme"}, arch=ArchRange("acme", (9, 0), (9, 9)),
        grad=False, deterministic=False, capture=False, compiles=False, world_size=Range(2, 8),
        where={"head_dim": Range(64, 128, 64)},
    )  # fmt: skip
    request = Request(
        OP, "cpu", "cpu", None, {"query": "float32"}, needs_grad=True, deterministic=True, capturing=True,
        compiling=True, features={"head_dim": 80},
    )  # fmt: skip
    codes = [reason.code for reason in caps.why_not(request)]
    assert codes == [
        "device",
        "vendor",
        "arch",
        "world",
        "dtype",
        "grad",
        "determinism",
        "capture",
        "compile",
        "head_dim",
    ]


def test_a_refusal_lists_every_candidate_with_all_its_reasons_and_a_fix(plugin, qkv):
    plugin("alpha", caps=Caps(dtypes={"float16"}, where={"head_dim": OneOf(64)}))
    plugin("beta", caps=Caps(device_types={"cuda"}))
    plugin("gamma", report=ProbeReport(available=False, reason="no card in the slot"))
    others = [b.name for b in fm.backends() if b.name not in ("alpha", "beta", "gamma")]
    with fm.use(block=tuple(others)), pytest.raises(UnsupportedError) as caught:
        fm.flashmask_attention(*qkv)
    text = str(caught.value)
    assert "alpha/dense [unsupported]: query of dtype float32" in text
    assert "head_dim = 16 is not supported; it takes 64" in text
    assert "beta/dense [unsupported]: runs on cuda tensors, got cpu" in text
    assert "gamma [unavailable]: no card in the slot" in text
    assert "To do: cast query to one of: float16" in text
    listed = {c.backend for c in caught.value.decision.candidates}
    assert {"alpha", "beta", "gamma", *others} - {"reference"} <= listed | {"reference"}


def test_explain_is_stable_and_serialisable(plugin, qkv):
    plugin("alpha")
    first, second = (fm.explain(OP, *qkv).to_json() for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first))["selected"] == "alpha/dense"


def test_no_fallback_on_a_kernels_exception(plugin, qkv):
    failing = plugin("failing", fail=RuntimeError("kernel fault 7"))
    other = plugin("other", band="portable")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="kernel fault 7"):
            fm.flashmask_attention(*qkv)
    assert (failing.forwards, other.forwards) == (2, 0)


def test_archs_of_different_vendors_have_no_order():
    hopper_like = Arch("acme", (9, 3))
    with pytest.raises(TypeError, match="different vendors"):
        _ = hopper_like >= Arch("other", (9, 0))
    assert hopper_like not in ArchRange("other", (9, 0), (9, 9))
    assert hopper_like in ArchRange("acme", (9, 0), (9, 9))
    with pytest.raises(TypeError, match="with an Arch"):
        _ = hopper_like < (9, 4)


class Recorder:
    """A request that records which of its fields are read."""

    def __init__(self, request: Request) -> None:
        object.__setattr__(self, "_request", request)
        object.__setattr__(self, "read", set())

    def __getattr__(self, name: str):
        if name == "features":
            return self
        self.read.add(name)
        return getattr(self._request, name)

    def __getitem__(self, name: str):
        self.read.add(name)
        return self._request[name]


def _requests(spec):
    """Requests that reach every branch of a predicate: each dtype, gradients or not, each feature in turn."""
    features = {name: _example(name) for name in spec.feature_names}
    for device, vendor in (("cpu", "cpu"), ("cuda", "nvidia"), ("cuda", "unknown")):
        for dtype in ("float32", "bfloat16", "bool", "complex64", "int64"):
            for flag in (False, True):
                yield Request(
                    spec.name, device, vendor, None, dict.fromkeys(spec.roles, dtype), needs_grad=flag,
                    deterministic=flag, features=features,
                )  # fmt: skip


def _example(name):
    return {"mask_kind": "causal", "mask_heads": "one"}.get(name, 64 if "dim" in name else False)


def test_predicates_read_only_declared_fields():
    """A field outside the key would make a decision stick for calls that it does not fit."""
    fm.backends()
    checked = 0
    for op, impls in REGISTRY.snapshot.impls.items():
        spec = specs()[op]
        keyed = set(spec.feature_names) | set(COMMON_FIELDS)
        for impl in impls:
            assert impl.caps.fields_read() <= keyed, impl.id
            for request in _requests(spec):
                recorder = Recorder(request)
                if impl.caps.predicate is not None:
                    impl.caps.predicate(recorder)
                    assert recorder.read <= set(impl.caps.reads), (impl.id, recorder.read)
                    checked += 1
    assert sum(len(impls) for impls in REGISTRY.snapshot.impls.values()) > 0


def test_the_recorder_catches_an_undeclared_read():
    caps = Caps(predicate=lambda request: Reason("x", "x") if request["head_dim"] > 3 else None, reads=("group",))
    recorder = Recorder(Request(OP, "cpu", "cpu", None, {}, features={"head_dim": 64, "group": 1}))
    caps.predicate(recorder)
    assert not recorder.read <= set(caps.reads)


def test_every_registered_field_is_in_the_key(plugin, qkv):
    """Requests that differ in one field that Caps can read never share a table entry."""
    plugin("alpha")
    STATE.renew()
    q, k, v = qkv
    variants = [
        lambda: fm.flashmask_attention(q, k, v),
        lambda: fm.flashmask_attention(q, k, v, causal=True),
        lambda: fm.flashmask_attention(q.double(), k.double(), v.double()),
        lambda: fm.flashmask_attention(q[..., :8], k[..., :8], v),
        lambda: fm.flashmask_attention(q, k, v[..., :8]),
        lambda: fm.flashmask_attention(q[:, :, :2], k, v),
        lambda: fm.flashmask_attention(q, k, v, mask=fm.masks.document([5, 7])),
        lambda: fm.flashmask_attention(q, k, v, softcap=5.0),
        lambda: fm.flashmask_attention(q, k, v, sink=torch.zeros(4)),
        lambda: fm.flashmask_attention(q, k, v, deterministic=True),
        lambda: fm.flashmask_attention(q.clone().requires_grad_(), k, v),
        lambda: fm.flashmask_attention(q.transpose(0, 1).contiguous().transpose(0, 1), k, v),
        lambda: fm.flashmask_attention(q[:0], k[:0], v[:0]),
    ]
    for count, call in enumerate(variants, 1):
        call()
        assert len(STATE.entries) == count


def test_lengths_are_not_in_the_key(plugin):
    plugin("alpha")
    STATE.renew()
    for length in (3, 8, 21):
        x = torch.randn(1, length, 2, 8)
        fm.flashmask_attention(x, x, x, causal=True)
    assert len(STATE.entries) == 1


def test_a_registry_change_forgets_decisions(plugin, qkv):
    plugin("alpha", priority=50)
    assert fm.explain(OP, *qkv).selected.backend == "alpha"
    fm.flashmask_attention(*qkv)
    beta = plugin("beta")
    fm.flashmask_attention(*qkv)
    assert beta.forwards == 1


def test_readers_never_see_half_a_registry(plugin, qkv):
    """Calls go on while backends come and go."""
    plugin("steady")
    stop = threading.Event()
    failures = []

    def call():
        while not stop.is_set():
            try:
                fm.flashmask_attention(*qkv, backend="steady")
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for index in range(20):
        plugin(f"guest{index}", priority=5)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_fork_after_import_and_use(plugin, qkv):
    plugin("alpha")
    fm.flashmask_attention(*qkv)
    child = os.fork()
    if child == 0:
        ok = not STATE.entries and bool(torch.isfinite(fm.flashmask_attention(*qkv)).all())
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _claim(vendor, arch, name):
    return ProbeReport(available=True, reason=name, claims=(DeviceClaim("cuda", 0, vendor, arch, name),))


def test_conflicting_vendors_raise_at_the_first_ambiguous_call_only(plugin, qkv):
    plugin("one", vendor="acme", report=_claim("acme", Arch("acme", (9, 0)), "A1"))
    plugin("two", vendor="other", report=_claim("other", Arch("other", (9, 3)), "O1"))
    fm.flashmask_attention(*qkv)  # a host tensor is not ambiguous
    with pytest.raises(VendorConflictError, match=r"acme and other.*FMCORE_BLOCK"):
        fm.backend("cuda:0")
    assert fm.backend("cpu").vendor == "cpu"


def test_a_masquerading_device_is_served_by_its_own_vendor(plugin):
    """Device type "cuda", capability (9, x), and yet another vendor: the claim decides, never the type."""
    plugin("hopperlike", caps=Caps(vendors={"nvidia"}, arch=ArchRange("nvidia", (9, 0), (9, 9)), device_types={"cuda"}))
    plugin(
        "acme",
        vendor="acme",
        caps=Caps(vendors={"acme"}, device_types={"cuda"}),
        report=_claim("acme", Arch("acme", (9, 3)), "A9"),
    )
    fm.backends()
    request = Request(OP, "cuda", "acme", Arch("acme", (9, 3)), {"query": "float32"}, features={})
    decision = resolve(request, Policy(), REGISTRY.snapshot)
    assert decision.selected.backend == "acme"
    hopper = next(c for c in decision.candidates if c.backend == "hopperlike")
    assert [reason.code for reason in hopper.reasons] == ["vendor", "arch"]
    assert fm.backend("cuda:0").name == "acme"
    assert fm.backend().vendor == "acme"


def test_a_device_without_float64_says_so(plugin):
    plugin(
        "acme",
        vendor="acme",
        caps=Caps(vendors={"acme"}, dtypes={"float32", "bfloat16"}),
        report=_claim("acme", None, "A"),
    )
    request = Request(OP, "cuda", "acme", None, {"query": "float64"}, features={})
    decision = resolve(request, Policy(), REGISTRY.snapshot, "acme")
    assert decision.selected is None
    assert "query of dtype float64 is not supported; it takes bfloat16, float32" in decision.refusal("asked")


def test_a_raising_probe_breaks_its_backend_alone(plugin, qkv):
    plugin("raising", report=OSError("driver went away"))
    plugin("sound")
    broken = next(b for b in fm.backends() if b.name == "raising")
    assert broken.state == "broken"
    assert "driver went away" in broken.traceback
    fm.flashmask_attention(*qkv)


def test_a_lying_probe_is_found_out_by_its_kernel(plugin, qkv):
    """A probe that promises a device it cannot drive: the kernel's own error reaches the caller, unchanged."""
    plugin("lying", fail=RuntimeError("no such device"))
    with pytest.raises(RuntimeError, match="no such device"):
        fm.flashmask_attention(*qkv)


def test_disabling_a_backend_restores_the_table(plugin):
    MadePlugin = type(plugin("guest"))
    before = {op: [i.id for i in impls] for op, impls in REGISTRY.snapshot.impls.items() if impls}
    fm.register_backend(MadePlugin("visitor"))
    fm.unregister_backend("visitor")
    after = {op: [i.id for i in impls] for op, impls in REGISTRY.snapshot.impls.items() if impls}
    assert before == after


def test_snapshots_are_values():
    snapshot = REGISTRY.snapshot
    with pytest.raises(TypeError):
        snapshot.backends["x"] = None
    assert replace(snapshot) == snapshot
