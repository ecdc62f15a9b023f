"""Memory for requests that arrive or wait, within one budget for all connections of a server. [P]

Only received bytes cost memory: a connection asks for a larger buffer when its own is full, and gets twice
what it has sent, or more while little of the budget is used. A large buffer is a mapping of its own: it grows
without a copy, has pages only for received bytes, and frees all of them at the end.

When the budget is used up, connections queue for memory, the smallest need first. A connection that has sent
nothing more when its turn comes loses its place. Memory returns as requests complete, and from connections
that hold memory and have stalled: `stalled` names them, longest first, and the server closes them. If the
queue does not move at all, because its members hold the memory, those with the greatest needs are closed.

One connection at a time, the privileged one, may exceed the budget, so that requests cannot deadlock on each
other's memory; it may be closed like any other. So memory is bounded by the budget and one request of the
greatest size. Role of Kafka's ``queued.max.request.bytes``, whose pool reserves by the claimed length
instead.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final, Protocol

from service.network.transfer_timeout import STALL_S, TransferTimeout

MIN_BUFFER_BYTES = 4096
TRUSTED_BYTES: Final = 64 << 10
"""Bytes of a request that must have arrived before its buffer grows in large steps."""
LINE_STALL_S: Final = 1.0
"""Time without any admission from the queue after which members of the queue are closed."""
_MAX_POOLED_BYTES = 2 << 20


Memory = bytearray | mmap
"""Buffer for requests; a mapping above `_MAX_POOLED_BYTES`."""


class MemoryOwner(Protocol):
    """Holder of memory: a connection."""

    @property
    def arrived_bytes(self) -> int:
        """Number of bytes received of the current request."""

    @property
    def is_waiting_on_us(self) -> bool:
        """True while the peer waits for the server, not the server for the peer."""

    @property
    def has_more(self) -> bool:
        """True if the kernel has unread bytes from the peer, as far as known."""

    @property
    def is_stalled(self) -> bool:
        """True if the peer has pipelined more than its limit behind its own long poll."""


class BufferPool:
    """Bytearrays by size class, reused once no view of them is left."""

    def __init__(self, budget_bytes: int, keep_bytes: int = 8 << 20) -> None:
        self.budget_bytes = budget_bytes
        self.in_use_bytes = 0
        self.lent_bytes = 0
        """part of `in_use_bytes` that requests being handled hold"""
        self.holders: dict[MemoryOwner, TransferTimeout | None] = {}
        """holders of memory, with the progress of their requests since the first check"""
        self._keep_bytes = keep_bytes
        self._kept_bytes = 0
        self._free: dict[int, list[bytearray]] = {}
        self._privileged: MemoryOwner | None = None
        self._waiting: dict[MemoryOwner, tuple[int, Callable[[], None]]] = {}
        """queue for memory: size, and callback"""
        self._line: list[tuple[int, int, MemoryOwner]] = []
        """the queue as a heap of (size, number, owner); may contain owners that have left"""
        self._numbers = itertools.count()
        self._moved = True
        self._stands_since_s = 0.0
        self._silent: dict[MemoryOwner, tuple[int, Callable[[], None]]] = {}
        """owners that had no bytes to read when their turn came"""

    @property
    def is_short(self) -> bool:
        """True if the budget is used up: connections should read no more than they must."""
        return self.in_use_bytes >= self.budget_bytes

    def wanted(self, arrived: int) -> int:
        """Return the buffer size for a request of which `arrived` bytes have arrived."""
        much = arrived * (16 if arrived >= TRUSTED_BYTES else 4)
        return much if (self.in_use_bytes + much) * 4 <= self.budget_bytes else 2 * arrived

    def acquire(
        self, size: int, owner: MemoryOwner, *, held: Memory | None = None, force: bool = False
    ) -> Memory | None:
        """Return a buffer of at least `size` bytes, or None while it exceeds the budget, unless `force`.

        `held` is the present buffer of `owner`. If it can be enlarged, it is returned; if not, `owner` copies
        its bytes and returns it right away.
        """
        capacity = _size_class(size)
        after = self.in_use_bytes + capacity - (len(held) if held is not None else 0)
        if after > self.budget_bytes and not force:
            if self._privileged is None:
                self._privileged = owner
            if self._privileged is not owner:
                return None
        self.holders.setdefault(owner)
        if isinstance(held, mmap) and _is_enlarged(held, capacity):
            self.in_use_bytes = after
            return held
        self.in_use_bytes += capacity
        if capacity > _MAX_POOLED_BYTES:
            return mmap(-1, capacity, MAP_PRIVATE | MAP_ANONYMOUS)
        free = self._free.get(capacity)
        if free:
            self._kept_bytes -= capacity
            return free.pop()
        return bytearray(capacity)

    def acquire_expected(self, size: int, owner: MemoryOwner) -> Memory | None:
        """Return a buffer for a request of which only the size of the one before is known; None if that is
        very large, or unless little of the budget is used."""
        capacity = max(MIN_BUFFER_BYTES, 1 << (size - 1).bit_length())
        if capacity > _MAX_POOLED_BYTES or (self.in_use_bytes + capacity) * 4 > self.budget_bytes:
            return None
        self.holders.setdefault(owner)
        self.in_use_bytes += capacity
        free = self._free.get(capacity)
        if free:
            self._kept_bytes -= capacity
            return free.pop()
        return bytearray(capacity)

    def release(self, buffer: Memory, owner: MemoryOwner, *, done: bool = True) -> None:
        """Return `buffer` to the pool; `done` if `owner` now holds none."""
        capacity = len(buffer)
        self.in_use_bytes -= capacity
        if done:
            self.holders.pop(owner, None)
            if self._privileged is owner:
                self._privileged = None
        if (
            isinstance(buffer, bytearray)
            and self._kept_bytes + capacity <= self._keep_bytes
            and has_no_view(buffer)
        ):
            self._kept_bytes += capacity
            self._free.setdefault(capacity, []).append(buffer)
        if self._waiting:
            self._let_in()

    def lend(self, size: int) -> None:
        """Count `size` bytes of a request that has arrived and is not answered."""
        self.in_use_bytes += size
        self.lent_bytes += size

    def returned(self, size: int) -> None:
        """Stop counting `size` bytes that were lent."""
        self.in_use_bytes -= size
        self.lent_bytes -= size
        if self._waiting:
            self._let_in()

    def begin(self, owner: MemoryOwner) -> None:
        """Restart the progress of `owner`, whose next request arrives in the memory that it holds."""
        if owner in self.holders:
            self.holders[owner] = None

    def wait(self, owner: MemoryOwner, size: int, retry: Callable[[], None]) -> None:
        """Call `retry` once, when there may be memory for a buffer of `size`."""
        if not self._waiting:
            self._moved = True
        self._waiting[owner] = size, retry
        heapq.heappush(self._line, (size, next(self._numbers), owner))

    def leave(self, owner: MemoryOwner) -> None:
        """Forget `owner`, which has ended and returned its memory."""
        self._waiting.pop(owner, None)
        self._silent.pop(owner, None)
        if self._privileged is owner:
            self._privileged = None
        if self._waiting:
            self._let_in()
        else:
            self._line.clear()

    def _let_in(self) -> None:
        """Let the queued owners try again, smallest needs first, as far as there is room.

        At least one tries, if no owner is privileged.
        """
        room = self.budget_bytes - self.in_use_bytes
        goes_beyond = self._privileged is None
        while self._line:
            size, _, owner = self._line[0]
            if self._waiting.get(owner, (0,))[0] != size:
                heapq.heappop(self._line)  # it has left the queue
                continue
            if not owner.has_more:
                heapq.heappop(self._line)
                self._silent[owner] = self._waiting.pop(owner)
                continue
            if size > room:
                if not goes_beyond:
                    return
                goes_beyond = False
            room -= size
            heapq.heappop(self._line)
            _, retry = self._waiting.pop(owner)
            self._moved = True
            retry()
        if not self._waiting:
            self._line.clear()

    def is_late(self, owner: MemoryOwner, now_s: float, patience_s: float) -> bool:
        """Update the progress of `owner`, which holds memory; return whether its time is up."""
        pace = self.holders[owner]
        if pace is None:
            self.holders[owner] = TransferTimeout(now_s, owner.arrived_bytes)
            return False
        waiting_on_us = owner in self._waiting or owner.is_waiting_on_us or not owner.arrived_bytes
        pace.update(now_s, owner.arrived_bytes, waiting_on_us=waiting_on_us, stalled=owner.is_stalled)
        return pace.is_late(patience_s)

    def retry_waiting(self) -> None:
        """Let queued owners try again if there is room, with silent ones that have sent more."""
        for owner in [owner for owner in self._silent if owner.has_more]:
            self.wait(owner, *self._silent.pop(owner))
        if self._waiting:
            self._let_in()

    def stalled(self, now_s: float) -> list[MemoryOwner]:
        """Return the owners to close for those in the queue: holders that have stalled, as of the last
        update.

        Those that stalled longest, as many as needed.
        """
        needed = sum(size for size, _ in self._waiting.values())
        if not needed:
            return []
        stand = [(pace.stalled_s, owner) for owner, pace in self.holders.items() if pace is not None]
        stand = [one for one in stand if one[0] >= STALL_S]
        if not stand:
            return self._greatest_needs(now_s)
        stand.sort(key=lambda one: one[0], reverse=True)
        return _enough([owner for _, owner in stand], needed)

    def _greatest_needs(self, now_s: float) -> list[MemoryOwner]:
        """Return the queued owners with the greatest needs, after a time without admission, to make room."""
        if self._moved or self.lent_bytes:  # answered requests return their memory, so no one is closed
            self._moved, self._stands_since_s = False, now_s
        if now_s - self._stands_since_s < LINE_STALL_S:
            return []
        self._stands_since_s = now_s
        by_need = sorted(self._waiting, key=lambda owner: self._waiting[owner][0], reverse=True)
        return _enough(by_need[:-1], self._waiting[by_need[-1]][0])


def _enough(owners: list[MemoryOwner], needed: int) -> list[MemoryOwner]:
    """Return the first of `owners` that hold `needed` bytes together."""
    found = []
    for owner in owners:
        if needed <= 0:
            break
        needed -= owner.arrived_bytes
        found.append(owner)
    return found


def _size_class(size: int) -> int:
    if size > _MAX_POOLED_BYTES:
        return size
    return max(MIN_BUFFER_BYTES, 1 << (size - 1).bit_length())


def _is_enlarged(mapping: mmap, size: int) -> bool:
    """Resize the mapping, maybe moving it. Return False if a view of it exists, or without ``mremap``."""
    try:
        mapping.resize(size)
    except (BufferError, SystemError):
        return False
    return True


def has_no_view(buffer: bytearray) -> bool:
    """Return whether no memoryview of `buffer` is left, by an attempt to resize it."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
