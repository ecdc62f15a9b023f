"""Sizes of topics on disk and the rates at which they grow, sampled by themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import FirnError, RequestError
from service.client.admin import Cluster
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.topic_rows import TopicFigures, TopicSummary
from service.console.web.ttl_cache import Call
from service.wire.api import ApiKey, request_module

EVERY_S: Final = 10.0
WAIT_S: Final = 1.5
"""Longest wait of a page for the first figures."""
LEAST_MS: Final = 1_000
"""Least time between the two samples of a rate."""
MOST_PARTITIONS: Final = 10_000
"""Partitions of a cluster up to which all topics are sampled by themselves; beyond, those of a page."""
_COST_FACTOR: Final = 20
TROUBLE: Final = (FirnError, OSError)


class _Sample(NamedTuple):
    """Bytes on disk (None: no node told them) and the sum of the ends of a topic's partitions."""

    at_ms: int
    size: int | None
    ends: int
    partitions: int


class TopicSampler:
    """Newest figures of topics. Owned by the event loop; `list_all` returns the list of all topics."""

    def __init__(
        self,
        kafka: KafkaDesk,
        clock: Clock,
        call: Call,
        list_all: Callable[[], Coroutine[Any, Any, Sequence[TopicSummary]]],
    ) -> None:
        self._kafka = kafka
        self._clock = clock
        self._call = call
        self._list_all = list_all
        self._samples: dict[str, _Sample] = {}
        self._figures: dict[str, TopicFigures] = {}
        self._pending: asyncio.Future[dict[str, _Sample]] | None = None
        self._next_ms = 0

    @property
    def figures(self) -> Mapping[str, TopicFigures]:
        """Newest figures by topic id."""
        return self._figures

    async def of(self, rows: Sequence[TopicSummary]) -> Mapping[str, TopicFigures]:
        """Return figures of these topics; waits a little where they are not known yet."""
        if any(row.topic_id not in self._figures for row in rows):
            await self._sample(rows)
        return self._figures

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            # A page shows the error.
            with contextlib.suppress(*TROUBLE):
                rows = await self._list_all()
                if rows and sum(row.partitions for row in rows) <= MOST_PARTITIONS:
                    self._forget_others(rows)
                    await self._sample(rows)
            await asyncio.sleep(EVERY_S)

    async def _sample(self, rows: Sequence[TopicSummary]) -> None:
        if self._pending is None and self._clock.monotonic_ms() >= self._next_ms:
            began = self._clock.monotonic_ms()
            self._pending = self._call(
                lambda: self._kafka.ask(lambda cluster: _samples(cluster, rows, self._clock.monotonic_ms()))
            )
            self._pending.add_done_callback(lambda done: self._answered(done, began))
        if self._pending is None:
            return
        pending = self._pending
        await asyncio.wait([pending], timeout=WAIT_S)
        if pending.done() and not pending.cancelled():
            error = pending.exception()
            if error is not None and not isinstance(error, TROUBLE):
                raise error

    def _answered(self, done: asyncio.Future[dict[str, _Sample]], began: int) -> None:
        self._pending = None
        now = self._clock.monotonic_ms()
        self._next_ms = now + min(_COST_FACTOR * (now - began), 60_000)
        if done.cancelled() or done.exception() is not None:
            return
        for topic_id, sample in done.result().items():
            before = self._samples.get(topic_id)
            known = self._figures.get(topic_id)
            rate = None if known is None else known.rate
            if before is None or before.partitions != sample.partitions:
                self._samples[topic_id] = sample
            elif (elapsed_ms := sample.at_ms - before.at_ms) >= LEAST_MS:
                rate = max(sample.ends - before.ends, 0) * 1000 / elapsed_ms
                self._samples[topic_id] = sample
            self._figures[topic_id] = TopicFigures(sample.size, rate)

    def _forget_others(self, rows: Sequence[TopicSummary]) -> None:
        known = {row.topic_id for row in rows}
        for topic_id in self._figures.keys() - known:
            del self._figures[topic_id]
            self._samples.pop(topic_id, None)


def _samples(cluster: Cluster, rows: Sequence[TopicSummary], now_ms: int) -> dict[str, _Sample]:
    """Return sizes and ends of topics. Nodes that do not tell their sizes are left out."""
    rows = _at_most(rows)
    sizes = _sizes(cluster, rows)
    places = [(row.name, partition) for row in rows for partition in range(row.partitions)]
    ends: dict[str, int] = {}
    counts: dict[str, int] = {}
    for (name, _), end in cluster.ends(places).items():
        ends[name] = ends.get(name, 0) + end
        counts[name] = counts.get(name, 0) + 1
    return {
        row.topic_id: _Sample(now_ms, sizes.get(row.name), ends.get(row.name, 0), counts.get(row.name, 0))
        for row in rows
    }


def _at_most(rows: Sequence[TopicSummary]) -> Sequence[TopicSummary]:
    """Return the first rows, with at most `MOST_PARTITIONS` partitions."""
    found: list[TopicSummary] = []
    partitions = 0
    for row in rows:
        partitions += row.partitions
        if partitions > MOST_PARTITIONS:
            break
        found.append(row)
    return found


def _sizes(cluster: Cluster, rows: Sequence[TopicSummary]) -> dict[str, int]:
    """Return the bytes on disk of one copy of each topic: of each partition those of its largest replica."""
    module = request_module(ApiKey.DESCRIBE_LOG_DIRS)
    request = module.DescribeLogDirsRequest(
        topics=tuple(
            module.DescribableLogDirTopic(topic=row.name, partitions=tuple(range(row.partitions)))
            for row in rows
        )
    )
    largest: dict[tuple[str, int], int] = {}
    for node in cluster.describe().nodes:
        if node.is_fenced:
            continue
        try:
            answer = cluster.client(node.node_id).request(ApiKey.DESCRIBE_LOG_DIRS, request)
        except (RequestError, OSError):
            continue
        for folder in answer.results:
            if folder.error_code != ErrorCode.none:
                continue
            for topic in folder.topics:
                for one in topic.partitions:
                    if not one.is_future_key:
                        place = (topic.name, one.partition_index)
                        largest[place] = max(largest.get(place, 0), one.partition_size)
    found: dict[str, int] = {}
    for (name, _), size in largest.items():
        found[name] = found.get(name, 0) + size
    return found
