"""Messages between ranks: one collective (all-to-all), a header that carries every rank's complaint, and deadlines.

Only ``all_to_all_single`` over bytes and int64 is used, which gloo, nccl and the vendors' libraries all have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from fmcore.errors import DistributedError, InvalidInputError
from fmcore_torch.moe.rows import row_bytes

_MESSAGE_WORDS = 48
_PATIENCE, _GRACE = 1.0, 1.5
"""Seconds after which a waiting rank says so in the group's store; seconds to look for others there after a failure."""

_CALLS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

FIELDS = (
    "op", "num_experts", "K of topk_idx", "dtype of x", "bytes per row of x", "dtype of scales",
    "bytes per row of scales", "dtype of topk_idx", "dtype of topk_weights",
)  # fmt: skip
"""What the ranks of one call must agree on, by position in the header."""

_DTYPES = (
    None, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


OPS = ("dispatch", "dispatch with a handle", "combine")


def dtype_code(dtype: torch.dtype | None) -> int:
    """Number a dtype for the header; dtypes that are not listed share the number -1."""
    return _DTYPES.index(dtype) if dtype in _DTYPES else -1


def facts_of(
    op: int, num_experts: int, width: int, payload: Sequence[torch.Tensor], codes: Sequence[int] = (0, 0)
) -> list[int]:
    """Return this rank's values for :data:`FIELDS`."""
    rows: list[int] = []
    for tensor in payload:
        rows += [dtype_code(tensor.dtype), row_bytes(tensor)]
    return [op, num_experts, width, *rows, *[0] * (4 - len(rows)), *codes]


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A process group, seen from one rank, and the device whose memory travels."""

    group: Any
    rank: int
    size: int
    timeout: float
    device: torch.device

    @property
    def on_host(self) -> bool:
        """Whether waiting means blocking this thread anyway."""
        return self.device.type == "cpu"


@dataclass(slots=True, eq=False)
class Transfer:
    """A collective in flight: wait for it before its output is read."""

    link: Link
    phase: str
    work: Any
    started: float
    kept: tuple[torch.Tensor, ...] = field(repr=False, default=())

    def wait(self) -> None:
        """Wait, at most the link's time-out where the host waits.

        Raises:
            DistributedError: A rank is missing, late beyond the time-out, or the library failed.
        """
        _guard(self.link, self.phase, self.started, self._wait)

    def _wait(self) -> None:
        if not self.link.on_host:
            self.work.wait()
            return
        patience = min(_PATIENCE, self.link.timeout)
        try:
            self.work.wait(timedelta(seconds=patience))
        except RuntimeError:
            if self.work.is_completed():
                raise
            # Only a rank that waits long says that it is here: nobody will take it for the missing one.
            _report(self.link)
            self.work.wait(timedelta(seconds=max(self.link.timeout - patience, 0.001)))


def all_to_all(
    link: Link, out: torch.Tensor, given: torch.Tensor, out_splits: Sequence[int], splits: Sequence[int], phase: str
) -> Transfer:
    """Start an all-to-all over the first dimension."""
    started = time.monotonic()
    _CALLS[link.group] = _CALLS.get(link.group, 0) + 1

    def start() -> Any:
        return dist.all_to_all_single(out, given, list(out_splits), list(splits), group=link.group, async_op=True)

    return Transfer(link, phase, _guard(link, phase, started, start), started, (out, given))


def exchange_headers(
    link: Link, facts: Sequence[int], counts: Sequence[torch.Tensor], problem: str, phase: str
) -> Callable[[], list[list[int]]]:
    """Start sending this rank's header to every rank.

    Args:
        link: The group.
        facts: One integer for each of :data:`FIELDS`, then at most one other. Empty beside a complaint.
        counts: Integer tensors of this rank that travel along: at most one number more than there are ranks.
        problem: This rank's complaint, or an empty string.
        phase: For error messages.

    Returns:
        A function that waits and returns every rank's ``facts + counts``, or raises on every rank what one rank
        complained of, or that the ranks disagree.
    """
    text = problem.encode()[: 8 * _MESSAGE_WORDS].ljust(8 * _MESSAGE_WORDS, b"\0")
    host = torch.tensor(list(facts), dtype=torch.int64)
    words = torch.frombuffer(bytearray(text), dtype=torch.int64)
    parts = [words.to(link.device), host.to(link.device), *(c.reshape(-1).to(torch.int64) for c in counts)]
    # Headers of all calls are equally long: unlike messages would end the process before the difference is seen.
    size = _MESSAGE_WORDS + len(FIELDS) + 2 + link.size
    header = torch.nn.functional.pad(torch.cat(parts), (0, size - sum(part.numel() for part in parts)))
    out = torch.empty(link.size * size, dtype=torch.int64, device=link.device)
    transfer = all_to_all(link, out, header.repeat(link.size), [size] * link.size, [size] * link.size, phase)

    def receive() -> list[list[int]]:
        transfer.wait()
        rows = out.view(link.size, size).cpu()
        messages = [
            bytes(row[:_MESSAGE_WORDS].numpy().tobytes()).rstrip(b"\0").decode(errors="replace") for row in rows
        ]
        values: list[list[int]] = rows[:, _MESSAGE_WORDS:].tolist()
        _raise_first(messages, values, phase)
        return values

    return receive


def _raise_first(messages: Sequence[str], values: Sequence[Sequence[int]], phase: str) -> None:
    for rank, message in enumerate(messages):
        if message:
            raise InvalidInputError(f"moe.{phase}: rank {rank}: {message}")
    for n, name in enumerate(FIELDS):
        for rank, row in enumerate(values):
            if row[n] != values[0][n]:
                first, other = (_spell(n, v) for v in (values[0][n], row[n]))
                # Calls that differ know no common name.
                where = f"moe.{phase}" if n else "moe"
                raise InvalidInputError(
                    f"{where}: the ranks disagree on {name}: rank 0 has {first}, rank {rank} has {other}; "
                    "every rank makes the same call"
                )


def _spell(position: int, value: int) -> str:
    if FIELDS[position] == "op":
        return OPS[value] if 0 <= value < len(OPS) else str(value)
    if FIELDS[position].startswith("dtype"):
        return str(_DTYPES[value]) if 0 <= value < len(_DTYPES) else "a dtype without a number"
    return str(value)


def _guard(link: Link, phase: str, started: float, step: Callable[[], Any]) -> Any:
    try:
        return step()
    except RuntimeError as error:
        waited = time.monotonic() - started
        missing = _missing_ranks(link)
        who = f"rank(s) {', '.join(map(str, missing))} did not take part" if missing else "no rank could be named"
        raise DistributedError(
            f"moe.{phase}: rank {link.rank} of {link.size} gave up after {waited:.1f} s "
            f"(time-out {link.timeout:g} s): {who}. "
            "The group cannot be used any more; destroy it and start again. "
            f"The library said: {str(error).splitlines()[0]}",
            rank=link.rank,
            phase=phase,
            peer=missing[0] if missing else None,
        ) from error


def _missing_ranks(link: Link) -> list[int]:
    """Name the ranks that have not said in the group's store that they wait in this call too."""
    store = _report(link)
    deadline = time.monotonic() + _GRACE
    missing = [] if store is None else [r for r in range(link.size) if r != link.rank]
    try:
        while missing and time.monotonic() < deadline:
            missing = [r for r in missing if not store.check([_seat(link, r)])]
            time.sleep(0.02)
    except RuntimeError:
        # The store went with the rank that hosted it: nobody can be named.
        return []
    return missing


def _report(link: Link) -> Any:
    """Say in the group's store that this rank waits in this call; return the store, None where there is none."""
    get_store = getattr(link.group, "get_group_store", None)
    try:
        store = None if get_store is None else get_store()
        if store is not None:
            store.set(_seat(link, link.rank), "waiting")
    except RuntimeError:
        return None
    return store


def _seat(link: Link, rank: int) -> str:
    return f"fmcore/moe/waiting/{_CALLS.get(link.group, 0)}/{rank}"
