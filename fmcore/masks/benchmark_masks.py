"""The twelve masks that FlashMask measurements use, by name, on the packed documents of ``benchmark_documents.json``.

Two of the published definitions need a word. The *document* mask here is the block-diagonal one that was meant; the
generator behind the published figures sums the wrong lengths for the upper bounds, and ``document_published`` is what
it makes, for comparison with those rows. The sliding window is 1/16 of the length and counts the row's own key.
"""

from __future__ import annotations

import json
import random
from functools import cache
from importlib import resources
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from fmcore.errors import InvalidInputError
from fmcore.masks import builders, structured
from fmcore.masks._canonical import check_int, check_length
from fmcore.masks._columns import HOST, Device, bounds_of, from_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcore.masks.mask import Mask

__all__ = ["BENCHMARK_MASKS", "benchmark", "benchmark_documents"]

GLOBAL_TOKENS = 16
MIN_LENGTH = 512


def benchmark_documents(s: int) -> tuple[list[tuple[int, int]], list[bool]]:
    """Documents of the benchmark at length ``s``: (prefix, length) pairs filling it, and which are QK-sparse.

    Lengths other than 8192, 32768 and 131072 scale the nearest of these.
    """
    check_int("s (the benchmark's documents)", s, MIN_LENGTH)
    samples = _samples()
    size = min(samples, key=lambda known: abs(known.bit_length() - s.bit_length()))
    documents, sparse = samples[size]
    scaled = [(prefix * s // size, max(1, length * s // size)) for prefix, length in documents]
    prefix, length = scaled[-1]
    scaled[-1] = (prefix, length + s - sum(length for _, length in scaled))
    return scaled, sparse


@cache
def _samples() -> dict[int, tuple[list[tuple[int, int]], list[bool]]]:
    text = resources.files("fmcore.masks").joinpath("benchmark_documents.json").read_text(encoding="utf-8")
    table = json.loads(text)["samples"]
    return {
        int(size): ([(p, n) for p, n in entry["documents"]], [bool(flag) for flag in entry["sparse"]])
        for size, entry in table.items()
    }


def benchmark(name: str, s: int, *, heads: int = 1, device: Device = None) -> Mask:
    """One of :data:`BENCHMARK_MASKS` at length ``s`` (rows and columns).

    Args:
        name: The mask.
        s: Length, at least 512.
        heads: Mask heads of ``random_eviction``, which evicts per head; the others share one mask between all heads.
        device: Where the mask shall lie.

    Raises:
        InvalidInputError: Unknown name, or too short.
    """
    build = _BUILDERS.get(name)
    if build is None:
        raise InvalidInputError(f"no benchmark mask {name!r}; there are {', '.join(_BUILDERS)}.")
    check_length("s", s)
    mask = build(s, heads)
    return mask if device is None else mask.to(device)


def _lengths(s: int) -> list[int]:
    return [length for _, length in benchmark_documents(s)[0]]


def _share_question(s: int, _heads: int) -> Mask:
    """Every document is a question and 2 to 6 answers; the parts share its tokens one by one, at random."""
    generator = random.Random(0)  # noqa: S311 -- a fixed choice
    table = []
    for length in _lengths(s):
        parts = [1] * (1 + generator.randint(2, 6))
        for _ in range(length - len(parts)):
            parts[generator.randrange(len(parts))] += 1
        table.append(parts)
    return structured.share_question(table, s=s)


def _qk_sparse(s: int, _heads: int) -> Mask:
    documents, sparse = benchmark_documents(s)
    starts = accumulate((length for _, length in documents), initial=0)
    ranges = [(a, a + n) for a, (_, n), flag in zip(starts, documents, sparse, strict=False) if flag]
    return structured.qk_sparse(s, ranges=ranges)


def _document_published(s: int, _heads: int) -> Mask:
    """The upper bound of document k is the sum of the lengths 1..k where 0..k-1 was meant."""
    lengths = _lengths(s)
    _, end = bounds_of(lengths, s)
    length = torch.tensor(lengths, device=HOST)
    wrong = torch.tensor([0, *accumulate(lengths[1:])], device=HOST).repeat_interleave(length, output_size=s)
    return from_columns((end, wrong.unsqueeze(0)), s_q=s, causal=False, kind="document_published")


_BUILDERS: dict[str, Callable[[int, int], Mask]] = {
    "full": lambda s, _: builders.full(s),
    "causal": lambda s, _: builders.causal(s),
    "sliding_window": lambda s, _: builders.sliding_window(s, window=s // 16),
    "causal_document": lambda s, _: builders.causal_document(_lengths(s)),
    "document": lambda s, _: builders.document(_lengths(s)),
    "share_question": _share_question,
    "global_sliding": lambda s, _: builders.global_sliding(s, global_tokens=GLOBAL_TOKENS, window_size=s // 16),
    "causal_blockwise": lambda s, _: structured.causal_blockwise(_lengths(s)),
    "prefix_lm_document": lambda s, _: structured.prefix_lm_document(benchmark_documents(s)[0]),
    "prefix_lm_causal": lambda s, _: structured.prefix_lm_causal(s, prefix=s // 2),
    "qk_sparse": _qk_sparse,
    "random_eviction": lambda s, heads: structured.random_eviction(s, heads=heads),
    "document_published": _document_published,
}

BENCHMARK_MASKS: tuple[str, ...] = tuple(_BUILDERS)[:12]
"""The twelve names; ``document_published`` is a thirteenth that :func:`benchmark` knows."""
