"""Cached result of a query, refreshed when old, with one query at a time for all readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from service.base.clock import Clock
from service.base.errors import FirnError

T = TypeVar("T")

_COST_FACTOR: Final = 20
"""A query runs at most this share of the time: one part in this many."""
TROUBLE: Final = (FirnError, OSError)


class Call(Protocol):
    """Runs a query on a thread."""

    def __call__(self, question: Callable[[], T], /) -> asyncio.Future[T]: ...


class Cached(NamedTuple, Generic[T]):
    """Last result and its age, and the error of the last query, if it failed."""

    value: T | None
    age_ms: int
    problem: BaseException | None
    is_querying: bool


class TtlCache(Generic[T]):
    """Cache of one query's result. Owned by the event loop; `call` queries on a thread, slow queries
    seldom: at most `most_pause_ms` pass between two of them, if that is given."""

    def __init__(
        self,
        call: Callable[[Callable[[], T]], asyncio.Future[T]],
        clock: Clock,
        age_ms: int,
        most_pause_ms: int | None = None,
    ) -> None:
        self._call = call
        self._clock = clock
        self._age_ms = age_ms
        self._most_pause_ms = most_pause_ms
        self._value: T | None = None
        self._at_ms = self._next_ms = self._began_ms = 0
        self._problem: BaseException | None = None
        self._query: asyncio.Future[T] | None = None

    async def get(self, question: Callable[[], T], wait_s: float) -> Cached[T]:
        """Return the result of `question`, at most `wait_s` after it was asked: what does not come is waited
        for once. Raises errors that are bugs."""
        if self._query is None and self._clock.monotonic_ms() >= self._next_ms:
            self._began_ms = self._clock.monotonic_ms()
            self._query = self._call(question)
            self._query.add_done_callback(self._answered)
        if self._query is not None:
            # `wait`, because the cancellation of one page must not cancel the query for the others.
            waited_s = (self._clock.monotonic_ms() - self._began_ms) / 1000
            await asyncio.wait([self._query], timeout=max(wait_s - waited_s, 0))
        if self._problem is not None and not isinstance(self._problem, TROUBLE):
            raise self._problem
        age_ms = self._clock.monotonic_ms() - self._at_ms
        return Cached(self._value, age_ms, self._problem, self._query is not None)

    def _answered(self, asking: asyncio.Future[T]) -> None:
        now = self._clock.monotonic_ms()
        self._query = None
        pause_ms = _COST_FACTOR * (now - self._began_ms)
        if self._most_pause_ms is not None:
            pause_ms = min(pause_ms, self._most_pause_ms)
        self._next_ms = now + max(self._age_ms, pause_ms)
        if asking.cancelled():
            return
        self._problem = asking.exception()
        if self._problem is None:
            self._value, self._at_ms = asking.result(), now
        else:
            # A timeout must not delay the next attempt by twenty times its length.
            self._next_ms = now + self._age_ms
