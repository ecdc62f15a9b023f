"""A disk without room on one node of a healthy cluster: what it leads moves, and its reserve is left alone.

Other faults are off while an act lasts, so its bounds are those of a heartbeat and an election.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from service.hot.names import CLUSTER_METADATA_DIR
from simulator.cluster import client as clients
from simulator.cluster.world import ClusterWorld
from simulator.faults import NO_ROOM
from simulator.machine import Machine
from simulator.model import Violation

MOVED_S: Final = 8.0
"""Time for a check of the disk each second, a heartbeat at once or after the pending one, an election"""
_SETTLED_S: Final = 3.0
_PROMPT_S: Final = 6.0
"""Longest produce request in a healthy cluster, by a client that looks up the leader first: far less than
``replica.lag.time.max.ms``, for which a leader waits for a silent replica."""


async def no_room(world: ClusterWorld, random: Random) -> None:
    """Leave less than the reserve free on one machine's disk, while there is no other fault."""
    await world.settle()
    if not await is_healthy(world) or any(NO_ROOM in one.on for one in world.faults.values()):
        return
    machine = random.choice(world.machines)
    number = int(machine.name[1:])
    world.faults[machine.name].on.add(NO_ROOM)
    world.tell(f"{machine.name} is without room")
    world.disturbed()
    await asyncio.sleep(MOVED_S)
    _check_leaders(world, number)
    _check_in_sync(world, number)
    await _check_rest(world, random, machine)
    _check_in_sync(world, number)
    if random.random() < 0.7:
        world.faults[machine.name].on.discard(NO_ROOM)
        world.tell(f"{machine.name} has room again")


async def is_healthy(world: ClusterWorld) -> bool:
    """Return whether there is no fault, and the effects of earlier ones have passed; waits for the latter."""
    for _ in range(40):
        if world.is_calm:
            return True
        on = [one.on for one in world.faults.values()] + [one.on for one in world.store_faults.values()]
        if any(on) or world.network.links.cut or len(world.alive) < len(world.machines):
            return False
        await asyncio.sleep(0.2)
    return False


def _check_leaders(world: ClusterWorld, full: int) -> None:
    """P14: a partition with an in-sync replica that has room is led by one."""
    image = world.image()
    for topic in image.topics_by_id.values():
        for index, state in topic.partitions.items():
            others = [one for one in state.isr if one != full and not image.brokers[one].fenced]
            if state.leader == full and others:
                raise Violation(
                    f"P14: {topic.name}-{index} is led by {full}, which is without room for {MOVED_S:g} s; "
                    f"{others} are in sync and have room"
                )


def _check_in_sync(world: ClusterWorld, resting: int) -> None:
    """P15: what rests is in no ISR that others lead."""
    for topic in world.image().topics_by_id.values():
        for index, state in topic.partitions.items():
            if resting in state.isr and state.leader not in (resting, -1):
                raise Violation(
                    f"P15: {topic.name}-{index} has {resting} in its ISR, which is in its reserve"
                )


async def _check_rest(world: ClusterWorld, random: Random, machine: Machine) -> None:
    """P15: what leaders elsewhere send takes nothing of the reserve; and they take records."""
    number, before = int(machine.name[1:]), _followed_bytes(world, machine)
    for topic, partition in list(world.partitions()):
        state = world.image().topics_by_id[topic.topic_id].partitions[partition.index]
        least = world.oracle.replicas.least.get(topic.topic_id, 1)
        if state.leader in (-1, number) or len(state.isr) < min(least, len(state.replicas)):
            continue
        taken, losses = world.acknowledged, partition.losses
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        batches = [clients.values_of(world, 2, 90)]
        own = Random(random.getrandbits(48))
        await clients.produce(world, own, topic, partition, batches, idempotent=True)
        if world.acknowledged == taken and losses == partition.losses:
            raise Violation(f"P14: {partition} takes no records, and its leader {state.leader} has room")
        if (took_s := loop.time() - began_s) > _PROMPT_S:
            raise Violation(f"P14: {partition} takes records after {took_s:.1f} s, and its leader has room")
    await asyncio.sleep(_SETTLED_S)
    after = _followed_bytes(world, machine)
    for name in sorted(before.keys() & after.keys()):
        if after[name] > before[name]:
            grew = f"{before[name]} to {after[name]} bytes"
            raise Violation(f"P15: {name} of {machine.name}, in the reserve, grew from {grew}")


def _followed_bytes(world: ClusterWorld, machine: Machine) -> dict[str, int]:
    """Return the size of each log directory on the machine whose partition it does not lead."""
    number, led = int(machine.name[1:]), set()
    for topic in world.image().topics_by_id.values():
        led |= {f"{topic.name}-{index}" for index, one in topic.partitions.items() if one.leader == number}
    found: dict[str, int] = {}
    for log_dir in machine.log_dirs:
        for path, file in machine.platter.files(log_dir):
            parent = path.split("/")[-2]
            if path.endswith(".log") and parent != CLUSTER_METADATA_DIR and parent not in led:
                found[parent] = found.get(parent, 0) + len(file.data)
    return found
