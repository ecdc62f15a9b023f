"""Timers of one shard, by name. Owned by the event loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from service.base.purgatory import Operation
from service.base.timers import Timers

AGAIN_MS: Final = 500
"""Delay after which a timer fires again when what it caused has failed."""


class ShardTimer(Operation):
    """A timer that calls `due` with its name and itself. It may fire before `due_ms`, if that was postponed
    since it was set."""

    __slots__ = ("_due", "_name", "due_ms")

    def __init__(self, due: Callable[[Hashable, ShardTimer], None], name: Hashable, due_ms: int) -> None:
        super().__init__()
        self._due = due
        self._name = name
        self.due_ms = due_ms

    def happened(self, key: Hashable, amount: int) -> bool:
        return False

    def completed(self, *, expired: bool) -> None:
        self._due(self._name, self)


class ShardTimers:
    """The timers that are set. `due`: called with each whose time has come; `take` then says whether it still
    counts."""

    def __init__(
        self, timers: Timers, monotonic_ms: Callable[[], int], due: Callable[[Hashable, ShardTimer], None]
    ) -> None:
        self._timers = timers
        self._monotonic_ms = monotonic_ms
        self._due = due
        self._by_name: dict[Hashable, ShardTimer] = {}
        self._is_closed = False

    def set(self, name: Hashable, after_ms: int) -> None:
        """Set a timer. Postponing one, as sessions often do, only changes its `due_ms`."""
        due_ms = self._monotonic_ms() + max(after_ms, 0)
        before = self._by_name.get(name)
        if before is not None:
            if before.is_waiting and before.due_ms <= due_ms:
                before.due_ms = due_ms
                return
            self._timers.purgatory.forget(before)
        timer = self._by_name[name] = ShardTimer(self._fired, name, due_ms)
        self._timers.watch(timer, (), max(after_ms, 0) / 1000)

    def set_again(self, name: Hashable) -> None:
        """Set a timer that has fired in vain, unless it is set, or the shard is dropped."""
        if name not in self._by_name and not self._is_closed:
            self.set(name, AGAIN_MS)

    def cancel(self, name: Hashable) -> None:
        timer = self._by_name.pop(name, None)
        if timer is not None:
            self._timers.purgatory.forget(timer)

    def close(self) -> None:
        """Cancel all."""
        self._is_closed = True
        for timer in self._by_name.values():
            self._timers.purgatory.forget(timer)
        self._by_name.clear()

    def take(self, name: Hashable, timer: ShardTimer) -> bool:
        """Remove a timer that was due. False if it was replaced or cancelled meanwhile."""
        if self._by_name.get(name) is not timer:
            return False
        del self._by_name[name]
        return True

    def _fired(self, name: Hashable, timer: ShardTimer) -> None:
        left_ms = timer.due_ms - self._monotonic_ms()
        if left_ms > 0:
            self._timers.watch(timer, (), left_ms / 1000)
        else:
            self._due(name, timer)
