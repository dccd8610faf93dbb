"""What is under test: one backend by name, or the whole stack under automatic selection."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

import fmcore
from fmcore_conformance import unclaimed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclass(frozen=True)
class Target:
    """A backend, a device and a seed. Every call of a case goes through it.

    Attributes:
        backend: Backend name for strict calls; None for automatic selection.
        device: torch device of the inputs.
        seed: Seed of the run; each case derives its own generator from it and from its id.
        load: Modules whose ``load()`` registers further backends, also in the ranks of a world.
    """

    backend: str | None = None
    device: str = "cpu"
    seed: int = 0
    load: tuple[str, ...] = ()

    def generator(self, name: str) -> torch.Generator:
        """A CPU generator that depends on the run's seed and on ``name`` only."""
        digest = hashlib.sha256(f"{self.seed}:{name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))

    def put(self, x: Tensor) -> Tensor:
        """The tensor on the device under test."""
        return x.to(self.device)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, startend: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """``fmcore.flashmask_attention`` with the lse, served by the backend under test."""
        result = fmcore.flashmask_attention(q, k, v, startend, return_softmax_lse=True, backend=self.backend, **options)
        return result[0], result[1]

    def math(self, name: str) -> Callable[..., Any]:
        """``fmcore.math.<name>`` bound to the backend under test."""
        function = getattr(fmcore.math, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs, backend=self.backend)

        return call

    def without_claims(self) -> Target | None:
        """The same backend with every claim removed, to try an unclaimed cell; None under automatic selection."""
        if self.backend is None:
            return None
        return replace(self, backend=unclaimed.shadow(self.backend))
