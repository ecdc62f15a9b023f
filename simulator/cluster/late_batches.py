"""Batches that come late: their transaction is aborted while its coordinator is asked about them."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from simulator.client import NoAnswer
from simulator.cluster.client import values_of
from simulator.cluster.group_acts import ensure_internal_topic
from simulator.cluster.group_clients import find_coordinator
from simulator.cluster.transaction_client import TRANSACTION, Sender, TransactionalProducer
from simulator.cluster.transaction_log import STATE
from simulator.cluster.transactional import TransactionalWorld
from simulator.machine import Machine
from simulator.model import PartitionModel, TopicModel

_TIMEOUT_S: Final = 10.0


async def late_batch(world: TransactionalWorld, random: Random) -> None:
    """Abort some transactions of version 1 while the first batch of each is under way, in the background."""
    if not world.has_transactions or not list(world.partitions()):
        return
    await ensure_internal_topic(world, random, STATE, TRANSACTION)
    own = Random(random.getrandbits(48))
    name = f"l{len(world.producers)}"
    producer = TransactionalProducer(world, own, name, is_second=False, timeout_s=_TIMEOUT_S)
    producer.is_busy = True  # for good: nobody else is to use it
    world.spawn(_abort_too_soon(world, own, producer, own.choice((3, 6))))
    await asyncio.sleep(random.random() * 0.5)


async def _abort_too_soon(
    world: TransactionalWorld, random: Random, producer: TransactionalProducer, count: int
) -> None:
    for _ in range(count):
        there = list(world.partitions())
        coordinator = await find_coordinator(world, random, TRANSACTION, producer.name)
        if coordinator is None or not there or not await producer.begin():
            return
        # A leader that is its own coordinator asks nobody else.
        asking = [one for one in there if f"n{_leader_of(world, *one)}" != coordinator.name] or there
        topic, partition = random.choice(asking)
        leader = _leader_of(world, topic, partition)
        machine = world.of_broker(leader)
        is_added = await producer.add((topic.name, partition.index))
        # What the leader asks is answered late, and the marker, on another connection, perhaps before.
        link, slow_s = (coordinator.name, f"n{leader}"), random.choice((0.1, 0.5, 2.0))
        world.network.links.slow_s[link] = slow_s
        if is_added and machine is not None:
            world.spawn(_produce(world, producer, machine, topic, partition))
            await asyncio.sleep(random.choice((0.005, 0.02, 0.1)))
            producer.give_up()
        await producer.end(commit=False)
        world.network.links.slow_s.pop(link, None)
        await asyncio.sleep(slow_s)


def _leader_of(world: TransactionalWorld, topic: TopicModel, partition: PartitionModel) -> int:
    return world.oracle.replicas.placed[topic.topic_id, partition.index].leader


async def _produce(
    world: TransactionalWorld,
    producer: TransactionalProducer,
    machine: Machine,
    topic: TopicModel,
    partition: PartitionModel,
) -> None:
    """Produce one batch at a leader, once; nothing is promised of it."""
    assert producer.now is not None
    values = values_of(world, 2, 10)
    partition.unknown.update(values)
    partition.sent.update(values)
    world.transactions.transactions.sends(producer.now, (topic.topic_id, partition.index), values)
    batch = producer.batch_of((topic.name, partition.index), values)
    client = Sender(machine, producer, topic.name)
    try:
        said = (await client.produce(topic.topic_id, partition.index, batch.data)).error.name
    except NoAnswer as e:
        said = str(e)
    finally:
        client.close()
    producer.tell(f"its late batch at {machine.name}: {said}")
