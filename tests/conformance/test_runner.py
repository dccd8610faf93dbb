"""Isolation: a crash, a hang, a lost device are verdicts; the run goes on, and resumes."""

from __future__ import annotations

import json

import pytest

from fmcore_conformance.progress import Quiet
from fmcore_conformance.runner import Setup
from fmcore_conformance.selection import Selection
from fmcore_conformance.session import RESULTS, Plan, run

MISBEHAVING = "fmcore_conformance.saboteurs.misbehaving"
CASES = (
    "attention/tails/close-1x1/bfloat16",
    "attention/tails/close-127x127/bfloat16",
    "attention/tails/no-keys/float32",
)


def plan(out, backend, **more):
    setup = Setup(backend, load=(MISBEHAVING,), jobs=1, time_scale=more.pop("time_scale", 1.0))
    return Plan(setup, Selection(cases=CASES), out, **more)


@pytest.mark.parametrize(
    ("backend", "verdict", "words", "scale"),
    [
        ("misbehaves_crash", "crash", "SIGSEGV", 1.0),
        ("misbehaves_hang", "timeout", "no answer within 2.4 s", 0.02),
        ("misbehaves_lose_device", "crash", "illegal memory access", 1.0),
    ],
)
def test_what_goes_wrong_is_recorded_and_the_run_goes_on(tmp_path, backend, verdict, words, scale):
    made = run(plan(tmp_path, backend, time_scale=scale), Quiet())
    found = {cell["id"]: cell for cell in made["cells"]}
    assert [found[case]["verdict"] for case in CASES] == ["pass", verdict, "pass"]
    assert words in found[CASES[1]]["reason"]
    assert made["emulated"]
    assert made["levels"] == {}


def test_resume_keeps_what_was_known_and_refuses_another_run(tmp_path):
    first = plan(tmp_path, "misbehaves_leave")
    tmp_path.mkdir(exist_ok=True)
    known = {"id": CASES[1], "op": "flashmask_attention", "dtype": "float32", "level": "L2", "verdict": "pass"}
    lines = [json.dumps(first.header()), *(json.dumps({**known, "id": case}) for case in CASES), '{"id": "cut o']
    (tmp_path / RESULTS).write_text("\n".join(lines))
    made = run(plan(tmp_path, "misbehaves_leave", resume=True), Quiet())
    assert made["counts"] == {"pass": 3}
    with pytest.raises(ValueError, match=r"is of another run .differs in backend"):
        run(plan(tmp_path, "misbehaves_crash", resume=True), Quiet())
