"""Decisions of a shard whose records are not committed yet. Owned by the event loop. [P]"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, NamedTuple

from service.base.errors import RequestError
from service.coordinator.answers import refuse
from service.coordinator.ports import ResponseSink
from service.coordinator.shard import CoordinatorResult

NEVER: Final = 1 << 62


class PendingAnswer:
    """An answer that waits for records to be committed, and nothing else: that to a quick commit, or to a
    marker. It knows its sink, so it takes no ticket."""

    __slots__ = ("end_offset", "response", "since_ms", "sink")

    def __init__(self, response: object, sink: ResponseSink, end_offset: int, since_ms: int) -> None:
        self.response = response
        self.sink = sink
        self.end_offset = end_offset
        self.since_ms = since_ms
        """monotonic"""

    def send(self) -> None:
        """Answer: the records are committed. Does nothing if the caller is gone."""
        if not self.sink.done():
            self.sink.set_result(self.response)

    def fail(self, error: RequestError) -> None:
        """Send `error` instead."""
        if not self.sink.done():
            refuse(self.sink, error)


class PendingDecision(NamedTuple):
    """A decision that is neither committed nor failed yet."""

    decision: CoordinatorResult[Any]
    ticket: int | None
    """that of the request"""
    timer: Hashable | None
    """that of the timer, if one caused the decision"""
    end_offset: int
    since_ms: int
    """monotonic"""

    @property
    def is_remembered(self) -> bool:
        """Return whether somebody waits for the outcome, however late."""
        return self.decision.event is not None or self.decision.patience_ms is not None


class OverdueDecisions:
    """Decisions that have waited for longer than the coordinator's settings say, in the order of the log.

    They wait for their outcome, which the log alone decides. Who asked is answered as soon as the decision's
    own patience is used up.
    ``queue`` has them; only this class changes it.
    """

    __slots__ = ("_dues", "_numbers", "queue")

    def __init__(self) -> None:
        self.queue: deque[PendingDecision] = deque()
        self._dues: list[tuple[int, int, PendingDecision]] = []
        """heap by time, monotonic ms; may have settled ones"""
        self._numbers = count()

    def add(self, one: PendingDecision) -> None:
        """Keep a decision until its outcome; it follows all others in the log."""
        self.queue.append(one)
        if one.decision.patience_ms is not None:
            heappush(self._dues, (one.since_ms + one.decision.patience_ms, next(self._numbers), one))

    @property
    def next_due_ms(self) -> int:
        """Time when somebody's patience is used up."""
        return self._dues[0][0] if self._dues else NEVER

    def out_of_patience(self, now_ms: int) -> PendingDecision | None:
        """Return the next decision whose patience is used up, once; None if there is none."""
        if self._dues and self._dues[0][0] <= now_ms:
            return heappop(self._dues)[2]
        return None

    def committed(self, committed: int, most: int) -> list[PendingDecision]:
        """Remove and return the first decisions that are committed."""
        found: list[PendingDecision] = []
        while self.queue and self.queue[0].end_offset <= committed and len(found) < most:
            found.append(self.queue.popleft())
        self._forget_dues()
        return found

    def reverted(self, offset: int) -> PendingDecision | None:
        """Remove and return the last decision if it has records at `offset` or later."""
        if not self.queue or self.queue[-1].end_offset <= offset:
            return None
        one = self.queue.pop()
        self._forget_dues()
        return one

    def clear(self) -> None:
        """Drop all."""
        self.queue.clear()
        self._forget_dues()

    def _forget_dues(self) -> None:
        if not self.queue:
            self._dues.clear()
