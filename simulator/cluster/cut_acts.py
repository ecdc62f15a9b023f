"""Acts in which some replica lacks what another has of a partition's transactions.

A leader that nobody hears appends markers that are cut off again, once another leads. Or a follower that its
leader is cut off from lags behind the archive, and is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

from simulator.client import Client, NoAnswer
from simulator.cluster.direct_acts import appends, end_all
from simulator.cluster.process_acts import is_down, start_again
from simulator.cluster.replicas import Key
from simulator.cluster.stable_reads import read_stable
from simulator.cluster.transactional import TransactionalWorld
from simulator.machine import Machine
from simulator.model import PartitionModel, TopicModel
from simulator.network import Link

_LOOK_S: Final = 0.2
_FENCED_S: Final = 20.0
"""more than a session lasts, and an election"""


async def cut_off_markers(world: TransactionalWorld, random: Random) -> None:
    """Append to a leader that reaches nobody, with transactions that are open at all replicas; then another
    one leads, and what was appended is cut off."""
    there = [one for one in world.partitions() if len(_isr_of(world, *one)) > 1]
    if not there:
        return
    topic, partition = random.choice(there)
    key = topic.topic_id, partition.index
    world.end_direct = partial(end_all, world)
    await appends(world, Random(random.getrandbits(48)), topic, partition, random.choice((8, 16)))
    await asyncio.sleep(random.choice((0.1, 1.0)))
    leader = world.oracle.replicas.placed[key].leader
    machine = world.of_broker(leader)
    if machine is None or is_down(machine) or topic.deleted:
        return
    links = {link for link in world.links_of(machine.name) if "client" not in link}
    world.tell(f"{machine.name}, which leads {partition}, reaches nobody")
    world.disturbed()
    world.network.links.cut |= links
    await appends(world, Random(random.getrandbits(48)), topic, partition, random.choice((4, 8, 16)))
    if random.random() < 0.5:
        world.kill(machine)
    elif random.random() < 0.7:
        await _until(world, lambda: world.oracle.replicas.placed[key].leader != leader)
    world.network.heal(links)
    world.disturbed()
    if is_down(machine):
        await start_again(world, random, machine)
    await asyncio.sleep(random.choice((0.5, 3.0)))


async def lag_behind_archive(world: TransactionalWorld, random: Random) -> None:
    """Have transactions archived and deleted locally while a follower hears nothing of its leader; it is read
    meanwhile."""
    placed = world.oracle.replicas.placed
    there = [one for one in world.partitions() if one[0].tiered and len(_isr_of(world, *one)) > 1]
    if not there:
        return
    topic, partition = random.choice(there)
    key = topic.topic_id, partition.index
    world.end_direct = partial(end_all, world)
    await _append_much(world, random, topic, partition)  # so that its oldest records are in the bucket alone
    await asyncio.sleep(random.choice((5.0, 10.0)))
    leader = placed[key].leader
    follower = world.of_broker(random.choice([one for one in placed[key].replicas if one != leader] or [0]))
    if follower is None or is_down(follower) or topic.deleted:
        return
    links: set[Link] = {(f"n{leader}", follower.name), (follower.name, f"n{leader}")}
    world.tell(f"{follower.name} hears nothing of n{leader}, which leads {partition}")
    world.disturbed()
    world.network.links.cut |= links
    world.spawn(read_at(world, Random(random.getrandbits(48)), follower, topic, key, 15.0))
    await _append_much(world, random, topic, partition)
    await asyncio.sleep(random.choice((6.0, 12.0)))
    world.network.heal(links)
    world.disturbed()


async def _append_much(
    world: TransactionalWorld, random: Random, topic: TopicModel, partition: PartitionModel
) -> None:
    """Append batches and markers to one partition, and end what is open, most of the time."""
    work = (appends(world, Random(random.getrandbits(48)), topic, partition, 30) for _ in range(2))
    await asyncio.gather(*work)
    if random.random() < 0.8:
        end_all(world)
        world.end_direct = partial(end_all, world)


async def read_at(
    world: TransactionalWorld,
    random: Random,
    machine: Machine,
    topic: TopicModel,
    key: Key,
    seconds: float,
) -> None:
    """Fetch at isolation 1 from one replica for so long. Raises `Violation`."""
    client, until_s = Client(machine.address), world.loop.time() + seconds
    while world.loop.time() < until_s and not topic.deleted:
        at = random.randint(0, world.oracle.replicas.most.get(key, 1))
        with suppress(NoAnswer):
            await read_stable(world, client, key, f"{topic.name}-{key[1]}", at)
        await asyncio.sleep(random.random() * 0.2)
    client.close()


def _isr_of(world: TransactionalWorld, topic: TopicModel, partition: PartitionModel) -> tuple[int, ...]:
    return world.oracle.replicas.placed[topic.topic_id, partition.index].isr


async def _until(world: TransactionalWorld, condition: Callable[[], bool]) -> None:
    until_s = world.loop.time() + _FENCED_S
    while not condition() and world.loop.time() < until_s:
        await asyncio.sleep(_LOOK_S)


CUT_ACTS: Final[dict[str, Callable[[TransactionalWorld, Random], Awaitable[None]]]] = {
    one.__name__: one for one in (cut_off_markers, lag_behind_archive)
}
