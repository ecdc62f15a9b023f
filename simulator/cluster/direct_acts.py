"""Transactions without a coordinator: batches and markers are appended at their leader by a call.

A history with these acts decides by itself how its transactions end. It asks more of logs, of reads and of
the bucket than clients do: many spans that overlap, markers without data, coordinator epochs that rise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.hot.markers import Marker
from service.hot.verification import VERIFICATION_OFF
from service.partition.partition import Partition
from service.records.batch import read_header
from service.records.builder import BatchBuilder
from service.records.validation import ValidatedBatch
from simulator.cluster.client import values_of
from simulator.cluster.direct_producers import DirectProducer
from simulator.cluster.replicas import Key
from simulator.cluster.transactional import TransactionalWorld
from simulator.machine import Machine
from simulator.model import PartitionModel, TopicModel, Violation

_REFUSALS: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_enough_replicas,
        ErrorCode.kafka_storage_error,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.transaction_coordinator_fenced,
    }
)


async def append_directly(world: TransactionalWorld, random: Random) -> None:
    """Append some batches and markers of several producers to one partition, with pauses."""
    there = list(world.partitions())
    world.end_direct = partial(end_all, world)
    if there:
        work = appends(
            world, Random(random.getrandbits(48)), *random.choice(there), random.choice((4, 12, 30))
        )
        world.spawn(work)
        await asyncio.sleep(random.random() * 0.5)


async def appends(
    world: TransactionalWorld, random: Random, topic: TopicModel, partition: PartitionModel, count: int
) -> None:
    """Append so many batches and markers to one partition, with pauses."""
    key = topic.topic_id, partition.index
    for _ in range(count):
        found = _leader(world, key)
        if found is None or topic.deleted:
            await asyncio.sleep(0.5)
            continue
        producer = random.choice(world.direct.of(key))
        must_end = producer.is_broken or _has_older(producer, found[1])
        if must_end or random.random() < (0.45 if producer.now else 0.05):
            _end(world, random, key, producer, *found)
        else:
            _append(world, random, topic, partition, producer, *found)
        await asyncio.sleep(random.choice((0.0, 0.02, 0.3)))


def end_all(world: TransactionalWorld) -> str:
    """Abort what is open, once; return what was done."""
    world.end_direct = lambda: ""
    for key, producers in world.direct.producers.items():
        found = _leader(world, key)
        for producer in producers if found is not None else ():
            assert found is not None
            _end(world, Random(0), key, producer, *found)
    return "transactions were ended"


def _leader(world: TransactionalWorld, key: Key) -> tuple[Machine, Partition] | None:
    placed = world.oracle.replicas.placed.get(key)
    machine = None if placed is None else world.of_broker(placed.leader)
    seen = None if placed is None else world.oracle.replicas.seen.get((placed.leader, key))
    if machine is None or seen is None or machine.run is None or machine.run.name != seen.run:
        return None
    is_leader = seen.partition.is_leader and not machine.run.ended
    return (machine, seen.partition) if is_leader else None


def _has_older(producer: DirectProducer, there: Partition) -> bool:
    """Return whether the marker was cut off after which the producer has taken its epoch."""
    known = there.log.producers.get(producer.producer_id)
    return known is not None and known.txn_first_offset >= 0 and known.epoch < producer.epoch


def _append(
    world: TransactionalWorld,
    random: Random,
    topic: TopicModel,
    partition: PartitionModel,
    producer: DirectProducer,
    machine: Machine,
    there: Partition,
) -> None:
    key = topic.topic_id, partition.index
    values = values_of(world, random.choice((1, 2, 5)), 90 if topic.tiered else 10)
    builder = BatchBuilder(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=producer.sequence,
        is_transactional=True,
    )
    for value in values:
        builder.add(world.real_ms(), None, value)
    model = world.transactions.transactions
    if producer.now is None:
        producer.now = model.begin("", producer.producer_id, producer.epoch, 0)
        producer.now.asked = "commit"
    model.sends(producer.now, key, values)
    partition.sent.update(values)
    partition.unknown.update(values)

    def append() -> Any:
        data = memoryview(bytearray(builder.build()))
        batch = ValidatedBatch(data, read_header(data), world.real_ms(), 0, len(values))
        return there.append(batch, machine.clock.now_ms(), VERIFICATION_OFF)

    info = _in_process(machine, append)
    world.trace.tell("direct", f"{partition} of {producer.producer_id}/{producer.epoch}: {info}")
    if not isinstance(info, RequestError | StorageError):
        producer.sequence += len(values)
    elif isinstance(info, RequestError) and info.code is ErrorCode.out_of_order_sequence_number:
        producer.is_broken = True


def _end(
    world: TransactionalWorld,
    random: Random,
    key: Key,
    producer: DirectProducer,
    machine: Machine,
    there: Partition,
) -> None:
    if random.random() < 0.2:
        producer.coordinator_epoch += 1
    marker = Marker(
        producer.producer_id, producer.epoch, producer.coordinator_epoch, random.random() < 0.5, 1
    )
    found = _in_process(machine, lambda: there.append_markers([marker], machine.clock.now_ms()))
    world.trace.tell("direct", f"{there.tip}: {marker}: {found}")
    if not isinstance(found, list):
        return
    producer.now = None
    if producer.is_broken or random.random() < 0.2:
        producer.is_broken = False
        producer.epoch, producer.sequence = producer.epoch + 1, 0


def _in_process(machine: Machine, call: Callable[[], Any]) -> Any:
    """Call as the machine's process; return the result, or the error that it raised."""
    assert machine.run is not None

    def caught() -> Any:
        try:
            return call()
        except (RequestError, StorageError) as e:
            return e

    found = machine.run.process.run(caught)
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, RequestError) and one.code not in _REFUSALS:
            raise Violation(f"{machine.name}: an append is refused: {one.code.name}: {one}") from one
    return found


DIRECT_ACTS: Final[dict[str, Callable[[TransactionalWorld, Random], Awaitable[None]]]] = {
    one.__name__: one for one in (append_directly,)
}
