"""Acts of transactional producers: they commit, abort, die, and meet others with their id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from simulator.client import Client, NoAnswer
from simulator.cluster import client as clients
from simulator.cluster.group_acts import ensure_internal_topic
from simulator.cluster.group_clients import GROUP, commit
from simulator.cluster.groups import OFFSETS, ClusterGroup
from simulator.cluster.stable_reads import consume_stable
from simulator.cluster.transaction_client import TRANSACTION, Standing, TransactionalProducer
from simulator.cluster.transaction_log import STATE
from simulator.cluster.transactional import TransactionalWorld
from simulator.machine import Machine
from simulator.model import PartitionModel, TopicModel

_MOST_IDS: Final = 6
_TIMEOUTS_S: Final = (2.0, 5.0, 10.0)
_ABANDONED: Final = 0.1
_ABORTED: Final = 0.3
_SHARED: Final = 0.5
_BEFORE: Final = 0.2
_AFTER: Final = 0.7


async def make_internal_topics(world: TransactionalWorld, random: Random) -> None:
    """Have both internal topics made while nothing is wrong, with their settings, most of the time."""
    if random.random() < 0.8:
        await ensure_internal_topic(world, random, STATE, TRANSACTION)
        await ensure_internal_topic(world, random, OFFSETS, GROUP)


async def transact(world: TransactionalWorld, random: Random) -> None:
    """Run some transactions of one id, in the background or not."""
    if not world.has_transactions:
        return
    found = await free_producer(world, random)
    if found is None:
        return
    world.spawn(_transactions(world, Random(random.getrandbits(48)), found, random.choice((1, 2, 5))))
    await _go_on(world, random)


async def zombie(world: TransactionalWorld, random: Random) -> None:
    """Start a second client with the id of one that works, or has ended, or will not hear of it."""
    there = [one for one in world.producers if one.standing is not Standing.ENDED and one.name[0] == "x"]
    if not there:
        return await transact(world, random)
    other = random.choice(there)
    if random.random() < 0.5 and not other.is_busy:  # so that it has something to go on with
        world.spawn(_transactions(world, Random(random.getrandbits(48)), other, 3))
        await asyncio.sleep(random.random() * 0.3)
    new = _new_producer(world, random, other.name)
    world.spawn(_transactions(world, Random(random.getrandbits(48)), new, 2))
    await _go_on(world, random)
    return None


async def kill_between(world: TransactionalWorld, random: Random) -> None:
    """Kill a coordinator or a leader after some turns of the loop, while transactions run."""
    if not world.has_transactions:
        return
    found = await free_producer(world, random)
    machine = _somebody(world, random, found)
    if found is None or machine is None:
        return
    own = Random(random.getrandbits(48))
    world.kills.append((world.turns + own.choice((20, 60, 150, 400, 1000)) + own.randrange(60), machine))
    world.kills.sort(key=lambda one: one[0])
    world.tell(f"{machine.name} is to be killed while {found} works")
    world.spawn(_transactions(world, own, found, own.choice((2, 5))))
    await asyncio.sleep(own.choice((0.3, 1.0, 3.0)))
    if machine.run is not None and machine.run.ended and own.random() < 0.7:
        world.tell(f"start {machine.name}")
        world.start(machine)


async def elect_coordinator(world: TransactionalWorld, random: Random) -> None:
    """Have another replica lead a partition of an internal topic."""
    name = random.choice((STATE, STATE, OFFSETS))
    keys = [key for key in world.oracle.replicas.placed if key[0] == world.oracle.names.get(name)]
    if not keys:
        return
    key = random.choice(sorted(keys, key=lambda one: one[1]))
    replicas = list(world.oracle.replicas.placed[key].replicas)
    random.shuffle(replicas)
    client = Client(random.choice(world.machines).address)
    try:
        moved = await client.reassign(name, key[1], replicas)
        elected = await client.elect(name, key[1])
        world.tell(f"{name}-{key[1]} is to be on {replicas}: {moved.name}, {elected.name}")
    except NoAnswer as e:
        world.tell(f"{name}-{key[1]} is to be on {replicas}: {e}")
    finally:
        client.close()


async def read_committed(world: TransactionalWorld, random: Random) -> None:
    """Consume at isolation 1 from leaders and followers."""
    there = list(world.partitions())
    for topic, partition in random.sample(there, min(len(there), 2)):
        own = Random(random.getrandbits(48))
        world.spawn(consume_stable(world, own, topic, partition, own.choice((2, 5, 10))))
    await _go_on(world, random)


async def free_producer(world: TransactionalWorld, random: Random) -> TransactionalProducer | None:
    """Return a producer without a transaction, a new one or not; None without a topic."""
    if not [topic for topic in world.topics if not topic.deleted]:
        return None
    await ensure_internal_topic(world, random, STATE, TRANSACTION)
    free = [one for one in world.producers if not one.is_busy and one.standing is not Standing.ENDED]
    if free and random.random() < 0.7:
        return random.choice(free)
    names = {one.name for one in world.producers}
    name = f"x{len(names)}" if len(names) < _MOST_IDS else f"x{random.randrange(_MOST_IDS)}"
    return _new_producer(world, random, name)


def _new_producer(world: TransactionalWorld, random: Random, name: str) -> TransactionalProducer:
    is_second = world.has_second and random.random() < 0.6
    return TransactionalProducer(
        world, Random(random.getrandbits(48)), name, is_second=is_second, timeout_s=random.choice(_TIMEOUTS_S)
    )


def _somebody(
    world: TransactionalWorld, random: Random, producer: TransactionalProducer | None
) -> Machine | None:
    """Return the machine of the producer's coordinator, of a group's, or of any leader."""
    placed = world.oracle.replicas.placed
    of_state = [one.leader for key, one in placed.items() if key[0] == world.oracle.names.get(STATE)]
    of_offsets = [one.leader for key, one in placed.items() if key[0] == world.oracle.names.get(OFFSETS)]
    chosen = random.choice((of_state, of_state, of_offsets, [one.leader for one in placed.values()]))
    return world.of_broker(random.choice(chosen)) if chosen else None


async def _transactions(
    world: TransactionalWorld, random: Random, producer: TransactionalProducer, count: int
) -> None:
    if producer.is_busy:
        return
    producer.is_busy = True
    try:
        for _ in range(count):
            if producer.standing is Standing.ENDED or not await producer.begin():
                return
            await _one(world, random, producer)
            if random.random() < 0.3:
                await asyncio.sleep(random.random() * 0.3)
    finally:
        producer.is_busy = False


async def _one(world: TransactionalWorld, random: Random, producer: TransactionalProducer) -> None:
    """Run one transaction to its end; or leave it, and the producer, to the coordinator's timeout."""
    steps = random.choice((1, 2, 3, 6))
    for _ in range(steps):
        if producer.standing is not Standing.READY:
            break
        await step(world, random, producer)
        if random.random() < 0.1:
            await asyncio.sleep(random.choice((0.2, 1.0, 4.0)))
    chance = random.random()
    if chance < _ABANDONED:
        producer.tell("is seen no more")
        producer.standing = Standing.ENDED
    await producer.end(commit=chance > _ABORTED)


async def step(world: TransactionalWorld, random: Random, producer: TransactionalProducer) -> None:
    """Produce a batch, or commit offsets, in the producer's transaction."""
    there: list[tuple[TopicModel, PartitionModel]] = list(world.partitions())
    if not there:
        return
    topic, partition = random.choice(there)
    if world.has_offsets and random.random() < 0.25:
        await ensure_internal_topic(world, random, OFFSETS, GROUP)
        await _offsets(world, random, producer, topic)
        return
    values = clients.values_of(world, random.choice((1, 2, 5)), 90 if topic.tiered else 10)
    await producer.send(topic, partition, values)


async def _offsets(
    world: TransactionalWorld, random: Random, producer: TransactionalProducer, topic: TopicModel
) -> None:
    """Send an offset of the producer's own group, or of one that others commit for, too, which X10 judges."""
    is_shared = random.random() < _SHARED
    group = ClusterGroup(f"all-{topic.name}", topic.name) if is_shared else _group_of(world, producer, topic)
    named = next((one for one in world.topics if one.name == group.topic and not one.deleted), None)
    if named is None:
        return
    index = random.randrange(len(named.partitions))
    if is_shared and random.random() < _BEFORE:
        await commit(world, random, group, named, [index])
    if not await producer.send_offsets(group, named, {index: world.new_number()}):
        return
    if is_shared and random.random() < _AFTER:
        await commit(world, random, group, named, [index])


def _group_of(world: TransactionalWorld, producer: TransactionalProducer, topic: TopicModel) -> ClusterGroup:
    name = f"of-{producer.name}"
    found = next((one for one in world.groups if one.group_id == name), None)
    if found is None:
        found = ClusterGroup(name, topic.name, is_transactional=True)
        world.groups.append(found)
    return found


async def _go_on(world: TransactionalWorld, random: Random) -> None:
    if random.random() < 0.7:
        await asyncio.sleep(random.random() * 0.5)
    else:
        await world.settle()


TRANSACTION_ACTS: Final[dict[str, Callable[[TransactionalWorld, Random], Awaitable[None]]]] = {
    one.__name__: one
    for one in (make_internal_topics, transact, zombie, kill_between, elect_coordinator, read_committed)
}
