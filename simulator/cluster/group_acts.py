"""Acts of groups in a cluster: clients commit offsets, and read them back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from simulator.cluster.group_clients import GROUP, commit, configure_internal, examine_group, find_coordinator
from simulator.cluster.groups import OFFSETS, ClusterGroup
from simulator.cluster.transactional import TransactionalWorld
from simulator.model import TopicModel

_PAUSE_S: Final = 0.3


async def commit_offsets(world: TransactionalWorld, random: Random) -> None:
    """Commit offsets of a group some times, in the background or not."""
    topics = [topic for topic in world.topics if not topic.deleted]
    free = [group for group in world.groups if not group.is_busy and not group.is_transactional]
    if not topics:
        return
    if free and random.random() < 0.7:
        group = random.choice(free)
    else:
        group = ClusterGroup(f"g{len(world.groups)}", random.choice(topics).name)
        world.groups.append(group)
    topic = next((one for one in topics if one.name == group.topic), None)
    if topic is None:
        return
    await ensure_internal_topic(world, random, OFFSETS, GROUP)
    group.is_busy = True
    world.spawn(_commits(world, Random(random.getrandbits(48)), group, topic, random.choice((1, 3, 8))))
    if random.random() < 0.6:
        await asyncio.sleep(random.random() * 0.1)
    else:
        await world.settle()


async def _commits(
    world: TransactionalWorld, random: Random, group: ClusterGroup, topic: TopicModel, count: int
) -> None:
    try:
        for _ in range(count):
            if topic.deleted:
                return
            there = range(len(topic.partitions))
            await commit(world, random, group, topic, random.sample(there, random.randint(1, len(there))))
            if random.random() < 0.3:
                await asyncio.sleep(random.random() * _PAUSE_S)
    finally:
        group.is_busy = False


async def ensure_internal_topic(world: TransactionalWorld, random: Random, name: str, kind: int) -> None:
    """Have an internal topic made and configured, once. `kind`: of the keys that are kept in it."""
    if name in world.configured:
        return
    await find_coordinator(world, random, kind, "g0")
    if world.internal(name, 0) is None:
        return
    if await configure_internal(world, random, name, flushed=world.chance.random() < 0.7):
        world.configured.add(name)


async def read_offsets(world: TransactionalWorld, random: Random) -> None:
    """Read what groups have committed."""
    for group in world.groups:
        said = await examine_group(world, random, group)
        world.trace.note("oracle", f"{group}: {said or 'read'}")


GROUP_ACTS: Final[dict[str, Callable[[TransactionalWorld, Random], Awaitable[None]]]] = {
    one.__name__: one for one in (commit_offsets, read_offsets)
}
