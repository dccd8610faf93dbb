"""The part of Gluon's language that the kernels use, over `machine`."""

# ruff: noqa: N801, SLOT001 (it answers to the names of the language it stands for)

from __future__ import annotations

import types
from typing import Any

import torch

from . import machine
from .machine import Barrier, Fault, Product, Shared

UNSIGNED = "uint32"


class Value:
    """A distributed tensor."""

    type = types.SimpleNamespace(layout=None)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> list[int]:
        return list(self.tensor.shape)

    def to(self, dtype: Any, bitcast: bool = False) -> Value:
        if dtype == UNSIGNED:
            return Value(self.tensor.long() & 0xFFFFFFFF)
        return Value(self.tensor.view(dtype) if bitcast else self.tensor.to(dtype))


class Number(int):
    """A scalar that came from memory."""

    def to(self, dtype: Any) -> Number:
        return self


def raw(x: Any) -> Any:
    if isinstance(x, Product):
        raise Fault("the result of a product is used before it was waited for")
    return x.tensor if isinstance(x, Value) else x


def _operator(name: str) -> Any:
    def operate(a: Any, b: Any) -> Value:
        return Value(getattr(torch.Tensor, name)(torch.as_tensor(raw(a)), torch.as_tensor(raw(b))))

    return operate


for _name in ("add", "sub", "mul", "truediv", "lt", "le", "gt", "ge", "eq", "and"):
    setattr(Value, f"__{_name}__", _operator(f"__{_name}__"))
Value.__radd__ = lambda a, b: Value(raw(b) + a.tensor)
Value.__rmul__ = lambda a, b: Value(raw(b) * a.tensor)
Value.__rsub__ = lambda a, b: Value(raw(b) - a.tensor)
Value.__rtruediv__ = lambda a, b: Value(raw(b) / a.tensor)
Value.__hash__ = None


class Pointer:
    def __init__(self, tensor: torch.Tensor, offset: Any = 0) -> None:
        self.tensor = tensor
        self.offset = offset

    def __add__(self, step: Any) -> Pointer:
        return Pointer(
            self.tensor, _operator("__add__")(self.offset, step) if isinstance(step, Value) else self.offset + step
        )

    def place(self) -> torch.Tensor:
        return torch.as_tensor(raw(self.offset)).long()


def load(p: Pointer, mask: Any = None, other: Any = 0) -> Any:
    flat, at = p.tensor.view(-1), p.place()
    ok = torch.ones_like(at, dtype=torch.bool) if mask is None else torch.as_tensor(raw(mask)).expand(at.shape)
    if bool(((at < 0) | (at >= flat.numel()))[ok].any()):
        raise Fault(f"a load outside a tensor of {flat.numel()} elements")
    found = torch.where(ok, flat[torch.where(ok, at, 0)], torch.as_tensor(other, dtype=flat.dtype))
    return Number(found) if found.ndim == 0 else Value(found)


def store(p: Pointer, value: Any, mask: Any = None) -> None:
    flat, at = p.tensor.view(-1), p.place()
    ok = torch.ones_like(at, dtype=torch.bool) if mask is None else raw(mask)
    if bool(((at < 0) | (at >= flat.numel()))[ok].any()):
        raise Fault(f"a store outside a tensor of {flat.numel()} elements")
    flat[at[ok]] = raw(value)[ok].to(flat.dtype)


def atomic_add(p: Pointer, value: int) -> int:
    with machine.WORLD.condition:
        flat, at = p.tensor.view(-1), int(p.place())
        before = int(flat[at])
        flat[at] += value
        return before


class Barriers:
    def __init__(self, count: int) -> None:
        self.members = [Barrier() for _ in range(count)]

    def index(self, i: int) -> Barrier:
        return self.members[int(i)]


def _one(barrier: Any) -> Barrier:
    return barrier.members[0] if isinstance(barrier, Barriers) else barrier


class mbarrier:
    MBarrierLayout = staticmethod(lambda: "barriers")
    init = staticmethod(lambda b, count: _one(b).init(count))

    @staticmethod
    def wait(b: Any, phase: int, pred: Any = True) -> None:
        if pred:
            _one(b).wait(phase)

    @staticmethod
    def arrive(b: Any, count: int = 1, pred: Any = True) -> None:
        if pred:
            _one(b).arrive(count)

    @staticmethod
    def expect(b: Any, size: int, pred: Any = True) -> None:
        if pred:
            _one(b).arrive(1, size)


class tma:
    @staticmethod
    def async_copy_global_to_shared(
        descriptor: Any, at: list[int], barrier: Any, target: Shared, pred: Any = True
    ) -> None:
        if pred:
            machine.issue_load(descriptor, at, target, _one(barrier))

    @staticmethod
    def async_copy_shared_to_global(descriptor: Any, at: list[int], source: Shared) -> None:
        machine.PARTITION.stores.append((descriptor, at, source))

    store_wait = staticmethod(machine.drain_stores)


def warpgroup_mma(a: Any, b: Shared, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> Product:
    before = (acc if isinstance(acc, Product) else raw(acc)) if use_acc else None
    product = Product(a if isinstance(a, Shared) else raw(a), b, before)
    machine.PARTITION.products.append(product)
    return product


def warpgroup_mma_wait(left: int, deps: list[Any]) -> Any:
    machine.finish_products(left)
    out = [d.result if isinstance(d, Product) else raw(d) for d in deps]
    if any(value is None for value in out):
        raise Fault("a wait is too weak for what it returns")
    found = tuple(Value(value) for value in out)
    return found[0] if len(found) == 1 else found


def _allocate(dtype: torch.dtype, shape: list[int], layout: Any) -> Any:
    if layout == "barriers":
        return Barriers(shape[0])
    return Shared(torch.full(shape, float("nan") if dtype.is_floating_point else -7, dtype=dtype))


Shared.load = lambda self, layout: Value(self.tensor.clone())
Shared.store = lambda self, value: self.tensor.copy_(raw(value).reshape(self.tensor.shape))


class _Constexpr:
    def __new__(cls, value: Any) -> Any:
        return value


class _Swizzled(tuple):
    get_default_for = staticmethod(lambda *_: "swizzled")

    def __new__(cls, *_: Any) -> Any:
        return super().__new__(cls)


PROGRAM = [0, 1]


def _layout(*_: Any) -> None:
    return None


def _sum(x: Value, axis: int) -> Any:
    return Value(x.tensor.sum(axis)) if x.tensor.ndim > 1 else Number(x.tensor.sum())


gl = types.SimpleNamespace(
    constexpr=_Constexpr,
    NVMMASharedLayout=_Swizzled,
    NVMMADistributedLayout=_layout, SliceLayout=_layout, BlockedLayout=_layout, DotOperandLayout=_layout,
    SwizzledSharedLayout=_layout,
    bfloat16=torch.bfloat16, float16=torch.float16, float32=torch.float32, int16=torch.int16, int32=torch.int32,
    int64=torch.int64, uint32=UNSIGNED,
    arange=lambda a, b, layout: Value(torch.arange(a, b, dtype=torch.int32)),
    full=lambda shape, value, dtype, layout=None: Value(torch.full(shape, value, dtype=dtype)),
    zeros=lambda shape, dtype, layout=None: Value(torch.zeros(shape, dtype=dtype)),
    where=lambda c, a, b: Value(torch.where(raw(c), torch.as_tensor(raw(a)), torch.as_tensor(raw(b)))),
    maximum=lambda a, b: Value(torch.maximum(raw(a), raw(b))) if isinstance(a, Value) else max(a, b),
    minimum=min,
    max=lambda x, axis: Value(x.tensor.amax(axis)),
    sum=_sum,
    exp2=lambda x: Value(torch.exp2(raw(x))),
    log2=lambda x: Value(torch.log2(raw(x))),
    reshape=lambda x, shape: Value(raw(x).reshape(shape)),
    expand_dims=lambda x, axis: Value(raw(x).unsqueeze(axis)),
    convert_layout=lambda x, layout: x,
    load=load, store=store, atomic_add=atomic_add,
    program_id=lambda axis: PROGRAM[0],
    num_programs=lambda axis: PROGRAM[1],
    static_range=range,
    thread_barrier=lambda: None,
    allocate_shared_memory=_allocate,
    warp_specialize=lambda partitions, warps, registers: machine.run_partitions(partitions),
)  # fmt: skip


def jit(function: Any = None, **_: Any) -> Any:
    return (lambda f: f) if function is None else function
