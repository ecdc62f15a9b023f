"""Lag of the groups that this node coordinates, for its metrics.

A group's offsets are at its coordinator, the end of a partition is where its replicas are. Of a partition
that this node leads, or follows in sync, the end is here; for the others it asks their leaders, in a
ListOffsets of many partitions: when somebody wants the lag, and no leader more often than every `ASKED_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import FirnError
from service.base.slices import Slice
from service.base.task_set import TaskSet
from service.groups.lag import CollectedOffsets, LagReport, collect, lags_of
from service.metadata.image import MetadataImage
from service.replicas.partition_registry import Replicas
from service.serving.broker_channels import BrokerChannels
from service.wire.api import request_module
from service.wire.apis import ApiKey

if TYPE_CHECKING:
    from uuid import UUID

    from service.groups.offsets import Place
    from service.groups.shard import GroupShard

ASKED_S: Final = 5.0
"""Least time between two questions to a leader."""
FAILED_S: Final = 15.0
"""Least time after a question that failed."""
WAIT_S: Final = 1.0
"""Longest wait for the answers; later ones count at the next report."""
KNOWN_S: Final = 60.0
"""Greatest age of an end that a leader told."""
_TIMEOUT_MS: Final = 10_000
_PARTITIONS_OF_REQUEST: Final = 1_000
_AT_A_TIME: Final = 100
_LATEST: Final = -1
_CONSUMER: Final = -1


class _End(NamedTuple):
    """High watermark of a partition, as its leader told it."""

    offset: int
    at_s: float


class LagMeter:
    """Measures the lag of the node's groups when it is asked to. Owned by the event loop."""

    def __init__(
        self,
        own_id: int,
        image: Callable[[], MetadataImage],
        replicas: Replicas,
        shards: Callable[[], Iterable[GroupShard]],
        most_groups: Callable[[], int],
        channels: Callable[[], BrokerChannels] | None,
        clock: Clock,
    ) -> None:
        self._own_id = own_id
        self._image = image
        self._replicas = replicas
        self._shards = shards
        self._most_groups = most_groups
        self._channels = channels
        self._brokers: BrokerChannels | None = None
        self._clock = clock
        self._told: dict[tuple[UUID, int], _End] = {}
        self._not_before: dict[int, float] = {}
        """by leader: when it may be asked again"""
        self._asking: dict[int, asyncio.Event] = {}
        self._tasks = TaskSet(asyncio.get_running_loop())

    async def report(self) -> LagReport:
        """Return the lag of all groups, in slices; waits for other brokers, but no longer than `WAIT_S`."""
        piece = Slice()
        most = self._most_groups()
        if not most:
            return LagReport([])
        collected = await piece.go_on(collect(self._shards(), most))
        ends, elsewhere = await self._own_ends(piece, collected)
        if elsewhere:
            await self._ask_leaders(elsewhere)
            await self._told_ends(piece, ends, elsewhere)
        return await piece.go_on(lags_of(collected, ends))

    async def close(self) -> None:
        """Stop asking."""
        await self._tasks.close()
        if self._brokers is not None:
            await self._brokers.close()

    # -- ends

    async def _own_ends(
        self, piece: Slice, collected: CollectedOffsets
    ) -> tuple[dict[Place, int | None], dict[Place, tuple[UUID, int]]]:
        """Return the ends that are known here (None: elsewhere), and topic id and leader of those that are
        not."""
        image = self._image()
        ends: dict[Place, int | None] = {}
        elsewhere: dict[Place, tuple[UUID, int]] = {}
        for one in collected.groups:
            for at, (place, _) in enumerate(one.offsets):
                if at % _AT_A_TIME == 0 and piece.is_over():
                    await piece.next_turn()
                if place in ends:
                    continue
                name, index = place
                topic = image.topics_by_name.get(name)
                state = None if topic is None else topic.partitions.get(index)
                if topic is None or state is None:
                    continue
                here = self._replicas.get(topic.id, index)
                if here is not None and not here.is_offline and self._own_id in state.isr:
                    ends[place] = here.high_watermark
                else:
                    ends[place] = None
                    elsewhere[place] = topic.id, state.leader
        return ends, elsewhere

    async def _told_ends(
        self, piece: Slice, ends: dict[Place, int | None], elsewhere: dict[Place, tuple[UUID, int]]
    ) -> None:
        """Fill in what leaders told lately, and forget what is no longer asked for."""
        oldest_s = self._now_s() - KNOWN_S
        kept: dict[tuple[UUID, int], _End] = {}
        for at, (place, (topic_id, _)) in enumerate(elsewhere.items()):
            if at % _AT_A_TIME == 0 and piece.is_over():
                await piece.next_turn()
            key = topic_id, place[1]
            told = self._told.get(key)
            if told is not None and told.at_s >= oldest_s:
                kept[key] = told
                ends[place] = told.offset
        self._told = kept

    # -- questions

    async def _ask_leaders(self, elsewhere: dict[Place, tuple[UUID, int]]) -> None:
        by_leader: dict[int, list[tuple[Place, UUID]]] = {}
        for place, (topic_id, leader) in elsewhere.items():
            if leader >= 0 and leader != self._own_id:
                by_leader.setdefault(leader, []).append((place, topic_id))
        if self._channels is None:
            return
        if self._brokers is None:
            self._brokers = self._channels()
        now_s = self._now_s()
        for leader, places in by_leader.items():
            if leader not in self._asking and self._not_before.get(leader, now_s) <= now_s:
                self._asking[leader] = asyncio.Event()
                self._tasks.begin(
                    self._ask(self._brokers, leader, places), f"ends of logs of broker {leader}"
                )
        waits = [self._asking[leader].wait() for leader in by_leader if leader in self._asking]
        if waits:
            try:
                async with asyncio.timeout(WAIT_S):
                    await asyncio.gather(*waits)
            except TimeoutError:
                return

    async def _ask(self, brokers: BrokerChannels, leader: int, places: list[tuple[Place, UUID]]) -> None:
        pause_s = FAILED_S
        try:
            for at in range(0, len(places), _PARTITIONS_OF_REQUEST):
                some = dict(places[at : at + _PARTITIONS_OF_REQUEST])
                response = await brokers.to(leader).call(
                    ApiKey.LIST_OFFSETS, None, _request(some), timeout_ms=_TIMEOUT_MS
                )
                self._note(some, response)
            pause_s = ASKED_S
        except (OSError, FirnError):
            return  # their lags are unknown, which the report counts
        finally:
            self._not_before[leader] = self._now_s() + pause_s
            self._asking.pop(leader).set()

    def _note(self, asked: dict[Place, UUID], response: Any) -> None:
        now_s = self._now_s()
        for topic in response.topics:
            for one in topic.partitions:
                topic_id = asked.get((topic.name, one.partition_index))
                if topic_id is not None and one.error_code is ErrorCode.none and one.offset >= 0:
                    self._told[topic_id, one.partition_index] = _End(one.offset, now_s)

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000


def _request(places: Iterable[Place]) -> Any:
    module = request_module(ApiKey.LIST_OFFSETS)
    topics: dict[str, list[Any]] = {}
    for name, index in places:
        wanted = module.ListOffsetsPartition(
            partition_index=index, current_leader_epoch=-1, timestamp=_LATEST
        )
        topics.setdefault(name, []).append(wanted)
    return module.ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=0,
        topics=tuple(
            [module.ListOffsetsTopic(name=name, partitions=tuple(some)) for name, some in topics.items()]
        ),
        timeout=timedelta(milliseconds=_TIMEOUT_MS),
    )
