"""The child process: takes case ids line by line on its standard input, answers with one JSON line per event.

Kernels may print and may die. The channel back is therefore a duplicate of the original standard output, while file
descriptor 1 points at standard error; the parent reads the line that says which case had begun.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import IO, Any

FAULT_STATUS = 77


def _channel() -> IO[str]:
    private = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return private


def _send(channel: IO[str], **event: Any) -> None:
    channel.write(json.dumps(event) + "\n")
    channel.flush()


def serve(requests: IO[str], channel: IO[str], setup: dict[str, Any]) -> int:
    """Answer requests until the input ends.

    Args:
        requests: One JSON list of case ids a line.
        channel: Where events go.
        setup: ``load`` (modules to import first), ``backend``, ``device``, ``seed``.

    Returns:
        The exit status: 0, or ``FAULT_STATUS`` after a device fault.
    """
    import torch

    from fmcore_conformance.collect import collect
    from fmcore_conformance.execute import DeviceFaultError, execute
    from fmcore_conformance.target import Target

    torch.set_num_threads(int(setup.get("threads", 1)))
    for module in setup["load"]:
        importlib.import_module(module).load()
    target = Target(setup["backend"], setup["device"], setup["seed"], tuple(setup["load"]))
    cases = {case.id: case for case in collect(target)}
    _send(channel, event="ready", cases=len(cases))
    for line in requests:
        for case_id in json.loads(line):
            _send(channel, event="start", id=case_id)
            try:
                cell = execute(cases[case_id], target)
            except DeviceFaultError as fault:
                _send(channel, event="cell", cell=fault.cell.to_json())
                return FAULT_STATUS
            _send(channel, event="cell", cell=cell.to_json())
        _send(channel, event="done")
    return 0


def main() -> int:
    """Entry point of ``python -m fmcore_conformance.worker SETUP``."""
    channel = _channel()
    return serve(sys.stdin, channel, json.loads(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
