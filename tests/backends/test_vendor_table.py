"""From probes to the device table: the engine over made-up machines, each in the state of a fresh process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fmcore.dispatch import api, plugins
from fmcore.dispatch.devices import lookup
from fmcore.dispatch.registry import REGISTRY, Snapshot
from fmcore.errors import VendorConflictError

H200 = ("NVIDIA H200", (9, 0), "")
NVIDIA = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release\n",
    "/proc/driver/nvidia/gpus/0000:18:00.0/information": "Model: NVIDIA H200\n",
}
KUNLUN = {"/dev/xpu0": "", "/dev/xpuctrl": ""}
HYGON = {"/dev/mkfd": "", "/opt/dtk/env.sh": ""}
VENDORS = ("cuda_hopper", "kunlun_xpu", "hygon_dcu")
XMLIR = SimpleNamespace(xpu=SimpleNamespace(is_available=lambda: True), get_xpu_version=lambda: "KL3")


@pytest.fixture
def engine(monkeypatch, machine):
    """Discover and load the three vendors' plugins on a made-up machine; the registry is put back afterwards."""
    held = REGISTRY.snapshot

    def load(files, modules, **environ):
        env = machine(files, modules, environ=environ)
        manager = plugins.PluginManager(env)
        monkeypatch.setattr(REGISTRY, "snapshot", Snapshot())
        manager.discover()
        manager.plugins = [plugin for plugin in manager.plugins if {m.name for m in plugin.metas} & set(VENDORS)]
        for name in set(REGISTRY.snapshot.backends) - {m.name for p in manager.plugins for m in p.metas}:
            REGISTRY.remove_backend(name)
        monkeypatch.setattr(api, "MANAGER", manager)
        manager.load_all()
        return REGISTRY.snapshot

    yield load
    monkeypatch.undo()
    REGISTRY.snapshot = held
    for listener in REGISTRY.listeners:
        listener()


def available(snapshot):
    return [name for name in VENDORS if snapshot.backends[name].state == "available"]


def test_a_hopper_machine(engine, fake_torch):
    snapshot = engine(NVIDIA, {"torch": fake_torch(cuda="12.9", devices=(H200,))})
    assert available(snapshot) == ["cuda_hopper"]
    info = lookup(snapshot, "cuda", 0)
    assert (info.vendor, info.arch.version, info.claimed_by) == ("nvidia", (9, 0), ("cuda_hopper",))


def test_a_kunlun_machine_that_calls_its_device_nvidia(engine, fake_torch):
    snapshot = engine(KUNLUN, {"torch": fake_torch(cuda="12.9", devices=(H200,)), "torch_xmlir": XMLIR})
    assert available(snapshot) == ["kunlun_xpu"]
    info = lookup(snapshot, "cuda", 0)
    assert (info.vendor, info.arch.name) == ("kunlun", "KL3")


def test_a_dcu_machine_whose_capability_looks_like_hoppers(engine, fake_torch):
    torch = fake_torch("2.9.0+das.opt1.dtk2604", hip="6.3", devices=(("NVIDIA H200", (9, 0), "gfx936"),))
    snapshot = engine({**HYGON, **NVIDIA}, {"torch": torch})
    assert available(snapshot) == ["hygon_dcu"]
    assert lookup(snapshot, "cuda", 0).vendor == "hygon"


def test_an_amd_machine_is_nobodys(engine, fake_torch):
    torch = fake_torch("2.9.0+rocm6.4", hip="6.4", devices=(("AMD Instinct MI250X", (9, 0), "gfx90a"),))
    snapshot = engine({"/dev/kfd": ""}, {"torch": torch})
    assert available(snapshot) == []
    assert lookup(snapshot, "cuda", 0).vendor == "unknown"


def test_a_conflict_raises_at_the_look_up_and_not_before(engine, fake_torch):
    modules = {"torch": fake_torch(cuda="12.9", devices=(H200,)), "torch_xmlir": XMLIR}
    snapshot = engine({**NVIDIA, **KUNLUN}, modules)  # discovery, probes and states: no exception
    assert {b.name for b in api.backends()} >= set(VENDORS)
    with pytest.raises(VendorConflictError) as caught:
        lookup(snapshot, "cuda", 0)
    text = str(caught.value)
    for words in ("cuda:0", "kunlun and nvidia", "cuda_hopper says nvidia", "kunlun_xpu says kunlun", "does not guess"):
        assert words in text
    assert "torch_xmlir.xpu.is_available: True" in text
    assert "/proc/driver/nvidia/version: 570.86.15" in text


@pytest.mark.parametrize(("choice", "vendor"), [("cuda_hopper", "nvidia"), ("kunlun_xpu", "kunlun")])
def test_the_users_word_settles_it(engine, fake_torch, choice, vendor):
    modules = {"torch": fake_torch(cuda="12.9", devices=(H200,)), "torch_xmlir": XMLIR}
    snapshot = engine({**NVIDIA, **KUNLUN}, modules, FMCORE_BACKEND=choice)
    assert available(snapshot) == [choice]
    assert lookup(snapshot, "cuda", 0).vendor == vendor


def test_two_vendors_devices_in_one_machine_without_a_runtime_are_nobodys(engine, fake_torch):
    snapshot = engine({**NVIDIA, **KUNLUN}, {"torch": fake_torch(cuda="12.9", devices=(H200,))})
    assert available(snapshot) == []
    assert lookup(snapshot, "cuda", 0).vendor == "unknown"
    assert snapshot.backends["cuda_hopper"].reason.startswith("conflict: cuda:0 is named 'NVIDIA H200'")


def test_a_host_with_nothing(engine, fake_torch):
    snapshot = engine({"/proc/cpuinfo": "vendor_id\t: GenuineIntel\n"}, {"torch": fake_torch()})
    assert available(snapshot) == []
    for name in VENDORS:
        assert snapshot.backends[name].state == "unavailable"
        assert snapshot.backends[name].reason.startswith("no sign of it on this machine")
    assert lookup(snapshot, "cpu", 0).vendor == "cpu"
