"""Data of the group pages: the list of all groups, some seconds old, and one group with its lag over time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import FirnError, RequestError
from service.console.web.group_sampler import GroupSampler
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.lags import MOST_GROUPS, Lags
from service.console.web.pages import group, groups
from service.console.web.ttl_cache import Call
from service.groups.admin_models import GroupInfo, GroupRow, Listing
from service.groups.admin_queries import describe_group, find_group, list_groups

LIST_AGE_MS: Final = 3_000
_COST_FACTOR: Final = 20
"""The list is queried at most this share of the time: one part in this many."""
MOST_POSITIONS: Final = 2_000
"""Most partitions of a group whose positions are queried."""
SAMPLE_S: Final = 5.0
WATCHED_MS: Final = 15 * 60_000
"""Time after the last request of its page for which a group is sampled."""
TROUBLE: Final = (FirnError, OSError)


class _Listed(NamedTuple):
    """All groups at `at_ms` of the monotonic clock; the query took `took_ms`."""

    listing: Listing
    at_ms: int
    took_ms: int


class GroupDesk:
    """Reader of one cluster's groups. Owned by the event loop; `call` runs queries on threads."""

    def __init__(
        self,
        kafka: KafkaDesk,
        clock: Clock,
        call: Call,
        error_text: Callable[[BaseException], str],
    ) -> None:
        self._kafka = kafka
        self._clock = clock
        self._call = call
        self._error_text = error_text
        self._known: _Listed | None = None
        self._pending: asyncio.Future[_Listed] | None = None
        self._lags = Lags()
        self._watched: dict[str, int] = {}
        self.sampler = GroupSampler(kafka, clock, call, self._listing)

    async def _listing(self) -> Listing:
        """Return all groups, with one query at a time for all pages."""
        known, now = self._known, self._clock.monotonic_ms()
        if known is not None and now - known.at_ms < max(LIST_AGE_MS, _COST_FACTOR * known.took_ms):
            return known.listing
        if self._pending is None:
            self._pending = self._call(self._query)
            self._pending.add_done_callback(self._found)
        pending = self._pending
        # `wait`, because the cancellation of one page must not cancel the query for the others.
        await asyncio.wait([pending])
        return pending.result().listing

    def _query(self) -> _Listed:
        began = self._clock.monotonic_ms()
        listing = self._kafka.ask(list_groups)
        now = self._clock.monotonic_ms()
        return _Listed(listing, now, now - began)

    def _found(self, pending: asyncio.Future[_Listed]) -> None:
        self._pending = None
        is_found = not pending.cancelled() and pending.exception() is None
        self._known = pending.result() if is_found else None

    async def find_groups(self, wanted: str, number: int, sort: str = "") -> groups.GroupsPage:
        try:
            listing = await self._listing()
        except TROUBLE as e:
            return groups.GroupsPage((), 1, 0, 0, wanted, (), self._error_text(e))
        sort = sort if sort in groups.SORTS else groups.SORTS[0]
        needle = wanted.lower()
        matching: Sequence[GroupRow] = listing.rows
        if needle:
            matching = [one for one in listing.rows if needle in one.group_id.lower()]
        if sort == groups.BY_LAG:
            matching = sorted(matching, key=lambda one: -self.sampler.newest_lag(one.group_id))
        pages = max(-(-len(matching) // groups.PER_PAGE), 1)
        number = min(max(number, 1), pages)
        here = matching[(number - 1) * groups.PER_PAGE : number * groups.PER_PAGE]
        summaries = await self.sampler.of(here)
        lags = {one.group_id: self.sampler.history(one.group_id) for one in here}
        return groups.GroupsPage(
            here,
            number,
            len(matching),
            len(listing.rows),
            wanted,
            listing.problems,
            None,
            summaries,
            lags,
            sort,
        )

    async def find_group(self, group_id: str, number: int) -> group.GroupPage:
        """Return the data of a group, and of page `number` of its partitions, or of the nearest page that it
        has. An error of the cluster is in the page (`problem`, `status`)."""
        try:
            found = await self._sample(group_id)
        except TROUBLE as e:
            is_gone = isinstance(e, RequestError) and e.code == ErrorCode.group_id_not_found
            return group.GroupPage(
                group_id, None, problem=self._error_text(e), status=404 if is_gone else 503
            )
        self._watch(group_id)
        pages = max(-(-len(found.positions) // group.PER_PAGE), 1)
        number = min(max(number, 1), pages)
        past = self.sampler.history(group_id)
        return group.GroupPage(group_id, found, self._lags.of(group_id), number, past=past)

    async def _sample(self, group_id: str) -> GroupInfo:
        row = find_group(await self._listing(), group_id)
        found = await self._call(
            lambda: self._kafka.ask(lambda cluster: describe_group(cluster, row, MOST_POSITIONS))
        )
        self._lags.add(group_id, self._clock.monotonic_ms(), found.positions)
        self._lags.forget_others(group_id, [(one.topic, one.partition) for one in found.positions])
        return found

    def _watch(self, group_id: str) -> None:
        """Keep sampling this group; beyond `MOST_GROUPS` the one requested longest ago is dropped."""
        self._watched.pop(group_id, None)
        self._watched[group_id] = self._clock.monotonic_ms()
        if len(self._watched) > MOST_GROUPS:
            del self._watched[next(iter(self._watched))]

    async def run(self) -> None:
        """Keep sampling groups whose pages were requested recently, for the history of their lag."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            since = self._clock.monotonic_ms() - WATCHED_MS
            self._watched = {one: requested for one, requested in self._watched.items() if requested >= since}
            for group_id in tuple(self._watched):
                # The next request of the page shows the error; the line of the lag has a gap.
                with contextlib.suppress(*TROUBLE):
                    await self._sample(group_id)
