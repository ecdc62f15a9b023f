"""Consume, transform, produce: workers that take records of one partition to another, each exactly once.

X1  of each input one output is committed, and the group's committed offset says how far that is
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Final

from kio.schema.errors import ErrorCode

from simulator.client import EARLIEST, Client, NoAnswer
from simulator.cluster import client as clients
from simulator.cluster.group_acts import ensure_internal_topic
from simulator.cluster.group_clients import GROUP, fetch, find_coordinator
from simulator.cluster.groups import OFFSETS, ClusterGroup
from simulator.cluster.replicas import Key
from simulator.cluster.stable_reads import read_stable
from simulator.cluster.transaction_client import TRANSACTION, Standing, TransactionalProducer
from simulator.cluster.transaction_log import STATE
from simulator.cluster.transactional import TransactionalWorld
from simulator.model import PartitionModel, TopicModel, Violation

_TIMEOUT_S: Final = 5.0
_TRIES: Final = 20
_PAUSE_S: Final = 0.2


@dataclass
class Pipeline:
    """One group that reads one partition, and writes what it makes of that to another."""

    name: str
    source: tuple[TopicModel, PartitionModel]
    target: tuple[TopicModel, PartitionModel]
    group: ClusterGroup
    shown: dict[int, bytes] = field(default_factory=dict)
    """inputs that workers were shown, by offset"""
    made: dict[bytes, int] = field(default_factory=dict)
    """offset of the input of each output"""
    workers: int = 0

    @property
    def keys(self) -> tuple[Key, Key]:
        """Partitions that are read and written."""
        (source, one), (target, other) = self.source, self.target
        return (source.topic_id, one.index), (target.topic_id, other.index)

    @property
    def is_gone(self) -> bool:
        """Return whether one of its topics is deleted, or may be."""
        return self.source[0].deleted or self.target[0].deleted


async def consume_transform(world: TransactionalWorld, random: Random) -> None:
    """Let a worker take some batches from its partition to the other; often there is one already."""
    there = list(world.partitions())
    if len(there) < 2 or not (world.has_transactions and world.has_offsets):
        return
    known = [one for one in world.pipelines if not one.is_gone]
    if known and random.random() < 0.8:
        one = random.choice(known)
    else:
        source, target = random.sample(there, 2)
        name = f"p{len(world.pipelines)}"
        one = Pipeline(name, source, target, ClusterGroup(name, source[0].name))
        world.pipelines.append(one)
    await ensure_internal_topic(world, random, STATE, TRANSACTION)
    await ensure_internal_topic(world, random, OFFSETS, GROUP)
    own = Random(random.getrandbits(48))
    world.spawn(_work(world, own, one, own.choice((2, 4, 8))))
    if random.random() < 0.7:
        await asyncio.sleep(random.random() * 0.5)
    else:
        await world.settle()


async def _work(world: TransactionalWorld, random: Random, one: Pipeline, count: int) -> None:
    is_second = world.has_second and random.random() < 0.6
    producer = TransactionalProducer(world, random, one.name, is_second=is_second, timeout_s=_TIMEOUT_S)
    one.workers += 1
    producer.is_busy = True  # for good: nobody else is to use it
    if not await producer.init():
        return
    at: int | None = None
    for _ in range(count):
        if one.is_gone:
            return
        if at is None:
            at = await committed_offset(world, random, one)
        if at is None or producer.standing is Standing.ENDED:
            return
        at = await _batch(world, random, one, producer, at)
        if random.random() < 0.2:
            await asyncio.sleep(random.random())
        if producer.standing is Standing.NEW or producer.standing is Standing.MUST_ABORT:
            return


async def _batch(
    world: TransactionalWorld, random: Random, one: Pipeline, producer: TransactionalProducer, at: int
) -> int | None:
    """Take one batch over; return where to go on, None where the group has to be asked."""
    topic, partition = one.source
    host = await clients.find_leader(world, random, topic.topic_id, partition.index)
    if host is None:
        await asyncio.sleep(_PAUSE_S)
        return at
    client = Client(world.machine(host).address)
    try:
        name = f"{partition} for {one.name}"
        found = await read_stable(world, client, one.keys[0], name, at, max_bytes=random.choice((300, 2000)))
    except NoAnswer:
        return at
    finally:
        client.close()
    if found.error is ErrorCode.offset_out_of_range:
        return await _begin_of(world, random, one, at)
    if found.error is not ErrorCode.none or found.next_offset <= at:
        await asyncio.sleep(_PAUSE_S)
        return at
    shown = {record.offset: record.value for record in found.shown()}
    if one.is_gone or not await producer.begin():
        return None
    outputs = clients.values_of(world, len(shown), 10)
    one.shown.update(shown)
    one.made.update(zip(outputs, shown, strict=True))
    if outputs:
        await producer.send(*one.target, outputs)
    if producer.standing is Standing.READY:
        await producer.send_offsets(one.group, topic, {partition.index: found.next_offset})
    is_done = await producer.end(commit=True) and producer.is_committed
    return found.next_offset if is_done else None


async def _begin_of(world: TransactionalWorld, random: Random, one: Pipeline, at: int) -> int | None:
    topic, partition = one.source
    host = await clients.find_leader(world, random, topic.topic_id, partition.index)
    if host is None:
        return None
    client = Client(world.machine(host).address)
    try:
        error, start, _ = await client.offset(topic.name, partition.index, EARLIEST)
    except NoAnswer:
        return None
    finally:
        client.close()
    return start if error is ErrorCode.none and start > at else None


async def committed_offset(world: TransactionalWorld, random: Random, one: Pipeline) -> int | None:
    """Return the group's stable committed offset, 0 where there is none; None where nobody says."""
    topic, partition = one.source
    one.group.of(partition.index)
    for _ in range(_TRIES):
        machine = await find_coordinator(world, random, GROUP, one.name)
        if machine is not None and not one.is_gone:
            try:
                found = await fetch(world, one.group, topic, machine, stable=True)
            except NoAnswer:
                continue
            if not isinstance(found, ErrorCode):
                return max(found[partition.index], 0)
        await asyncio.sleep(_PAUSE_S)
    return None


async def examine_pipeline(world: TransactionalWorld, random: Random, one: Pipeline) -> str:
    """X1, at rest: each input below the committed offset was taken over once. Raises `Violation`."""
    shaken = world.oracle.replicas.shaken
    of_offsets = world.internal(OFFSETS, one.group.partition)
    if one.is_gone or any(key in shaken for key in (*one.keys, of_offsets)):
        return ""
    if world.transactions.is_excused(one.name):
        return ""
    end = await committed_offset(world, random, one)
    if end is None:
        return f"nobody says what {one.name} has committed"
    replay = world.transactions.replays.get(one.keys[1])
    outputs = [] if replay is None else [value for _, value in replay.shown(0, replay.end)]
    done = [one.made[value] for value in outputs if value in one.made]
    twice = sorted(at for at in {*done} if done.count(at) > 1)
    beyond = sorted(at for at in done if at >= end)
    missing = sorted(at for at in one.shown if at < end and at not in done)
    if twice or beyond or missing:
        raise Violation(
            f"X1: {one.name} has committed {end} of {one.source[1]}: taken over twice {twice[:5]}, "
            f"never {missing[:5]}, beyond that {beyond[:5]}"
        )
    return ""
