"""Example calls for ``explain``: tensors without memory, of any device, and parameters that make the call valid."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import fmcore
from fmcore import masks
from fmcore.errors import InvalidInputError
from fmcore.ops import specs
from fmcore.ops._spec import OpSpec

Shape = tuple[int, ...]
ALIASES = {"q": "query", "k": "key", "v": "value"}
_ATTENTION = (1, 4096, 32, 128)
_ROWS = (16, 64)
_SHAPES: dict[str, dict[str, Shape]] = {
    "flashmask_attention": {"query": _ATTENTION, "key": _ATTENTION, "value": _ATTENTION},
    "math.matmul": {"x1": (64, 64), "x2": (64, 64)},
    "math.grouped_matmul": {"x": (64, 32), "w": (4, 32, 16), "offsets": (4,)},
    "math.rms_norm": {"x": (16, 4096), "weight": (4096,)},
    "math.rotary": {"x": (1, 16, 4, 64), "cos": (16, 32), "sin": (16, 32)},
    "math.rotary_complex": {"x": (1, 16, 4, 32), "rotation": (16, 32)},
    "math.topk_gate": {"logits": (16, 64)},
    "moe.layout": {"topk_idx": (4096, 8)},
    "moe.dispatch": {"x": (4096, 7168), "topk_idx": (4096, 8), "topk_weights": (4096, 8)},
    "moe.combine": {"y": (4096, 7168)},
}
_DTYPES = {"topk_idx": "int64", "offsets": "int64", "condition": "bool", "topk_weights": "float32", "sink": "float32"}
_MAIN = {
    "flashmask_attention": "bfloat16",
    "moe.dispatch": "bfloat16",
    "moe.combine": "bfloat16",
    "math.rotary_complex": "complex64",
}
_SETTINGS: dict[str, dict[str, Any]] = {
    "math.topk_gate": {"k": 8},
    "moe.layout": {"num_experts": 64},
    "math.cumulative_sum": {"axis": -1},
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller wants of the example; everything else is filled in.

    Attributes:
        shapes: Shape by role.
        dtype: Dtype of the main roles, or an empty string.
        dtypes: Dtype by role.
        device: A torch device; it need not exist.
        grad: Whether floating-point tensors require gradients.
        settings: Other parameters, as text.
        mask: ``name`` or ``name:arguments`` of a builder in ``fm.masks``.
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    dtype: str = ""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    grad: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    mask: str = ""


def build(op: str, wish: Wish) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of an example call of ``op``, as its public function takes them.

    Raises:
        InvalidInputError: The op, a role, a dtype, a device or a parameter is unknown.
    """
    known = specs()
    if op not in known:
        raise InvalidInputError(f"there is no op {op!r}; there are {', '.join(sorted(known))}")
    spec = known[op]
    shapes = {_role(spec, role): shape for role, shape in wish.shapes.items()}
    dtypes = {_role(spec, role): name for role, name in wish.dtypes.items()}
    tensors: dict[str, Any] = {}
    with FakeTensorMode():
        for role in spec.roles:
            shape = shapes.get(role) or _default_shape(spec, role, shapes)
            if shape is not None:
                name = dtypes.get(role) or _default_dtype(spec, role, wish.dtype)
                tensors[role] = _tensor(spec, role, shape, name, wish)
    return _arguments(spec, tensors, wish)


def _role(spec: OpSpec, name: str) -> str:
    role = ALIASES.get(name, name)
    if role not in spec.roles:
        raise InvalidInputError(f"{spec.name} has no tensor {name!r}; it takes {', '.join(spec.roles)}")
    return role


def _default_shape(spec: OpSpec, role: str, given: Mapping[str, Shape]) -> Shape | None:
    """Return the example's shape; a role like one that was given takes that one's."""
    table = _SHAPES.get(spec.name, {})
    if role in spec.optional and role not in table:
        return None
    if given and role not in spec.optional and (not table or spec.name == "flashmask_attention"):
        return next(iter(given.values()))
    return table.get(role, _ROWS)


def _default_dtype(spec: OpSpec, role: str, main: str) -> str:
    if role in _DTYPES:
        return _DTYPES[role]
    if main:
        return main
    if spec.name in _MAIN:
        return _MAIN[spec.name]
    if spec.family != "math":
        return "float32"
    from fmcore.ops.math import SUPPORTED

    support = SUPPORTED[spec.name.removeprefix("math.")]
    return next(name for name in ("float32", "complex64", "int32", "bool") if support[name] is True)


def _tensor(spec: OpSpec, role: str, shape: Shape, name: str, wish: Wish) -> torch.Tensor:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidInputError(f"{name!r} is no dtype of torch; write for instance 'bfloat16'")
    try:
        tensor = torch.empty(shape, dtype=dtype, device=wish.device)
    except RuntimeError as error:
        raise InvalidInputError(f"{role}: no tensor of shape {shape} on {wish.device!r}: {error}") from error
    wanted = wish.grad and spec.differentiable and (dtype.is_floating_point or dtype.is_complex)
    return tensor.requires_grad_(wanted)


def _value(text: str) -> Any:
    dtype = getattr(torch, text, None)
    if isinstance(dtype, torch.dtype):
        return dtype
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, SyntaxError):
        return text


def _arguments(spec: OpSpec, tensors: Mapping[str, Any], wish: Wish) -> tuple[list[Any], dict[str, Any]]:
    """Sort tensors and settings into the public function's arguments, and fill in what it demands."""
    parameters = inspect.signature(_public(spec.name)).parameters
    settings = {name: _value(text) for name, text in wish.settings.items()}
    own = [name for name in parameters if name not in spec.roles and name not in ("backend", "mask")]
    unknown = sorted(set(settings) - set(own))
    if unknown:
        raise InvalidInputError(f"{spec.name} has no parameter {', '.join(unknown)}; it has {', '.join(own) or 'none'}")
    if wish.mask:
        if "mask" not in parameters:
            raise InvalidInputError(f"{spec.name} takes no mask")
        settings["mask"] = _mask(tensors["query"].shape[1], wish.mask)
    values = {**tensors, **_SETTINGS.get(spec.name, {}), **settings}
    args, kwargs = [], {}
    for name, parameter in parameters.items():
        if name not in values and parameter.default is inspect.Parameter.empty:
            values[name] = _demanded(spec, name, tensors)
        if name in values and parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            args.append(values[name])
        elif name in values:
            kwargs[name] = values[name]
    return args, kwargs


def _public(op: str) -> Callable[..., Any]:
    """Return the function that a program calls: ``fm.<op>``."""
    found: Any = fmcore
    for part in op.split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


def _demanded(spec: OpSpec, name: str, tensors: Mapping[str, Any]) -> Any:
    """Make up an argument that has no default."""
    first = next(iter(tensors.values()))
    makers: dict[str, Callable[[], Any]] = {
        "dtype": lambda: first.dtype,
        "layout_or_handle": _layout,
        "handle": lambda: _handle(first),
    }
    if name not in makers:
        raise InvalidInputError(f"{spec.name} needs {name}; give it with --set {name}=VALUE")
    return makers[name]()


def _mask(length: int, text: str) -> Any:
    """Build a mask of the example's lengths: ``causal``, ``sliding_window:128``, ``causal_document:[3000,1096]``."""
    name, _, arguments = text.partition(":")
    builder = getattr(masks, name, None)
    if not callable(builder) or name.startswith("_") or not name.islower():
        raise InvalidInputError(f"there is no mask builder {name!r} in fm.masks")
    try:
        given = ast.literal_eval(f"({arguments},)") if arguments else ()
        return builder(*given) if given and isinstance(given[0], list) else builder(length, *given)
    except (TypeError, ValueError, SyntaxError) as error:
        raise InvalidInputError(f"mask {text!r} cannot be built: {error}") from error


def _layout() -> Any:
    from fmcore import moe

    return moe.layout(torch.zeros(1, 8, dtype=torch.int64), 64)


def _handle(rows: torch.Tensor) -> Any:
    """Make a real handle: dispatch as many one-column rows in this process."""
    from fmcore import moe

    idx = torch.zeros(rows.shape[0], 1, dtype=torch.int64)
    return moe.dispatch(torch.zeros(rows.shape[0], 1), moe.layout(idx, 1), idx).handle
