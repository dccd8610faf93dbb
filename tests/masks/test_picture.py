"""Pictures: text that shows what is visible, a PNG that shows it too, and the command that prints both."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from click.testing import CliRunner

from fmcore import masks
from fmcore.cli.mask import command
from fmcore.errors import InvalidInputError, UnsupportedError
from fmcore.masks.picture import sample


def test_small_masks_are_drawn_pair_by_pair():
    assert masks.to_text(masks.causal_document([1, 2])) == "█··\n·█·\n·██"


def test_large_masks_are_drawn_by_tiles():
    lines = masks.to_text(masks.causal(1000), width=10, glyphs="ascii").splitlines()
    assert lines == ["#" * i + "+" + "." * (9 - i) for i in range(10)]


def test_block_masks_are_drawn():
    keep = torch.tensor([[1, 0], [1, 1]], dtype=torch.int32).view(1, 1, 2, 2)
    text = masks.to_text(masks.with_block_mask(masks.full(256), keep), width=16, glyphs="ascii")
    assert text.splitlines()[0] == "#" * 8 + "." * 8
    assert text.splitlines()[-1] == "#" * 16


@pytest.mark.parametrize(("width", "glyphs"), [(0, "ascii"), (8, "latin")])
def test_wrong_pictures_are_refused(width, glyphs):
    with pytest.raises(InvalidInputError, match="glyphs must be one of"):
        masks.to_text(masks.full(4), width=width, glyphs=glyphs)


def test_no_such_head():
    with pytest.raises(InvalidInputError, match="no batch 0, head 1"):
        masks.to_text(masks.full(4), head=1)


def test_a_sample_of_all_pairs_is_the_mask():
    mask = masks.document([5, 9])
    assert torch.equal(sample(mask), mask.dense()[0, 0])
    assert sample(masks.causal(4000), limit=100).shape == (100, 100)


def test_png(tmp_path):
    pytest.importorskip("matplotlib")
    path = masks.save_png(masks.causal_document([30, 50]), tmp_path / "mask.png", block_q=16, block_k=16)
    from matplotlib.image import imread

    pixels = imread(path)
    assert path.read_bytes()[:4] == b"\x89PNG"
    found = {tuple(round(float(c), 2) for c in pixel[:3]) for pixel in pixels.reshape(-1, pixels.shape[-1])[::7]}
    for colour in ((0.12, 0.31, 0.47), (0.88, 0.64, 0.35), (0.96, 0.95, 0.92)):  # full, partial, hidden
        assert colour in found


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match=r"needs matplotlib .*pip install matplotlib"):
        masks.save_png(masks.causal(8), tmp_path / "a.png")


def run(*arguments):
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_show_draws_and_counts():
    done = run("show", "causal_document", "--lengths", "3,5,8", "--block-q", "4", "--block-k", "4")
    assert done.exit_code == 0
    assert done.output.splitlines()[:16] == masks.to_text(masks.causal_document([3, 5, 8])).splitlines()
    assert "visited_tiles: 0.375" in done.output


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (("full", "--s", "6"), lambda: masks.full(6)),
        (("causal", "--s", "6", "--s-k", "9"), lambda: masks.causal(6, 9)),
        (("sliding_window", "--s", "9", "--window", "3"), lambda: masks.sliding_window(9, window=3)),
        (("document", "--lengths", "3,5"), lambda: masks.document([3, 5])),
        (("causal_blockwise", "--lengths", "3,5,2"), lambda: masks.causal_blockwise([3, 5, 2])),
        (
            ("prefix_lm_document", "--lengths", "3,5", "--prefixes", "1,4"),
            lambda: masks.prefix_lm_document([(1, 3), (4, 5)]),
        ),
        (("prefix_lm_causal", "--s", "8"), lambda: masks.prefix_lm_causal(8, prefix=4)),
        (("share_question", "--lengths", "2+3+1,4+2"), lambda: masks.share_question([[2, 3, 1], [4, 2]])),
        (
            ("global_sliding", "--s", "9", "--window", "2"),
            lambda: masks.global_sliding(9, global_tokens=2, window_size=2),
        ),
        (("qk_sparse", "--lengths", "3,4,2"), lambda: masks.qk_sparse(9, ranges=[(3, 7)])),
        (("random_eviction", "--s", "9", "--seed", "2"), lambda: masks.random_eviction(9, seed=2)),
        (("single_column", "--s", "4"), lambda: masks.single_column(4)),
        (("touching", "--s", "8"), lambda: masks.degenerate("touching", 8)),
        (("document", "--benchmark", "--s", "1024"), lambda: masks.benchmark("document", 1024)),
    ],
)
def test_show_knows_every_kind(arguments, want):
    facts = json.loads(run("show", *arguments, "--json").output)
    mask = want()
    assert (facts["kind"], facts["s_q"], facts["s_k"]) == (mask.kind, mask.s_q, mask.s_k)
    assert facts["visible_pairs"] == round(mask.exact_area(), 6)
    pairs = mask.plan(128, 128).q_work.numel() * mask.plan(128, 128).nk
    assert facts["full"] + facts["partial"] + facts["skipped"] == pairs


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nope",), "no mask 'nope'"),
        (("document",), "give their lengths"),
        (("document", "--lengths", "3,x"), "whole numbers"),
        (("prefix_lm_document", "--lengths", "3,4", "--prefixes", "1"), "1 entries and --lengths 2"),
        (("causal", "--lengths", "3,5", "--window", "2"), "takes --s, --s-k; --lengths, --window would say nothing"),
        (("causal_blockwise", "--lengths", "3,5", "--s", "9"), "takes --lengths; --s would say nothing"),
        (("document", "--benchmark", "--lengths", "3,5"), "the benchmark 'document' takes --s; --lengths"),
        (("stripes", "--seed", "1"), "takes --s, --s-k; --seed"),
        (("causal", "--png", "no/such/folder/a.png"), "there is no directory 'no/such/folder'"),
        (("causal", "--s", "0", "--png", "a.png"), "nothing to draw"),
    ],
)
def test_show_refuses_what_it_cannot_draw(arguments, says):
    with pytest.raises(InvalidInputError, match=says):
        run("show", *arguments)


def test_show_writes_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    done = run("show", "causal", "--s", "64", "--png", str(tmp_path / "a.png"), "--json")
    assert json.loads(done.output)["png"].endswith("a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_list_names_what_show_draws():
    names = json.loads(run("list", "--json").output)
    assert set(masks.BENCHMARK_MASKS) <= set(names["benchmark"])
    assert "causal_document" in run("list").output
