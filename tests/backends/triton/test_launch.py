"""Launch configurations: the tables are complete, and stored results are used only where they fit."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from fmcore import config
from fmcore.errors import ConfigWarning
from fmcore_triton import launch, tuner
from fmcore_triton.launch import Launch, default_launch, family_of

KERNELS = ("attn_fwd", "attn_bwd_kv", "attn_bwd_q")


@pytest.mark.parametrize("family", ["sm90", "sm80", "sm86", "gfx9", "default", "a chip of tomorrow"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("size", [16, 32, 64, 128, 256])
def test_every_family_has_a_row_for_every_kernel(family, kernel, bits, size):
    row = default_launch(kernel, family, bits=bits, size=size)
    assert {"BLOCK_M", "BLOCK_N"} <= set(row.meta)
    for name in ("BLOCK_M", "BLOCK_N"):
        assert row.meta[name] in (16, 32, 64, 128), "tiles divide a block mask's 128 x 128 entries"
    assert row.num_warps in (1, 2, 4, 8)
    assert Launch.from_row(row.to_row()) == row


def test_a_size_beyond_every_table_is_an_error_that_says_so():
    with pytest.raises(LookupError, match="attn_fwd with 16-bit elements and size 512"):
        default_launch("attn_fwd", "sm90", bits=16, size=512)


def test_families_follow_the_target_and_unknown_ones_are_safe():
    assert [family_of("cuda", a) for a in (80, 86, 89, 90, 100, 75)] == [
        "sm80",
        "sm86",
        "sm86",
        "sm90",
        "default",
        "default",
    ]
    assert [family_of("hip", a) for a in ("gfx90a", "gfx942", "gfx1100")] == ["gfx9", "gfx9", "default"]
    assert family_of("xpu", "3") == "default"
    assert set(launch.tables()) >= {"sm90", "sm80", "gfx9", "default"}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A GPU that is not here, with a cache folder of its own and a stop watch."""
    properties = SimpleNamespace(name="Imaginary", multi_processor_count=7)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(tuner, "device_family", lambda _: "sm90")
    monkeypatch.setattr(tuner, "_capturing", lambda: False)
    config.reload({"FMCORE_CACHE_DIR": str(tmp_path)})
    tuner.forget()
    yield tmp_path
    config.reload()
    tuner.forget()


def ask(trial=None, *, dtype=torch.bfloat16, mode=1):
    return tuner.launch_of(tuner.Kind("attn_fwd", dtype, 128, mode), torch.device("cuda", 0), trial=trial)


def seconds_of(table):
    """A stand-in for the timer: the trial returns its configuration, and the time is looked up."""
    return lambda call, **_: table(call)


def test_without_a_search_the_table_serves(machine):
    assert ask() == default_launch("attn_fwd", "sm90", bits=16, size=128)


def test_a_search_stores_the_fastest_and_later_processes_read_it(machine, monkeypatch):
    config.reload({"FMCORE_CACHE_DIR": str(machine), "FMCORE_TUNE": "60"})
    tuner.forget()
    wanted = Launch({"BLOCK_M": 64, "BLOCK_N": 64}, 4, 2)
    monkeypatch.setattr("triton.testing.do_bench", seconds_of(lambda launch: 1.0 if launch == wanted else 2.0))
    assert ask(lambda candidate: candidate) == wanted
    config.reload({"FMCORE_CACHE_DIR": str(machine)})
    tuner.forget()
    assert ask() == wanted
    other = ask(mode=2)
    assert other == default_launch("attn_fwd", "sm90", bits=16, size=128), "another mask mode has a key of its own"
    (file,) = (machine / "triton-launch").glob("*.json")
    key = json.loads(file.read_text())["key"]
    assert set(key) == {"kernel", "source", "device", "processors", "arch", "triton", "dtype", "size", "mode", "dense"}


def test_a_configuration_that_does_not_fit_the_device_is_passed_over(machine, monkeypatch):
    from triton.runtime.errors import OutOfResources

    config.reload({"FMCORE_CACHE_DIR": str(machine), "FMCORE_TUNE": "60"})
    tuner.forget()

    def trial(candidate):
        if candidate.meta["BLOCK_M"] != 64:
            raise OutOfResources(300000, 232448, "shared memory")
        return candidate

    monkeypatch.setattr("triton.testing.do_bench", seconds_of(lambda launch: float(launch.num_warps)))
    assert ask(trial).meta["BLOCK_M"] == 64


def test_a_kernel_that_fails_for_another_reason_is_not_hidden(machine, monkeypatch):
    config.reload({"FMCORE_CACHE_DIR": str(machine), "FMCORE_TUNE": "60"})
    tuner.forget()

    def trial(_):
        raise RuntimeError("misaligned address")

    with pytest.raises(RuntimeError, match="misaligned"):
        ask(trial)


def test_the_budget_is_the_process_s_and_ends_the_search(machine, monkeypatch):
    config.reload({"FMCORE_CACHE_DIR": str(machine), "FMCORE_TUNE": "1"})
    tuner.forget()
    clock = iter(range(1000))
    monkeypatch.setattr(tuner.time, "monotonic", lambda: float(next(clock)))
    tried = []
    monkeypatch.setattr("triton.testing.do_bench", seconds_of(lambda launch: 1.0))
    ask(lambda candidate: tried.append(candidate) or candidate)
    assert 1 <= len(tried) <= 3
    before = len(tried)
    ask(lambda candidate: tried.append(candidate) or candidate, mode=2)
    assert len(tried) == before, "the budget was spent"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("Imaginary", "Another"),
        lambda text: text.replace('"num_warps"', '"num_wraps"'),
        lambda text: text.replace('"num_warps": 4', '"num_warps": 4000'),
    ],
    ids=["torn", "foreign", "unknown field", "out of range"],
)
def test_a_file_that_is_not_to_be_trusted_is_ignored_with_one_warning(machine, monkeypatch, spoil):
    config.reload({"FMCORE_CACHE_DIR": str(machine), "FMCORE_TUNE": "60"})
    tuner.forget()
    wanted = Launch({"BLOCK_M": 64, "BLOCK_N": 64}, 4, 2)
    monkeypatch.setattr("triton.testing.do_bench", seconds_of(lambda launch: 1.0 if launch == wanted else 2.0))
    assert ask(lambda candidate: candidate) == wanted
    (file,) = (machine / "triton-launch").glob("*.json")
    spoiled = spoil(file.read_text())
    assert spoiled != file.read_text()
    file.write_text(spoiled)
    config.reload({"FMCORE_CACHE_DIR": str(machine)})
    tuner.forget()
    with pytest.warns(ConfigWarning, match="is ignored"):
        assert ask() == default_launch("attn_fwd", "sm90", bits=16, size=128)
    assert ask() == default_launch("attn_fwd", "sm90", bits=16, size=128)


def test_candidates_are_distinct_and_begin_with_the_default():
    default = default_launch("attn_bwd_kv", "sm90", bits=16, size=128)
    found = list(tuner.space("attn_bwd_kv", default, bits=16))
    assert found[0] == default
    assert len(found) == len({json.dumps(c.to_row(), sort_keys=True) for c in found}) > 20


def test_dense_masks_have_rows_of_their_own_where_they_pay():
    rows = [default_launch("attn_fwd", "sm90", bits=16, size=128, dense=dense).to_row() for dense in (False, True)]
    assert rows[0] != rows[1]
    assert "dense" not in rows[1]
    for family in ("sm90", "sm80", "sm86", "gfx9", "default"):
        assert default_launch("attn_bwd_q", family, bits=32, size=256, dense=True) == default_launch(
            "attn_bwd_q", family, bits=32, size=256
        )


def area(launch):
    return launch.num_stages * launch.meta["BLOCK_M"] * launch.meta["BLOCK_N"]


def device_with(room, ran):
    """A trial on a device that holds configurations up to `room`."""
    from triton.runtime.errors import OutOfResources

    def trial(launch):
        def go():
            if area(launch) > room:
                raise OutOfResources(area(launch), room, "shared memory")
            ran.append(launch)

        return go

    return trial


@pytest.mark.parametrize("room", [1 << 30, 128 * 32 * 2, 64 * 32, 16 * 16])
def test_a_configuration_too_large_for_the_device_gives_way_once(machine, room):
    kind, device = tuner.Kind("attn_fwd", torch.bfloat16, 128, 2), torch.device("cuda", 0)
    ran = []
    tuner.run(kind, device, device_with(room, ran))
    first = ran[-1]
    assert area(first) <= room < (1 << 31)
    assert (first == default_launch("attn_fwd", "sm90", bits=16, size=128)) == (room == 1 << 30)
    assert min(first.meta.values()) >= 16
    refused = []

    def count(launch):
        refused.append(launch)
        return device_with(room, ran)(launch)

    tuner.run(kind, device, count)
    assert ran == [first, first]
    assert refused == [first], "what did not fit is not tried again"


def test_a_device_that_holds_nothing_gets_triton_s_own_error(machine):
    from triton.runtime.errors import OutOfResources

    ran = []
    with pytest.raises(OutOfResources):
        tuner.run(tuner.Kind("attn_fwd", torch.bfloat16, 128, 2), torch.device("cuda", 0), device_with(0, ran))
    assert ran == []


def test_a_search_in_which_nothing_runs_stores_nothing(machine, monkeypatch):
    from triton.runtime.errors import OutOfResources

    config.reload({"FMCORE_CACHE_DIR": str(machine), "FMCORE_TUNE": "60"})
    tuner.forget()

    def trial(_):
        raise OutOfResources(300000, 232448, "shared memory")

    assert ask(trial) == default_launch("attn_fwd", "sm90", bits=16, size=128)
    assert not list((machine / "triton-launch").glob("*.json"))
