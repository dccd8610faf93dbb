"""Gluon under one set of names, from Triton 3.6 to 3.9: three names changed on the way."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = [
    "block_barrier",
    "fence_async_shared",
    "gl",
    "gluon",
    "mbarrier",
    "tma_load",
    "tma_store",
    "tma_store_wait",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]

tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
tma_store_wait = tma.store_wait
block_barrier = getattr(gl, "barrier", None) or gl.thread_barrier
