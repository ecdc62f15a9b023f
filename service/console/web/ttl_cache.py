"""Cached result of a query, refreshed when old, with one query at a time for all readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from service.base.clock import Clock
from service.base.errors import FirnError

T = TypeVar("T")

_COST_FACTOR: Final = 20
"""A query runs at most this share of the time: one part in this many."""
TROUBLE: Final = (FirnError, OSError)


class Told(NamedTuple, Generic[T]):
    """Last result and its age, and the error of the last query, if it failed."""

    value: T | None
    age_ms: int
    problem: BaseException | None
    is_asking: bool


class Remembered(Generic[T]):
    """Cache of one query's result. Owned by the event loop; `call` queries on a thread, slow queries
    seldom."""

    def __init__(
        self, call: Callable[[Callable[[], T]], asyncio.Future[T]], clock: Clock, age_ms: int
    ) -> None:
        self._call = call
        self._clock = clock
        self._age_ms = age_ms
        self._value: T | None = None
        self._at_ms = self._next_ms = self._began_ms = 0
        self._problem: BaseException | None = None
        self._asking: asyncio.Future[T] | None = None

    async def told(self, question: Callable[[], T], wait_s: float) -> Told[T]:
        """Return the result of `question`, after at most `wait_s`. Raises errors that are bugs."""
        if self._asking is None and self._clock.monotonic_ms() >= self._next_ms:
            self._began_ms = self._clock.monotonic_ms()
            self._asking = self._call(question)
            self._asking.add_done_callback(self._answered)
        if self._asking is not None:
            # `wait`, because the cancellation of one page must not cancel the query for the others.
            await asyncio.wait([self._asking], timeout=wait_s)
        if self._problem is not None and not isinstance(self._problem, TROUBLE):
            raise self._problem
        age_ms = self._clock.monotonic_ms() - self._at_ms
        return Told(self._value, age_ms, self._problem, self._asking is not None)

    def _answered(self, asking: asyncio.Future[T]) -> None:
        now = self._clock.monotonic_ms()
        self._asking = None
        self._next_ms = now + max(self._age_ms, _COST_FACTOR * (now - self._began_ms))
        if asking.cancelled():
            return
        self._problem = asking.exception()
        if self._problem is None:
            self._value, self._at_ms = asking.result(), now
        else:
            # A timeout must not delay the next attempt by twenty times its length.
            self._next_ms = now + self._age_ms
