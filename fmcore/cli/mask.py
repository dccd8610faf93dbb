"""``fmcore mask``: draw a mask in the terminal or as a PNG, and count its tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fmcore.cli._output import json_option, print_json
from fmcore.errors import InvalidInputError

if TYPE_CHECKING:
    from fmcore.masks import Mask

KINDS = {
    "full": ("s_q", "s_k"),
    "causal": ("s_q", "s_k"),
    "sliding_window": ("s_q", "s_k", "window"),
    "causal_document": ("lengths", "s_q"),
    "document": ("lengths", "s_q"),
    "causal_blockwise": ("lengths",),
    "prefix_lm_document": ("lengths", "prefixes", "s_q"),
    "prefix_lm_causal": ("s_q", "s_k", "prefix"),
    "share_question": ("lengths", "s_q"),
    "global_sliding": ("s_q", "window"),
    "qk_sparse": ("lengths", "s_q"),
    "random_eviction": ("s_q", "seed"),
    "all_masked": ("s_q", "s_k"),
    "single_column": ("s_q", "s_k"),
}
"""The options that say what each mask looks like."""

FLAGS = {"lengths": "--lengths", "prefixes": "--prefixes", "s_q": "--s", "s_k": "--s-k", "window": "--window"}
FLAGS |= {"prefix": "--prefix", "seed": "--seed"}
DEFAULT_SIZE = 32
DEFAULT_WINDOW = 8


@click.group(name="mask")
def command() -> None:
    """Draw masks and count their tiles."""


@command.command("list")
@json_option
def list_masks(as_json: bool) -> None:
    """Name the masks that `show` can draw."""
    from fmcore.masks import BENCHMARK_MASKS, DEGENERATE_MASKS

    names = {
        "builders": tuple(KINDS),
        "benchmark": (*BENCHMARK_MASKS, "document_published"),
        "degenerate": DEGENERATE_MASKS,
    }
    if as_json:
        print_json({group: list(members) for group, members in names.items()})
        return
    for group, members in names.items():
        click.echo(f"{group}: {', '.join(members)}")


@command.command()
@click.argument("kind")
@click.option(
    "--lengths", help="Lengths of documents, such as 3,5,8. For share_question: 2+3+3,4+2 (question+answers)."
)
@click.option("--prefixes", help="Prefix of every document of prefix_lm_document, such as 1,2,4.")
@click.option("--s", "s_q", type=int, help=f"Rows; {DEFAULT_SIZE} where nothing else says.")
@click.option("--s-k", type=int, help="Columns; as many as rows by default.")
@click.option(
    "--window", type=int, help=f"Keys of a window, {DEFAULT_WINDOW} by default: all of them for sliding_window."
)
@click.option("--prefix", type=int, help="Prefix of prefix_lm_causal; half of the columns by default.")
@click.option("--seed", type=int, help="Of random_eviction, 0 by default.")
@click.option("--benchmark", is_flag=True, help="Draw the benchmark's mask of that name; --s gives its length.")
@click.option("--block-q", type=click.IntRange(min=1), default=128, show_default=True, help="Rows of a tile.")
@click.option("--block-k", type=click.IntRange(min=1), default=128, show_default=True, help="Columns of a tile.")
@click.option("--width", type=click.IntRange(min=1), default=64, show_default=True, help="Characters per line.")
@click.option("--ascii", "glyphs", flag_value="ascii", help="Draw with . + # alone.")
@click.option("--png", type=click.Path(dir_okay=False, writable=True), help="Write a PNG too (needs matplotlib).")
@json_option
def show(kind: str, glyphs: str | None, png: str | None, width: int, as_json: bool, **options: Any) -> None:
    """Draw the mask KIND and count its tiles.

    A dot is hidden, grey is partly visible, solid is visible; one character is a square of the mask.
    """
    from fmcore.masks import save_png, to_text

    mask = build(kind, **options)
    facts = facts_of(mask, options["block_q"], options["block_k"])
    if png is not None:
        save_png(mask, png, block_q=options["block_q"], block_k=options["block_k"])
        facts["png"] = png
    if as_json:
        print_json(facts)
        return
    click.echo(to_text(mask, width=width, glyphs=glyphs or "unicode"))
    for name, value in facts.items():
        click.echo(f"{name}: {value}")


def facts_of(mask: Mask, block_q: int, block_k: int) -> dict[str, Any]:
    """What is worth printing about a mask and its tiles."""
    plan = mask.plan(block_q, block_k)
    return {
        "kind": mask.kind,
        "s_q": mask.s_q,
        "s_k": mask.s_k,
        "mode": mask.mode,
        "visible_pairs": round(plan.exact_area, 6),
        "tiles": f"{block_q}x{block_k}",
        "visited_tiles": round(plan.tile_area, 6),
        "full": int(plan.q_full.sum()),
        "partial": int(plan.q_partial.sum()),
        "skipped": plan.q_work.numel() * plan.nk - plan.visited,
    }


def build(
    kind: str,
    *,
    lengths: str | None,
    prefixes: str | None,
    s_q: int | None,
    s_k: int | None,
    window: int | None,
    prefix: int | None,
    seed: int | None,
    benchmark: bool,
    **_: Any,
) -> Mask:
    """The mask that the options ask for.

    Raises:
        InvalidInputError: Unknown kind, or an option that the kind needs is missing or malformed, or one that says
            nothing about the kind is given.
    """
    from fmcore import masks

    given = {"lengths": lengths, "prefixes": prefixes, "s_q": s_q, "s_k": s_k}
    given |= {"window": window, "prefix": prefix, "seed": seed}
    takes = ("s_q",) if benchmark else ("s_q", "s_k") if kind in masks.DEGENERATE_MASKS else KINDS.get(kind, FLAGS)
    idle = [FLAGS[name] for name, value in given.items() if value is not None and name not in takes]
    if idle:
        raise InvalidInputError(
            f"{'the benchmark' if benchmark else 'mask'} {kind!r} takes {', '.join(FLAGS[name] for name in takes)}; "
            f"{', '.join(idle)} would say nothing about it."
        )
    size = DEFAULT_SIZE if s_q is None else s_q
    window = DEFAULT_WINDOW if window is None else window
    if benchmark:
        return masks.benchmark(kind, 8192 if s_q is None else s_q)
    if kind in masks.DEGENERATE_MASKS:
        return masks.degenerate(kind, size, s_k)
    if kind in {"full", "causal", "all_masked", "single_column"}:
        return getattr(masks, kind)(size, s_k)  # type: ignore[no-any-return]
    if kind == "sliding_window":
        return masks.sliding_window(size, s_k, window=window)
    if kind == "global_sliding":
        return masks.global_sliding(size, global_tokens=2, window_size=window)
    if kind == "prefix_lm_causal":
        columns = size if s_k is None else s_k
        return masks.prefix_lm_causal(size, s_k, prefix=columns // 2 if prefix is None else prefix)
    if kind == "random_eviction":
        return masks.random_eviction(size, seed=seed or 0)
    if kind not in KINDS:
        raise InvalidInputError(f"no mask {kind!r}; `fmcore mask list` names them.")
    if lengths is None:
        raise InvalidInputError(f"mask {kind!r} is made of documents; give their lengths, such as --lengths 3,5,8.")
    if kind == "share_question":
        return masks.share_question([_ints("--lengths", part, "+") for part in lengths.split(",")], s=s_q)
    documents = _ints("--lengths", lengths)
    if kind == "causal_blockwise":
        return masks.causal_blockwise(documents)
    if kind == "prefix_lm_document":
        heads = [n // 2 for n in documents] if prefixes is None else _ints("--prefixes", prefixes)
        if len(heads) != len(documents):
            raise InvalidInputError(
                f"--prefixes has {len(heads)} entries and --lengths {len(documents)}; give one each."
            )
        return masks.prefix_lm_document(list(zip(heads, documents, strict=True)), s=s_q)
    if kind == "qk_sparse":
        first = documents[0]
        return masks.qk_sparse(sum(documents) if s_q is None else s_q, ranges=[(first, sum(documents[:2]))])
    return getattr(masks, kind)(documents, s=s_q)  # type: ignore[no-any-return]


def _ints(option: str, text: str, separator: str = ",") -> list[int]:
    try:
        return [int(part) for part in text.split(separator)]
    except ValueError:
        raise InvalidInputError(
            f"{option} must be whole numbers with {separator!r} between them, got {text!r}."
        ) from None
