"""A Kunlun device is claimed on its runtime's word only; hints, Intel's xpu and CPU wheels never suffice."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fmcore.dispatch.arch import Arch
from fmcore_kunlun_xpu import smi, xpurt
from fmcore_kunlun_xpu.probe import probe

NODES = {"/dev/xpu0": "", "/dev/xpu1": "", "/dev/xpuctrl": ""}
P800 = ("P800 OAM", (9, 0), "")
RULE = "+-----------------------------------------------------------------------------+"


def smi_text(runtime="5.2.0", name="P800 OAM"):
    return "\n".join(
        [
            RULE,
            f"| XPU-SMI               Driver Version: 5.0.21.26    XPU-RT Version: {runtime:<9}|",
            "|-------------------------------+----------------------+----------------------+",
            "| XPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |",
            "| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | XPU-Util  Compute M. |",
            "|===============================+======================+======================|",
            f"|   0  {name}           N/A   | 00000000:52:00.0 N/A |                    0 |",
            "| N/A   38C  N/A     88W / 400W |      0MiB / 98304MiB |      0%      Default |",
            "|                               |      0MiB /    96MiB |             Disabled |",
            RULE,
        ]
    )


INTEL_SMI = """\
+-----------+--------------------------------------------------------------------------------------+
| Device ID | Device Information                                                                   |
+-----------+--------------------------------------------------------------------------------------+
| 0         | Device Name: Intel(R) Data Center GPU Max 1550                                       |
"""


def xmlir(version="KL3", available=True):
    return SimpleNamespace(xpu=SimpleNamespace(is_available=lambda: available), get_xpu_version=lambda: version)


def paddle_xpu(count=2):
    return SimpleNamespace(
        is_compiled_with_xpu=lambda: True,
        base=SimpleNamespace(core=SimpleNamespace(get_xpu_device_count=lambda: count)),
        version=SimpleNamespace(xpu_xre=lambda: "5.0.21"),
    )


def paddle_cpu():
    """The stock wheel: versions are the text 'False', which is truthy, and the device count is absent."""
    return SimpleNamespace(
        is_compiled_with_xpu=lambda: False,
        base=SimpleNamespace(core=SimpleNamespace()),
        version=SimpleNamespace(xpu_xre=lambda: "False", xpu_xccl=lambda: "False"),
    )


class FakeRuntime:
    def __init__(self, count=8, status=0):
        self.count, self.status, self.asked = count, status, []

    def xpu_device_count(self, count):
        count._obj.value = self.count
        return self.status

    def xpu_device_get_attr(self, value, attribute, device):
        self.asked.append((attribute.value, device.value))
        value._obj.value = {4: 300, 5: 96 << 30}[attribute.value]
        return 0


def test_confirmed_by_torch_xmlir(machine, fake_torch, verdicts):
    torch = fake_torch(cuda="12.9", devices=(P800, P800))
    report = probe(machine(NODES, {"torch": torch, "torch_xmlir": xmlir()}), deep=True)
    assert report.available
    assert report.reason == "Kunlun KL3 on 2 cuda devices, driven by torch_xmlir"
    assert [(c.device_type, c.index, c.vendor, c.arch) for c in report.claims] == [
        ("cuda", 0, "kunlun", Arch("kunlun", (3,), "KL3")),
        ("cuda", 1, "kunlun", Arch("kunlun", (3,), "KL3")),
    ]
    assert verdicts(report)["torch_xmlir.get_xpu_version"] == "for"
    assert verdicts(report)["xpu-smi"] == "unknown"  # not run: nothing left to find out


def test_steps_come_in_the_documented_order(machine, fake_torch):
    modules = {"torch": fake_torch(cuda="12.9", devices=(P800,)), "torch_xmlir": xmlir(), "paddle": paddle_xpu()}
    env = machine(NODES, modules, libraries={xpurt.LIBRARY: FakeRuntime()}, environ={"FMCORE_BACKEND": "kunlun_xpu"})
    order = [item.probe for item in probe(env, deep=True).evidence]
    assert order == [
        "FMCORE_BACKEND",
        "/dev/xpu*",
        "PCI vendor 0x1d22",
        "paddle get_xpu_device_count",
        "torch_xmlir.xpu.is_available",
        "torch_xmlir.get_xpu_version",
        "torch.cuda.device_count",
        "libxpurt.so",
        "xpu-smi",
        "variables and hooks",
        "/proc/driver/nvidia/gpus",
    ]


def test_device_seen_runtime_missing(machine):
    report = probe(machine(NODES, outputs={"xpu-smi": smi_text()}), deep=True)
    expected = "Kunlun device found (/dev/xpu0, XPU-RT 5.2.0) but neither paddle-xpu nor torch_xmlir is importable"
    assert report.reason == expected
    assert not report.available
    assert report.claims == ()


def test_paddle_alone_drives_the_device_but_fmcore_takes_torch_tensors(machine, verdicts):
    report = probe(machine(NODES, {"paddle": paddle_xpu()}), deep=True)
    assert report.reason == (
        "Kunlun device found (/dev/xpu0) but paddle-xpu drives it, fmcore takes torch tensors, "
        "and torch_xmlir is not importable"
    )
    assert verdicts(report)["paddle get_xpu_device_count"] == "for"
    assert report.claims == ()


def test_false_as_text_is_no_version(machine, verdicts):
    report = probe(machine({}, {"paddle": paddle_cpu()}), deep=True)
    assert verdicts(report)["paddle.is_compiled_with_xpu"] == "against"
    lying = paddle_cpu()
    lying.is_compiled_with_xpu = lambda: True
    report = probe(machine({}, {"paddle": lying}), deep=True)
    item = next(e for e in report.evidence if e.probe == "paddle get_xpu_device_count")
    assert item.verdict == "against"
    assert "version not given" in item.value


def test_another_generation_is_claimed_but_not_served(machine, fake_torch):
    modules = {"torch": fake_torch(cuda="12.9", devices=(P800,)), "torch_xmlir": xmlir("KL2")}
    report = probe(machine(NODES, modules), deep=True)
    assert report.reason == "Kunlun KL2 found; this backend is written for KL3 (P800)"
    assert [(c.vendor, c.arch.version) for c in report.claims] == [("kunlun", (2,))]


def test_the_vendors_old_torch_is_reported_with_its_version(machine, fake_torch):
    modules = {"torch": fake_torch("2.5.1+cu118", cuda="11.8", devices=(P800,)), "torch_xmlir": xmlir()}
    report = probe(machine(NODES, modules), deep=True)
    expected = "Kunlun KL3 found, driven by torch_xmlir, but torch 2.5.1+cu118 is too old, torch >= 2.9 is needed"
    assert report.reason == expected
    assert report.claims


def test_xmlir_without_a_device(machine, fake_torch):
    modules = {"torch": fake_torch(cuda="12.9"), "torch_xmlir": xmlir(available=False)}
    report = probe(machine(NODES, modules), deep=True)
    assert report.reason == "Kunlun device found (/dev/xpu0) but torch_xmlir sees no device"


def test_xmlir_that_raises_is_evidence(machine, fake_torch):
    def broken():
        raise RuntimeError("undefined symbol: xpu_wait")

    modules = {
        "torch": fake_torch(cuda="12.9"),
        "torch_xmlir": SimpleNamespace(xpu=SimpleNamespace(is_available=broken)),
    }
    report = probe(machine(NODES, modules), deep=True)
    assert "undefined symbol: xpu_wait" in report.reason
    assert report.claims == ()


def test_a_truthy_word_is_not_a_yes(machine, fake_torch):
    modules = {"torch": fake_torch(cuda="12.9", devices=(P800,)), "torch_xmlir": xmlir(available="False")}
    assert probe(machine(NODES, modules), deep=True).claims == ()


@pytest.mark.parametrize(
    "environ",
    [{"XPU": "1"}, {"XPU_HOME": "/usr/local/xpu"}, {"KUNLUN_HOME": "/opt/kunlun", "FMCORE_BACKEND": "kunlun_xpu"}],
)
def test_hints_never_claim(machine, fake_torch, environ):
    modules = {"torch": fake_torch(cuda="11.8", devices=(P800,)), "torch_plugin": SimpleNamespace()}
    report = probe(machine({}, modules, environ=environ), deep=True)
    assert not report.available
    assert report.claims == ()
    assert next(e for e in report.evidence if e.probe == "variables and hooks").verdict == "hint"


def test_intels_xpu_is_never_kunlun(machine, fake_torch, verdicts):
    torch = fake_torch("2.9.0+xpu", xpu=SimpleNamespace(is_available=lambda: True, device_count=lambda: 1))
    report = probe(machine({"/dev/dri/renderD128": ""}, {"torch": torch}, outputs={"xpu-smi": INTEL_SMI}), deep=True)
    assert not report.available
    assert report.claims == ()
    assert report.reason.startswith("no Kunlun device found")
    assert verdicts(report)["xpu-smi"] == "against"


def test_a_hopper_machine_is_never_kunlun(machine, fake_torch):
    files = {"/proc/driver/nvidia/gpus/0000:18:00.0/information": "Model: NVIDIA H200\n"}
    torch = fake_torch(cuda="12.9", devices=(("NVIDIA H200", (9, 0), ""),))
    report = probe(machine(files, {"torch": torch}), deep=True)
    assert not report.available
    assert report.claims == ()


def test_the_users_word_settles_a_conflict_with_nvidia(machine, fake_torch):
    files = {**NODES, "/proc/driver/nvidia/gpus/0000:18:00.0/information": "Model: NVIDIA H200\n"}
    modules = {"torch": fake_torch(cuda="12.9", devices=(P800,)), "torch_xmlir": xmlir()}
    assert probe(machine(files, modules), deep=True).claims  # the dispatcher sees two vendors and raises
    settled = probe(machine(files, modules, environ={"FMCORE_BACKEND": "cuda_hopper"}), deep=True)
    assert settled.claims == ()
    assert "settles a conflict" in settled.reason


def test_anothers_name_without_anothers_signs_changes_nothing(machine, fake_torch):
    modules = {"torch": fake_torch(cuda="12.9", devices=(P800,)), "torch_xmlir": xmlir()}
    assert probe(machine(NODES, modules, environ={"FMCORE_BACKEND": "cuda_hopper"}), deep=True).claims


@pytest.mark.parametrize(
    ("code", "verdict"), [("0x120000", "for"), ("0x030200", "for"), ("0x020000", "hint"), ("junk", "hint")]
)
def test_pci_class_matters(machine, pci, verdicts, code, verdict):
    report = probe(machine(pci("0000:52:00.0", "0x1d22", "0x3684", code)), deep=True)
    assert verdicts(report)["PCI vendor 0x1d22"] == verdict
    assert report.reason.startswith("Kunlun device found (PCI 0000:52:00.0)" if verdict == "for" else "no Kunlun")


def test_half_of_the_nodes_is_a_hint(machine, verdicts):
    report = probe(machine({"/dev/xpu0": ""}), deep=True)
    assert verdicts(report)["/dev/xpu*"] == "hint"


def test_runtime_library_counts_devices_and_skips_simulators(machine):
    runtime = FakeRuntime(count=70)
    report = probe(machine(libraries={xpurt.LIBRARY: runtime}), deep=True)
    assert report.reason.startswith("Kunlun device found (libxpurt.so, 64 devices) but")
    assert max(device for _, device in runtime.asked) == 63
    assert "0: model 300, memory 103079215104" in next(e.value for e in report.evidence if e.probe == "libxpurt.so")


def test_runtime_library_that_fails(machine):
    assert xpurt.devices(machine(libraries={xpurt.LIBRARY: FakeRuntime(status=5)})) == "xpu_device_count returned 5"
    assert "lacks a function" in xpurt.devices(machine(libraries={xpurt.LIBRARY: object()}))
    assert xpurt.devices(machine()) == "libxpurt.so is not on the loader's path"
    partial = SimpleNamespace(xpu_device_count=FakeRuntime(count=1).xpu_device_count)
    assert xpurt.devices(machine(libraries={xpurt.LIBRARY: partial})) == (xpurt.XpuDevice(0, None, None),)


def test_smi_table():
    found = smi.parse(smi_text())
    assert found == smi.SmiReport("5.0.21.26", "5.2.0", ("P800 OAM",))
    assert smi.parse(smi_text(runtime="N/A")).runtime == ""
    assert smi.parse(INTEL_SMI) is None
    assert smi.is_intel(INTEL_SMI)
    assert not smi.is_intel(smi_text())


def test_vendor_modules_stay_unimported_without_a_device(machine, fake_torch, tmp_path, monkeypatch):
    """Importing them can touch hardware: it takes a device, or someone who imported them before."""
    for name in ("torch_xmlir", "paddle"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text("raise SystemExit('imported without need')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    env = machine({}, {"torch": fake_torch(cuda="12.9")})
    modules = {name: value for name, value in env.modules.items() if name not in ("torch_xmlir", "paddle")}
    report = probe(type(env)(env.root, env.environ, modules, env.outputs, env.libraries), deep=True)
    notes = {e.probe: e.value for e in report.evidence}
    assert "not imported" in notes["torch_xmlir"]
    assert "not imported" in notes["paddle"]


def test_a_shallow_look_asks_no_framework(machine, fake_torch):
    modules = {"torch": fake_torch(cuda="12.9", devices=(P800,)), "torch_xmlir": xmlir()}
    report = probe(machine(NODES, modules), deep=False)
    assert report.claims == ()
    assert report.reason.startswith("Kunlun device found (/dev/xpu0) but its frameworks were not asked")
    assert not {"xpu-smi", "libxpurt.so", "torch_xmlir.xpu.is_available"} & {e.probe for e in report.evidence}
