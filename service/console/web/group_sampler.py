"""Samples of all groups' members and lag, taken all the time: a lag has a past before anybody looks."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from service.base.clock import Clock
from service.base.errors import FirnError
from service.client.admin import Cluster
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.ttl_cache import Call
from service.groups.admin_models import GroupRow, GroupSummary, Listing
from service.groups.admin_summaries import summarize_groups

EVERY_S: Final = 15.0
FRESH_MS: Final = 4_000
"""Age up to which a summary is shown without a new query."""
WAIT_S: Final = 2.0
"""Longest wait of a page for summaries."""
MOST_GROUPS: Final = 300
"""Most groups that are sampled by themselves, the first ones of the list."""
MOST_KEPT: Final = 1_000
MOST_PLACES: Final = 10_000
"""Most partitions whose ends one query looks up."""
MOST_POINTS: Final = 240
LEAST_STEP_MS: Final = 14_000
_COST_FACTOR: Final = 20
TROUBLE: Final = (FirnError, OSError)

Summaries = dict[str, GroupSummary]


class GroupSampler:
    """Newest summaries of groups, and the history of each one's lag. Owned by the event loop; `list_all`
    returns the list of all groups, `call` runs queries on threads."""

    def __init__(
        self, kafka: KafkaDesk, clock: Clock, call: Call, list_all: Callable[[], Coroutine[Any, Any, Listing]]
    ) -> None:
        self._kafka = kafka
        self._clock = clock
        self._call = call
        self._list_all = list_all
        self._known: dict[str, tuple[int, GroupSummary]] = {}
        self._lags: dict[str, deque[tuple[int, int]]] = {}
        self._pending: asyncio.Future[Summaries] | None = None
        self._took_ms = 0

    async def of(self, rows: Sequence[GroupRow]) -> Mapping[str, GroupSummary]:
        """Return summaries of these groups, new ones where they come in time."""
        since = self._clock.monotonic_ms() - max(FRESH_MS, _COST_FACTOR * self._took_ms)
        if any(row.group_id not in self._known or self._known[row.group_id][0] < since for row in rows):
            await self._query(rows)
        return {row.group_id: self._known[row.group_id][1] for row in rows if row.group_id in self._known}

    async def of_topic(self, topic: str) -> tuple[Sequence[GroupSummary], bool]:
        """Return summaries of the groups that read a topic, and whether all groups were looked at."""
        try:
            rows = (await self._list_all()).rows
        except TROUBLE:
            return (), False
        found = await self.of(rows[:MOST_GROUPS])
        reading = [one for one in found.values() if any(each.topic == topic for each in one.topics)]
        return reading, len(rows) == len(found)

    def history(self, group_id: str) -> Sequence[tuple[int, int]]:
        """Return (ms of the monotonic clock, lag), the oldest first."""
        return tuple(self._lags.get(group_id, ()))

    def newest_lag(self, group_id: str) -> int:
        """Return the last known lag; -1 where none is known."""
        known = self._known.get(group_id)
        return -1 if known is None or known[1].lag is None else known[1].lag

    async def _query(self, rows: Sequence[GroupRow]) -> None:
        """Query once at a time; a page waits for the query of another, and takes what it finds."""
        if self._pending is None:
            began = self._clock.monotonic_ms()

            def question(cluster: Cluster) -> Summaries:
                return summarize_groups(cluster, rows, MOST_PLACES)

            self._pending = self._call(lambda: self._kafka.ask(question))
            self._pending.add_done_callback(lambda done: self._answered(done, began))
        pending = self._pending
        await asyncio.wait([pending], timeout=WAIT_S)
        if pending.done() and not pending.cancelled():
            error = pending.exception()
            if error is not None and not isinstance(error, TROUBLE):
                raise error

    def _answered(self, done: asyncio.Future[Summaries], began: int) -> None:
        self._pending = None
        now = self._clock.monotonic_ms()
        self._took_ms = now - began
        if done.cancelled() or done.exception() is not None:
            return
        for group_id, one in done.result().items():
            self._known.pop(group_id, None)
            self._known[group_id] = (now, one)
            if one.lag is not None:
                points = self._lags.setdefault(group_id, deque(maxlen=MOST_POINTS))
                if not points or now - points[-1][0] >= LEAST_STEP_MS:
                    points.append((now, one.lag))
        while len(self._known) > MOST_KEPT:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._lags.pop(oldest, None)

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            # A page shows the error; the history has a gap.
            with contextlib.suppress(*TROUBLE):
                rows = (await self._list_all()).rows[:MOST_GROUPS]
                if rows:
                    await self._query(rows)
            await asyncio.sleep(max(EVERY_S, _COST_FACTOR * self._took_ms / 1000))
