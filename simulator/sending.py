"""Producers: they send batches, and note requests and responses in the model."""

from __future__ import annotations

import asyncio
from typing import Final

from kio.schema.errors import ErrorCode

from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from simulator.client import Client, NoAnswer, Produced
from simulator.model import PartitionModel, TopicModel, brief, key_of
from simulator.world import OFFLINE, SimWorld

UNKNOWN_OUTCOME: Final = OFFLINE | {ErrorCode.not_enough_replicas_after_append}


def values_of(world: SimWorld, count: int, size: int) -> list[bytes]:
    values = []
    for _ in range(count):
        world.values += 1
        values.append(b"v%d." % world.values + b"x" * size)
    return values


async def send(
    world: SimWorld,
    topic: TopicModel,
    partition: PartitionModel,
    batches: list[list[bytes]],
    codec: CompressionType,
    address: tuple[str, int] | None = None,
) -> None:
    client = Client(address or world.machine.address)
    for values in batches:
        now_ms = world.machine.clock.now_ms()
        builder = BatchBuilder(codec=codec)
        for value in values:
            builder.add(now_ms, key_of(value) if partition.compacted else None, value)
        await _send_once(world, client, topic, partition, bytes(builder.build()), values, now_ms)
    client.close()


async def _send_once(
    world: SimWorld,
    client: Client,
    topic: TopicModel,
    partition: PartitionModel,
    batch: bytes,
    values: list[bytes],
    now_ms: int,
) -> ErrorCode | None:
    partition.unknown.update(values)
    partition.sent.update(values)
    try:
        answer: Produced = await client.produce(topic.topic_id, partition.index, batch)
    except NoAnswer:
        world.trace.tell("client", f"{partition}: {_span(values)}: no answer")
        return None
    what = f"at {answer.base_offset}" if answer.error is ErrorCode.none else answer.error.name
    world.trace.tell("client", f"{partition}: {_span(values)} {what}")
    if answer.error is ErrorCode.none or answer.error is ErrorCode.duplicate_sequence_number:
        partition.unknown.difference_update(values)
        if answer.base_offset >= 0:
            partition.acknowledge(answer.base_offset, values, min(now_ms, world.real_ms()))
        else:
            partition.unknown.update(values)
    elif answer.error not in UNKNOWN_OUTCOME:
        partition.unknown.difference_update(values)
        partition.refused.update((value, answer.error.name) for value in values)
    return answer.error


def _span(values: list[bytes]) -> str:
    first, last = brief(values[0]), brief(values[-1])
    return first if first == last else f"{first} to {last}"


async def send_idempotent(
    world: SimWorld,
    topic: TopicModel,
    partition: PartitionModel,
    batches: list[list[bytes]],
    codec: CompressionType,
) -> None:
    client = Client(world.machine.address)
    try:
        error, producer_id, epoch = await client.init_producer_id()
    except NoAnswer:
        return
    if error is not ErrorCode.none:
        return
    sequence = 0
    for values in batches:
        now_ms = world.machine.clock.now_ms()
        builder = BatchBuilder(
            codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        for value in values:
            builder.add(now_ms, key_of(value) if partition.compacted else None, value)
        batch = bytes(builder.build())
        for attempt in range(6):
            answer = await _send_once(world, client, topic, partition, batch, values, now_ms)
            if answer is not None and answer not in UNKNOWN_OUTCOME:
                # Out of order after a lost answer says nothing of the batch that was sent before.
                if answer is not ErrorCode.none and attempt:
                    for value in values:
                        partition.refused.pop(value, None)
                    partition.unknown.update(values)
                break
            await asyncio.sleep(0.3)
        else:
            return
        if answer is not ErrorCode.none:
            return
        sequence += len(values)
    client.close()


async def send_one(world: SimWorld, topic: TopicModel, partition: PartitionModel) -> None:
    """Produce one record."""
    await send(world, topic, partition, [values_of(world, 1, 10)], CompressionType.NONE)
