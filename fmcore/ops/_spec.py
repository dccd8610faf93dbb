"""What an op is, declared once: arguments, features, schema, validation, fake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Family = Literal["attention", "moe", "math"]


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """A keyword argument that is no tensor.

    Attributes:
        name: Its name.
        schema_type: Its type in a torch schema: ``int``, ``float``, ``bool``, ``str``, ``int?``, ``int[]``,
            ``ScalarType``, ``ScalarType?``, ``Scalar``; or ``object`` for values that no schema can carry.
        default: Default value.
    """

    name: str
    schema_type: str
    default: Any = None


def _no_features(tensors: tuple[Any, ...], params: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    return {}


def _valid(*tensors: Any, **params: Any) -> None:
    """Accept everything."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OpSpec:
    """The declaration of an op.

    Attributes:
        name: Dotted name, such as ``math.rms_norm``.
        family: Conformance levels are granted per family.
        roles: Names of the tensor arguments in order; implementations receive them by position.
        optional: Those of ``roles`` that may be None.
        params: The other arguments; implementations receive them by keyword.
        outputs: Number of tensors returned; 1 returns a tensor and no tuple.
        feature_names: Names of the request features that ``features`` fills.
        features: ``features(tensors, params) -> dict`` with hashable values. It runs on every call: keep it cheap,
            and keep raw lengths out.
        validate: ``validate(*tensors, **params)`` raises InvalidInputError for what breaks the contract.
        fake: ``fake(*tensors, **params)`` returns empty outputs of the right shape, dtype and device; needed where
            an implementation with a paired backward is to be traced.
        differentiable: False for ops that have no gradient (comparisons, argmax).
        summary: One sentence for the docs.
        traceable: Whether a torch schema can carry the arguments; follows from ``params``.
    """

    name: str
    family: Family
    roles: tuple[str, ...]
    optional: tuple[str, ...] = ()
    params: tuple[ParamSpec, ...] = ()
    outputs: int = 1
    feature_names: tuple[str, ...] = ()
    features: Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]] = _no_features
    validate: Callable[..., None] = _valid
    fake: Callable[..., Any] | None = None
    differentiable: bool = True
    summary: str = ""
    traceable: bool = field(init=False)

    def __post_init__(self) -> None:
        traceable = all(param.schema_type != "object" for param in self.params)
        object.__setattr__(self, "traceable", traceable)

    @property
    def torch_name(self) -> str:
        """The name under ``torch.ops.fmcore``."""
        return self.name.replace(".", "_")

    def schema(self, *, impl: bool) -> str:
        """Return the torch schema: of the op itself, or of the inner op that carries its implementation's name."""
        arguments = [f"Tensor{'?' if role in self.optional else ''} {role}" for role in self.roles]
        arguments += [f"{param.schema_type} {param.name}" for param in self.params]
        arguments.append("str impl" if impl else "str? backend")
        returns = "Tensor" if self.outputs == 1 else f"({', '.join(['Tensor'] * self.outputs)})"
        return f"({', '.join(arguments)}) -> {returns}"
