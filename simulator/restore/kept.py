"""Old records that a cluster keeps, and whether they are read back of it later, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from service.records.builder import BatchBuilder
from simulator.archive import Archive
from simulator.client import EARLIEST, Client, NoAnswer
from simulator.loop import Stuck
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.trace import Trace

DAY_MS: Final = 86_400_000
KEPT_MS: Final = 401 * DAY_MS
"""for how long everything is kept at first: records are 400 days old"""
HOUR_S: Final = 3_600.0
MONTH_S: Final = 30 * 24 * HOUR_S
TIERED: Final = {
    "internal.segment.bytes": "1500",
    "local.retention.bytes": "1",
    "remote.storage.enable": "true",
}
_NOT_YET: Final = ErrorCode.kafka_storage_error
"""Error until the HEAD of a partition is compared: it takes no records before."""
_LED_S: Final = 30.0
_READ_S: Final = 60.0

LeaderOf = Callable[[TopicModel, PartitionModel], Awaitable[Client | None]]
"""Returns a client of a partition's leader, which the caller closes; None without a leader."""


class World(Protocol):
    """World in which a disaster is played."""

    trace: Trace

    def run(self, main: Coroutine[Any, Any, None]) -> None: ...
    def check(self) -> None: ...


def played(world: World, story: Coroutine[Any, Any, None], *, tell: bool) -> str | None:
    """Play one disaster; return what was wrong after it, None without a problem. `tell`: print acts and log
    lines."""
    try:
        world.run(story)
        world.check()
    except (Violation, Stuck) as e:
        return str(e)
    finally:
        if tell:
            print(*world.trace.lines, sep="\n")
    return None


class Kept(NamedTuple):
    """Records that a partition held before the disaster and that its topic's settings keep, by offset."""

    topic: TopicModel
    partition: PartitionModel
    values: dict[int, bytes]


def kept_of(archive: Archive, topics: Iterable[TopicModel]) -> list[Kept]:
    """Return the records that are acknowledged and in the bucket, by partition."""
    found = []
    for topic in topics:
        for partition in () if topic.deleted else topic.partitions:
            end = archive.live(topic.topic_id, partition.index)[1]
            acked = {offset: value for offset, value in partition.acked.items() if offset < end}
            found.append(Kept(topic, partition, acked))
    return found


async def fill(
    leader_of: LeaderOf,
    topic: TopicModel,
    partition: PartitionModel,
    values: Sequence[bytes],
    written_ms: int,
) -> None:
    """Produce a batch with this timestamp for each value. Raises `Violation` where one is refused."""
    client = await _led(leader_of, topic, partition)
    for value in values:
        builder = BatchBuilder()
        builder.add(written_ms, None, value)
        partition.sent.add(value)
        batch, deadline = bytes(builder.build()), asyncio.get_running_loop().time() + _LED_S
        while (answer := await client.produce(topic.topic_id, partition.index, batch)).error is _NOT_YET:
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.5)
        if answer.error is not ErrorCode.none:
            raise Violation(f"{partition} takes no records: {answer.error.name}")
        partition.acknowledge(answer.base_offset, [value], written_ms)
    client.close()


async def read_back(leader_of: LeaderOf, kept: Iterable[Kept]) -> None:
    """Read every partition from its beginning. Raises `Violation` where anything is not what it was."""
    for topic, partition, values in kept:
        client = await _led(leader_of, topic, partition)
        error, start, _ = await client.offset(topic.name, partition.index, EARLIEST)
        if error is not ErrorCode.none or start > min(values, default=start):
            raise Violation(f"{partition} begins at {start} ({error.name}), and everything of it was kept")
        found = await _read(client, topic, partition, len(values))
        client.close()
        for offset, value in values.items():
            if found.get(offset) != value:
                raise Violation(f"{partition}: offset {offset} is not what it was")


async def _read(client: Client, topic: TopicModel, partition: PartitionModel, end: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at, deadline = 0, asyncio.get_running_loop().time() + _READ_S
    while at < end:
        fetched = await client.fetch(topic.topic_id, partition.index, at, max_wait_ms=500)
        found |= {record.offset: record.value for record in fetched.records}
        at = max(at, fetched.next_offset)
        if asyncio.get_running_loop().time() > deadline:
            raise Violation(f"{partition}: reading stands still at {at} ({fetched.error.name})")
    return found


async def _led(leader_of: LeaderOf, topic: TopicModel, partition: PartitionModel) -> Client:
    """Return a client of the leader once it answers: it compares logs with their archives first."""
    loop = asyncio.get_running_loop()
    deadline, why = loop.time() + _LED_S, "nobody leads it"
    while loop.time() < deadline:
        client = await leader_of(topic, partition)
        if client is not None:
            try:
                error, _, _ = await client.offset(topic.name, partition.index, EARLIEST)
                if error is ErrorCode.none:
                    return client
                why = error.name
            except NoAnswer as e:
                why = str(e)
            client.close()
        await asyncio.sleep(0.5)
    raise Violation(f"{partition} is not led for {_LED_S:.0f} s: {why}")


async def tiers_on(
    leader_of: LeaderOf,
    archive: Archive,
    kept: Kept,
    values: Callable[[], list[bytes]],
    now_ms: Callable[[], int],
) -> None:
    """Produce records and check that they are archived, too. Raises `Violation`."""
    topic, partition = kept.topic, kept.partition
    before = archive.live(topic.topic_id, partition.index)[1]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _READ_S
    while archive.live(topic.topic_id, partition.index)[1] <= before + 8:
        client = await _led(leader_of, topic, partition)
        for value in values():
            builder = BatchBuilder()
            builder.add(now_ms(), None, value)
            await client.produce(topic.topic_id, partition.index, bytes(builder.build()))
        client.close()
        await asyncio.sleep(0.5)
        if loop.time() > deadline:
            raise Violation(f"{partition} is not archived any more: its archive ends at {before} as before")
