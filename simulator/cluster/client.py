"""Clients of the cluster: they find a partition's leader at any node, and again when it has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.wire.api import ApiKey, request_module
from simulator.client import EARLIEST, Client, NoAnswer
from simulator.cluster.replicas import Key
from simulator.cluster.world import CLIENT, ClusterWorld
from simulator.machine import Machine
from simulator.model import PartitionModel, TopicModel, Violation, brief
from simulator.world import OFFLINE

NOT_NOW: Final = OFFLINE | {
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.concurrent_transactions,
}
"""Errors after which a client asks again who leads."""
_DOUBTFUL: Final = OFFLINE | {ErrorCode.not_enough_replicas_after_append}
_NEVER_TAKEN: Final = NOT_NOW - _DOUBTFUL
ALL: Final = -1
_TRIES: Final = 8
_PAUSE_S: Final = 0.3
_ANSWER_S: Final = 8.0


async def leader_of(world: ClusterWorld, client: Client, topic_id: UUID, index: int) -> str | None:
    """Return the host of the partition's leader, as the node of `client` knows it. Raises `NoAnswer`."""
    m = request_module(ApiKey.METADATA)
    asked = (m.MetadataRequestTopic(topic_id=topic_id, name=None),)
    request = m.MetadataRequest(
        topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    answer = await client.ask(ApiKey.METADATA, request, _ANSWER_S)
    brokers = {int(one.node_id): str(one.host) for one in answer.brokers}
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.partition_index == index:
                return brokers.get(int(partition.leader_id))
    return None


async def find_leader(world: ClusterWorld, random: Random, topic_id: UUID, index: int) -> str | None:
    """Return the host of the partition's leader, from the first node in random order that knows it."""
    machines = list(world.machines)
    random.shuffle(machines)
    for machine in machines:
        client = Client(machine.address)
        try:
            host = await leader_of(world, client, topic_id, index)
        except NoAnswer:
            continue
        finally:
            client.close()
        if host is not None:
            return host
    return None


def values_of(world: ClusterWorld, count: int, size: int) -> list[bytes]:
    return [one + b"x" * size for one in world.new_values(count)]


async def produce(
    world: ClusterWorld,
    random: Random,
    topic: TopicModel,
    partition: PartitionModel,
    batches: list[list[bytes]],
    *,
    idempotent: bool,
    acks: int = -1,
    pause_s: float = 0.0,
    connect: Callable[[Machine], Client] | None = None,
) -> None:
    """Produce batches one after the other to the leader, with pauses up to `pause_s`.

    `connect` makes a client of a node, for a batch; None: one of nobody in particular.
    An idempotent producer repeats a batch without a response, and ends where it cannot; others go on."""
    producer = await _producer(world, random) if idempotent else (-1, -1)
    if producer is None:
        return
    sequence = 0
    for values in batches:
        builder = BatchBuilder(
            codec=CompressionType.NONE,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence if idempotent else -1,
        )
        made_ms = world.real_ms()
        for value in values:
            builder.add(made_ms, world.key_of(value), value)
        batch = Batch(bytes(builder.build()), values, made_ms)
        is_there = await send_batch(
            world, random, topic, partition, batch, again=idempotent, acks=acks, connect=connect
        )
        if idempotent and not is_there:
            return
        sequence += len(values)
        if pause_s:
            await asyncio.sleep(random.random() * pause_s)


class Batch(NamedTuple):
    """A batch, and what is in it."""

    data: bytes
    values: list[bytes]
    made_ms: int
    """what its records say"""


async def _producer(world: ClusterWorld, random: Random) -> tuple[int, int] | None:
    client = Client(random.choice(world.machines).address)
    try:
        error, producer_id, epoch = await client.init_producer_id()
    except NoAnswer:
        return None
    finally:
        client.close()
    if error is not ErrorCode.none:
        return None
    world.new_producer(producer_id)
    return producer_id, epoch


async def send_batch(
    world: ClusterWorld,
    random: Random,
    topic: TopicModel,
    partition: PartitionModel,
    batch: Batch,
    *,
    again: bool,
    acks: int,
    connect: Callable[[Machine], Client] | None = None,
) -> bool:
    """Produce `batch`; return whether it is certainly in the log.

    A batch that was certainly refused is sent again in any case, one in doubt only with `again`."""
    values = batch.values
    partition.unknown.update(values)
    partition.sent.update(values)
    key = topic.topic_id, partition.index
    span = f"{partition}: {brief(values[0])} and {len(values) - 1} more"
    doubtful = False
    for _ in range(_TRIES):
        host = await find_leader(world, random, topic.topic_id, partition.index)
        if host is None:
            await asyncio.sleep(_PAUSE_S)
            continue
        machine = world.machine(host)
        client = Client(machine.address) if connect is None else connect(machine)
        losses = partition.losses
        try:
            answer = await client.produce(topic.topic_id, partition.index, batch.data, acks)
        except NoAnswer:
            world.trace.tell(CLIENT, f"{span} at {host}: no answer")
            doubtful = True
            if not again:
                return False
            continue
        finally:
            client.close()
        world.trace.tell(CLIENT, f"{span} at {host}: {answer.error.name}, {answer.base_offset}")
        if answer.error in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            is_promised = acks == ALL or not world.oracle.replicas.placed[key].had_many
            if answer.base_offset >= 0 and is_promised and losses == partition.losses:
                if acks == ALL:
                    _is_held(world, partition, key, answer.base_offset + len(values))
                partition.unknown.difference_update(values)
                world.acknowledged += len(values)
                partition.acknowledge(answer.base_offset, values, batch.made_ms)
            return True
        if answer.error not in NOT_NOW:
            if not doubtful:
                partition.unknown.difference_update(values)
                partition.refused.update((value, answer.error.name) for value in values)
            return False
        if answer.error in _DOUBTFUL:
            doubtful = True
            if not again:
                return False
        await asyncio.sleep(_PAUSE_S)
    return False


def _is_held(world: ClusterWorld, partition: PartitionModel, key: Key, end: int) -> None:
    """P6: what was acknowledged with acks=all is on as many replicas as it takes."""
    replicas = world.oracle.replicas
    if key in replicas.shaken:
        return
    holders, least = replicas.holders(key, end), min(replicas.least.get(key[0], 1), replicas.fewest(key))
    if holders < least:
        raise Violation(f"P6: {partition} is acknowledged up to {end}, and {holders} replicas have that")


async def consume(
    world: ClusterWorld, random: Random, topic: TopicModel, partition: PartitionModel, fetches: int
) -> None:
    """Fetch `fetches` times from a random offset on, at the leader or a replica. Raises `Violation` (P9)."""
    key = topic.topic_id, partition.index
    at = random.randint(0, partition.end_offset)
    for _ in range(fetches):
        at_replica = random.random() < 0.3
        host = _replica(world, random, key) if at_replica else await find_leader(world, random, *key)
        if host is None:
            await asyncio.sleep(_PAUSE_S)
            continue
        client, losses = Client(world.machine(host).address), partition.losses
        try:
            for _ in range(random.randint(1, 5)):
                found = await client.fetch(*key, at, max_bytes=random.choice((200, 1 << 20)), max_wait_ms=300)
                if found.error is ErrorCode.offset_out_of_range:
                    at = await _beginning(client, topic, partition, at)
                if found.error is not ErrorCode.none:
                    break
                if losses != partition.losses or topic.deleted:
                    return
                at = world.saw(partition, key, host, at, found)
        except NoAnswer:
            pass
        finally:
            client.close()
        if topic.deleted:
            return
        await asyncio.sleep(random.random() * _PAUSE_S)


def _replica(world: ClusterWorld, random: Random, key: Key) -> str:
    return f"n{random.choice(world.oracle.replicas.placed[key].replicas)}"


async def _beginning(client: Client, topic: TopicModel, partition: PartitionModel, at: int) -> int:
    """Return the offset at which a reader goes on after OFFSET_OUT_OF_RANGE at `at`. Raises `NoAnswer`."""
    error, start, _ = await client.offset(topic.name, partition.index, EARLIEST)
    if error is not ErrorCode.none:
        return at
    return 0 if start <= at and partition.losses else max(at, start)
