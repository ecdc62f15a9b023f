"""The store refuses objects of one topic, to all nodes, and partitions beside it at the same node go on."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Final

from service.partition.partition import Partition
from service.remote.format.keys import topic_prefix
from simulator.beside import PARTITIONS, REFUSALS, Beside, Spared
from simulator.cluster.client import produce, values_of
from simulator.cluster.process_acts import start
from simulator.cluster.world import ClusterWorld
from simulator.faults import WRITES, KeyFault
from simulator.model import TopicModel
from simulator.refusal_acts import BACK_S, BATCHES, CONFIGS, SETTLES_S

_CALM_S: Final = 60.0
_LOOK_S: Final = 1.0


async def is_at_peace(world: ClusterWorld, random: Random) -> bool:
    """End all faults; return whether no effect of earlier ones is left."""
    for name in world.store_faults:
        world.store_faults[name].on.clear()
        world.faults[name].on.clear()
    world.network.links.slow_s.clear()
    world.network.heal(set(world.network.links.cut))
    await world.settle()
    for machine in world.machines:
        if machine.name in world.troubled:
            await world.stop(machine)
    await start(world, random)  # what a fault has ended is judged before the faults are forgotten
    world.troubled.clear()
    deadline = world.loop.now_s + _CALM_S
    while not (world.is_calm and len(world.alive) == len(world.machines)):
        if world.loop.now_s > deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


async def refuse(world: ClusterWorld, random: Random, denied: TopicModel, spared: TopicModel) -> None:
    """Check that `spared` is archived and read while the store refuses `denied`. Raises `Violation`."""
    refusal = random.choice(REFUSALS)
    prefixes = (f"{topic_prefix(denied.topic_id)}/",)
    fault = KeyFault(
        f"{refusal.what} of {denied.name}", refusal.verdict, refusal.calls, prefixes, (refusal.suffix,)
    )
    if refusal.calls is not WRITES or random.random() < 0.5:
        await _fill(world, random, denied)
        await asyncio.sleep(SETTLES_S)
    for one in world.store_faults.values():
        one.on.add(fault)
    world.tell(f"now {fault}")
    await _fill(world, random, denied)
    await asyncio.sleep(SETTLES_S * random.random())
    await _fill(world, random, spared)
    beside = _beside(world, spared, f"the store says: {fault}")
    await beside.are_copied()
    await beside.are_read()
    await beside.expire_and_are_swept(world.new_uuid, world.real_ms())
    for one in world.store_faults.values():
        one.on.discard(fault)
    world.disturbed()
    world.tell(f"no more {fault}")
    await _beside(world, denied, f"it is some time since {fault}").are_copied(BACK_S)


def _beside(world: ClusterWorld, topic: TopicModel, what: str) -> Beside:
    found = []
    for one in topic.partitions:
        number = world.oracle.replicas.placed[topic.topic_id, one.index].leader
        address = world.machines[number - 1].address
        found.append(Spared(topic, one, address, partial(_leading, world, number, topic, one.index)))
    return Beside(world.loop, world.bucket, world.archive, world.tell, found, what)


def _leading(world: ClusterWorld, number: int, topic: TopicModel, index: int) -> Partition | None:
    seen = world.oracle.replicas.seen.get((number, (topic.topic_id, index)))
    return None if seen is None else seen.partition


async def _fill(world: ClusterWorld, random: Random, topic: TopicModel) -> None:
    """Enough for several segments to roll in each partition."""
    for one in topic.partitions:
        batches = [values_of(world, 1, 400) for _ in range(BATCHES)]
        await produce(world, random, topic, one, batches, idempotent=False)


__all__ = ["CONFIGS", "PARTITIONS", "is_at_peace", "refuse"]
