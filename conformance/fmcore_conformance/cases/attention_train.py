"""The attention cases of training: gradients, determinism, second calls, two layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcore_conformance.cases import attention_close as close
from fmcore_conformance.cases import attention_probes as probes
from fmcore_conformance.cases.attention_common import FLOATS, GROUPS, HEAD_DIMS, MAIN, attention_case, on_call
from fmcore_conformance.cases.attention_inputs import Size
from fmcore_conformance.cases.attention_masks import DEGENERATE, FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcore_conformance.model import Case


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _backward()
    yield from _behaviour()


def _backward() -> Iterator[Case]:
    for spec in (*FAMILIES, *DEGENERATE):
        size = Size(s_q=200, s_k=200, h_q=4, h_kv=2, mask_heads=2 if spec.per_head else 1)
        for dtype in FLOATS:
            yield attention_case(
                "backward",
                spec.name,
                dtype,
                "L3",
                on_call(close.backward, spec.name, spec.name, size, dtype, dtype),
                ("backward-mask", "grad-scale", "dk-head-dropped", "masked-grad-nan"),
                mandatory=dtype == "bfloat16" and spec.name == "causal_document",
            )
    small = Size(s_q=90, s_k=110, h_q=4, h_kv=2)
    for dtype in MAIN:
        for name, mask, kw, call, kinds in (
            ("lse-gradient", "causal_document", {"with_lse": True}, {}, ("dlse-ignored",)),
            ("lse-gradient-alone", "causal", {"only_lse": True}, {}, ("dlse-ignored",)),
            ("lse-gradient-masked-rows", "masked_rows", {"with_lse": True}, {}, ("dlse-ignored", "masked-grad-nan")),
            ("expanded-gradient", "causal_document", {"expanded": True}, {}, ("expanded-grad",)),
            ("scale-0.5", "causal", {}, {"scale": 0.5}, ("grad-scale", "scale")),
            ("softcap", "causal_document", {}, {"softcap": 2.0, "spread": 2.0}, ("softcap-ignored",)),
            ("sink", "causal_document", {}, {"sink": True}, ("sink-ignored",)),
            (
                "sink-lse-gradient",
                "causal_document",
                {"with_lse": True},
                {"sink": True},
                ("sink-ignored", "dlse-ignored"),
            ),
            ("sink-masked-rows", "masked_rows", {}, {"sink": True}, ("sink-ignored", "masked-grad-nan")),
        ):
            yield attention_case(
                "backward",
                name,
                dtype,
                "L3",
                on_call(close.backward, name, mask, small, dtype, dtype, call=call, **kw),
                kinds,
            )
        for h_q, h_kv in GROUPS:
            size = Size(s_q=70, s_k=70, h_q=h_q, h_kv=h_kv)
            yield attention_case(
                "backward",
                f"heads-{h_q}x{h_kv}",
                dtype,
                "L3",
                on_call(close.backward, f"g{h_q}", "causal_document", size, dtype, dtype),
                ("dk-head-dropped", "kv-head-map"),
            )
        for d in HEAD_DIMS:
            size = Size(s_q=70, s_k=70, d=d)
            yield attention_case(
                "backward",
                f"head_dim-{d}",
                dtype,
                "L3",
                on_call(close.backward, f"d{d}", "causal", size, dtype, dtype),
                ("grad-scale", "tail-tile"),
            )
        size = Size(s_q=70, s_k=70, d=64, dv=32)
        yield attention_case(
            "backward",
            "head_dim-64-value-32",
            dtype,
            "L3",
            on_call(close.backward, "dv", "causal", size, dtype, dtype),
            ("swapped-strides",),
        )
        for s_q, s_k in ((1, 1), (127, 129), (129, 127), (1, 200)):
            size = Size(s_q=s_q, s_k=s_k, h_q=2, h_kv=1)
            yield attention_case(
                "backward",
                f"tail-{s_q}x{s_k}",
                dtype,
                "L3",
                on_call(close.backward, "tail", "causal", size, dtype, dtype),
                ("tail-tile", "causal-alignment"),
            )


def _behaviour() -> Iterator[Case]:
    for dtype in MAIN:
        size = Size(b=2, s_q=200, s_k=200, h_q=4, h_kv=1)
        for mask in ("causal_document", "document"):
            yield attention_case(
                "determinism",
                f"reruns-{mask}",
                dtype,
                "L3",
                on_call(probes.determinism_probe, mask, mask, size, dtype),
                ("nondeterministic",),
                mandatory=mask == "document" and dtype == "bfloat16",
            )
        for change in ("bounds", "values", "scale", "mask"):
            short = Size(s_q=150, s_k=150)
            yield attention_case(
                "training",
                f"second-call-other-{change}",
                dtype,
                "L3",
                on_call(close.stale, change, "causal_document", short, dtype, dtype, change),
                ("stale-cache",),
            )
        yield attention_case(
            "training",
            "two-layers-with-rows-that-see-nothing",
            dtype,
            "L3",
            on_call(close.training, "layers", "masked_rows", Size(s_q=120, s_k=120), dtype, dtype),
            ("masked-grad-nan", "masked-row-nan"),
        )
