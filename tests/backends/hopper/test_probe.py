"""An NVIDIA device is recognised by name, driver and build; nobody else's is taken for one."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from fmcore.dispatch.arch import Arch
from fmcore.dispatch.probes import ProbeEnv
from fmcore_cuda_hopper import nvml
from fmcore_cuda_hopper.probe import probe

H200 = ("NVIDIA H200", (9, 0), "")
A100 = ("NVIDIA A100-SXM4-80GB", (8, 0), "")
DRIVER = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release\n",
    "/proc/driver/nvidia/gpus/0000:18:00.0/information": "Model: \t\t NVIDIA H200\nIRQ:   \t\t 555\n",
}
XPU = {"/dev/xpu0": "", "/dev/xpuctrl": ""}


def test_hopper_is_available_and_claimed(machine, fake_torch, verdicts):
    torch = fake_torch(cuda="12.9", devices=(H200, H200))
    report = probe(machine(DRIVER, {"torch": torch}), deep=True)
    assert report.available
    assert report.reason == "NVIDIA H200 on cuda:0, cuda:1"
    assert [(c.device_type, c.index, c.vendor, c.arch) for c in report.claims] == [
        ("cuda", 0, "nvidia", Arch("nvidia", (9, 0), "sm_90")),
        ("cuda", 1, "nvidia", Arch("nvidia", (9, 0), "sm_90")),
    ]
    seen = verdicts(report)
    assert seen["/proc/driver/nvidia/version"] == "for"
    assert seen["torch.version.hip"] == "for"
    assert seen["cuda:1 capability"] == "for"
    assert any(e.value == "570.86.15" for e in report.evidence)


def test_other_nvidia_devices_are_claimed_though_the_backend_is_unavailable(machine, fake_torch):
    report = probe(machine(DRIVER, {"torch": fake_torch(cuda="12.9", devices=(A100,))}), deep=True)
    assert not report.available
    expected = "NVIDIA device found (NVIDIA A100-SXM4-80GB, sm_80), but these kernels are for Hopper, sm_90, only"
    assert report.reason == expected
    assert [(c.vendor, c.arch.version) for c in report.claims] == [("nvidia", (8, 0))]


def test_blackwell_is_not_hopper(machine, fake_torch):
    report = probe(
        machine(DRIVER, {"torch": fake_torch(cuda="12.9", devices=(("NVIDIA B200", (10, 0), ""),))}), deep=True
    )
    assert not report.available
    assert report.claims[0].arch.version == (10, 0)


def test_one_hopper_among_others_is_enough(machine, fake_torch):
    report = probe(machine(DRIVER, {"torch": fake_torch(cuda="12.9", devices=(A100, H200))}), deep=True)
    assert report.available
    assert report.reason == "NVIDIA H200 on cuda:1"
    assert len(report.claims) == 2


def test_an_old_board_without_the_word_needs_the_kernel_drivers_word(machine, fake_torch):
    torch = fake_torch(cuda="12.9", devices=(("Tesla T4", (7, 5), ""),))
    assert probe(machine({}, {"torch": torch}), deep=True).claims == ()
    listed = {**DRIVER, "/proc/driver/nvidia/gpus/0000:18:00.0/information": "Model: Tesla T4\n"}
    assert probe(machine(listed, {"torch": torch}), deep=True).claims[0].vendor == "nvidia"


@pytest.mark.parametrize(
    ("torch_args", "reason"),
    [
        (
            {"version": "2.9.0+rocm6.4", "hip": "6.4", "devices": (("AMD Instinct MI300X", (9, 4), "gfx942"),)},
            "HIP build",
        ),
        (
            {"version": "2.9.0+das.opt1.dtk2604", "hip": "6.3", "devices": (("NVIDIA H200", (9, 0), "gfx936"),)},
            "HIP build",
        ),
        ({"version": "2.9.0+cpu"}, "built without CUDA"),
        ({"cuda": "12.9"}, "sees no cuda device"),
        ({"cuda": "12.9", "devices": (("P800 OAM", (9, 0), ""),)}, "no cuda device is NVIDIA's by name"),
    ],
)
def test_never_taken_for_nvidia(machine, fake_torch, torch_args, reason):
    report = probe(machine({}, {"torch": fake_torch(**torch_args)}), deep=True)
    assert not report.available
    assert report.claims == ()
    assert reason in report.reason


def test_a_hygon_mark_on_torch_outweighs_everything(machine, fake_torch):
    torch = fake_torch(cuda="12.9", devices=(H200,), __hcu_version__="2604")
    assert probe(machine({}, {"torch": torch}), deep=True).claims == ()


@pytest.mark.parametrize("sign", ["nodes", "module"])
def test_a_kunlun_machine_whose_device_is_named_nvidia_is_not_claimed(machine, fake_torch, verdicts, sign):
    torch = fake_torch(cuda="11.8", devices=(H200,))
    files = XPU if sign == "nodes" else {}
    modules = {"torch": torch, **({"torch_xmlir": SimpleNamespace()} if sign == "module" else {})}
    report = probe(machine(files, modules), deep=True)
    assert not report.available
    assert report.claims == ()
    assert report.reason.startswith("conflict: cuda:0 is named 'NVIDIA H200', but there are signs of a Kunlun stack")
    assert "FMCORE_BACKEND=cuda_hopper or FMCORE_BACKEND=kunlun_xpu" in report.reason
    assert verdicts(report)["signs of a Kunlun stack"] == "against"


def test_the_users_word_settles_the_conflict(machine, fake_torch):
    modules = {"torch": fake_torch(cuda="12.9", devices=(H200,))}
    ours = {"FMCORE_BACKEND": "cuda_hopper,triton; moe.*=torch"}
    assert probe(machine({**DRIVER, **XPU}, modules, environ=ours), deep=True).available
    assert probe(machine({**DRIVER, **XPU}, modules, environ={"FMCORE_BLOCK": "kunlun_xpu"}), deep=True).available
    theirs = probe(machine({**DRIVER, **XPU}, modules, environ={"FMCORE_BACKEND": "kunlun_xpu"}), deep=True)
    assert not theirs.available
    assert theirs.claims == ()


def test_two_strong_signs_are_claimed_so_that_the_dispatcher_raises(machine, fake_torch):
    modules = {"torch": fake_torch(cuda="12.9", devices=(H200,)), "torch_xmlir": SimpleNamespace()}
    report = probe(machine({**DRIVER, **XPU}, modules), deep=True)
    assert not report.available
    assert [c.vendor for c in report.claims] == ["nvidia"]


def test_device_seen_but_torch_missing(machine):
    report = probe(machine(DRIVER), deep=True)
    assert report.reason == "NVIDIA device found (NVIDIA H200, driver 570.86.15) but torch is not importable"
    assert report.claims == ()


def test_an_old_torch_is_named_with_its_version(machine, fake_torch):
    torch = fake_torch("2.5.1+cu124", cuda="12.4", devices=(H200,))
    report = probe(machine(DRIVER, {"torch": torch}), deep=True)
    assert not report.available
    assert report.reason == "Hopper found (NVIDIA H200) but torch 2.5.1+cu124 is too old, torch >= 2.9 is needed"
    assert report.claims


def test_no_driver_no_device(machine):
    report = probe(machine(), deep=True)
    assert report.reason.startswith("no NVIDIA device found: no /proc/driver/nvidia and no answer from NVML")


def test_a_driver_that_raises_is_evidence_and_not_an_exception(machine, fake_torch):
    torch = fake_torch(cuda="12.9", devices=(H200,))

    def raising(_index):
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    torch.cuda.get_device_name = raising
    report = probe(machine(DRIVER, {"torch": torch}), deep=True)
    assert not report.available
    assert any("forked subprocess" in e.value for e in report.evidence)


class FakeNvml:
    """Two cards, written through the pointers that ctypes passes."""

    def __init__(self, names=(b"NVIDIA H200", b"NVIDIA A100"), status=0):
        self.names, self.status, self.calls = names, status, []

    def nvmlInit_v2(self):  # noqa: N802 (the library's own name)
        self.calls.append("init")
        return self.status

    def nvmlShutdown(self):  # noqa: N802 (the library's own name)
        self.calls.append("shutdown")
        return 0

    def nvmlSystemGetDriverVersion(self, text, _size):  # noqa: N802 (the library's own name)
        text.value = b"570.1"
        return 0

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802 (the library's own name)
        count._obj.value = len(self.names)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802 (the library's own name)
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetName(self, handle, text, _size):  # noqa: N802 (the library's own name)
        text.value = self.names[handle.value - 1]
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor):  # noqa: N802 (the library's own name)
        major._obj.value, minor._obj.value = (9, 0) if handle.value == 1 else (8, 0)
        return 0


def test_nvml_lists_cards_where_the_kernel_hides_them(machine):
    library = FakeNvml()
    report = probe(machine(libraries={nvml.LIBRARY: library}), deep=False)
    assert library.calls == ["init", "shutdown"]
    assert "NVIDIA device found (NVIDIA H200, NVIDIA A100, driver 570.1)" in report.reason
    assert any(e.probe == "NVML" and e.value == "NVIDIA H200 (9.0), NVIDIA A100 (8.0)" for e in report.evidence)


def test_nvml_failures_are_sentences(machine):
    assert nvml.listing(machine()) == "libnvidia-ml.so.1 is not on the loader's path"
    assert nvml.listing(machine(libraries={nvml.LIBRARY: FakeNvml(status=9)})) == "nvmlInit_v2 returned 9"
    lacking = SimpleNamespace(nvmlInit_v2=lambda: 0, nvmlShutdown=lambda: 0)
    assert "lacks a function" in nvml.listing(machine(libraries={nvml.LIBRARY: lacking}))


def test_a_real_library_without_the_functions_is_a_sentence():
    libc = ctypes.CDLL(None)
    env = ProbeEnv(libraries={nvml.LIBRARY: libc})
    assert "lacks a function" in nvml.listing(env)


def test_a_shallow_look_claims_nothing(machine, fake_torch):
    report = probe(machine(DRIVER, {"torch": fake_torch(cuda="12.9", devices=(H200,))}), deep=False)
    assert not report.available
    assert report.claims == ()
    assert "shallow" in report.reason
