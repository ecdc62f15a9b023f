"""Memory for requests that arrive or wait, under one budget for all connections of a server. [P]

Only bytes that arrive cost memory: a connection asks for a larger buffer when the one it has is full, and
gets twice what it has sent; more while little of the budget is used. A large buffer is a mapping of its own:
it grows without a copy, has pages only where bytes have arrived, and gives all of them back in the end.

When the budget is used up, who needs memory waits in line, the smallest need first, and loses its place when
it has sent nothing more by the time that its turn has come. Memory comes back as requests are complete, and
from those that hold it and do not go on: `stalled` names them, those that have stood longest first, and the
server ends them. When the line does not move at all, because those in it hold the memory, the greatest needs
go.

One connection at a time, the privileged one, may go beyond the budget, so that requests which wait for each
other's memory cannot stand still; it has no privilege against being ended. So memory is bounded by the budget
and one request of the greatest size. Role of Kafka's ``queued.max.request.bytes``, whose pool reserves by the
claimed length instead.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final, Protocol

from service.network.pace import STALL_S, Pace

MIN_BUFFER_BYTES = 4096
TRUSTED_BYTES: Final = 64 << 10
"""So many bytes of a request must be there before its buffer grows in large steps."""
LINE_STALL_S: Final = 1.0
"""When nobody was let in for so long, some of those in line have to go."""
_MAX_POOLED_BYTES = 2 << 20


Memory = bytearray | mmap
"""A buffer for requests; one beyond `_MAX_POOLED_BYTES` is a mapping."""


class Owner(Protocol):
    """Who holds memory: a connection."""

    @property
    def arrived_bytes(self) -> int:
        """Bytes of the request that is arriving."""

    @property
    def is_excused(self) -> bool:
        """Whether it is not the peer that is waited for."""

    @property
    def has_more(self) -> bool:
        """Whether bytes of it lie with the kernel, as far as can be known."""

    @property
    def is_standing(self) -> bool:
        """Whether it has sent more than it may for now, and has only itself to wait for."""


class BufferPool:
    """Bytearrays by size class, reused when nobody holds a view of them any more."""

    def __init__(self, budget_bytes: int, keep_bytes: int = 8 << 20) -> None:
        self.budget_bytes = budget_bytes
        self.in_use_bytes = 0
        self.lent_bytes = 0
        """of them, what is held by requests that are being answered"""
        self.holders: dict[Owner, Pace | None] = {}
        """who holds memory, and how its request gets on since the first look at it"""
        self._keep_bytes = keep_bytes
        self._kept_bytes = 0
        self._free: dict[int, list[bytearray]] = {}
        self._privileged: Owner | None = None
        self._waiting: dict[Owner, tuple[int, Callable[[], None]]] = {}
        """in line for memory: how much, and whom to call"""
        self._line: list[tuple[int, int, Owner]] = []
        """the same as a heap of (how much, number, who); some have left it"""
        self._numbers = itertools.count()
        self._moved = True
        self._stands_since_s = 0.0
        self._silent: dict[Owner, tuple[int, Callable[[], None]]] = {}
        """those that had nothing to put into it when their turn came"""

    @property
    def is_short(self) -> bool:
        """Nobody should bring in more than it has to."""
        return self.in_use_bytes >= self.budget_bytes

    def wanted(self, arrived: int) -> int:
        """The size of the buffer for a request of which `arrived` bytes are here."""
        much = arrived * (16 if arrived >= TRUSTED_BYTES else 4)
        return much if (self.in_use_bytes + much) * 4 <= self.budget_bytes else 2 * arrived

    def take(
        self, size: int, owner: Owner, *, held: Memory | None = None, force: bool = False
    ) -> Memory | None:
        """A buffer of at least `size` bytes, or None while the budget does not allow it and `force` does not
        say so.

        `held` is what `owner` has now: it is what is returned where it could be made larger, and what `owner`
        gives back right after where not, once its bytes are copied.
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

    def give(self, buffer: Memory, owner: Owner, *, done: bool = True) -> None:
        """`owner` needs `buffer` no more; `done` says that it now holds none at all."""
        capacity = len(buffer)
        self.in_use_bytes -= capacity
        if done:
            self.holders.pop(owner, None)
            if self._privileged is owner:
                self._privileged = None
        if (
            isinstance(buffer, bytearray)
            and self._kept_bytes + capacity <= self._keep_bytes
            and is_unseen(buffer)
        ):
            self._kept_bytes += capacity
            self._free.setdefault(capacity, []).append(buffer)
        if self._waiting:
            self._let_in()

    def lend(self, size: int) -> None:
        """Count `size` bytes of a request that has arrived, and is not answered yet."""
        self.in_use_bytes += size
        self.lent_bytes += size

    def returned(self, size: int) -> None:
        """Count `size` bytes no more that were lent."""
        self.in_use_bytes -= size
        self.lent_bytes -= size
        if self._waiting:
            self._let_in()

    def begin(self, owner: Owner) -> None:
        """Another request of `owner` arrives in the memory that it holds."""
        if owner in self.holders:
            self.holders[owner] = None

    def wait(self, owner: Owner, size: int, retry: Callable[[], None]) -> None:
        """Have `retry` called once, when there may be memory for a buffer of `size`."""
        if not self._waiting:
            self._moved = True
        self._waiting[owner] = size, retry
        heapq.heappush(self._line, (size, next(self._numbers), owner))

    def leave(self, owner: Owner) -> None:
        """`owner` is gone; it has given back what it held."""
        self._waiting.pop(owner, None)
        self._silent.pop(owner, None)
        if self._privileged is owner:
            self._privileged = None
        if self._waiting:
            self._let_in()
        else:
            self._line.clear()

    def _let_in(self) -> None:
        """Those in line try again, the smallest needs first, as far as there is room for them.

        And always one, if nobody is privileged.
        """
        room = self.budget_bytes - self.in_use_bytes
        goes_beyond = self._privileged is None
        while self._line:
            size, _, owner = self._line[0]
            if self._waiting.get(owner, (0,))[0] != size:
                heapq.heappop(self._line)  # it has left
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

    def is_late(self, owner: Owner, now_s: float, patience_s: float) -> bool:
        """See how the request of one who holds memory gets on; returns whether it has used up its time."""
        pace = self.holders[owner]
        if pace is None:
            self.holders[owner] = Pace(now_s, owner.arrived_bytes)
            return False
        excused = owner in self._waiting or owner.is_excused
        pace.look(now_s, owner.arrived_bytes, excused=excused, stands=owner.is_standing)
        return pace.is_late(patience_s)

    def look_at_line(self) -> None:
        """Let in those in line for whom there is room, also who was silent and has sent more."""
        for owner in [owner for owner in self._silent if owner.has_more]:
            self.wait(owner, *self._silent.pop(owner))
        if self._waiting:
            self._let_in()

    def stalled(self, now_s: float) -> list[Owner]:
        """Who has to go for those in line: holders of memory that have not gone on, as of the last look.

        Those that have stood longest, and as many as there is need for.
        """
        needed = sum(size for size, _ in self._waiting.values())
        if not needed:
            return []
        stand = [(pace.stalled_s, owner) for owner, pace in self.holders.items() if pace is not None]
        stand = [one for one in stand if one[0] >= STALL_S]
        if not stand:
            return self._in_the_way(now_s)
        stand.sort(key=lambda one: one[0], reverse=True)
        return _enough([owner for _, owner in stand], needed)

    def _in_the_way(self, now_s: float) -> list[Owner]:
        """Those in line with the greatest needs, once nobody was let in for a while: room for one more."""
        if self._moved or self.lent_bytes:  # what is answered gives its memory back without anybody's end
            self._moved, self._stands_since_s = False, now_s
        if now_s - self._stands_since_s < LINE_STALL_S:
            return []
        self._stands_since_s = now_s
        by_need = sorted(self._waiting, key=lambda owner: self._waiting[owner][0], reverse=True)
        return _enough(by_need[:-1], self._waiting[by_need[-1]][0])


def _enough(owners: list[Owner], needed: int) -> list[Owner]:
    """The first of them, who hold so many bytes together."""
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
    """Make the mapping so large, wherever it comes to lie. False: somebody has a view of it, or the system
    has no ``mremap``."""
    try:
        mapping.resize(size)
    except (BufferError, SystemError):
        return False
    return True


def is_unseen(buffer: bytearray) -> bool:
    """Whether no memoryview of `buffer` is left: a bytearray refuses to change its size while one is."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
