"""What every test may use: plugins made on the spot, taken out again afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fmcore as fm
from fmcore.dispatch import BackendMeta, hookimpl
from fmcore.dispatch.caps import Caps
from fmcore.dispatch.probes import ProbeReport


class MadePlugin:
    """A plugin with one backend and one dense attention; it counts its calls and can be told to fail."""

    def __init__(
        self,
        name: str,
        *,
        caps: Caps | None = None,
        band: str = "native",
        vendor: str = "any",
        priority: int = 0,
        report: ProbeReport | Exception | None = None,
        fail: Exception | None = None,
        with_backward: bool = True,
    ) -> None:
        self.fmcore_metadata = (BackendMeta(name, vendor, band),)
        self.name = name
        self.caps = caps or Caps()
        self.priority = priority
        self.report = report or ProbeReport(available=True, reason="made by a test")
        self.fail = fail
        self.with_backward = with_backward
        self.forwards = 0
        self.backwards = 0

    @hookimpl
    def fmcore_probe(self) -> Any:
        if isinstance(self.report, Exception):
            raise self.report
        return {self.name: self.report}

    @hookimpl
    def fmcore_register_impls(self, registrar: Any) -> None:
        backward = self.backward if self.with_backward else None
        registrar.impl("flashmask_attention", name="dense", caps=self.caps, priority=self.priority, backward=backward)(self.forward)

    def forward(self, q: Any, k: Any, v: Any, mask: Any, *, softmax_scale: float, **_: Any) -> Any:
        self.forwards += 1
        if self.fail is not None:
            raise self.fail
        group = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * softmax_scale
        scores = scores.masked_fill(~mask.dense(q.device), -math.inf)
        lse = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - lse[..., None].nan_to_num(neginf=0.0))
        return torch.einsum("bhij,bjhd->bihd", weights, v).contiguous(), lse

    def backward(self, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, mask: Any, **options: Any) -> Any:
        self.backwards += 1
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            calls, self.forwards = self.forwards, self.forwards
            again, again_lse = self.forward(*leaves, mask, **options)
            self.forwards = calls
            total = (again * dout).sum() + (0.0 if dlse is None else (again_lse.nan_to_num(neginf=0.0) * dlse).sum())
        return (*torch.autograd.grad(total, leaves), None)


@pytest.fixture
def plugin() -> Iterator[Callable[..., MadePlugin]]:
    """Return a function that makes and registers a plugin; all are unregistered afterwards and the policy is cleared."""
    names: list[str] = []

    def make(name: str, **options: Any) -> MadePlugin:
        made = MadePlugin(name, **options)
        fm.register_backend(made)
        names.append(name)
        return made

    yield make
    fm.set_policy()
    for name in names:
        fm.unregister_backend(name)


@pytest.fixture
def qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Small float32 query, key and value: batch 2, 12 rows, 4 query heads over 2."""
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(2, 12, 4, 16, generator=generator),
        torch.randn(2, 12, 2, 16, generator=generator),
        torch.randn(2, 12, 2, 16, generator=generator),
    )
