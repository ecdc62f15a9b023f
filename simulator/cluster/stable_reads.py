"""Consumers at isolation 1: what they are sent, and what of it they show."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.records.batch import complete_headers
from service.wire.api import ApiKey, request_module
from simulator.client import Client, NoAnswer, Record, records_in
from simulator.cluster.client import find_leader
from simulator.cluster.replicas import Key
from simulator.cluster.transactional import TransactionalWorld
from simulator.model import PartitionModel, TopicModel, Violation

_PAUSE_S: Final = 0.3


class Stable:
    """Response to a Fetch at isolation 1."""

    def __init__(self, found: Any, at: int) -> None:
        data = found.records or b""
        self.error = ErrorCode(found.error_code)
        self.stable_offset = int(found.last_stable_offset)
        self.high_watermark = int(found.high_watermark)
        self.next_offset = max((header.next_offset for header in complete_headers(data)), default=at)
        self.aborted = sorted(
            (int(one.first_offset), int(one.producer_id)) for one in found.aborted_transactions or ()
        )
        self.records = records_in(data, at)

    def shown(self) -> list[Record]:
        """Return the records that a consumer shows, as Kafka's ``CompletedFetch`` chooses them."""
        coming, hidden, found = list(self.aborted), set[int](), []
        for record in self.records:
            while coming and coming[0][0] <= record.offset:
                hidden.add(coming.pop(0)[1])
            producer = -1 if record.producer is None else record.producer[0]
            if record.marker:
                hidden.discard(producer)
            elif producer not in hidden:
                found.append(record)
        return found


async def fetch_stable(client: Client, key: Key, at: int, *, max_bytes: int = 1 << 20) -> Stable:
    """Fetch one partition from `at` on at isolation 1. Raises `NoAnswer`."""
    m = request_module(ApiKey.FETCH)
    wanted = m.FetchPartition(partition=key[1], fetch_offset=at, partition_max_bytes=max_bytes)
    request = m.FetchRequest(
        max_wait=timedelta(milliseconds=300),
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=1,
        topics=(m.FetchTopic(topic_id=key[0], partitions=(wanted,)),),
        forgotten_topics_data=(),
    )
    answer = await client.ask(ApiKey.FETCH, request)
    return Stable(answer.responses[0].partitions[0], at)


async def read_stable(
    world: TransactionalWorld, client: Client, key: Key, name: str, at: int, *, max_bytes: int = 1 << 20
) -> Stable:
    """Fetch once from `at` on, and judge what is shown. Raises `NoAnswer`, `Violation`."""
    found = await fetch_stable(client, key, at, max_bytes=max_bytes)
    if found.error is ErrorCode.none:
        where = f"{name} at {client.address[0]}"
        if found.stable_offset > found.high_watermark:
            raise Violation(f"X5: {where} says LSO {found.stable_offset}, mark {found.high_watermark}")
        if found.next_offset > max(found.stable_offset, at):
            raise Violation(f"X4: {where}: read up to {found.next_offset}, its LSO is {found.stable_offset}")
        world.transactions.saw(key, where, at, found.next_offset, found.shown())
        world.stable_reads += 1
    return found


async def consume_stable(
    world: TransactionalWorld, random: Random, topic: TopicModel, partition: PartitionModel, fetches: int
) -> None:
    """Fetch `fetches` times from a random offset on, at the leader or a replica. Raises `Violation`."""
    key = topic.topic_id, partition.index
    at = random.randint(0, max(partition.end_offset, 1))
    for _ in range(fetches):
        replicas = world.oracle.replicas.placed[key].replicas
        at_replica = random.random() < 0.5
        host = f"n{random.choice(replicas)}" if at_replica else await find_leader(world, random, *key)
        if host is None:
            await asyncio.sleep(_PAUSE_S)
            continue
        client = Client(world.machine(host).address)
        try:
            for _ in range(random.randint(1, 4)):
                size = random.choice((200, 1 << 20))
                found = await read_stable(world, client, key, str(partition), at, max_bytes=size)
                if found.error is not ErrorCode.none or topic.deleted:
                    break
                at = found.next_offset
        except NoAnswer:
            pass
        finally:
            client.close()
        if topic.deleted:
            return
        if random.random() < 0.2:
            at = random.randint(0, max(partition.end_offset, 1))
        await asyncio.sleep(random.random() * _PAUSE_S)
