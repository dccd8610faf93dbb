"""``fmcore doctor``: what is on this machine, which backends work, and why the others do not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from fmcore.cli import _facts, _output

if TYPE_CHECKING:
    from rich.console import Console


@click.command(name="doctor")
@click.option("--shallow", is_flag=True, help="Read metadata and signs only: import no plugin, ask no device.")
@click.option("--evidence", is_flag=True, help="Show every observation of every probe, not only those that decided.")
@_output.json_option
def command(shallow: bool, evidence: bool, as_json: bool) -> None:
    """What is on this machine, which backends work, and why the others do not.

    Exit code 0: well; 1: something is broken or in conflict; 3: no backend is available.
    """
    facts = _facts.gather(shallow=shallow)
    facts["problems"] = _facts.problems(facts)
    if as_json:
        _output.print_json(facts)
    else:
        _show(facts, evidence=evidence)
    sys.exit(_exit_code(facts, shallow=shallow))


def _exit_code(facts: dict[str, Any], *, shallow: bool) -> int:
    if facts["problems"]:
        return _output.EXIT_FAILED
    usable = "possible" if shallow else "available"
    if any(b["state"] == usable for b in facts["backends"]):
        return _output.EXIT_OK
    return _output.EXIT_NOTHING


def _show(facts: dict[str, Any], *, evidence: bool) -> None:
    out = _output.console()
    _versions(out, facts)
    rows = [(b["name"], b["state"], b["band"], b["vendor"], _impls(b), b["reason"]) for b in facts["backends"]]
    _output.table(out, "Backends", ("name", "state", "band", "vendor", "impls", "why"), rows)
    origins = [(b["name"], b["distribution"], b["location"]) for b in facts["backends"]]
    _output.table(out, "Where they come from", ("name", "distribution", "file"), origins)
    if facts["devices"]:
        devices = [
            (d["device"], d["vendor"], d["arch"], d["name"], ", ".join(d["claimed_by"])) for d in facts["devices"]
        ]
        _output.table(out, "Devices", ("device", "vendor", "generation", "name", "claimed by"), devices)
    seen = [
        (b["name"], e["probe"], e["value"], e["verdict"])
        for b in facts["backends"]
        for e in b["evidence"]
        if evidence or e["verdict"] in ("for", "hint")
    ]
    title = "Evidence" if evidence else "Evidence for a backend (--evidence shows all)"
    _output.table(out, title, ("backend", "probe", "value", "verdict"), seen)
    for backend in facts["backends"]:
        if backend["own_lines"] and "error" not in backend["own_lines"]:
            _output.lines(out, backend["name"], backend["own_lines"].items())
    _environment(out, facts)
    _trouble(out, facts)


def _impls(backend: dict[str, Any]) -> str:
    if backend["impls"]:
        return f"{backend['impls']} for {backend['ops']} ops"
    return "none" if backend["state"] == "available" else ""


def _versions(out: Console, facts: dict[str, Any]) -> None:
    own, torch = facts["fmcore"], facts["torch"]
    pairs = [
        ("fmcore", f"{own['version']} ({own['distribution']}), plugin API {own['plugin_api']}, {own['file']}"),
        ("python", f"{facts['python']['version']} {facts['python']['executable']}, {facts['python']['platform']}"),
    ]
    if torch:
        shown = torch.get("error") or f"{torch['version']}, cuda {torch['cuda']}, hip {torch['hip']}, {torch['file']}"
        pairs.append(("torch", shown))
    others = [f"{name} {version}" for name, version in facts["packages"].items() if name != "torch" or not torch]
    pairs.append(("others", ", ".join(others)))
    choice = facts["choice"]
    if choice:
        chosen = (
            choice.get("error") or f"{choice['name']} on {choice['device']} ({choice['vendor']}): {choice['reason']}"
        )
        pairs.append(("chosen", chosen))
    _output.lines(out, "Versions", pairs)


def _environment(out: Console, facts: dict[str, Any]) -> None:
    given = [(v["name"], str(v["value"]), v["owner"], v["doc"]) for v in facts["environment"] if v["value"] is not None]
    if given:
        _output.table(out, "Variables that are set", ("name", "value", "read by", "meaning"), given)
    else:
        out.print("No FMCORE_* variable is set.")


def _trouble(out: Console, facts: dict[str, Any]) -> None:
    for backend in facts["backends"]:
        if backend["traceback"]:
            out.print(f"\nTraceback of {backend['name']} ({backend['distribution']}):", style="bold red")
            out.print(backend["traceback"], markup=False, soft_wrap=True)
    if facts["load_failure"]:
        out.print("\nTraceback of what stopped the loading of plugins:", style="bold red")
        out.print(facts["load_failure"]["traceback"], markup=False, soft_wrap=True)
    for impl in facts["broken_impls"]:
        out.print(f"\nBroken implementation {impl['backend']}/{impl['name']} of {impl['op']}:", style="bold red")
        out.print(impl["why"], markup=False, soft_wrap=True)
    if facts["problems"]:
        out.print("\nTo repair:", style="bold red")
        for problem in facts["problems"]:
            out.print(f"  - {problem}", markup=False, soft_wrap=True)
    else:
        out.print("\nNothing is broken.")
