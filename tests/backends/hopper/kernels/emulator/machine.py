"""Shared memory, barriers, tensor memory accelerator and products of one program; each partition is a thread.

The timing is adversarial: a product reads shared memory from its issue to its wait, and is spoilt if that changes in
between; a load spoils its target when it is issued (the earliest legal moment) and lands, in any order, only when some
partition has to wait, in every other run only when all have to; a store reads its source at its wait; and partitions
stop at random. Barriers model counts, bytes and parity. When every live partition waits for another, the run ends with
`Deadlock`.
"""

# ruff: noqa: N818, TRY301 (it answers to the names of the language it stands for)

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import torch


class Fault(RuntimeError):
    """The kernel broke a rule of the machine."""


class Deadlock(Fault):
    """Every live partition waits."""


class Stopped(RuntimeError):
    """Another partition failed."""


class World:
    """What the partitions of one program share."""

    def __init__(self, *, jitter: float, seed: int) -> None:
        self.condition = threading.Condition()
        self.live = 0
        self.waits: dict[object, Callable[[], bool]] = {}
        self.error: BaseException | None = None
        self.named: dict[int, list[int]] = {}
        self.loads: list[Callable[[], None]] = []
        self.jitter = jitter
        self.random = random.Random(seed)
        self.late = seed % 2 == 0


WORLD = World(jitter=0.0, seed=0)
PARTITION = threading.local()


def start(world: World) -> None:
    global WORLD
    WORLD = world


def dawdle() -> None:
    world = WORLD
    if world.jitter and world.random.random() < 0.3:
        time.sleep(world.random.random() * world.jitter)


def block(ready: Callable[[], bool]) -> None:
    world = WORLD
    dawdle()
    with world.condition:
        key = object()
        world.waits[key] = ready
        while not ready():
            if world.error:
                raise Stopped
            stalled = len(world.waits) == world.live and not any(other() for other in world.waits.values())
            if world.loads and (stalled or not world.late):
                world.loads.pop(world.random.randrange(len(world.loads)))()
                continue
            if stalled:
                world.error = Deadlock("every live partition waits")
                world.condition.notify_all()
                raise world.error
            world.condition.wait(0.2)
        del world.waits[key]


class Barrier:
    def __init__(self) -> None:
        self.count = self.arrived = self.bytes = self.phase = 0

    def turn(self) -> None:
        if self.arrived > self.count:
            raise Fault("more arrivals than the barrier counts")
        if self.arrived == self.count and self.bytes == 0:
            self.arrived = 0
            self.phase ^= 1
            WORLD.condition.notify_all()

    def init(self, count: int) -> None:
        self.count = count

    def wait(self, phase: int) -> None:
        block(lambda: self.phase != int(phase))

    def arrive(self, count: int, size: int = 0) -> None:
        with WORLD.condition:
            self.arrived += count
            self.bytes += size
            self.turn()

    def landed(self, size: int) -> None:
        with WORLD.condition:
            self.bytes -= size
            self.turn()


def named_sync(number: int) -> None:
    """``bar.sync number, 256`` of one warpgroup: it and one other arrival complete the barrier."""
    state = WORLD.named.setdefault(number, [0, 0])
    with WORLD.condition:
        generation = state[1]
        named_arrive(number)
    block(lambda: state[1] != generation)


def named_arrive(number: int) -> None:
    with WORLD.condition:
        state = WORLD.named.setdefault(number, [0, 0])
        state[0] += 1
        if state[0] == 2:
            state[0] = 0
            state[1] += 1
            WORLD.condition.notify_all()


class Shared:
    """A view of shared memory; poisoned with NaN at the start."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def shape(self) -> list[int]:
        return list(self.tensor.shape)

    def index(self, i: int) -> Shared:
        if not 0 <= int(i) < self.tensor.shape[0]:
            raise Fault(f"slot {i} of {self.tensor.shape[0]}")
        return Shared(self.tensor[int(i)])

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.tensor.permute(*order))

    def slice(self, first: int, size: int, dim: int = 0) -> Shared:
        return Shared(self.tensor.narrow(dim, first, size))

    def reshape(self, shape: list[int]) -> Shared:
        return Shared(self.tensor.view(*shape))


class Descriptor:
    """Loads fill with zero outside the tensor; stores leave out what lies outside."""

    def __init__(self, host: Any) -> None:
        self.view = host.base.as_strided(host.shape, host.strides)
        self.block = list(host.block_shape)
        self.dtype = host.base.dtype
        self.size = math.prod(self.block) * host.base.element_size()

    def box(self, at: list[int]) -> tuple[slice, ...]:
        return tuple(
            slice(min(max(int(a), 0), n), max(min(int(a) + size, n), 0))
            for a, size, n in zip(at, self.block, self.view.shape, strict=True)
        )

    def load(self, at: list[int]) -> torch.Tensor:
        out = torch.zeros(self.block, dtype=self.dtype)
        part = self.view[self.box(at)]
        out[tuple(slice(0, n) for n in part.shape)] = part
        return out

    def store(self, at: list[int], tile: torch.Tensor) -> None:
        box = self.box(at)
        self.view[box] = tile.view(*self.block)[tuple(slice(0, s.stop - s.start) for s in box)]


def issue_load(descriptor: Descriptor, at: list[int], target: Shared, barrier: Barrier) -> None:
    def land() -> None:
        target.tensor.copy_(descriptor.load(at).view(target.tensor.shape))
        barrier.landed(descriptor.size)

    with WORLD.condition:
        target.tensor.fill_(float("nan") if target.dtype.is_floating_point else -7)
        WORLD.loads.append(land)
        WORLD.condition.notify_all()


def drain_stores(left: int) -> None:
    dawdle()
    while len(PARTITION.stores) > left:
        descriptor, at, source = PARTITION.stores.pop(0)
        with WORLD.condition:
            descriptor.store(at, source.tensor)


class Product:
    """A product in flight: operands in shared memory are read at its issue and at its end, and must be the same."""

    def __init__(self, a: Any, b: Shared, before: Any) -> None:
        self.a = a if isinstance(a, Shared) else a.clone()
        self.b = b
        self.before = before
        self.seen = [x.tensor.clone() for x in (a, b) if isinstance(x, Shared)]
        self.result: torch.Tensor | None = None

    def finish(self) -> None:
        left = self.a.tensor if isinstance(self.a, Shared) else self.a
        total = left.float() @ self.b.tensor.float()
        now = [x.tensor for x in (self.a, self.b) if isinstance(x, Shared)]
        if not all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(self.seen, now, strict=True)):
            total = total.fill_(float("nan"))
        if self.before is not None:
            earlier = self.before.result if isinstance(self.before, Product) else self.before
            if earlier is None:
                raise Fault("a product adds to one that is not finished")
            total = total + earlier
        self.result = total


def finish_products(left: int) -> None:
    while len(PARTITION.products) > left:
        PARTITION.products.pop(0).finish()


def run_partitions(partitions: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    world = WORLD
    errors: list[BaseException] = []
    world.live = len(partitions)

    def go(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        PARTITION.products, PARTITION.stores = [], []
        try:
            function(*arguments)
            if PARTITION.products or PARTITION.stores:
                raise Fault("a partition ended with work in flight")
        except BaseException as error:
            errors.append(error)
            with world.condition:
                world.error = world.error or error
        with world.condition:
            world.live -= 1
            world.condition.notify_all()

    threads = [threading.Thread(target=go, args=p, daemon=True) for p in partitions]
    world.random.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, Stopped)), errors[0])
