"""Memory for requests that are still arriving, under one budget for all connections of a server. [P]

Only bytes that arrive cost memory: a connection asks for a larger buffer when the one it has is full. When
the budget is used up it has to wait, except for one connection at a time, the privileged one, so that
requests which wait for each other's memory cannot stand still: memory is bounded by the budget and one
request of the greatest size. Role of Kafka's ``queued.max.request.bytes``, whose pool reserves by the
claimed length instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MIN_BUFFER_BYTES = 4096
_MAX_POOLED_BYTES = 2 << 20


class BufferPool:
    """Bytearrays by size class, reused when nobody holds a view of them any more."""

    def __init__(self, budget_bytes: int, keep_bytes: int = 8 << 20) -> None:
        self.budget_bytes = budget_bytes
        self.in_use_bytes = 0
        self._keep_bytes = keep_bytes
        self._kept_bytes = 0
        self._free: dict[int, list[bytearray]] = {}
        self._privileged: object | None = None
        self._waiters: deque[Callable[[], None]] = deque()

    def take(
        self, size: int, owner: object, *, held: bytearray | None = None, force: bool = False
    ) -> bytearray | None:
        """A buffer of at least `size` bytes, or None while the budget does not allow it and `force` does not
        say so.

        `held` is what `owner` has now and gives back right after, once its bytes are copied.
        """
        capacity = _size_class(size)
        after = self.in_use_bytes + capacity - (len(held) if held is not None else 0)
        if after > self.budget_bytes and not force:
            if self._privileged is None:
                self._privileged = owner
            if self._privileged is not owner:
                return None
        self.in_use_bytes += capacity
        free = self._free.get(capacity)
        if free:
            self._kept_bytes -= capacity
            return free.pop()
        return bytearray(capacity)

    def give(self, buffer: bytearray, owner: object, *, done: bool = True) -> None:
        """`owner` needs `buffer` no more; `done` says that it now holds none at all."""
        capacity = len(buffer)
        self.in_use_bytes -= capacity
        if done and self._privileged is owner:
            self._privileged = None
        if (
            capacity <= _MAX_POOLED_BYTES
            and self._kept_bytes + capacity <= self._keep_bytes
            and _unseen(buffer)
        ):
            self._kept_bytes += capacity
            self._free.setdefault(capacity, []).append(buffer)
        if self._waiters and (self._privileged is None or self.in_use_bytes < self.budget_bytes):
            waiters, self._waiters = self._waiters, deque()
            for retry in waiters:
                retry()

    def wait(self, retry: Callable[[], None]) -> None:
        """Have `retry` called once, when memory has come back."""
        self._waiters.append(retry)


def _size_class(size: int) -> int:
    if size > _MAX_POOLED_BYTES:
        return size
    return max(MIN_BUFFER_BYTES, 1 << (size - 1).bit_length())


def _unseen(buffer: bytearray) -> bool:
    """Whether no memoryview of `buffer` is left: a bytearray refuses to change its size while one is."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
