"""The attention cases."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from fmcore_conformance.cases import attention_close as close
from fmcore_conformance.cases import attention_inputs as inputs
from fmcore_conformance.cases import attention_oracle as oracle
from fmcore_conformance.cases import attention_probes as probes
from fmcore_conformance.cases import attention_train, open_ended
from fmcore_conformance.cases.attention_common import BOUNDS, FLOATS, GROUPS, HEAD_DIMS, MAIN, attention_case, on_call
from fmcore_conformance.cases.attention_inputs import Size
from fmcore_conformance.cases.attention_masks import DEGENERATE, FAMILIES
from fmcore_conformance.measure import check_bits
from fmcore_conformance.model import DTYPES, Case, Measurement
from fmcore_conformance.tolerances import ATTENTION_FORWARD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcore_conformance.target import Target


def cases(target: Target) -> Iterator[Case]:
    """All attention cases."""
    yield from _dtypes()
    yield from _probes()
    yield from _forward()
    yield from _tails()
    yield from _layouts(target)
    yield from attention_train.cases()
    yield from open_ended.attention()


def _dtypes() -> Iterator[Case]:
    """One small call for every column of the matrix; dtypes without an oracle bound are only probed."""
    for dtype in DTYPES:
        yield attention_case(
            "dtypes",
            "call",
            dtype,
            "L1",
            partial(_dtype_probe, dtype),
            ("wrong-dtype",),
            probe_unclaimed=True,
            may_refuse=dtype not in ATTENTION_FORWARD,
            mandatory=True,
        )


def _dtype_probe(dtype: str, target: Target) -> list[Measurement]:
    size = Size(s_q=40, s_k=40)
    name = dtype if dtype in ATTENTION_FORWARD else "float32"
    call = inputs.make(target, "dtypes", "causal_document", size, name)
    if name == dtype:
        return close.forward(target, call, dtype)
    q, k, v = ((x * 2).to(getattr(torch, dtype)) for x in (call.q, call.k, call.v))
    out, lse = inputs.Call(q, k, v, call.mask, call.scale).run(target)
    ref = oracle.forward(
        q.to(torch.float32), k.to(torch.float32), v.to(torch.float32), call.visible(), scale=call.scale
    )
    probes.check_contract(inputs.Call(q, k, v, call.mask, call.scale), out, lse)
    want = ref.out.to(out.dtype)
    return [check_bits(out, want, "out")]


def _probes() -> Iterator[Case]:
    size = Size(b=2, h_q=4, h_kv=2)
    for spec in (*FAMILIES, *DEGENERATE):
        kinds = [*_mask_kinds(spec.name), "mask-head-map", "lse-base-2"]
        if spec.masked_rows:
            kinds += ["masked-row-lse-inf", "masked-row-nan", "masked-row-mean"]
        heads = 2 if spec.name not in ("full", "causal") else 1
        shape = size.vary(mask_heads=heads, mask_batch=2 if heads == 2 else 1)
        for dtype in (
            FLOATS if spec.name in ("causal_document", "random_bounds", "masked_rows") else ("bfloat16", "float32")
        ):
            yield attention_case(
                "probe",
                f"count-{spec.name}",
                dtype,
                "L2",
                on_call(probes.count_probe, spec.name, spec.name, shape, dtype),
                tuple(kinds),
                mandatory=dtype == "bfloat16" and spec.name in ("causal_document", "random_bounds"),
            )
    for dtype in FLOATS:
        yield from _more_probes(dtype)


def _mask_kinds(name: str) -> tuple[str, ...]:
    """The interval ends that a family exercises."""
    if name == "full":
        return ("tail-tile", "key-dropped")
    if name == "causal":
        return ("tail-tile", "causal-alignment")
    if name in ("random_bounds", "swapped_intervals", "touching_intervals"):
        return (*BOUNDS, "mask-batch-map")
    if name == "global_sliding":
        return BOUNDS
    if name in ("document", "prefix_lm_document", "prefix_lm_causal", "upper_only"):
        return ("mask-upper-end", "mask-lower-start")
    if name in ("causal_blockwise", "qk_sparse", "interval"):
        return ("mask-lower-start", "mask-lower-end", "causal-alignment")
    return ("mask-lower-start",)


def _more_probes(dtype: str) -> Iterator[Case]:
    long = Size(s_q=64, s_k=4096, h_q=1, h_kv=1)
    yield attention_case(
        "probe",
        "count-4096-keys",
        dtype,
        "L2",
        on_call(probes.count_probe, "4096", "causal", long, dtype),
        ("key-dropped", "causal-alignment", "lse-rounded"),
        mandatory=dtype == "bfloat16",
    )
    for mask in ("random_bounds", "causal_document", "share_question"):
        short = Size(b=2, s_q=96, s_k=96, h_q=6, h_kv=2, mask_heads=2, mask_batch=2)
        yield attention_case(
            "probe",
            f"membership-{mask}",
            dtype,
            "L2",
            on_call(probes.membership_probe, mask, mask, short, dtype),
            (*_mask_kinds(mask), "key-dropped"),
        )
        yield attention_case(
            "probe",
            f"selection-{mask}",
            dtype,
            "L2",
            on_call(probes.selection_probe, mask, mask, short.vary(d=64), dtype),
            ("kv-head-map", "swapped-strides", "mask-head-map", "mask-batch-map"),
        )
    size = Size(h_q=4, h_kv=2)
    yield attention_case(
        "probe",
        "sentinel",
        dtype,
        "L2",
        on_call(probes.sentinel_probe, "sentinel", "causal_document", size, dtype, dtype),
        ("sentinel-leak", "backward-mask"),
    )
    yield attention_case(
        "probe",
        "sentinel-document",
        dtype,
        "L2",
        on_call(probes.sentinel_probe, "sentinel", "document", size, dtype, dtype),
        ("sentinel-leak", "backward-mask"),
    )
    yield attention_case(
        "probe",
        "nan-in-hidden-keys",
        dtype,
        "L2",
        on_call(probes.nan_key_probe, "nan", "single_column", size, dtype),
        ("sentinel-leak",),
    )
    for mask in ("masked_rows", "all_masked"):
        yield attention_case(
            "probe",
            f"rows-that-see-nothing-{mask}",
            dtype,
            "L2",
            on_call(probes.masked_row_probe, mask, mask, size, dtype),
            ("masked-row-lse-inf", "masked-row-nan", "masked-row-mean", "masked-grad-nan"),
            mandatory=dtype == "bfloat16",
        )
    yield attention_case(
        "probe",
        "memory",
        dtype,
        "L2",
        on_call(probes.memory_probe, "memory", "causal_document", Size(s_q=131, s_k=197, h_q=2, h_kv=1, d=64), dtype),
        ("tail-tile", "input-written", "output-alias"),
    )


def _forward() -> Iterator[Case]:
    for spec in (*FAMILIES, *DEGENERATE):
        size = Size(h_q=4, h_kv=2, mask_heads=2 if spec.per_head else 1)
        for dtype in FLOATS:
            kinds = _mask_kinds(spec.name)
            yield attention_case(
                "forward",
                spec.name,
                dtype,
                "L2",
                on_call(close.forward, spec.name, spec.name, size, dtype, dtype),
                kinds,
            )
    for dtype in MAIN:
        for d in HEAD_DIMS:
            size = Size(s_q=70, s_k=70, d=d)
            yield attention_case(
                "forward",
                f"head_dim-{d}",
                dtype,
                "L2",
                on_call(close.forward, f"d{d}", "causal_document", size, dtype, dtype),
                ("tail-tile",),
            )
        for d, dv in ((64, 32), (192, 128), (32, 96), (128, 64)):
            size = Size(s_q=70, s_k=70, d=d, dv=dv)
            yield attention_case(
                "forward",
                f"head_dim-{d}-value-{dv}",
                dtype,
                "L2",
                on_call(close.forward, f"d{d}", "causal", size, dtype, dtype),
                ("swapped-strides",),
            )
        for h_q, h_kv in GROUPS:
            size = Size(s_q=70, s_k=70, h_q=h_q, h_kv=h_kv)
            yield attention_case(
                "forward",
                f"heads-{h_q}x{h_kv}",
                dtype,
                "L2",
                on_call(close.forward, f"g{h_q}", "causal_document", size, dtype, dtype),
                ("kv-head-map",),
            )
        for heads in (1, 2, 6):
            size = Size(b=2, s_q=150, s_k=150, h_q=6, h_kv=2, mask_heads=heads, mask_batch=2)
            yield attention_case(
                "forward",
                f"mask-heads-{heads}",
                dtype,
                "L2",
                on_call(close.forward, f"m{heads}", "random_eviction", size, dtype, dtype),
                ("mask-head-map", "mask-batch-map"),
            )
        small = Size(s_q=90, s_k=90)
        for name, call, kinds in (
            ("scale-0.5", {"scale": 0.5}, ("scale",)),
            ("scale-default", {}, ("scale",)),
            ("softcap", {"softcap": 2.0, "spread": 3.0}, ("softcap-ignored",)),
            ("sink", {"sink": True}, ("sink-ignored",)),
            ("large-logits", {"spread": 300.0, "scale": 1.0, "focus": True}, ("large-logits", "lse-base-2")),
        ):
            yield attention_case(
                "forward",
                name,
                dtype,
                "L2",
                on_call(close.forward, name, "causal_document", small, dtype, dtype, call=call),
                kinds,
            )
        yield attention_case(
            "forward",
            "sink-rows-that-see-nothing",
            dtype,
            "L2",
            on_call(close.forward, "sink", "masked_rows", Size(), dtype, dtype, call={"sink": True}),
            ("sink-ignored", "masked-row-nan"),
        )
        yield attention_case(
            "forward",
            "block-mask",
            dtype,
            "L2",
            on_call(close.block_mask, "block", "causal_document", Size(s_q=300, s_k=400), dtype, dtype),
            ("block-mask-ignored",),
        )
        yield from (_built(name, dtype) for name in ("full", "causal", "sliding_window", "causal_document", "document"))
    for dtype in ("bfloat16", "float16"):
        yield attention_case(
            "forward", "long-accumulation", dtype, "L2", partial(_long, dtype), ("low-accumulation",), mandatory=True
        )


def _long(dtype: str, target: Target) -> list[Measurement]:
    return close.long_accumulation(target, dtype)


def _built(name: str, dtype: str) -> Case:
    from fmcore_conformance.cases.attention_masks import documents

    size = Size()

    def run(target: Target) -> list[Measurement]:
        from fmcore import masks

        starts, ends = documents(size.s_q)
        lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        build: dict[str, Callable[[], masks.Mask]] = {
            "full": lambda: masks.full(size.s_q, size.s_k),
            "causal": lambda: masks.causal(size.s_q, size.s_k),
            "sliding_window": lambda: masks.sliding_window(size.s_q, window=max(1, size.s_q // 9)),
            "causal_document": lambda: masks.causal_document(lengths),
            "document": lambda: masks.document(lengths),
        }
        call = inputs.make(target, name, name, size, dtype)
        return close.built_mask(target, call, dtype, build[name]().to(call.q.device))

    return attention_case("forward", f"built-{name}", dtype, "L2", run, ("causal-alignment", "mask-lower-start"))


def _tails() -> Iterator[Case]:
    lengths = (
        (1, 1),
        (1, 129),
        (127, 127),
        (128, 128),
        (129, 129),
        (127, 257),
        (128, 127),
        (200, 129),
        (129, 1),
        (31, 300),
    )
    for s_q, s_k in lengths:
        for mask in ("causal", "interval", "full"):
            dtype = "bfloat16"
            size = Size(s_q=s_q, s_k=s_k, h_q=2, h_kv=1)
            yield attention_case(
                "tails",
                f"count-{mask}-{s_q}x{s_k}",
                dtype,
                "L2",
                on_call(probes.count_probe, "tail", mask, size, dtype),
                ("tail-tile", "causal-alignment"),
            )
        for dtype in MAIN:
            size = Size(s_q=s_q, s_k=s_k, h_q=2, h_kv=1)
            yield attention_case(
                "tails",
                f"close-{s_q}x{s_k}",
                dtype,
                "L2",
                on_call(close.forward, "tail", "causal", size, dtype, dtype),
                ("tail-tile", "causal-alignment"),
            )
    for s in (16383,):
        size = Size(s_q=s, s_k=s, h_q=1, h_kv=1)
        yield attention_case(
            "tails",
            f"count-narrow_window-{s}",
            "bfloat16",
            "L2",
            on_call(probes.count_probe, "16383", "narrow_window", size, "bfloat16"),
            ("tail-tile", "key-dropped", "mask-lower-start"),
            timeout=300.0,
        )
    for name, size in (
        ("no-keys", Size(s_q=5, s_k=0)),
        ("no-queries", Size(s_q=0, s_k=5)),
        ("no-batch", Size(b=0, s_q=5, s_k=5)),
    ):
        yield attention_case("tails", name, "float32", "L2", partial(_empty, size), ("tail-tile", "masked-row-lse-inf"))


def _empty(size: Size, target: Target) -> list[Measurement]:
    return close.empty(target, "float32", size)


def _layouts(target: Target) -> Iterator[Case]:
    size = Size(b=2, s_q=70, s_k=90, h_q=4, h_kv=2, d=64, dv=48)
    for dtype in MAIN:
        for layout in inputs.LAYOUTS:
            yield attention_case(
                "layout",
                layout,
                dtype,
                "L2",
                on_call(close.layouts, layout, "causal_document", size, dtype, dtype, layout),
                ("swapped-strides",),
            )
        yield attention_case(
            "layout",
            "stride-0",
            dtype,
            "L2",
            on_call(close.zero_stride, "zero", "causal_document", size, dtype, dtype),
            ("swapped-strides",),
        )
    if torch.device(target.device).type == "cpu":  # untouched pages of the host cost nothing; a device would hold 4 GiB
        far = Size(b=2, s_q=20, s_k=40)
        yield attention_case(
            "layout",
            "offsets-beyond-int32",
            "bfloat16",
            "L2",
            on_call(close.far, "far", "causal_document", far, "bfloat16", "bfloat16"),
            ("int32-overflow",),
            mandatory=True,
        )
