"""``fmcore bench``: what a dispatched call costs on this machine. The implementation behind it does nothing."""

from __future__ import annotations

import statistics
import sys
import timeit
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from fmcore.cli import _output
from fmcore.dispatch import BackendMeta, hookimpl
from fmcore.dispatch.caps import Caps

if TYPE_CHECKING:
    from fmcore.dispatch.registrar import Registrar

NAME = "bench_null"
# As a ratio to a dict look-up and a call, so that it holds on any machine; measured in benchmarks/ against rivals.
LIMIT_RATIO = 40.0


class _Null:
    """A backend whose implementations return what was made before."""

    fmcore_metadata = (BackendMeta(NAME, vendor="any"),)

    def __init__(self, out: Any, lse: Any) -> None:
        self._results = (out, lse)

    @hookimpl
    def fmcore_register_impls(self, registrar: Registrar) -> None:
        results = self._results
        caps = Caps(grad=False)
        registrar.impl("math.negative", name="null", caps=caps)(lambda x: x)
        registrar.impl("flashmask_attention", name="null", caps=caps)(lambda *_tensors, **_rest: results)


def _microseconds(call: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return minimum and median of a call, in microseconds."""
    timer = timeit.Timer(call)
    number, _ = timer.autorange()
    times = [seconds / number * 1e6 for seconds in timer.repeat(repeats, max(1, number // 4))]
    return min(times), statistics.median(times)


@click.command(name="bench")
@click.option("--repeats", default=7, show_default=True, help="Repetitions of each measurement; the minimum counts.")
@_output.json_option
def command(repeats: int, as_json: bool) -> None:
    """What a dispatched call costs on this machine, with an implementation that does nothing.

    Exit code 0: a public call costs at most 40 times a dict look-up and a call; 1: it costs more.
    """
    rows = measure(repeats)
    base = rows[0]["min_us"]
    for row in rows:
        row["ratio"] = row["min_us"] / base
    worst = max(row["ratio"] for row in rows if row["judged"])
    if as_json:
        _output.print_json({"rows": rows, "limit_ratio": LIMIT_RATIO, "worst_ratio": worst})
    else:
        cells = [(r["what"], f"{r['min_us']:.2f}", f"{r['median_us']:.2f}", f"{r['ratio']:.1f}") for r in rows]
        out = _output.console()
        _output.table(out, "Cost of a call", ("what", "min us", "median us", "x look-up"), cells)
        out.print(f"A public call costs {worst:.1f} look-ups, the limit is {LIMIT_RATIO:.0f}.")
    sys.exit(_output.EXIT_OK if worst <= LIMIT_RATIO else _output.EXIT_FAILED)


def measure(repeats: int) -> list[dict[str, Any]]:
    """Return the rows of the table; the first is the yardstick."""
    import torch

    import fmcore

    q = torch.zeros(1, 8, 2, 16)
    out, lse = torch.zeros_like(q), torch.zeros(1, 2, 8)
    mask = fmcore.masks.causal(8)
    table, key = {(1, "op", torch.float32): lambda x: x}, (1, "op", torch.float32)
    with ExitStack() as stack:
        fmcore.register_backend(_Null(out, lse))
        stack.callback(fmcore.unregister_backend, NAME)
        stack.enter_context(torch.no_grad())
        stack.enter_context(fmcore.use(NAME, strict=True))
        bound = fmcore.bind("flashmask_attention", backend=NAME)
        calls: list[tuple[str, Callable[[], Any], bool]] = [
            ("dict look-up and call", lambda: table[key](q), False),
            ("torch.neg", lambda: torch.neg(q), False),
            ("fm.math.negative", lambda: fmcore.math.negative(q), True),
            ("fm.flashmask_attention", lambda: fmcore.flashmask_attention(q, q, q, mask=mask), True),
            ("bound flashmask_attention", lambda: bound(q, q, q, mask=mask), True),
        ]
        rows = []
        for what, call, judged in calls:
            call()
            least, median = _microseconds(call, repeats)
            rows.append({"what": what, "min_us": least, "median_us": median, "judged": judged})
    return rows
