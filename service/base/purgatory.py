"""Operations that wait for an event on one of their keys, or for their deadline, whichever comes first. [P]

A key is any hashable thing that has events: a partition whose log grows, a group, a session. The cause of an
event calls `happened`; each operation that watches the key answers whether its wait is over. The purgatory
calls `completed` once for a wait that is over, and forgets the operation.

An operation without a deadline may watch forever: it answers False to every event.

One event loop uses a purgatory, so there are no locks and no repeated checks: no event can come between the
caller's check and its `watch`. Role of Kafka's ``DelayedOperationPurgatory``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from service.base.errors import InvariantError
from service.base.timing_wheel import Timer, TimingWheel

ENOUGH: Final = 1 << 62
"""An amount that ends every wait, for a change that the waiting operation must check itself."""


class Operation:
    """An operation that waits in at most one purgatory. Subclasses define `happened` and `completed`."""

    __slots__ = ("_keys", "_timer")

    def __init__(self) -> None:
        self._keys: Sequence[Hashable] | None = None
        self._timer: Timer | None = None

    @property
    def is_waiting(self) -> bool:
        return self._keys is not None

    def happened(self, key: Hashable, amount: int) -> bool:
        """Note an event of `amount` (bytes, or the key's unit) on `key`; return whether the wait is over."""
        raise NotImplementedError

    def completed(self, *, expired: bool) -> None:
        """Act on the end of the wait, by deadline or by event. Called once per `watch` at most."""
        raise NotImplementedError


class Purgatory:
    """All waiting operations of a node. Times are milliseconds of a monotonic clock."""

    def __init__(self, now_ms: int) -> None:
        self._wheel = TimingWheel(now_ms)
        self.watched: dict[Hashable, dict[Operation, None]] = {}
        """operations by key; for others to see whether a key has any"""
        self._count = 0

    def __len__(self) -> int:
        """Return the number of waiting operations."""
        return self._count

    def is_watched(self, key: Hashable) -> bool:
        """Return whether any operation watches `key`."""
        return key in self.watched

    @property
    def next_ms(self) -> int | None:
        """Latest time of the next `advance`; None without deadlines."""
        return self._wheel.next_ms()

    def watch(self, operation: Operation, keys: Iterable[Hashable], due_ms: int | None = None) -> None:
        """Let `operation` wait for events on `keys`, until `due_ms` if given."""
        if operation._keys is not None:
            raise InvariantError("the operation waits already")
        operation._keys = tuple(keys)
        operation._timer = None if due_ms is None else self._wheel.add(due_ms, operation)
        self._count += 1
        for key in operation._keys:
            self._enter(operation, key)

    def watch_also(self, operation: Operation, key: Hashable) -> None:
        """Let an operation that waits watch one key more."""
        if operation._keys is None:
            raise InvariantError("the operation does not wait")
        if not isinstance(operation._keys, list):
            operation._keys = list(operation._keys)
        operation._keys.append(key)
        self._enter(operation, key)

    def _enter(self, operation: Operation, key: Hashable) -> None:
        others = self.watched.get(key)
        if others is None:
            self.watched[key] = {operation: None}
        else:
            others[operation] = None

    def set_deadline(self, operation: Operation, due_ms: int) -> None:
        """Let an operation that waits without a deadline wait until `due_ms`."""
        if operation._keys is None or operation._timer is not None:
            raise InvariantError("the operation does not wait, or has a deadline already")
        operation._timer = self._wheel.add(due_ms, operation)

    def happened(self, key: Hashable, amount: int = ENOUGH) -> int:
        """Pass an event on `key` to the operations that watch it; return how many it completed."""
        watching = self.watched.get(key)
        if watching is None:
            return 0
        count = 0
        for operation in tuple(watching):
            # An operation before this one may have ended its wait.
            if operation in watching and operation.happened(key, amount) and self.forget(operation):
                count += 1
                operation.completed(expired=False)
        return count

    def complete(self, operation: Operation) -> bool:
        """End the wait of `operation`, as an event would; return False if it is over already."""
        if not self.forget(operation):
            return False
        operation.completed(expired=False)
        return True

    def forget(self, operation: Operation) -> bool:
        """End the wait of `operation` without calling it; return False if it is over already."""
        keys, operation._keys = operation._keys, None
        if keys is None:
            return False
        self._count -= 1
        if operation._timer is not None:
            self._wheel.cancel(operation._timer)
            operation._timer = None
        for key in keys:
            watching = self.watched.get(key)
            # `keys` may contain a key twice.
            if watching is not None and watching.pop(operation, watching) is None and not watching:
                del self.watched[key]
        return True

    def advance(self, now_ms: int) -> int:
        """Complete the operations due by `now_ms`, soonest first; return their number."""
        count = 0
        for item in self._wheel.advance(now_ms):
            assert isinstance(item, Operation)
            # An operation before this one may have ended its wait, or started another.
            if item._timer is not None and not item._timer.is_waiting and self.forget(item):
                count += 1
                item.completed(expired=True)
        return count
