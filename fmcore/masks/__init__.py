"""The column-wise attention mask as a value: builders, converters, plan and pictures.

>>> import fmcore.masks as masks
>>> mask = masks.causal_document([3, 5, 8])
>>> mask.plan(4, 4).tile_area
0.375
"""

from __future__ import annotations

from fmcore.masks.benchmark_masks import BENCHMARK_MASKS, benchmark, benchmark_documents
from fmcore.masks.builders import (
    all_masked,
    causal,
    causal_document,
    document,
    full,
    global_sliding,
    single_column,
    sliding_window,
)
from fmcore.masks.canonical import canonicalize
from fmcore.masks.converters import from_dense, from_window, simplify, to_startend_row_indices, with_block_mask
from fmcore.masks.degenerate_masks import DEGENERATE_MASKS, degenerate, degenerate_bounds
from fmcore.masks.flex import from_block_mask, from_mask_mod, to_block_mask, to_mask_mod
from fmcore.masks.mask import Mask
from fmcore.masks.picture import save_png, to_text
from fmcore.masks.plan import Plan, build_plan, plan_builders, register_plan_builder
from fmcore.masks.sequences import from_cu_seqlens, from_document_ids, from_nested
from fmcore.masks.structured import (
    causal_blockwise,
    prefix_lm_causal,
    prefix_lm_document,
    qk_sparse,
    random_eviction,
    share_question,
)

__all__ = [
    "BENCHMARK_MASKS",
    "DEGENERATE_MASKS",
    "Mask",
    "Plan",
    "all_masked",
    "benchmark",
    "benchmark_documents",
    "build_plan",
    "canonicalize",
    "causal",
    "causal_blockwise",
    "causal_document",
    "degenerate",
    "degenerate_bounds",
    "document",
    "from_block_mask",
    "from_cu_seqlens",
    "from_dense",
    "from_document_ids",
    "from_mask_mod",
    "from_nested",
    "from_window",
    "full",
    "global_sliding",
    "plan_builders",
    "prefix_lm_causal",
    "prefix_lm_document",
    "qk_sparse",
    "random_eviction",
    "register_plan_builder",
    "save_png",
    "share_question",
    "simplify",
    "single_column",
    "sliding_window",
    "to_block_mask",
    "to_mask_mod",
    "to_startend_row_indices",
    "to_text",
    "with_block_mask",
]
