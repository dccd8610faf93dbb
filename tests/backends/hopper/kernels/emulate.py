"""Attention on the emulated machine against the oracle; a program of its own: the interpreter of the small Triton
kernels around it is chosen when they are defined.

Usage: TRITON_INTERPRET=1 python emulate.py cases|faults. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "backends" / "cuda_hopper"),
    str(ROOT / "backends" / "triton" / "tools"),
    str(ROOT / "tests" / "backends" / "triton"),
    str(HERE),
]

from cases import Case, judge, make_mask, operands  # noqa: E402
from emulator.load import Emulated, kernel_modules  # noqa: E402
from emulator.machine import Deadlock, Fault  # noqa: E402
from interpret import _repair_interpreter  # noqa: E402

from fmcore_cuda_hopper import attention, work  # noqa: E402

SMALL = {"d": 64, "dv": 64, "s_q": 200, "s_k": 200}
CASES = [
    Case(kind="causal_doc", **{**SMALL, "s_q": 300, "s_k": 300, "h_q": 4, "h_kv": 2, "dlse": True}),
    Case(kind="document", dtype="float16", **SMALL),
    Case(kind="sliding", b=2, **SMALL),
    Case(kind="gap", **SMALL),
    Case(kind="band", dlse=True, **{**SMALL, "s_q": 257, "s_k": 257}),
    Case(kind="random1", mask_heads="q", mask_batch=True, b=2, h_q=2, h_kv=1, **{**SMALL, "s_q": 129, "s_k": 140}),
    Case(kind="random4", mask_heads="kv", h_q=4, h_kv=2, **{**SMALL, "s_q": 140, "s_k": 129}),
    Case(kind="hidden", dlse=True, **{**SMALL, "s_q": 70, "s_k": 70}),
    Case(kind="full", **{**SMALL, "s_q": 130, "s_k": 300}),
    Case(kind="full", **{**SMALL, "s_q": 1, "s_k": 1}),
    Case(kind="causal", **{**SMALL, "s_q": 256, "s_k": 100}),
    Case(kind="blocks", seed=3, **{**SMALL, "s_q": 300, "s_k": 300}),
    Case(kind="causal_doc", scale=-0.3, layout="strided", **SMALL),
    Case(kind="causal", layout="zero", magnitude=6.0, **SMALL),
    Case(kind="causal_doc", **{**SMALL, "d": 128, "dv": 128}),
]

# name -> (module, source text, what it becomes)
FAULTS: dict[str, tuple[str, str, str]] = {
    "V released before its product is done": (
        "forward",
        "    acc = warpgroup_mma_wait(0, [acc])\n    mbarrier.arrive(v_empty.index(before), count=1)",
        "    mbarrier.arrive(v_empty.index(before), count=1)\n    dawdle()\n    acc = warpgroup_mma_wait(0, [acc])",
    ),
    "no wait for Q": ("forward", "        mbarrier.wait(q_full.index(slot), (it >> 1) & 1)\n", ""),
    "no wait for V": ("forward", "    mbarrier.wait(v_full.index(before), ring_parity(kc - 1, STAGES))\n", ""),
    "Q's slot refilled while O leaves it": (
        "forward",
        "        tma_store_wait(0)  # the item before has left its slot: the producer may refill it\n",
        "",
    ),
    "one warpgroup alone frees K": ("forward", "k_empty.index(i), count=2", "k_empty.index(i), count=1"),
    "planes not counted in the bytes": ("forward", "KEY_BYTES + PLANES * BN * 4, pred", "KEY_BYTES, pred"),
    "no wait for the other half of dS": (
        "backward",
        "    mbarrier.wait(ds_full.index(ds_slot + 1 - WHO), (kc >> 1) & 1)\n",
        "",
    ),
    "one buffer for dS": ("backward", "ds_slot = (kc & 1) * 2", "ds_slot = 0"),
    "Q released before dK is done": (
        "backward",
        """    dk = warpgroup_mma_wait(0, [dk])
    mbarrier.arrive(q_empty.index(slot), count=1)""",
        """    mbarrier.arrive(q_empty.index(slot), count=1)
    dawdle()
    dk = warpgroup_mma_wait(0, [dk])""",
    ),
    "no wait for dO": ("backward", "    mbarrier.wait(do_full.index(slot), (kc >> 1) & 1)\n", ""),
    "no wait for the next Q": (
        "backward",
        "    mbarrier.wait(q_full.index(slot_next), (after >> 1) & 1, pred=nxt < n_steps)\n",
        "",
    ),
    "one warpgroup alone frees K and V": (
        "backward",
        "mbarrier.init(kv_empty, count=2)",
        "mbarrier.init(kv_empty, count=1)",
    ),
    "dK staged over a store in flight": ("backward", "        tma_store_wait(0)\n        dv_out", "        dv_out"),
    "no wait for the first Q": (
        "backward",
        "        mbarrier.wait(q_full.index(slot), (kc >> 1) & 1, pred=n_steps > 0)\n",
        "",
    ),
}


def install(edit: Any = None, *, jitter: float, programs: int, seed: int = 0) -> None:
    modules = kernel_modules(edit)
    attention._FORWARD = Emulated(modules["forward"].flashmask_forward, jitter=jitter, seed=seed)
    attention._BACKWARD = Emulated(modules["backward"].flashmask_backward, jitter=jitter, seed=seed)
    attention._BEFORE.compiled = attention._AFTER.compiled = _Never()
    attention.multiprocessors = lambda device: programs
    work.cache_budget = lambda device: 100_000


class _Never(dict):
    """The interpreter has no compiled object to come back to."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def run(case: Case) -> dict[str, float]:
    x, mask = operands(case, "cpu"), make_mask(case, "cpu")
    keywords: dict[str, Any] = {"softmax_scale": x.scale, "softcap": 0.0, "sink": None, "deterministic": False}
    out, lse = attention.forward(x.q, x.k, x.v, mask, **keywords)
    grads = attention.backward(x.dout, x.dlse, x.q, x.k, x.v, out, lse, mask, **keywords)
    return judge(case, x, out, lse, grads).ratios


def cases() -> dict[str, Any]:
    install(jitter=0.0005, programs=3)
    found: dict[str, Any] = {}
    for case in CASES:
        begin = time.monotonic()
        found[case.name] = run(case)
        print(case.name, round(time.monotonic() - begin, 1), found[case.name], file=sys.stderr, flush=True)
    return found


def faults() -> dict[str, Any]:
    """How each planted fault shows itself; empty if it does not. The sound kernel runs the same cases first."""
    case = Case(kind="causal_doc", **{**SMALL, "s_q": 400, "s_k": 520, "h_q": 2, "h_kv": 1})
    found: dict[str, Any] = {}
    for name, (module, sound, wrong) in {"none": ("", "", ""), **FAULTS}.items():
        planted: list[bool] = []

        def edit(
            which: str, source: str, module: str = module, sound: str = sound, wrong: str = wrong, seen: Any = planted
        ) -> str:
            if which == module:
                seen.append(source.count(sound) == 1)
                source = source.replace(sound, wrong)
                if "dawdle()" in wrong:
                    source = "from emulator.machine import dawdle\n" + source
            return source

        shown = ""
        for seed in range(3):
            install(edit, jitter=0.002, programs=1, seed=seed)
            try:
                worst = max(run(case).values())
                shown = f"wrong by {worst:.3g} of what is allowed" if not worst <= 1 else ""
            except (Deadlock, Fault) as error:
                shown = f"{type(error).__name__}: {error}"
            if shown:
                break
        found[name] = {"planted": planted[:1] in ([], [True]), "shown": shown}
        print(name, found[name], file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    _repair_interpreter()
    torch.set_num_threads(1)
    print(json.dumps({"cases": cases, "faults": faults}[sys.argv[1]]()))
