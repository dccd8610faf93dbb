"""Real little distributions, all installed at once: each stands or falls by itself, and the good one works."""

from __future__ import annotations

import json

import pytest

TOML = """\
[[backend]]
name = "{name}"
vendor = "cpu"
band = "portable"
spec_version = "{spec}"
shallow = [{{ kind = "always" }}]
"""
HEAD = "from fmcore.dispatch import hookimpl, ProbeReport\nfrom fmcore.dispatch.caps import Caps\n"
ADD = """
@hookimpl
def fmcore_register_impls(registrar):
    @registrar.impl("math.add", name="plus", caps=Caps(device_types={"cpu"}), autograd="native")
    def plus(x1, x2):
        return x1 + x2
"""
TWO = (
    HEAD
    + """
@hookimpl
def fmcore_probe(env, deep):
    missing = ProbeReport(available=False, reason="its card is missing")
    return {"two_a": ProbeReport(available=True, reason="here"), "two_b": missing}

@hookimpl
def fmcore_doctor(backend):
    return {"driver": "1.2.3 of " + backend}

@hookimpl
def fmcore_register_impls(registrar, spec_version):
    assert spec_version == (1, 0)
    assert registrar.serves("two_a") and not registrar.serves("two_b")

    @registrar.impl("math.add", name="plus", backend="two_a", caps=Caps(device_types={"cpu"}), autograd="native")
    def plus(x1, x2):
        return x1 + x2 + 1000

    @registrar.impl("math.add", name="plus", backend="two_b", caps=Caps(), autograd="native")
    def never(x1, x2):
        raise AssertionError
"""
)
HALF = (
    HEAD
    + """
@hookimpl
def fmcore_register_impls(registrar):
    def plus(x1, x2):
        return x1 + x2
    registrar.impl("math.add", name="first", caps=Caps(device_types={"cpu"}), autograd="native")(plus)
    registrar.impl("math.no_such_op", name="second", caps=Caps(), autograd="native")(plus)
    registrar.impl("math.add", name="third", caps=Caps(where={"no_such_feature": None}), autograd="native")(plus)
    registrar.impl("math.add", name="fourth", caps=Caps())(plus)
    registrar.impl("math.add", name="fifth", caps=Caps(device_types={"cpu"}), autograd="native")(plus)
    raise OSError("libacme.so.3: cannot open shared object file")
"""
)
LOOK = """
import json, sys
import fmcore as fm
loaded_by_import = sorted(name for name in sys.modules if name.startswith("fmt_"))
states = {}
for b in fm.backends():
    fields = ("state", "reason", "traceback", "distribution", "location")
    states.setdefault(b.name, []).append({field: getattr(b, field) for field in fields})
from fmcore.dispatch.plugins import MANAGER
from fmcore.dispatch.registry import REGISTRY
snapshot = REGISTRY.snapshot
import torch
one = torch.ones(2)
print("@@" + json.dumps({
    "loaded_by_import": loaded_by_import,
    "states": states,
    "impls": sorted(i.id for i in snapshot.impls["math.add"]),
    "broken": [[b.backend, b.name, b.why] for b in snapshot.broken],
    "two_a": fm.math.add(one, one, backend="two_a").tolist(),
    "auto": fm.math.add(one, one).tolist(),
    "doctor": dict(MANAGER.doctor("two_a")),
}))
"""


def toml(name, spec=">=1,<2"):
    return TOML.format(name=name, spec=spec)


@pytest.fixture(scope="module")
def seen(site):
    site.plugin("two", "fmt_two", toml("two_a") + toml("two_b"), TWO)
    site.plugin("raises_import", "fmt_import", toml("raises_import"), "raise RuntimeError('boom at import')\n")
    site.plugin("exits", "fmt_exits", toml("exits"), "raise SystemExit('plugin wants to leave')\n")
    site.plugin(
        "raises_probe",
        "fmt_probe",
        toml("raises_probe"),
        HEAD + "@hookimpl\ndef fmcore_probe(env, deep):\n    raise ValueError('boom in probe')\n",
    )
    site.plugin(
        "wrong_probe",
        "fmt_wrong",
        toml("wrong_probe"),
        HEAD + "@hookimpl\ndef fmcore_probe(env, deep):\n    return {'wrong_probe': True}\n",
    )
    site.plugin("half", "fmt_half", toml("half"), HALF)
    site.plugin(
        "misspelt",
        "fmt_misspelt",
        toml("misspelt"),
        HEAD + "@hookimpl\ndef fmcore_prob(env, deep):\n    return {}\n" + ADD,
    )
    site.plugin(
        "wrong_args",
        "fmt_args",
        toml("wrong_args"),
        HEAD + "@hookimpl\ndef fmcore_probe(environment):\n    return {}\n",
    )
    site.plugin("no_toml", "fmt_notoml", None, HEAD)
    site.plugin("bad_toml", "fmt_badtoml", '[[backend]\nname = "bad_toml"', HEAD)
    site.plugin("latin", "fmt_latin", '[[backend]]\nname = "lat\xefn"'.encode("latin-1"), HEAD)
    site.plugin(
        "lacks_band",
        "fmt_lacks",
        '[[backend]]\nname = "lacks_band"\nvendor = "x"\nspec_version = ">=1"\nshallow = []\n',
        HEAD,
    )
    site.plugin("bad_rule", "fmt_rule", toml("bad_rule").replace('[{ kind = "always" }]', '["always"]'), HEAD)
    site.plugin("bad_env", "fmt_env", toml("bad_env") + 'env = [{ nme = "FMCORE_X" }]\n', HEAD)
    site.plugin("bad_spec", "fmt_spec", toml("bad_spec", "one"), HEAD)
    site.plugin("future", "fmt_future", toml("future", ">=2,<3"), "raise RuntimeError('must not be imported')\n")
    site.plugin("twin", "fmt_twin_a", toml("twin"), HEAD + ADD, distribution="twin-one")
    site.plugin("twin", "fmt_twin_b", toml("twin"), HEAD + ADD, distribution="twin-two")
    site.plugin("prints", "fmt_prints", toml("prints"), "print('hello from a plugin')\n" + HEAD + ADD)
    site.add("dist-ghost", {}, {"ghost": "fmt_ghost_package"})
    site.add(
        "dist-dotted",
        {"fmt_dotted/__init__.py": "raise RuntimeError('parent imported')\n"},
        {"dotted": "fmt_dotted.inner"},
    )
    site.plugin(
        "shy",
        "fmt_shy",
        toml("shy").replace('"always"', '"module", any = ["no_such_module"]'),
        "raise RuntimeError('must not be imported')\n",
    )
    site.plugin(
        "bad_regex",
        "fmt_regex",
        toml("bad_regex").replace('"always"', '"file", any = ["/proc/cpuinfo"], contains = "("'),
        HEAD,
    )
    site.plugin("text_any", "fmt_any", toml("text_any").replace('"always"', '"file", any = "/proc/cpuinfo"'), HEAD)
    site.plugin("number", "fmt_number", toml("number").replace('vendor = "cpu"', "vendor = 3"), HEAD)
    site.plugin("cpu", "fmt_squatter", "not toml", HEAD, distribution="aaa-squatter")
    done = site.run("-W", "error::SyntaxWarning", "-c", LOOK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("@@"), "what a plugin prints must not end up in the output of the host"
    found = json.loads(done.stdout.split("@@")[1])
    found["stderr"] = done.stderr
    return found


def only(seen, name):
    (state,) = seen["states"][name]
    return state


def test_importing_fmcore_imports_no_plugin(seen):
    assert seen["loaded_by_import"] == []


def test_a_good_plugin_with_two_backends(seen):
    assert only(seen, "two_a")["state"] == "available"
    assert only(seen, "two_b")["state"] == "unavailable"
    assert only(seen, "two_b")["reason"] == "its card is missing"
    assert only(seen, "two_a")["distribution"] == "dist-fmt-two 1.0"
    assert only(seen, "two_a")["location"].endswith("fmt_two/__init__.py")
    assert seen["two_a"] == [1002.0, 1002.0]
    assert "two_b/plus" not in seen["impls"]
    assert seen["doctor"] == {"driver": "1.2.3 of two_a"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises_import", "boom at import"),
        ("exits", "plugin wants to leave"),
        ("raises_probe", "boom in probe"),
        ("wrong_probe", "ProbeReport"),
        ("wrong_args", "environment"),
    ],
)
def test_what_raises_is_broken_with_its_traceback(seen, name, words):
    state = only(seen, name)
    assert state["state"] == "broken"
    assert words in state["reason"]
    assert "Traceback (most recent call last)" in state["traceback"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_toml", "has no fmcore_backend.toml"),
        ("bad_toml", "is not valid TOML"),
        ("latin", "fmcore_backend.toml"),
        ("lacks_band", "has no 'band'"),
        ("bad_rule", "shallow"),
        ("bad_env", "env"),
        ("bad_spec", "spec_version clause 'one'"),
        ("bad_regex", "'contains' is no regular expression"),
        ("text_any", "'any' must be a list of texts"),
        ("number", "vendor = 3 must be text"),
        ("ghost", "is not installed as a package folder"),
        ("dotted", "is dotted; name a top-level package"),
    ],
)
def test_wrong_metadata_is_broken_and_says_what_is_wrong(seen, name, words):
    state = only(seen, name)
    assert state["state"] == "broken", state
    assert words in state["reason"]


def test_one_wrong_implementation_leaves_the_others(seen):
    assert only(seen, "half")["state"] == "available"
    assert [impl for impl in seen["impls"] if impl.startswith("half/")] == ["half/fifth", "half/first"]
    broken = {name: why for backend, name, why in seen["broken"] if backend == "half"}
    assert set(broken) == {"second", "third", "fourth", "fmcore_register_impls"}
    assert "math.no_such_op" in broken["second"]
    assert "no_such_feature" in broken["third"]
    assert "has no backward, but its Caps claim gradients" in broken["fourth"]
    assert "libacme.so.3" in broken["fmcore_register_impls"]


def test_a_misspelt_hook_is_caught(seen):
    state = only(seen, "misspelt")
    assert state["state"] == "broken"
    assert "fmcore_prob" in state["reason"]
    assert "fmcore_probe" in state["reason"], "the right names are listed"
    assert "misspelt/plus" not in seen["impls"]


def test_another_spec_version_is_left_out_and_not_imported(seen):
    state = only(seen, "future")
    assert state["state"] == "unavailable"
    assert "written for plugin API >=2,<3, this fmcore has 1.0" in state["reason"]
    assert "dist-fmt-future" in state["reason"]


def test_two_distributions_with_one_name_are_an_error_that_names_both(seen):
    states = seen["states"]["twin"]
    assert {state["state"] for state in states} == {"broken"}
    assert any("twin-one 1.0" in s["reason"] and "twin-two 1.0" in s["reason"] for s in states)
    assert "twin/plus" not in seen["impls"]


def test_printing_is_kept_off_stdout_and_noted(seen):
    state = only(seen, "prints")
    assert state["state"] == "available"
    assert "hello from a plugin" in state["reason"]


def test_no_sign_no_import(seen):
    state = only(seen, "shy")
    assert state["state"] == "unavailable"
    assert "no_such_module" in state["reason"]


def test_unreadable_metadata_does_not_squat_on_a_name(seen):
    squatter = [s for s in seen["states"]["cpu"] if s["distribution"] == "aaa-squatter 1.0"]
    assert [s["state"] for s in squatter] == ["broken"]
    others = [s for s in seen["states"]["cpu"] if s not in squatter]
    assert all("two distributions" not in s["reason"] for s in others)


def test_the_host_still_works(seen):
    assert only(seen, "torch")["state"] == "available"
    assert seen["auto"] in ([2.0, 2.0], [1002.0, 1002.0])
