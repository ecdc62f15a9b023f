"""Lasting faults between one broker and the bucket: a cut link, another prefix, a foreign owner.

The other brokers must go on: partitions of a leader that reaches the bucket are archived, and no node ends.
That is checked before an operator repairs the fault (`others_are_archived`).
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final
from uuid import UUID

from service.remote.format.keys import CLUSTER_KEY
from service.remote.format.manifest_codec import ClusterFile, encode_cluster
from service.remote.format.stamp import Stamp, Writer
from simulator.cluster.client import produce, values_of
from simulator.cluster.process_acts import is_down
from simulator.cluster.replicas import Key
from simulator.cluster.world import ALIVE_S, START_S, ClusterWorld, is_ready
from simulator.faults import STORE_KINDS
from simulator.machine import BEGAN_MS, Machine
from simulator.model import Violation
from simulator.power_loss import Directory, File
from simulator.store import Bucket

_CUTS: Final = ("store away", "store denies")
_HANDED_ON_S: Final = 60.0
"""So long it takes at most until another broker keeps the bucket."""
_ARCHIVED_S: Final = _HANDED_ON_S + 90.0
_LOOK_S: Final = 0.5


def _one(world: ClusterWorld, random: Random) -> Machine:
    """Return a random machine, often that of the unfenced broker of the lowest id."""
    unfenced = [one.id for one in world.image().brokers.values() if not one.fenced]
    keeper = world.of_broker(min(unfenced, default=-1))
    return keeper if keeper is not None and random.random() < 0.6 else random.choice(world.machines)


async def cut_off_store(world: ClusterWorld, random: Random) -> None:
    """Cut one broker off from the bucket until the end; restart brokers meanwhile."""
    if world.estranged is not None or world.foreign:
        return
    machine, kind = _one(world, random), random.choice(_CUTS)
    assert kind in STORE_KINDS
    world.estranged = machine.name
    world.store_faults[machine.name].lasting = kind
    world.disturbed()
    world.tell(f"{machine.name}, and nobody else: {kind}, from now on")
    for other in world.machines:
        if random.random() < 0.5 and not is_down(other):
            await world.stop(other)
            world.ended_for_reasons()
            world.start(other)
            await world.until_ready(other, 10.0)


async def other_prefix(world: ClusterWorld, random: Random) -> None:
    """Start one broker with another, empty prefix, until the end."""
    if world.estranged is not None or world.foreign:
        return
    machine = _one(world, random)
    if is_down(machine) or world.dark(machine.name):
        return
    await world.settle()
    await world.stop(machine)
    world.ended_for_reasons()
    world.estranged, machine.bucket = machine.name, Bucket()
    begins = _local_starts(world, machine)
    world.tell(f"start {machine.name} with another prefix")
    world.start(machine)
    if not await world.until_ready(machine, 20.0):
        return
    await asyncio.sleep(6.0)
    _keeps_its_local_bytes(world, machine, begins)


def _local_starts(world: ClusterWorld, machine: Machine) -> dict[Key, int]:
    """Return the first local offset of each tiered replica on the machine's disk."""
    found: dict[Key, int] = {}
    for topic, partition in world.on(machine):
        folder = machine.log_dirs[0] / str(partition)
        directory = machine.platter.directory(machine.log_dirs[0]).names.get(folder.name)
        if not topic.tiered or not isinstance(directory, Directory):
            continue
        files = [name for name, one in directory.names.items() if isinstance(one, File)]
        bases = [int(name[: -len(".log")]) for name in files if name.endswith(".log")]
        if bases:
            found[topic.topic_id, partition.index] = min(bases)
    return found


def _keeps_its_local_bytes(world: ClusterWorld, machine: Machine, before: dict[Key, int]) -> None:
    """T5: who cannot know that the bucket it sees is the cluster's lets no local bytes go for being in it."""
    if world.estranged != machine.name or not is_ready(machine):
        return
    number = int(machine.name[1:])
    for key, begins in _local_starts(world, machine).items():
        seen = world.oracle.replicas.seen.get((number, key))
        if seen is None or key not in before or seen.partition.log.failure is not None:
            continue
        if begins > max(before[key], seen.partition.log.log_start_offset):
            raise Violation(
                f"T5: {machine.name} has another prefix, and {seen.partition.tip} begins there at {begins}, "
                f"not at {before[key]} any more"
            )


async def foreign_owner(world: ClusterWorld, random: Random) -> None:
    """Another cluster's `cluster.json` lies in the prefix, until the end; brokers are restarted meanwhile."""
    found = world.bucket.objects.get(CLUSTER_KEY)
    if world.estranged is not None or world.foreign or found is None:
        return
    if not world.oracle.tiers.entries:
        return  # a node that tiers nothing yet refuses to start
    world.foreign, world.owned = True, found.data
    stranger = Stamp(BEGAN_MS, Writer(1, UUID(int=random.getrandbits(128))))
    data = encode_cluster(ClusterFile("another-cluster-of-id", stranger))
    world.bucket.write(CLUSTER_KEY, data, world.real_ms())
    world.disturbed()
    world.tell("cluster.json is another cluster's")
    for machine in world.machines:
        if random.random() < 0.4 and not is_down(machine):
            await world.stop(machine)
            world.ended_for_reasons()
            world.start(machine)
            if not await world.until_ready(machine, START_S):
                world.ended_for_reasons()


async def others_are_archived(world: ClusterWorld) -> None:
    """T11: while one broker is estranged from the bucket all live, and what the others lead is archived."""
    if world.estranged is None and not world.foreign:
        return
    await _all_serve(world)
    if world.estranged is not None:
        _write(world)
        await world.settle()
        await _is_archived(world, int(world.estranged[1:]))
    await _put_right(world)


def _write(world: ClusterWorld) -> None:
    """So much to each tiered partition that there are segments to be archived."""
    for topic, partition in world.partitions():
        if topic.tiered:
            batches = [values_of(world, 1, 400) for _ in range(8)]
            own = Random(len(world.born_s))
            world.spawn(
                produce(world, own, topic, partition, batches, idempotent=False, acks=1, pause_s=0.05)
            )


async def _all_serve(world: ClusterWorld) -> None:
    deadline = world.loop.time() + ALIVE_S
    while True:
        world.ended_for_reasons()
        for machine in world.machines:
            if is_down(machine):
                world.tell(f"start {machine.name}")
                world.start(machine)
        brokers = world.image().brokers
        waiting = [one.name for one in world.machines if not is_ready(one)]
        waiting += [f"n{number}" for number, one in sorted(brokers.items()) if one.fenced]
        if not waiting:
            return
        if world.loop.time() > deadline:
            raise Violation(f"{', '.join(waiting)} are not back, though only the bucket is out of reach")
        await asyncio.sleep(_LOOK_S)


async def _is_archived(world: ClusterWorld, estranged: int) -> None:
    deadline = world.loop.time() + _ARCHIVED_S
    while True:
        placed, seen = world.oracle.replicas.placed, world.oracle.replicas.seen
        led = [
            (key, seen[one.leader, key].partition)
            for key, one in placed.items()
            if one.leader != estranged
            and (one.leader, key) in seen
            and world.image().partition(*key) is not None
        ]
        why = world.oracle.tiers.not_copied(led)
        if not why:
            return
        if world.loop.time() > deadline:
            raise Violation(
                f"T11: n{estranged} alone is estranged from the bucket, and after {_ARCHIVED_S:.0f} s: {why}"
            )
        world.ended_for_reasons()
        await asyncio.sleep(_LOOK_S)


async def _put_right(world: ClusterWorld) -> None:
    """Repair the fault as an operator does: mend the link, restore the settings and `cluster.json`."""
    if world.foreign:
        world.bucket.write(CLUSTER_KEY, world.owned, world.real_ms())
        world.foreign = False
        world.tell("cluster.json is put back")
    if world.estranged is not None:
        machine = world.machine(world.estranged)
        world.store_faults[machine.name].lasting = None
        world.estranged = None
        world.tell(f"{machine.name} is put right")
        if machine.bucket is not world.bucket:
            await world.stop(machine)
            machine.bucket = world.bucket
            world.start(machine)
