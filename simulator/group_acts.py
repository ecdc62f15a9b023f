"""Acts of groups: commits without members, and members that join, commit, stay and leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from kio.schema.errors import ErrorCode

from simulator.client import Client, NoAnswer
from simulator.faults import FULL
from simulator.groups import GroupModel, Member
from simulator.members import (
    AWAY_EPOCH,
    commit,
    configure,
    delete_group,
    delete_positions,
    drive,
    find_coordinator,
    heartbeat,
    joined,
    topic_of,
)
from simulator.model import TopicModel
from simulator.world import SimWorld


async def _group(world: SimWorld, random: Random, *kinds: str) -> tuple[GroupModel, TopicModel] | None:
    """Return a new or existing group of one of these kinds, and its topic; None if the node is not ready."""
    topics = [topic for topic in world.topics if not topic.deleted and not topic.vanished]
    if not topics or world.groups_are_gone or not await world.ensure_running():
        return None
    there = [one for one in world.groups.all if one.kind in kinds and topic_of(world, one) is not None]
    if there and random.random() < 0.7:
        group = random.choice(there)
    else:
        topic = random.choice(topics)
        group = GroupModel(f"g{len(world.groups.all)}", random.choice(kinds), topic.topic_id, topic.name)
    try:
        error = await find_coordinator(world.client, group.group_id)
    except NoAnswer:
        return None
    if error is not ErrorCode.none:
        return None
    if not world.groups.all:
        await configure(world, flushed=random.random() < 0.5)
    if group not in world.groups.all:
        world.groups.add(group)
    found = topic_of(world, group)
    return None if found is None else (group, found)


async def commit_offsets(world: SimWorld, random: Random) -> None:
    """Commit a few offsets of a simple group in the background, or delete its offsets."""
    found = await _group(world, random, "simple")
    if found is None or found[0].is_busy:
        return
    group, topic = found
    if random.random() < 0.2 and FULL not in world.faults.on:
        await _on_a_full_disk(world, group, topic)
        return
    if group.positions and random.random() < 0.25:
        await _delete(world, group, random.choice((delete_positions, delete_group)))
        return
    world.spawn(_commits(world, group, topic, random.choice((1, 2, 6))))
    if random.random() < 0.5:
        await asyncio.sleep(random.random() * 0.05)
    else:
        await world.settle()


async def _delete(
    world: SimWorld, group: GroupModel, delete: Callable[[SimWorld, Client, GroupModel], Awaitable[None]]
) -> None:
    client = Client(world.machine.address)
    group.is_busy = True
    try:
        await delete(world, client, group)
    finally:
        group.is_busy = False
        client.close()


async def _on_a_full_disk(world: SimWorld, group: GroupModel, topic: TopicModel) -> None:
    """Commit on a full disk, which must be refused without an effect, and once again after it has room."""
    await world.settle()
    world.troubled = True
    world.faults.on.add(FULL)
    world.tell(f"now {FULL}")
    await _commits(world, group, topic, 2)
    world.faults.on.discard(FULL)
    await _commits(world, group, topic, 1)


async def _commits(world: SimWorld, group: GroupModel, topic: TopicModel, count: int) -> None:
    client = Client(world.machine.address)
    group.is_busy = True
    try:
        for _ in range(count):
            await commit(world, client, group, range(len(topic.partitions)))
    finally:
        group.is_busy = False
        client.close()


async def join_group(world: SimWorld, random: Random) -> None:
    """Members come and go, and commit what they own."""
    found = await _group(world, random, "classic", "consumer")
    if found is None or found[0].is_busy:
        return
    group, topic = found
    change = random.random()
    staying = [member for member in group.members if not member.is_leaving]
    if not staying or (change < 0.5 and len(staying) < 3):
        joined(random, group)
    elif change < 0.75:
        member = random.choice(staying)
        if member.instance_id is not None and member.epoch > 0 and random.random() < 0.6:
            await _goes_for_a_while(world, group, member)
        else:
            member.is_leaving, member.owned = True, frozenset()
    world.tell(f"{group}, {group.kind}: {len(group.members)} members, {group.topic}")
    work = _members(world, group, topic, random.choice((0.0, 2.0, 8.0)))
    if random.random() < 0.3:
        world.spawn(work)
        await asyncio.sleep(random.random() * 0.8)
    else:
        await work


async def _goes_for_a_while(world: SimWorld, group: GroupModel, member: Member) -> None:
    """Let a static member leave for a while, until the group is driven again."""
    client = Client(world.machine.address)
    group.is_busy = True
    member.epoch = AWAY_EPOCH
    try:
        await heartbeat(world, client, group, member)
    finally:
        group.is_busy = False
        client.close()


async def _members(world: SimWorld, group: GroupModel, topic: TopicModel, seconds: float) -> None:
    await drive(world, group, seconds)
    client = Client(world.machine.address)
    group.is_busy = True
    try:
        for member in group.members:
            owned = member.owned if group.kind == "consumer" else range(len(topic.partitions))
            if owned and member.epoch > 0 and not member.is_leaving:
                await commit(world, client, group, owned, member)
    finally:
        group.is_busy = False
        client.close()


def commit_meanwhile(world: SimWorld) -> None:
    """Simple groups commit in the background."""
    for group in world.groups.all:
        topic = topic_of(world, group)
        if group.kind == "simple" and topic is not None and not group.is_busy:
            world.spawn(_commits(world, group, topic, 4))


async def one_of_each(world: SimWorld, topic: TopicModel, kind: str, members: int) -> None:
    """Commit offsets of the group of this kind; create it with this number of members if there is none."""
    group = next((one for one in world.groups.all if one.kind == kind), None)
    try:
        error = await find_coordinator(world.client, kind)
    except NoAnswer:
        return
    if error is not ErrorCode.none:
        return
    if not world.groups.all:
        await configure(world, flushed=True)
    if group is None:
        group = GroupModel(kind, kind, topic.topic_id, topic.name)
        world.groups.add(group)
        for number in range(members):
            joined(Random(number), group)
    if kind == "simple":
        await _commits(world, group, topic, 2)
    else:
        await _members(world, group, topic, 3.0)
