"""One math op as data: its dtypes with reasons, its outputs, its accuracy class and its gradient roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from fmcore.errors import InvalidInputError, UnsupportedError
from fmcore.ops._spec import OpSpec, ParamSpec
from fmcore.ops.math.dtypes import DTYPES, KIND, KINDS, NAMES, TORCH, dtype_name
from fmcore.ops.math.shapes import Shape

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EXACT", "Accuracy", "MathOp", "Meta", "ParamSpec", "pointwise"]

Meta = tuple[Shape, torch.dtype]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far a result may lie from the exact one. Bool and integer results are always exact.

    Attributes:
        metric: ``"exact"``: bit for bit in every dtype. ``"pointwise"``: within ``ulp`` units in the last
            place (float32 and float64), 1 ulp in half precision, 8 u norm-wise in complex.
            ``"contraction"``: row-wise relative L2 within ``ulp * sqrt(length)`` u, plus one rounding in half
            precision.
        ulp: The number above; pointwise ones are those of OpenCL's full profile.
        length: Of a contraction: how many terms are summed, from tensors and parameters.
    """

    metric: Literal["exact", "pointwise", "contraction"]
    ulp: float = 0.0
    length: Callable[[tuple[Any, ...], Mapping[str, Any]], int] | None = None


EXACT = Accuracy("exact")


def pointwise(ulp: float) -> Accuracy:
    """Accuracy of an elementwise op."""
    return Accuracy("pointwise", ulp)


@dataclass(frozen=True, kw_only=True)
class MathOp:
    """The declaration of ``math.<name>``.

    Implementations and oracles have the signature ``fn(*tensors, **params)`` in the canonical form that the
    public function makes: all main roles share one dtype, axes count from the front and are sorted, dtypes
    are resolved. Outputs are new contiguous tensors.

    Attributes:
        name: Name in ``fm.math``, without the family.
        kind: Group in the table: elementwise, comparison, logical, bitwise, cast, reduction, linalg, fft, nn.
        summary: One sentence.
        domain: Dtypes that the main roles take.
        refusals: Reason by kind or dtype name, for every dtype outside the domain.
        meta: ``meta(*tensors, **params)`` gives shape and dtype of each output, and raises on what the
            op cannot give.
        accuracy: Bound of the result.
        roles: Names of the tensor arguments.
        side: Dtypes of the roles that do not share the main dtype; ``None`` means "the main dtype or a
            wider real accumulator", as tables of angles have.
        optional: Roles that may be None.
        params: The other arguments.
        outputs: Number of outputs.
        gradients: Roles that take a gradient where their dtype is floating-point.
        features: Facts of a call that a backend's Caps may depend on.
        feature_names: Their names.
    """

    name: str
    kind: str
    summary: str
    domain: frozenset[torch.dtype]
    refusals: Mapping[str, str]
    meta: Callable[..., tuple[Meta, ...]]
    accuracy: Accuracy
    roles: tuple[str, ...] = ("x",)
    side: Mapping[str, frozenset[torch.dtype] | None] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    params: tuple[ParamSpec, ...] = ()
    outputs: int = 1
    gradients: frozenset[str] = frozenset()
    features: Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]
    feature_names: tuple[str, ...]

    def __post_init__(self) -> None:
        missing = [n for n in DTYPES if self.support(n) is not True and not self.support(n)]
        if missing:
            raise ValueError(f"math.{self.name} refuses {missing} without a reason")

    def support(self, dtype: str) -> Literal[True] | str:
        """True, or why the op refuses a dtype of its main roles."""
        if TORCH[dtype] in self.domain:
            return True
        kind = next(k for k, names in KINDS.items() if dtype in names)
        return self.refusals.get(dtype) or self.refusals.get(kind, "")

    @property
    def main(self) -> tuple[str, ...]:
        """Roles that share the dtype of the call."""
        return tuple(r for r in self.roles if r not in self.side)

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Refuse a main dtype outside the domain.

        Raises:
            UnsupportedError: With the reason of the table.
        """
        if dtype in self.domain:
            return
        name = NAMES.get(dtype)
        if name is None:
            raise UnsupportedError(
                f"math.{self.name}: dtype {dtype_name(dtype)} is outside the matrix ({', '.join(DTYPES)}); cast first"
            )
        takes = ", ".join(n for n in DTYPES if TORCH[n] in self.domain)
        raise UnsupportedError(f"math.{self.name} refuses {name}: {self.support(name)} (it takes {takes})")

    def validate(self, *tensors: Tensor | None, **params: Any) -> None:
        """Check devices, dtypes and shapes of a call in canonical form.

        Raises:
            InvalidInputError: Devices, dtypes or shapes do not fit each other.
            UnsupportedError: The op refuses the dtype.
        """
        self._check_tensors(tensors)
        self.meta(*tensors, **params)

    def _check_tensors(self, tensors: tuple[Tensor | None, ...]) -> None:
        first = tensors[0]
        if not self.side and self._alike(first, tensors):
            return
        if not isinstance(first, torch.Tensor):
            raise InvalidInputError(
                f"math.{self.name}: {self.roles[0]} must be a torch.Tensor, got {type(first).__name__}"
            )
        main: torch.dtype | None = None
        for role, tensor in zip(self.roles, tensors, strict=True):
            if tensor is None and role in self.optional:
                continue
            if not isinstance(tensor, torch.Tensor):
                raise InvalidInputError(f"math.{self.name}: {role} must be a torch.Tensor, got {type(tensor).__name__}")
            if tensor.device != first.device:
                raise InvalidInputError(
                    f"math.{self.name}: {self.roles[0]} is on {first.device}, {role} on {tensor.device}; "
                    "move them to one device"
                )
            if role in self.side:
                continue
            if main is None:
                main = tensor.dtype
                self.check_dtype(main)
            elif tensor.dtype != main:
                raise InvalidInputError(
                    f"math.{self.name}: {role} is {dtype_name(tensor.dtype)} where {dtype_name(main)} is asked; "
                    "cast one side with fm.math.astype"
                )
        for role, tensor in zip(self.roles, tensors, strict=True):
            if tensor is not None and role in self.side:
                self._check_side(role, tensor.dtype, main)

    def _alike(self, first: object, tensors: tuple[Tensor | None, ...]) -> bool:
        """Whether nothing can be wrong: tensors of one supported dtype on one device. The way of almost every call."""
        if not isinstance(first, torch.Tensor) or first.dtype not in self.domain:
            return False
        for t in tensors[1:]:
            if not isinstance(t, torch.Tensor) or t.dtype != first.dtype or t.device != first.device:
                return False
        return True

    def _check_side(self, role: str, dtype: torch.dtype, main: torch.dtype | None) -> None:
        allowed = self.side[role]
        if allowed is None:
            if main is None or dtype == main or (dtype in (torch.float32, torch.float64) and KIND[main] == "real"):
                return
            wants = f"{dtype_name(main)}, float32 or float64" if KIND[main] == "real" else dtype_name(main)
        elif dtype in allowed:
            return
        else:
            wants = " or ".join(n for n in DTYPES if TORCH[n] in allowed)
        raise InvalidInputError(f"math.{self.name}: {role} must be {wants}, got {dtype_name(dtype)}")

    def fake(self, *tensors: Tensor, **params: Any) -> Tensor | tuple[Tensor, ...]:
        """Outputs without values, for FakeTensor, meta and torch.compile."""
        device = next(t.device for t in tensors if t is not None)
        out = tuple(torch.empty(s, dtype=d, device=device) for s, d in self.meta(*tensors, **params))
        return out if self.outputs > 1 else out[0]

    @cached_property
    def spec(self) -> OpSpec:
        """What the dispatcher knows of the op."""
        return OpSpec(
            name=f"math.{self.name}",
            family="math",
            roles=self.roles,
            optional=tuple(r for r in self.roles if r in self.optional),
            params=self.params,
            outputs=self.outputs,
            features=self.features,
            feature_names=self.feature_names,
            validate=self.validate,
            fake=self.fake,
            differentiable=bool(self.gradients),
            summary=self.summary,
        )
