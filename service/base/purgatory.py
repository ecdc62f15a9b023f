"""Operations that wait: for an event on one of their keys, or for their time, whichever comes first. [P]

A key is anything that can be hashed and that things happen to: a partition whose log grows, a group, a
session. Who makes something happen says so with `happened`, and each operation that watches the key says
whether that was all it waited for. What is complete is told so once and is known here no more.

An operation without a deadline may watch for as long as it likes: it answers every event with False.

Used by one event loop, so there are no locks and no repeated checks: nothing can happen between the look
before `watch` and the watch. Role of Kafka's ``DelayedOperationPurgatory``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

from service.base.errors import InvariantError
from service.base.timing_wheel import Timer, TimingWheel

ENOUGH: Final = 1 << 62
"""An amount that ends every wait: something changed that whoever waits must look at."""


class Operation:
    """What waits, in one purgatory at a time. `happened` and `completed` are for who inherits."""

    __slots__ = ("_keys", "_timer")

    def __init__(self) -> None:
        self._keys: tuple[Hashable, ...] | None = None
        self._timer: Timer | None = None

    @property
    def is_waiting(self) -> bool:
        return self._keys is not None

    def happened(self, key: Hashable, amount: int) -> bool:
        """`amount` (bytes, or whatever its keys count) came to `key`; True when the wait is over."""
        raise NotImplementedError

    def completed(self, *, expired: bool) -> None:
        """The wait is over, by its time or by something that happened. Called once per `watch` at most."""
        raise NotImplementedError


class Purgatory:
    """All operations of a node that wait. Times are milliseconds of a clock that never goes back."""

    def __init__(self, now_ms: int) -> None:
        self._wheel = TimingWheel(now_ms)
        self._watched: dict[Hashable, dict[Operation, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Operations that wait."""
        return self._count

    @property
    def key_count(self) -> int:
        """Keys that somebody watches."""
        return len(self._watched)

    def is_watched(self, key: Hashable) -> bool:
        """Whether anything waits for events on `key`."""
        return key in self._watched

    @property
    def next_ms(self) -> int | None:
        """When `advance` has to be called, at the latest; None while nothing has a deadline."""
        return self._wheel.next_ms()

    def watch(self, operation: Operation, keys: Iterable[Hashable], due_ms: int | None = None) -> None:
        """Let `operation` wait for events on `keys`, until `due_ms` where that is given."""
        if operation._keys is not None:
            raise InvariantError("the operation waits already")
        operation._keys = tuple(keys)
        operation._timer = None if due_ms is None else self._wheel.add(due_ms, operation)
        self._count += 1
        watched = self._watched
        for key in operation._keys:
            others = watched.get(key)
            if others is None:
                watched[key] = {operation: None}
            else:
                others[operation] = None

    def happened(self, key: Hashable, amount: int = ENOUGH) -> int:
        """Tell who watches `key`; the number of operations that this completed."""
        watching = self._watched.get(key)
        if watching is None:
            return 0
        count = 0
        for operation in tuple(watching):
            # One of those before may have ended this one's wait.
            if operation in watching and operation.happened(key, amount) and self.forget(operation):
                count += 1
                operation.completed(expired=False)
        return count

    def complete(self, operation: Operation) -> bool:
        """End the wait of `operation`, as an event would; False when it is over already."""
        if not self.forget(operation):
            return False
        operation.completed(expired=False)
        return True

    def forget(self, operation: Operation) -> bool:
        """End the wait of `operation` and do not tell it; False when it is over already."""
        keys, operation._keys = operation._keys, None
        if keys is None:
            return False
        self._count -= 1
        if operation._timer is not None:
            self._wheel.cancel(operation._timer)
            operation._timer = None
        for key in keys:
            watching = self._watched.get(key)
            # A key may have been named twice.
            if watching is not None and watching.pop(operation, watching) is None and not watching:
                del self._watched[key]
        return True

    def advance(self, now_ms: int) -> int:
        """Complete what is due by `now_ms`, soonest first; returns how many there were."""
        count = 0
        for item in self._wheel.advance(now_ms):
            assert isinstance(item, Operation)
            # One of those before may have ended it, or made it wait anew.
            if item._timer is not None and not item._timer.is_waiting and self.forget(item):
                count += 1
                item.completed(expired=True)
        return count
