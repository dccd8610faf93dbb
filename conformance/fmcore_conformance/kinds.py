"""The faults that kernels really have: each is detected by cases that name it, and planted by a saboteur."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A fault kind: where it can occur and what it looks like."""

    families: tuple[str, ...]
    text: str


KINDS: dict[str, Kind] = {
    # attention: the mask
    "mask-upper-start": Kind(("attention",), "first hidden row of the upper interval off by one"),
    "mask-upper-end": Kind(("attention",), "last hidden row of the upper interval off by one"),
    "mask-lower-start": Kind(("attention",), "first hidden row of the lower interval off by one"),
    "mask-lower-end": Kind(("attention",), "last hidden row of the lower interval off by one"),
    "key-dropped": Kind(("attention",), "one visible key among thousands is not attended to"),
    "causal-alignment": Kind(("attention",), "causal diagonal aligned top-left instead of bottom-right"),
    "mask-head-map": Kind(("attention",), "per-head masks read with another head's index"),
    "mask-batch-map": Kind(("attention",), "every batch item uses the mask of the first"),
    "block-mask-ignored": Kind(("attention",), "the 128 x 128 block mask has no effect"),
    "tail-tile": Kind(("attention",), "columns or rows past the end of a ragged last tile take part"),
    "kv-head-map": Kind(("attention",), "query heads read the key/value head modulo, not divided"),
    # attention: the numbers
    "scale": Kind(("attention",), "softmax scale dropped, or applied twice"),
    "softcap-ignored": Kind(("attention",), "soft capping of the scores has no effect"),
    "sink-ignored": Kind(("attention",), "the attention sink does not enter the denominator"),
    "lse-base-2": Kind(("attention",), "lse written in base 2"),
    "lse-rounded": Kind(("attention",), "lse computed or stored in the inputs' low precision"),
    "masked-row-lse-inf": Kind(("attention",), "fully masked rows get lse = +inf"),
    "masked-row-nan": Kind(("attention",), "fully masked rows give NaN"),
    "masked-row-mean": Kind(("attention",), "fully masked rows give the mean of all values"),
    "low-accumulation": Kind(("attention", "math", "moe"), "sums accumulated in half precision, undeclared"),
    "large-logits": Kind(("attention", "math"), "softmax without the running maximum overflows"),
    "sentinel-leak": Kind(("attention",), "values at hidden positions reach the output"),
    # attention: backward
    "dlse-ignored": Kind(("attention",), "the gradient of lse is dropped"),
    "dk-head-dropped": Kind(("attention",), "dK of one KV head misses one query head of its group"),
    "expanded-grad": Kind(("attention",), "a zero-stride output gradient is read as if contiguous"),
    "grad-scale": Kind(("attention",), "gradient of the keys without the softmax scale"),
    "masked-grad-nan": Kind(("attention",), "a masked row poisons gradients with NaN"),
    "backward-mask": Kind(("attention",), "the backward pass uses a different mask than the forward pass"),
    # behaviour, any family
    "nondeterministic": Kind(("attention", "moe"), "results differ between runs under the deterministic flag"),
    "int32-overflow": Kind(("attention", "math"), "element offsets wrap at the width of a 32-bit integer (emulated)"),
    "stale-cache": Kind(("attention", "math"), "a result or plan of an earlier call is served again"),
    "output-alias": Kind(("attention", "math", "moe"), "the output shares memory with an input"),
    "input-written": Kind(("attention", "math", "moe"), "an input is overwritten"),
    "swapped-strides": Kind(("attention", "math", "moe"), "non-contiguous input read as if contiguous"),
    "wrong-dtype": Kind(("attention", "math", "moe"), "output dtype differs from the contract"),
    # moe
    "token-lost": Kind(("moe",), "one routed token does not arrive"),
    "token-duplicated": Kind(("moe",), "a token with two experts on one rank arrives twice"),
    "row-order": Kind(("moe",), "received rows not ordered by source rank and token"),
    "weight-twice": Kind(("moe",), "the routing weight is applied in dispatch and in combine"),
    "handle-shared": Kind(("moe",), "a second dispatch changes what an earlier handle means"),
    "minus-one-expert": Kind(("moe",), "the empty slot -1 is read as expert 0 or as the last one"),
    "counts-alignment": Kind(("moe",), "expert counts not rounded up to the alignment"),
    "counts-dedup": Kind(("moe",), "expert counts deduplicated per rank"),
    "scales-lost": Kind(("moe",), "quantisation scales do not travel with their rows"),
    "local-expert-ids": Kind(("moe",), "received expert ids are global, not local"),
    "slot-order": Kind(("moe",), "the position of an expert among the K slots is not kept"),
    "payload-touched": Kind(("moe",), "transport changes the bits of a payload (NaN, -0, bool, complex)"),
    "combine-weights": Kind(("moe",), "routing weights not summed back to their slots"),
    "bias-dropped": Kind(("moe",), "the bias of combine is dropped for tokens with no expert"),
    "adjoint": Kind(("moe",), "the gradient of dispatch is not combine"),
    "one-sided-error": Kind(("moe",), "an error raised on one rank leaves the others waiting"),
    # math
    "conj-dropped": Kind(("math",), "complex conjugation dropped"),
    "complex-real-only": Kind(("math",), "complex product by real parts only"),
    "fft-normalisation": Kind(("math",), "inverse FFT not normalised, or normalised twice"),
    "fft-sign": Kind(("math",), "forward FFT with the positive exponent"),
    "bool-sum": Kind(("math",), "a sum of booleans saturates or stays boolean"),
    "int-promotion": Kind(("math",), "a sum of narrow integers overflows instead of being promoted"),
    "bf16-truncation": Kind(("math",), "rounding to bfloat16 by truncation"),
    "nan-swallowed": Kind(("math",), "max ignores NaN"),
    "signed-zero": Kind(("math",), "the sign of zero is lost"),
    "branch-cut": Kind(("math",), "the value on a branch cut comes from the wrong side"),
    "broadcast": Kind(("math",), "a broadcast operand is read with the wrong period"),
    "empty-reduction": Kind(("math",), "the reduction over nothing is not the identity"),
    "tie-break": Kind(("math",), "argmax does not return the first of equal values"),
    "group-offsets": Kind(("math",), "grouped product uses a neighbour's weights at a group boundary"),
    "eps-dropped": Kind(("math",), "epsilon of the normalisation is dropped"),
    "rotation-sign": Kind(("math",), "rotary embedding turns the wrong way"),
    "gate-swapped": Kind(("math",), "swiglu activates the wrong half"),
    "comparison-sense": Kind(("math",), "a comparison is strict where it must not be, or the reverse"),
    "divide-rounding": Kind(("math",), "division through an approximate reciprocal"),
    "axis": Kind(("math",), "reduction over the wrong axis"),
    # engine
    "import-side-effect": Kind(("engine",), "importing the plugin prints, or creates a device context"),
    "probe-silent": Kind(("engine",), "unavailable without a reason"),
    "claim-unparsable": Kind(("engine",), "a claim that cannot be evaluated"),
    "silent-fallback": Kind(("engine",), "another backend answers although one was named"),
    "fake-mismatch": Kind(("attention",), "the fake kernel's shape or dtype differs from the real one"),
}
"""Every fault kind of the suite, by name."""


def check_kinds(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """``kinds`` itself, once every name is known.

    Raises:
        KeyError: On a name that is not in ``KINDS``.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise KeyError(f"unknown fault kind {kind!r}; known: {', '.join(KINDS)}")
    return kinds
