"""Acts of a history of a cluster: requests of clients, and faults of processes, disks and links.

An act is a kind and a seed, as in `simulator.acts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

from kio.schema.errors import ErrorCode

from simulator.client import Client, NoAnswer
from simulator.cluster import client as clients
from simulator.cluster import death_acts, refusal_acts, room_acts, store_acts, tier_acts
from simulator.cluster import process_acts as processes
from simulator.cluster.examining import examine_all
from simulator.cluster.process_acts import somebody
from simulator.cluster.world import CLIENT, ClusterWorld
from simulator.faults import DISK_KINDS, FULL, SLOW_FSYNC, SLOW_METADATA
from simulator.machine import Machine
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.topics import NOBODY, configs_of, retention_ms_of

_DISK: Final = (*(kind for kind in DISK_KINDS if kind != FULL), SLOW_FSYNC, SLOW_METADATA)
KINDS: Final = ("plain", "plain", "flushed", "flushed", "expiring")
TIERED_KINDS: Final = (
    *("tiered", "tiered and flushed") * 3,
    *("tiered and expiring", "tiered and expiring and flushed"),
)
UNCLEAN: Final = "unclean.leader.election.enable"
_KEYS: Final = (
    ("segment.bytes", ("1048576", "2097152", None)),
    ("max.message.bytes", ("100000", "200000", None)),
    ("retention.bytes", ("100000000", None)),
    ("internal.segment.bytes", ("600", "2500", "9000")),
)
_TIERED_KEYS: Final = (
    ("local.retention.bytes", ("1", "2000", "8000")),
    ("local.retention.ms", ("1", "5000", "-2")),
)


# What clients ask


async def create_topic(world: ClusterWorld, random: Random) -> None:
    if sum(not topic.deleted for topic in world.topics) >= 8:
        return
    others = KINDS if world.topics or not world.tiered else ()
    name, kind = f"t{len(world.topics)}", random.choice((*others, *(TIERED_KINDS if world.tiered else ())))
    retention_ms = retention_ms_of(kind)
    topic = TopicModel(name, NOBODY, [], "tiered" in kind, "flushed" in kind, retention_ms, deleted=True)
    world.topics.append(topic)  # the name may be taken from now on
    machine, count = random.choice(world.machines), random.randint(1, 3)
    factor, least = random.choice((1, 2, 3, 3, 3)), random.choice((1, 2, 2))
    configs = {**configs_of(random, kind), "min.insync.replicas": str(least)}
    if "tiered" not in kind and random.random() < 0.2:
        configs[UNCLEAN] = "true"
    await _maybe_in_background(world, random, create(world, machine, topic, count, factor, configs))


async def create(
    world: ClusterWorld,
    machine: Machine,
    topic: TopicModel,
    count: int,
    factor: int,
    configs: dict[str, str],
    brokers: Sequence[int] = (),
) -> None:
    client = Client(machine.address)
    before, calm = world.oracle.end, world.is_calm
    try:
        error, topic_id = await client.create_topic(topic.name, count, configs, factor, brokers=brokers)
    except NoAnswer:
        error, topic_id = ErrorCode.request_timed_out, None
    finally:
        client.close()
    said = ", ".join(f"{key}={value}" for key, value in configs.items())
    world.tell(f"create {topic.name} by {machine.name}: {count} on {factor}: {said}: {error.name}")
    if error is not ErrorCode.none or topic_id is None:
        return
    world.answered += 1
    offset = world.oracle.created.get(topic_id)
    if offset is None:
        raise Violation(f"A1: {machine.name} says that {topic.name} is made, and nothing is committed of it")
    if offset < before:
        raise Violation(f"A2: {topic.name} was made at {offset}, and asked for when {before} was committed")
    topic.topic_id, topic.deleted = topic_id, False
    world.configs.update({(topic.name, key): (value,) for key, value in configs.items()})
    topic.partitions = [
        PartitionModel(topic.name, index, is_replicated=True, allows_unclean=UNCLEAN in configs)
        for index in range(count)
    ]
    world.made(topic)
    world.is_known(machine, calm, offset, f"{topic.name} is made")


async def refuse_objects(world: ClusterWorld, random: Random) -> None:
    """Create two topics, one with all its partitions at one node; the store refuses that one's objects."""
    if sum(not topic.deleted for topic in world.topics) >= 6:
        return
    if not await refusal_acts.is_at_peace(world, random):
        return
    node, other = random.sample(range(1, len(world.machines) + 1), 2)
    made = []
    for brokers in ([node] * refusal_acts.PARTITIONS, [node, other]):
        topic = TopicModel(f"t{len(world.topics)}", NOBODY, [], True, False, -1, deleted=True)
        world.topics.append(topic)
        configs = dict(refusal_acts.CONFIGS)
        await create(world, world.machines[node - 1], topic, len(brokers), 1, configs, brokers)
        made.append(topic)
    if not any(topic.deleted for topic in made):
        await asyncio.sleep(1.0)
        await refusal_acts.refuse(world, random, *made)


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
        world.is_known(machine, calm, world.oracle.removed[topic.topic_id], f"{topic.name} is gone")


async def alter_topic(world: ClusterWorld, random: Random) -> None:
    """Change one setting of a topic, after all other requests, so that its final value is known."""
    there = [topic for topic in world.topics if not topic.deleted]
    if not there:
        return
    topic, machine = random.choice(there), random.choice(world.machines)
    key, values = random.choice((*_KEYS, *_TIERED_KEYS) if topic.tiered else _KEYS)
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
        world.is_known(machine, calm, offsets[0], f"{key} of {topic.name} is {value}")
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
    sizes = (90, 400) if topic.tiered else (10, 90)
    batches = [
        clients.values_of(world, random.choice((1, 2, 7)), random.choice(sizes))
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
        size = own.choice((90, 400, 400)) if topic.tiered else 10
        batches = [clients.values_of(world, own.choice((1, 2, 7)), size) for _ in range(own.choice((5, 20)))]
        acks = 1 if not idempotent and random.random() < (0.6 if topic.tiered else 0.3) else clients.ALL
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
    """Elect the preferred leaders of up to three partitions."""
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


# Links


async def partition(world: ClusterWorld, random: Random) -> None:
    """Cut a node off: in both directions or one, from all nodes or from one."""
    machine, names = somebody(world, random), [one.name for one in world.machines]
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
    """Mend all links, except those of machines without power."""
    dark = {link for name in world.darkness for link in world.links_of(name)}
    links = world.network.links
    if links.cut - dark or links.slow_s or links.refused or links.stalled or links.flips:
        world.disturbed()
        world.tell("the network is whole")
        links.slow_s.clear()
        links.refused.clear()
        links.stalled.clear()
        world.network.heal(links.cut - dark)


async def reset_connections(world: ClusterWorld, random: Random) -> None:
    names = [one.name for one in world.machines] + [CLIENT]
    one, other = random.sample(names, 2)
    world.disturbed()
    world.tell(f"{world.network.reset(one, other)} connections of {one} and {other} are reset")


async def slow_links(world: ClusterWorld, random: Random) -> None:
    machine, slow_s = somebody(world, random), random.choice((0.05, 0.3, 1.0, 3.0))
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
        create_topic, refuse_objects, delete_topic, alter_topic,
        produce, produce_idempotent, stream, consume, elect,
        reassign, examine, wait, processes.kill, processes.start, processes.stop, processes.lose_power,
        processes.pause, processes.refuse_broker, processes.jump_clock, processes.wipe_disk, partition,
        heal, reset_connections, slow_links, disk_faults, disk_heals, tier_acts.delete_records,
        room_acts.no_room, death_acts.kill_all, tier_acts.store_faults, tier_acts.store_heals,
        tier_acts.settle_down, tier_acts.lag_behind,
        store_acts.cut_off_store, store_acts.other_prefix, store_acts.foreign_owner,
    )
}  # fmt: skip
