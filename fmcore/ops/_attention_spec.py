"""The declaration of attention: roles, features, and how a call turns into them."""

from __future__ import annotations

from typing import Any

from fmcore.ops._spec import OpSpec, ParamSpec

FEATURES = (
    "head_dim",
    "head_dim_v",
    "group",
    "mask_mode",
    "mask_kind",
    "mask_heads",
    "block_mask",
    "softcap",
    "sink",
    "contiguous",
    "empty",
)

SPEC = OpSpec(
    name="flashmask_attention",
    family="attention",
    roles=("query", "key", "value", "sink"),
    optional=("sink",),
    params=(ParamSpec("mask", "object"),),
    outputs=2,
    feature_names=FEATURES,
    summary="Scaled dot-product attention under a column-wise sparse mask.",
)
SPECS = (SPEC,)


def features(q: Any, k: Any, v: Any, sink: Any, mask: Any, softcap: float) -> dict[str, Any]:
    """Return the request features of a call.

    ``group`` is query heads per key/value head; ``mask_mode`` 1 or 2 masked-interval form; ``mask_heads`` ``one``,
    ``kv`` or ``query``; ``block_mask``, ``softcap`` and ``sink`` say whether there is one; ``contiguous`` is about
    query, key and value; ``empty`` says that batch, query length or key length is 0.
    """
    heads = "one" if mask.heads == 1 else "kv" if mask.heads == k.shape[2] else "query"
    return {
        "head_dim": int(q.shape[3]),
        "head_dim_v": int(v.shape[3]),
        "group": int(q.shape[2]) // int(k.shape[2]),
        "mask_mode": mask.mode,
        "mask_kind": mask.kind,
        "mask_heads": heads,
        "block_mask": mask.block_mask is not None,
        "softcap": softcap > 0,
        "sink": sink is not None,
        "contiguous": all(t.is_contiguous() for t in (q, k, v)),
        "empty": bool(q.shape[0] == 0 or q.shape[1] == 0 or k.shape[1] == 0),
    }
