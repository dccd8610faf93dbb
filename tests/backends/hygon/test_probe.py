"""A DCU is claimed on torch's own naming of a Hygon chip; Hygon CPUs and AMD's cards are never DCUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fmcore.dispatch.arch import Arch
from fmcore_hygon_dcu import arch, smi
from fmcore_hygon_dcu.probe import probe

DAS = "2.9.0+das.opt1.dtk2604"
DRIVER = {"/dev/mkfd": "", "/sys/module/hycu/version": "6.3.8\n"}
DTK = {"/opt/dtk-26.04/env.sh": "", "/opt/hyhal/lib/libhydmi.so": ""}
HY_SMI = '{"card0": {"HCU use (%)": "0.0"}, "card1": {"HCU use (%)": "0.0"}}'
OLD_ROCM_SMI = (
    "DCU  Temp   AvgPwr  Perf  PwrCap  VRAM%  DCU%  Mode\n0    42.0C  30.0W   auto  300.0W  0%     0%    N/A\n"
)
AMD_ROCM_SMI = "GPU  Temp   AvgPwr  SCLK  MCLK  Perf  VRAM%  GPU%\n0    42.0C  30.0W  300Mhz  1Ghz  auto  0%  0%\n"


def dcu(name):
    return ("Hygon DCU", (9, 3), name)


def test_known_chip_with_the_vendors_build(machine, fake_torch, verdicts):
    torch = fake_torch(DAS, hip="6.3.2", devices=(dcu("gfx936:sramecc+:xnack-"),) * 2, __hcu_version__="2604")
    report = probe(machine({**DRIVER, **DTK}, {"torch": torch}), deep=True)
    assert report.available
    assert report.reason == "Hygon DCU gfx936 on 2 cuda devices"
    assert [(c.device_type, c.index, c.vendor, c.arch) for c in report.claims] == [
        ("cuda", 0, "hygon", Arch("hygon", (9, 3, 6), "gfx936")),
        ("cuda", 1, "hygon", Arch("hygon", (9, 3, 6), "gfx936")),
    ]
    seen = verdicts(report)
    assert seen["torch.__hcu_version__"] == seen["torch.__version__"] == seen["cuda:0 gcnArchName"] == "for"
    assert seen["DTK and HYHAL"] == "hint"


def test_steps_come_in_the_documented_order(machine, fake_torch):
    torch = fake_torch(DAS, hip="6.3.2", devices=(dcu("gfx928"),))
    order = [
        e.probe
        for e in probe(machine(DRIVER, {"torch": torch}, environ={"FMCORE_BACKEND": "hygon_dcu"}), deep=True).evidence
    ]
    assert order == [
        "FMCORE_BACKEND",
        "torch.__hcu_version__",
        "torch.__version__",
        "torch.version.hip",
        "cuda:0 gcnArchName",
        "/dev/mkfd, module hycu or hydcu",
        "DTK and HYHAL",
        "PCI vendor 0x1d94",
        "hy-smi",
        "paddle",
    ]


@pytest.mark.parametrize("name", ["gfx926", "gfx928", "gfx936", "gfx938"])
def test_the_chips_name_alone_is_enough(machine, fake_torch, name):
    report = probe(machine({}, {"torch": fake_torch("2.9.0", hip="6.3", devices=(dcu(name),))}), deep=True)
    assert report.available
    assert report.claims[0].arch.name == name


@pytest.mark.parametrize("name", ["gfx90a", "gfx942", "gfx950", "gfx908", "gfx1100", ""])
@pytest.mark.parametrize("software", [{}, {**DRIVER, **DTK}])
def test_amd_is_never_hygon(machine, fake_torch, name, software):
    torch = fake_torch("2.9.0+rocm6.4", hip="6.4", devices=(("AMD Instinct", (9, 0), name),))
    report = probe(machine(software, {"torch": torch}), deep=True)
    assert not report.available
    assert report.claims == ()
    assert "which are not Hygon's" in report.reason


def test_a_shared_chip_needs_hygons_software(machine, fake_torch):
    torch = fake_torch("2.9.0+rocm6.4", hip="6.4", devices=(("AMD Radeon", (9, 0), "gfx906:sramecc+"),))
    plain = probe(machine({"/dev/kfd": ""}, {"torch": torch}), deep=True)
    assert plain.claims == ()
    assert (
        plain.reason
        == "gfx906 may be AMD's or Hygon's, and neither Hygon's driver nor its toolkit is here; not guessed"
    )
    assert probe(machine(DRIVER, {"torch": torch}), deep=True).claims[0].vendor == "hygon"


def test_a_shared_chip_with_the_toolkit_only(machine, fake_torch):
    torch = fake_torch("2.9.0", hip="5.7", devices=(dcu("gfx906"),))
    assert probe(machine({}, {"torch": torch}, environ={"DTK_ROOT": "/opt/dtk"}), deep=True).available


def test_an_unknown_chip_is_allowed_with_a_warning_where_the_software_is(machine, fake_torch):
    torch = fake_torch(DAS, hip="6.3", devices=(dcu("gfx92a"),))
    report = probe(machine(DTK, {"torch": torch}), deep=True)
    assert report.available
    assert "gfx92a is in no list of chips and is taken for a DCU" in report.reason
    assert report.claims[0].arch == Arch("hygon", (9, 2, 10), "gfx92a")


def test_an_unknown_chip_on_a_plain_machine_is_not_guessed(machine, fake_torch):
    plain = fake_torch("2.9.0+rocm6.4", hip="6.4", devices=(dcu("gfx92a"),))
    report = probe(machine({}, {"torch": plain}), deep=True)
    assert report.claims == ()
    assert "not guessed" in report.reason


def test_conflict_of_build_and_chip_is_refused(machine, fake_torch):
    torch = fake_torch(DAS, hip="6.3", devices=(("AMD Instinct MI250X", (9, 0), "gfx90a"),), __hcu_version__="2604")
    report = probe(machine(DRIVER, {"torch": torch}), deep=True)
    assert report.claims == ()
    assert report.reason == ("conflict: torch is Hygon's build, but it names the devices gfx90a, which are not Hygon's")


def test_device_seen_runtime_missing(machine, fake_torch):
    report = probe(machine({**DRIVER, **DTK}, outputs={"hy-smi": HY_SMI}), deep=True)
    assert report.reason == "Hygon DCU found (/dev/mkfd, driver 6.3.8) but torch is not importable"
    report = probe(machine(DRIVER, {"torch": fake_torch("2.9.0+cpu")}), deep=True)
    assert report.reason == (
        "Hygon DCU found (/dev/mkfd, driver 6.3.8) but torch 2.9.0+cpu is not a HIP build; "
        "install the DAS build of torch for DTK"
    )


def test_device_driver_present_but_torch_sees_nothing(machine, fake_torch):
    report = probe(machine(DRIVER, {"torch": fake_torch(DAS, hip="6.3")}), deep=True)
    assert report.reason == f"Hygon DCU found (/dev/mkfd, driver 6.3.8) but torch {DAS} sees no cuda device"


def test_toolkit_without_a_card(machine):
    report = probe(machine(DTK), deep=True)
    assert report.reason == "Hygon's toolkit is installed, but no DCU was found; torch is not importable"


def test_a_hygon_cpu_is_not_a_dcu(machine, pci, fake_torch, verdicts):
    files = {
        "/proc/cpuinfo": "processor\t: 0\nvendor_id\t: HygonGenuine\nmodel name\t: Hygon C86 7285\n",
        **pci("0000:00:00.0", "0x1d94", "0x1450", "0x060000"),
        **pci("0000:00:01.1", "0x1d94", "0x1453", "0x060400"),
        **pci("0000:18:00.0", "0x10de", "0x2335", "0x030200"),
    }
    torch = fake_torch(cuda="12.9", devices=(("NVIDIA H200", (9, 0), ""),))
    report = probe(machine(files, {"torch": torch}), deep=True)
    assert not report.available
    assert report.claims == ()
    assert report.reason.startswith("no Hygon DCU found")
    assert verdicts(report)["PCI vendor 0x1d94"] == "unknown"


def test_pci_accelerator_of_hygon(machine, pci, verdicts):
    report = probe(machine(pci("0000:33:00.0", "0x1d94", "0x6210", "0x120000")), deep=True)
    assert verdicts(report)["PCI vendor 0x1d94"] == "for"
    assert report.reason == "Hygon DCU found (PCI 0000:33:00.0) but torch is not importable"


def test_an_old_torch_is_reported_with_its_version(machine, fake_torch):
    torch = fake_torch("2.5.1+das.opt1.dtk25041", hip="6.2", devices=(dcu("gfx928"),))
    report = probe(machine(DRIVER, {"torch": torch}), deep=True)
    assert not report.available
    assert report.reason == (
        "Hygon DCU gfx928 found but torch 2.5.1+das.opt1.dtk25041 is too old, torch >= 2.9 is needed"
    )
    assert report.claims


def test_das_without_dtk_is_not_the_vendors_build(machine, fake_torch, verdicts):
    report = probe(machine({}, {"torch": fake_torch("2.9.0+das1", hip="6.3", devices=(dcu("gfx906"),))}), deep=True)
    assert verdicts(report)["torch.__version__"] == "unknown"
    assert report.claims == ()


def test_rocm_build_of_paddle_is_a_hint_at_most(machine, verdicts):
    paddle = SimpleNamespace(is_compiled_with_rocm=lambda: True)
    assert verdicts(probe(machine({}, {"paddle": paddle}), deep=True))["paddle.is_compiled_with_rocm"] == "unknown"
    assert verdicts(probe(machine(DRIVER, {"paddle": paddle}), deep=True))["paddle.is_compiled_with_rocm"] == "hint"


def test_smi_texts():
    assert smi.count_cards(HY_SMI) == 2
    assert smi.count_cards('{"card0": {"DCU use (%)": 7 "x": }}') == 1  # not valid JSON, as seen in the field
    assert smi.count_cards("HCU[0]\t\t: HCU use (%): 0.0\nHCU[1]\t\t: HCU use (%): 0.0\n") == 2
    assert smi.count_cards(OLD_ROCM_SMI) == 1
    assert smi.count_cards(AMD_ROCM_SMI) is None
    assert smi.count_cards("") is None


def test_amds_rocm_smi_is_no_sign(machine, verdicts):
    report = probe(machine(outputs={"rocm-smi": AMD_ROCM_SMI}), deep=True)
    assert verdicts(report)["rocm-smi"] == "unknown"
    assert report.reason.startswith("no Hygon DCU found")


def test_hy_smi_off_the_path(machine):
    report = probe(machine(outputs={"/opt/hyhal/bin/hy-smi": HY_SMI}), deep=True)
    assert report.reason.startswith("Hygon DCU found (/opt/hyhal/bin/hy-smi, 2 cards)")


def test_arch_compares_with_hygons_own_only():
    assert arch.arch("gfx928") < arch.arch("gfx936")
    with pytest.raises(TypeError, match="different vendors"):
        arch.arch("gfx936") >= Arch("nvidia", (9, 0))  # noqa: B015 (it raises)
    assert arch.arch("whatever") is None
    assert arch.base_name("gfx928:sramecc+:xnack-") == "gfx928"


def test_a_shallow_look_asks_no_framework(machine, fake_torch):
    torch = fake_torch(DAS, hip="6.3", devices=(dcu("gfx936"),))
    report = probe(machine(DRIVER, {"torch": torch}), deep=False)
    assert report.claims == ()
    assert "shallow" in report.reason
    assert not any(e.probe.startswith("torch") for e in report.evidence)
