"""The column-wise mask as an immutable value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, final

import torch
from torch import Tensor

from fmcore.errors import InvalidInputError
from fmcore.masks import _area, _wrapped
from fmcore.masks._canonical import BLOCK, check_block_mask, check_length
from fmcore.masks._equal import same_visibility
from fmcore.masks._wrapped import version

if TYPE_CHECKING:
    from fmcore.masks.plan import Plan

__all__ = ["Mask"]

_PLANES = {1: 2, 2: 4}
_UNKNOWN = (-2, -2)
"""Versions of tensors that nothing was derived from yet."""

_SIGNATURES: dict[tuple[Any, ...], int] = {}


def _signature(facts: tuple[Any, ...]) -> int:
    """Number the distinct structures as they come; a symbolic length while tracing gets none (-1)."""
    if not all(type(fact) in (int, str, bool) for fact in facts):
        return -1
    return _SIGNATURES.setdefault(facts, len(_SIGNATURES))


@final
class Mask:
    """Which query rows see which key columns, as at most two hidden row intervals per column.

    Make one with a builder (``causal_document``), a converter (``from_dense``) or :func:`fmcore.masks.canonicalize`. A
    mask never changes; ``==`` compares what it hides. Everything below is a plain attribute.

    Attributes:
        s_q: Query rows.
        s_k: Key columns.
        batch: 1 (shared by the batch) or the batch size.
        heads: 1, the number of KV heads, or the number of query heads.
        kind: The builder's tag, such as ``"causal_document"``, or ``"custom"``.
        mode: 1 or 2, known from structure alone.
        planes: Contiguous int32 ``[batch, heads, 2 * mode, s_k]``. Mode 1: (begin, end), row i sees the column
            iff begin <= i < end; (0, 0) where nobody sees it. Mode 2: (us, ue, ls, le), row i is hidden iff
            us <= i < ue or ls <= i < le, with 0 <= us <= ue <= ls <= le <= s_q, an empty upper interval (0, 0),
            an empty lower one (s_q, s_q), and intervals that neither overlap nor touch.
        block_mask: None, or int32 ``[batch, heads, ceil(s_q / 128), ceil(s_k / 128)]``, 1 keeps a block, 0 hides it.
        is_full: Nothing is hidden, known without looking at data.
        is_causal_only: Exactly the bottom-right causal mask, known without looking at data.
        signature: A number for all of the above but the contents of planes and block_mask: equal for masks that fit the
            same tensors and suit the same kernels.
        device: Where the planes lie.
        captured: Made while a graph was captured, so its contents are right only inside that graph.
    """

    s_q: int
    s_k: int
    batch: int
    heads: int
    kind: str
    mode: int
    planes: Tensor
    block_mask: Tensor | None
    is_full: bool
    is_causal_only: bool
    signature: int
    device: torch.device
    captured: bool
    _copies: dict[Any, Any]
    _plans: dict[Any, Plan]
    _exact: float | None
    _versions: tuple[int, int]

    def __init__(
        self, planes: Tensor, *, s_q: int, mode: int, kind: str = "custom", block_mask: Tensor | None = None
    ) -> None:
        count = _PLANES.get(mode)
        if count is None:
            raise InvalidInputError(f"mode must be 1 (visible interval) or 2 (two hidden intervals), got {mode!r}.")
        check_length("s_q", s_q)
        if planes.dim() != 4 or planes.shape[2] != count or planes.dtype != torch.int32 or 0 in planes.shape[:2]:
            raise InvalidInputError(
                f"planes of mode {mode} must be int32 [batch, heads, {count}, s_k] with batch and heads at least 1, "
                f"got {planes.dtype} {tuple(planes.shape)}."
            )
        batch, heads, _, s_k = planes.shape
        if block_mask is not None:
            block_mask = check_block_mask(block_mask, batch=batch, heads=heads, s_q=s_q, s_k=s_k)
        # An inference tensor could not be saved for a backward later on; a compiler cannot trace the question.
        if not torch.compiler.is_compiling() and planes.is_inference():
            with torch.inference_mode(mode=False):
                planes = planes.clone()
        plain = block_mask is None
        self.__dict__.update(
            s_q=s_q,
            s_k=s_k,
            batch=batch,
            heads=heads,
            kind=kind,
            mode=mode,
            planes=planes.contiguous(),
            block_mask=block_mask,
            is_full=plain and kind == "full",
            is_causal_only=plain and kind == "causal",
            signature=_signature((s_q, s_k, batch, heads, kind, mode, plain)),
            device=planes.device,
            _copies={},
            _plans={},
            captured=_capturing(planes.device),
            _exact=None,
            _versions=_UNKNOWN,
        )

    @classmethod
    def from_planes(
        cls, planes: Tensor, *, s_q: int, mode: int, kind: str = "custom", block_mask: Tensor | None = None
    ) -> Mask:
        """Wrap planes that are already canonical; their contents are trusted, their shape is checked.

        The same tensor, unchanged since, yields the same mask and thus the same plans, for as long as the tensor lives.
        While a graph is captured nothing is remembered: the tensor may be an input that changes before a replay.
        """
        if _capturing(planes.device):
            return cls(planes, s_q=s_q, mode=mode, kind=kind, block_mask=block_mask)
        key = (s_q, mode, kind, version(planes), version(block_mask))
        held = _wrapped.recall(planes, key, block_mask)
        known = None if held is None else held.mask()
        if known is not None:
            return known
        mask = cls(planes, s_q=s_q, mode=mode, kind=kind, block_mask=block_mask)
        if held is not None:
            mask._refresh()  # so that what is handed on next counts as of these versions
            mask.__dict__["_plans"] = held.plans
            for plan in held.plans.values():
                plan.rebind(mask)
        if mask.planes is planes:  # a copy made contiguous would not see later changes of the original
            _wrapped.remember(planes, key, mask, mask._plans, block_mask)
        return mask

    def _refresh(self) -> None:
        """Forget what was derived from the tensors if they were changed in place since."""
        now = (version(self.planes), version(self.block_mask))
        if now != self._versions:
            if self._versions is not _UNKNOWN:
                self.__dict__.update(_copies={}, _plans={}, _exact=None)
            self.__dict__["_versions"] = now

    def planes_on(self, device: torch.device | str | None = None) -> Tensor:
        """The planes on ``device`` (default: where they are), copied at most once per device."""
        return self._on("planes", device)

    def block_mask_on(self, device: torch.device | str | None = None) -> Tensor | None:
        """The block mask on ``device``, or None if there is none."""
        return None if self.block_mask is None else self._on("block_mask", device)

    def _on(self, name: str, device: torch.device | str | None) -> Tensor:
        tensor: Tensor = self.__dict__[name]
        where = tensor.device if device is None else indexed(device)
        if where == tensor.device:
            return tensor
        self._refresh()
        key = (name, where)
        copy: Tensor | None = self._copies.get(key)
        if copy is None:
            copy = tensor.to(where)
            if not _capturing(where):
                self._copies[key] = copy
        return copy

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its tensors on ``device``; itself if they are there already."""
        where = indexed(device)
        if where == self.device:
            return self
        self._refresh()
        key = ("mask", where)
        moved: Mask | None = self._copies.get(key)
        if moved is None:
            block_mask = self.block_mask_on(where)
            moved = Mask(self.planes_on(where), s_q=self.s_q, mode=self.mode, kind=self.kind, block_mask=block_mask)
            if not moved.captured:
                self._copies[key] = moved
        return moved

    def plan(self, block_q: int, block_k: int, device: torch.device | str | None = None) -> Plan:
        """Tile lists for tiles of ``block_q`` rows and ``block_k`` columns, built once and kept with the mask.

        Rebuilt when the planes were changed in place. A plan first asked for while a graph is captured is part of that
        graph and is not kept, unless the mask itself was made in the capture.
        """
        where = self.device if device is None else indexed(device)
        self._refresh()
        key = (block_q, block_k, where)
        plan: Plan | None = self._plans.get(key)
        if plan is None:
            from fmcore.masks.plan import build_plan

            plan = build_plan(self, block_q, block_k, where)
            if self.captured or not _capturing(where):
                self._plans[key] = plan
        return plan

    def dense(self, device: torch.device | str | None = None) -> Tensor:
        """Bool ``[batch, heads, s_q, s_k]``, True where visible, block mask applied; O(s_q * s_k) memory."""
        planes = self.planes_on(device).unsqueeze(-2)
        row = torch.arange(self.s_q, dtype=torch.int32, device=planes.device).unsqueeze(-1)
        if self.mode == 1:
            begin, end = planes.unbind(2)
            visible = (row >= begin) & (row < end)
        else:
            us, ue, ls, le = planes.unbind(2)
            visible = ~(((row >= us) & (row < ue)) | ((row >= ls) & (row < le)))
        keep = self.block_mask_on(device)
        if keep is not None:
            wide = keep.bool().repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
            visible &= wide[..., : self.s_q, : self.s_k]
        return visible

    def exact_area(self) -> float:
        """Share of the (row, column) pairs that are visible, over batch and mask heads; waits for the device once."""
        self._refresh()
        exact = self._exact
        if exact is None:
            exact = self.__dict__["_exact"] = _area.exact_area(self)
        return exact

    def check_fits(self, *, batch: int, heads_q: int, heads_kv: int, s_q: int, s_k: int) -> None:
        """Raise unless the mask fits attention of these sizes.

        Raises:
            InvalidInputError: Names the first size that does not fit.
        """
        if (self.s_q, self.s_k) != (s_q, s_k):
            raise InvalidInputError(
                f"mask {self.kind!r} is for s_q={self.s_q}, s_k={self.s_k}, but q has {s_q} rows and k has {s_k} keys."
            )
        if self.batch not in (1, batch):
            raise InvalidInputError(
                f"mask {self.kind!r} has batch {self.batch}, but q has batch {batch}; it must be that or 1."
            )
        if self.heads not in (1, heads_kv, heads_q):
            raise InvalidInputError(
                f"mask {self.kind!r} has {self.heads} heads; with {heads_q} query heads and {heads_kv} KV heads "
                f"it must have 1, {heads_kv} or {heads_q}."
            )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Mask):
            return NotImplemented
        if (self.s_q, self.s_k, self.batch, self.heads) != (other.s_q, other.s_k, other.batch, other.heads):
            return False
        return same_visibility(self, other.to(self.device))

    def __hash__(self) -> int:
        return hash((self.s_q, self.s_k, self.batch, self.heads))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Mask is immutable, {name!r} cannot be set; build another mask.")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"Mask is immutable, {name!r} cannot be deleted.")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.planes, self.s_q, self.mode, self.kind, self.block_mask)

    def __repr__(self) -> str:
        extra = "" if self.block_mask is None else ", block_mask"
        return (
            f"Mask({self.kind!r}, s_q={self.s_q}, s_k={self.s_k}, batch={self.batch}, heads={self.heads}, "
            f"mode={self.mode}, device={str(self.device)!r}{extra})"
        )


def _rebuild(planes: Tensor, s_q: int, mode: int, kind: str, block_mask: Tensor | None) -> Mask:
    return Mask(planes, s_q=s_q, mode=mode, kind=kind, block_mask=block_mask)


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def indexed(device: torch.device | str) -> torch.device:
    """The device with its index, so that ``cuda`` and ``cuda:0`` are one key."""
    where = torch.device(device)
    if where.index is None and where.type not in ("cpu", "meta"):
        return torch.device(where.type, torch.get_device_module(where).current_device())
    return where
