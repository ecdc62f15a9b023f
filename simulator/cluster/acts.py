"""What can happen to a cluster: what clients ask of its nodes, what befalls processes, disks and links.

An act is a kind and a seed, as in `simulator.acts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from simulator.acts import Act
from simulator.client import Client, NoAnswer
from simulator.cluster import client as clients
from simulator.cluster.examining import examine_all
from simulator.cluster.world import CLIENT, ClusterWorld, is_ready
from simulator.faults import DISK_KINDS, FULL, SLOW_FSYNC, SLOW_METADATA
from simulator.machine import Machine, State
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.platter import Loss

NOBODY: Final = UUID(int=0)
_DISK: Final = (*(kind for kind in DISK_KINDS if kind != FULL), SLOW_FSYNC, SLOW_METADATA)
_LOSSES: Final = (Loss.ALL, Loss.LATEST, Loss.ANY, Loss.HOLES, Loss.NONE)
_KEYS: Final = (
    ("segment.bytes", ("1048576", "2097152", None)),
    ("max.message.bytes", ("100000", "200000", None)),
    ("retention.bytes", ("100000000", None)),
)


async def perform(world: ClusterWorld, act: Act) -> None:
    """Do it. Raises `Violation`."""
    await ACTS[act.kind](world, Random(act.seed))


# What clients ask


async def create_topic(world: ClusterWorld, random: Random) -> None:
    if sum(not topic.deleted for topic in world.topics) >= 8:
        return
    name, flushed = f"t{len(world.topics)}", random.random() < 0.5
    topic = TopicModel(name, NOBODY, [], False, flushed, -1, deleted=True)
    world.topics.append(topic)  # the name may be taken from now on
    machine, count = random.choice(world.machines), random.randint(1, 3)
    factor, least = random.choice((1, 2, 3, 3, 3)), random.choice((1, 2, 2))
    await _maybe_in_background(world, random, _create(world, machine, topic, count, factor, least))


async def _create(
    world: ClusterWorld, machine: Machine, topic: TopicModel, count: int, factor: int, least: int
) -> None:
    client = Client(machine.address)
    configs = {"flush.messages": "1"} if topic.flushed else {}
    configs["min.insync.replicas"] = str(least)
    before, calm = world.oracle.end, world.is_calm
    try:
        error, topic_id = await client.create_topic(topic.name, count, configs, factor)
    except NoAnswer:
        error, topic_id = ErrorCode.request_timed_out, None
    finally:
        client.close()
    world.tell(
        f"create {topic.name} by {machine.name}: {count} partitions on {factor} of which {least} in sync: "
        f"{error.name}"
    )
    if error is not ErrorCode.none or topic_id is None:
        return
    world.answered += 1
    offset = world.oracle.created.get(topic_id)
    if offset is None:
        raise Violation(f"A1: {machine.name} says that {topic.name} is made, and nothing is committed of it")
    if offset < before:
        raise Violation(f"A2: {topic.name} was made at {offset}, and asked for when {before} was committed")
    topic.topic_id, topic.deleted = topic_id, False
    topic.partitions = [PartitionModel(topic.name, index, is_replicated=True) for index in range(count)]
    _is_known(world, machine, calm, offset, f"{topic.name} is made")


def _is_known(world: ClusterWorld, machine: Machine, calm: bool, offset: int, what: str) -> None:
    """A3: who says that something is done knows it, where nothing was wrong meanwhile."""
    if not (calm and world.is_calm):
        return
    assert machine.run is not None
    assert machine.run.node is not None
    assert machine.run.node.metadata is not None
    known = machine.run.node.metadata.image.offset
    if known < offset:
        raise Violation(
            f"A3: {machine.run.name} says that {what}, at {offset}, and knows what is up to {known}"
        )


async def delete_topic(world: ClusterWorld, random: Random) -> None:
    there = [topic for topic in world.topics if not topic.deleted]
    if len(there) < 2:
        return
    topic, machine = random.choice(there), random.choice(world.machines)
    await world.settle()
    topic.deleted = True
    await _maybe_in_background(world, random, _delete(world, machine, topic))


async def _delete(world: ClusterWorld, machine: Machine, topic: TopicModel) -> None:
    client, calm = Client(machine.address), world.is_calm
    try:
        error = await client.delete_topic(topic.topic_id)
    except NoAnswer:
        error = ErrorCode.request_timed_out
    finally:
        client.close()
    world.tell(f"delete {topic.name} by {machine.name}: {error.name}")
    if error is ErrorCode.none:
        world.answered += 1
        world.gone.add(topic.topic_id)
        if topic.topic_id not in world.oracle.removed:
            raise Violation(
                f"A1: {machine.name} says that {topic.name} is gone, and nothing is committed of it"
            )
        _is_known(world, machine, calm, world.oracle.removed[topic.topic_id], f"{topic.name} is gone")


async def alter_topic(world: ClusterWorld, random: Random) -> None:
    """One setting of a topic, one at a time: what it is in the end is known."""
    there = [topic for topic in world.topics if not topic.deleted]
    if not there:
        return
    topic, machine = random.choice(there), random.choice(world.machines)
    key, values = random.choice(_KEYS)
    await world.settle()
    await _maybe_in_background(world, random, _alter(world, machine, topic, key, random.choice(values)))


async def _alter(
    world: ClusterWorld, machine: Machine, topic: TopicModel, key: str, value: str | None
) -> None:
    client, calm = Client(machine.address), world.is_calm
    before = world.oracle.end
    try:
        error = await client.alter_config(2, topic.name, {key: value})
    except NoAnswer:
        error = ErrorCode.request_timed_out
    finally:
        client.close()
    world.tell(f"alter {topic.name} by {machine.name}: {key}={value}: {error.name}")
    known = world.configs.get((topic.name, key), (None,))
    if error is not ErrorCode.none:
        world.configs[topic.name, key] = tuple(dict.fromkeys((*known, value)))
        return
    world.answered += 1
    said = world.oracle.configs.get((2, topic.name, key), [])
    if value not in known and not any(offset >= before and v == value for offset, v in said):
        raise Violation(
            f"A1: {machine.name} says that {key} of {topic.name} is {value}: nothing is committed"
        )
    offsets = [offset for offset, v in said if offset >= before and v == value]
    if offsets:
        _is_known(world, machine, calm, offsets[0], f"{key} of {topic.name} is {value}")
    # A change that nobody answered may still come behind this one.
    world.configs[topic.name, key] = (value,) if len(known) == 1 else tuple(dict.fromkeys((*known, value)))


async def produce(world: ClusterWorld, random: Random) -> None:
    await _produce(world, random, idempotent=False)


async def produce_idempotent(world: ClusterWorld, random: Random) -> None:
    await _produce(world, random, idempotent=True)


async def _produce(world: ClusterWorld, random: Random, *, idempotent: bool) -> None:
    there = list(world.partitions())
    if not there:
        return
    topic, partition = random.choice(there)
    batches = [
        clients.values_of(world, random.choice((1, 2, 7)), random.choice((10, 90)))
        for _ in range(random.choice((1, 2, 5)))
    ]
    own = Random(random.getrandbits(48))
    acks = 1 if not idempotent and random.random() < 0.3 else clients.ALL
    work = clients.produce(world, own, topic, partition, batches, idempotent=idempotent, acks=acks)
    await _maybe_in_background(world, random, work)


async def stream(world: ClusterWorld, random: Random) -> None:
    """Many batches, one after the other, to each of some partitions, while other things go on."""
    there = list(world.partitions())
    for topic, partition in random.sample(there, min(len(there), 2)):
        own, idempotent = Random(random.getrandbits(48)), random.random() < 0.5
        batches = [clients.values_of(world, own.choice((1, 2, 7)), 10) for _ in range(own.choice((5, 20)))]
        acks = 1 if not idempotent and random.random() < 0.3 else clients.ALL
        world.spawn(
            clients.produce(
                world, own, topic, partition, batches, idempotent=idempotent, acks=acks, pause_s=0.2
            )
        )
    await asyncio.sleep(random.choice((0.0, 0.3, 1.0)))


async def consume(world: ClusterWorld, random: Random) -> None:
    there = list(world.partitions())
    if there:
        own = Random(random.getrandbits(48))
        await _maybe_in_background(
            world, random, clients.consume(world, own, *random.choice(there), random.choice((2, 5, 12)))
        )


async def elect(world: ClusterWorld, random: Random) -> None:
    """`kafka-leader-election --election-type preferred`, of several."""
    there = list(world.partitions())
    for topic, partition in random.sample(there, min(len(there), 3)):
        client = Client(random.choice(world.machines).address)
        await _maybe_in_background(world, random, _elect(world, client, topic, partition))


async def _elect(world: ClusterWorld, client: Client, topic: TopicModel, partition: PartitionModel) -> None:
    try:
        said = (await client.elect(topic.name, partition.index)).name
    except NoAnswer as e:
        said = str(e)
    finally:
        client.close()
    world.tell(f"elect {partition} by {client.address[0]}: {said}")


async def reassign(world: ClusterWorld, random: Random) -> None:
    """Other replicas, more or fewer, or in another order; now and then it is given up."""
    there = list(world.partitions())
    if not there:
        return
    topic, partition = random.choice(there)
    numbers = random.sample(range(1, len(world.machines) + 1), random.choice((1, 2, 3, 3)))
    target = None if random.random() < 0.2 else numbers
    client = Client(random.choice(world.machines).address)
    await _maybe_in_background(world, random, _reassign(world, client, topic, partition, target))


async def _reassign(
    world: ClusterWorld,
    client: Client,
    topic: TopicModel,
    partition: PartitionModel,
    target: list[int] | None,
) -> None:
    try:
        said = (await client.reassign(topic.name, partition.index, target)).name
    except NoAnswer as e:
        said = str(e)
    finally:
        client.close()
    world.tell(f"{partition} is to be on {target}, by {client.address[0]}: {said}")


async def _maybe_in_background(world: ClusterWorld, random: Random, work: Awaitable[None]) -> None:
    world.spawn(work)  # type: ignore[arg-type]
    if random.random() < 0.6:
        await asyncio.sleep(random.random() * 0.1)
    else:
        await world.settle()


async def examine(world: ClusterWorld, random: Random) -> None:
    await examine_all(world, Random(random.getrandbits(48)))


async def wait(world: ClusterWorld, random: Random) -> None:
    seconds = random.choice((0.05, 0.6, 3.0, 10.0))
    world.tell(f"{seconds} s go by")
    await asyncio.sleep(seconds)


# Processes


def _somebody(world: ClusterWorld, random: Random) -> Machine:
    """The active controller more often than by chance."""
    leaders = [
        one for one in world.alive
        if one.run and one.run.node and one.run.node.metadata and one.run.node.metadata.quorum.is_leader
    ]  # fmt: skip
    return random.choice(leaders) if leaders and random.random() < 0.4 else random.choice(world.machines)


async def kill(world: ClusterWorld, random: Random) -> None:
    """One node, now and then two or all; they come back soon, or when `start` comes."""
    count = random.choice((1, 1, 1, 1, 2, len(world.machines)))
    chosen = {_somebody(world, random).name for _ in range(count)}
    if count == len(world.machines):
        chosen = {one.name for one in world.machines}
    for name in sorted(chosen):
        if not _is_down(world.machine(name)):
            world.kill(world.machine(name))
            await asyncio.sleep(random.random() * 0.02)
    if random.random() < 0.6:
        await asyncio.sleep(random.choice((0.0, 0.1, 1.0, 4.0)))
        for name in sorted(chosen):
            await _again(world, random, world.machine(name))


async def start(world: ClusterWorld, random: Random) -> None:
    """Whoever is down."""
    for machine in world.machines:
        if _is_down(machine):
            await _again(world, random, machine)


async def _again(world: ClusterWorld, random: Random, machine: Machine) -> None:
    world.ended_for_reasons()
    if not _is_down(machine):
        return
    if world.dark(machine.name):
        world.network.heal(world.links_of(machine.name))
        world.darkness.discard(machine.name)
    world.tell(f"start {machine.name}")
    world.start(machine)
    if random.random() < 0.5:
        await world.until_ready(machine, random.choice((0.1, 2.0, 10.0)))


def _is_down(machine: Machine) -> bool:
    return machine.run is None or machine.run.ended


async def stop(world: ClusterWorld, random: Random) -> None:
    machine = _somebody(world, random)
    if machine.run is None or machine.run.state is not State.READY:
        return
    await world.stop(machine)
    world.ended_for_reasons()
    if random.random() < 0.7:
        await _again(world, random, machine)


async def lose_power(world: ClusterWorld, random: Random) -> None:
    machine = _somebody(world, random)
    if _is_down(machine):
        return
    await asyncio.sleep(0.05)
    await world.lose_power(machine, random.choice(_LOSSES))
    if random.random() < 0.6:
        await asyncio.sleep(random.choice((0.1, 2.0, 12.0)))
        await _again(world, random, machine)


async def pause(world: ClusterWorld, random: Random) -> None:
    machine = _somebody(world, random)
    run = machine.run
    if run is None or run.ended:
        return
    seconds = random.choice((0.5, 3.0, 12.0))
    world.tell(f"SIGSTOP {machine.name} for {seconds} s")
    world.disturbed()
    run.process.stop()
    await asyncio.sleep(seconds)
    run.process.resume()
    world.disturbed()


async def jump_clock(world: ClusterWorld, random: Random) -> None:
    machine, seconds = random.choice(world.machines), random.choice((-3600, -30, -5, 5))
    world.tell(f"the wall clock of {machine.name} jumps by {seconds} s")
    machine.clock.ahead_ms += seconds * 1000


# Links


async def partition(world: ClusterWorld, random: Random) -> None:
    """A node is cut off, in both directions or one, or from one other alone."""
    machine, names = _somebody(world, random), [one.name for one in world.machines]
    others = [name for name in names if name != machine.name]
    how = random.choice(("whole", "with the clients", "deaf", "mute", "one link", "one way"))
    one = random.choice(others)
    links = {
        "whole": {(machine.name, o) for o in others} | {(o, machine.name) for o in others},
        "with the clients": world.links_of(machine.name),
        "deaf": {(o, machine.name) for o in others},
        "mute": {(machine.name, o) for o in others},
        "one link": {(machine.name, one), (one, machine.name)},
        "one way": {(machine.name, one)},
    }[how]
    world.tell(f"{machine.name} is cut off: {how}, {one}")
    world.disturbed()
    world.network.links.cut |= links
    if random.random() < 0.5:
        await asyncio.sleep(random.choice((0.3, 2.0, 5.0, 15.0)))
        heal_now(world)


async def heal(world: ClusterWorld, random: Random) -> None:
    heal_now(world)


def heal_now(world: ClusterWorld) -> None:
    """All links, but those of machines without power."""
    dark = {link for name in world.darkness for link in world.links_of(name)}
    if world.network.links.cut - dark or world.network.links.slow_s:
        world.disturbed()
        world.tell("the network is whole")
        world.network.links.slow_s.clear()
        world.network.heal(world.network.links.cut - dark)


async def reset_connections(world: ClusterWorld, random: Random) -> None:
    names = [one.name for one in world.machines] + [CLIENT]
    one, other = random.sample(names, 2)
    world.disturbed()
    world.tell(f"{world.network.reset(one, other)} connections of {one} and {other} are reset")


async def slow_links(world: ClusterWorld, random: Random) -> None:
    machine, slow_s = _somebody(world, random), random.choice((0.05, 0.3, 1.0, 3.0))
    world.disturbed()
    links = world.links_of(machine.name)
    world.network.links.slow_s.update(dict.fromkeys(sorted(links), slow_s))
    world.tell(f"the links of {machine.name} are slow, up to {slow_s} s")


# Disks


async def disk_faults(world: ClusterWorld, random: Random) -> None:
    machine, kind = random.choice(world.machines), random.choice(_DISK)
    world.troubled.add(machine.name)
    world.disturbed()
    faults = world.faults[machine.name]
    faults.on ^= {kind}
    world.tell(f"{machine.name}: {'now' if kind in faults.on else 'no more'} {kind}")


async def disk_heals(world: ClusterWorld, random: Random) -> None:
    for name, faults in world.faults.items():
        if faults.on:
            faults.on.clear()
            world.tell(f"the disk of {name} works")


ACTS: Final[dict[str, Callable[[ClusterWorld, Random], Awaitable[None]]]] = {
    one.__name__: one
    for one in (
        create_topic, delete_topic, alter_topic, produce, produce_idempotent, stream, consume, elect,
        reassign, examine, wait, kill, start, stop, lose_power, pause, jump_clock, partition, heal,
        reset_connections, slow_links, disk_faults, disk_heals,
    )
}  # fmt: skip

__all__ = ["ACTS", "Act", "is_ready", "perform"]
