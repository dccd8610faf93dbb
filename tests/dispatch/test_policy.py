"""The policy table, row by row, with who decided; and the scopes of ``use``."""

from __future__ import annotations

import asyncio
import threading
import warnings

import pytest
import torch

import fmcore as fm
from fmcore import config
from fmcore.dispatch.caps import Caps, OneOf
from fmcore.errors import FallbackWarning, InvalidInputError, UnsupportedError

OP = "flashmask_attention"


@pytest.fixture
def pair(plugin):
    """Two backends that serve everything: ``first`` is preferred by priority."""
    return plugin("first", priority=200), plugin("second", priority=150)


def served_by(qkv, **options):
    decision = fm.explain(OP, *qkv, **options)
    return decision.selected.backend, decision.source


def test_nobody_says_anything(pair, qkv):
    assert served_by(qkv) == ("first", "default")


def test_the_call_is_strict(pair, qkv):
    assert served_by(qkv, backend="second") == ("second", "call")
    fm.flashmask_attention(*qkv, backend="second")
    assert (pair[0].forwards, pair[1].forwards) == (0, 1)


def test_the_call_may_name_the_implementation(pair, qkv):
    assert served_by(qkv, backend="second/dense") == ("second", "call")
    with pytest.raises(UnsupportedError, match="second/none"):
        fm.flashmask_attention(*qkv, backend="second/none")


def test_a_bound_handle_ignores_every_policy(pair, qkv):
    handle = fm.bind(OP, backend="second")
    with fm.use("first", strict=True):
        handle(*qkv)
        handle(*qkv, mask=fm.masks.causal(12, 12))
        handle(*qkv, mask=fm.masks.causal(12, 12))
    assert (pair[0].forwards, pair[1].forwards) == (0, 3)


def test_use_then_set_policy_then_environment(pair, plugin, qkv):
    plugin("third")
    config.reload({"FMCORE_BACKEND": "third"})
    try:
        assert served_by(qkv) == ("third", "FMCORE_BACKEND")
        fm.set_policy("second")
        assert served_by(qkv) == ("second", "set_policy")
        with fm.use("first"):
            assert served_by(qkv) == ("first", "use")
            assert served_by(qkv, backend="third") == ("third", "call")
        assert served_by(qkv) == ("second", "set_policy")
        fm.set_policy()
        assert served_by(qkv) == ("third", "FMCORE_BACKEND")
    finally:
        config.reload()
    assert served_by(qkv) == ("first", "default")


def test_patterns_choose_per_op(pair, qkv):
    with fm.use("second", ops=("math.*",)):
        assert served_by(qkv) == ("first", "default")
    with fm.use("second", ops=("flash*",)):
        assert served_by(qkv) == ("second", "use")
    config.reload({"FMCORE_BACKEND": "first; flashmask_attention=second"})
    try:
        assert served_by(qkv) == ("second", "FMCORE_BACKEND")
    finally:
        config.reload()


def test_rank_orders_where_no_preference_decides(pair, qkv):
    fm.set_policy(rank=lambda request, impl: impl.backend != "second")
    assert served_by(qkv) == ("second", "rank")


def test_nested_use_restores(pair, qkv):
    with fm.use("second"):
        with fm.use("first"):
            assert served_by(qkv)[0] == "first"
        assert served_by(qkv)[0] == "second"
    assert served_by(qkv) == ("first", "default")


def test_use_restores_after_an_exception(pair, qkv):
    with pytest.raises(ZeroDivisionError), fm.use("second"):
        raise ZeroDivisionError
    assert served_by(qkv) == ("first", "default")


def test_block_takes_out_and_nests(pair, qkv):
    with fm.use(block=("first",)):
        assert served_by(qkv)[0] == "second"
        with fm.use(block=("second",)):
            assert served_by(qkv)[0] not in ("first", "second")
    assert served_by(qkv)[0] == "first"


def test_set_policy_inside_use_keeps_the_use(pair, qkv):
    with fm.use("second"):
        fm.set_policy("first")
        assert served_by(qkv) == ("second", "use")
    assert served_by(qkv) == ("first", "set_policy")


def test_unknown_names_are_refused_with_the_known(pair, qkv):
    with pytest.raises(InvalidInputError, match=r"unknown backends \['frist'\].*first"), fm.use("frist"):
        pass
    with pytest.raises(InvalidInputError, match="known are"):
        fm.flashmask_attention(*qkv, backend="frist")
    with pytest.raises(InvalidInputError, match=r"ops=\('math\.\*',\)"), fm.use("first", ops="math.*"):
        pass


def test_two_threads_under_different_use(pair, qkv):
    first, second = pair
    start = threading.Barrier(2)
    found = {}

    def work(name):
        with fm.use(name):
            start.wait(10)
            found[name] = {served_by(qkv)[0] for _ in range(50)}
            for _ in range(50):
                fm.flashmask_attention(*qkv)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"first": {"first"}, "second": {"second"}}
    assert (first.forwards, second.forwards) == (50, 50)


def test_a_new_thread_starts_without_use(pair, qkv):
    seen = []
    with fm.use("second"):
        thread = threading.Thread(target=lambda: seen.append(served_by(qkv)[0]))
        thread.start()
        thread.join()
    assert seen == ["first"]


def test_tasks_keep_their_own_use(pair, qkv):
    async def work(name):
        with fm.use(name):
            await asyncio.sleep(0)
            return served_by(qkv)[0]

    async def both():
        return await asyncio.gather(work("first"), work("second"))

    assert asyncio.run(both()) == ["first", "second"]


@pytest.mark.parametrize("variable", ["0", "1"])
@pytest.mark.parametrize("explicit", [None, False, True])
@pytest.mark.parametrize("failing", [False, True])
def test_truth_table_of_strict(plugin, qkv, variable, explicit, failing):
    """Strict exactly when the argument says so, or it says nothing and FMCORE_STRICT does."""
    plugin("wanted", caps=Caps(where={"head_dim": OneOf(-1)}) if failing else None)
    plugin("other", priority=50)
    strict = explicit if explicit is not None else variable == "1"
    config.reload({"FMCORE_STRICT": variable})
    try:
        with fm.use("wanted", strict=explicit):
            if not failing:
                assert served_by(qkv)[0] == "wanted"
                fm.flashmask_attention(*qkv)
            elif strict:
                with pytest.raises(UnsupportedError, match="head_dim = 16"):
                    fm.flashmask_attention(*qkv)
            else:
                with pytest.warns(FallbackWarning, match="prefers wanted, but other/dense serves"):
                    fm.flashmask_attention(*qkv)
    finally:
        config.reload()


def test_one_warning_per_op_and_key(alone, plugin, qkv):
    plugin("picky", caps=Caps(dtypes={"float16"}))
    plugin("broad", band="portable")
    with pytest.warns(FallbackWarning) as caught:
        for _ in range(3):
            fm.flashmask_attention(*qkv)
    assert len(caught) == 1
    assert "query of dtype float32 is not supported" in str(caught[0].message)
    with pytest.warns(FallbackWarning) as caught:
        for _ in range(3):
            fm.flashmask_attention(*(t.double() for t in qkv))
    assert len(caught) == 1


def test_host_tensors_keep_their_order_under_an_accelerator_preference(alone, plugin, qkv):
    plugin("accelerator", vendor="acme", caps=Caps(device_types={"cuda"}))
    plugin("host", band="portable")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with fm.use("accelerator"):
            assert served_by(qkv) == ("host", "default")
            fm.flashmask_attention(*qkv)


def test_the_reference_needs_permission(plugin, qkv):
    names = [b.name for b in fm.backends() if b.name != "reference"]
    with fm.use(block=tuple(names)):
        with pytest.raises(UnsupportedError, match="explicit permission"):
            fm.flashmask_attention(*qkv)
        out = fm.flashmask_attention(*qkv, backend="reference")
        assert torch.isfinite(out).all()
        fm.set_policy(allow_reference=True)
        assert served_by(qkv)[0] == "reference"
        fm.set_policy()
