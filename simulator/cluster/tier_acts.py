"""Acts around the bucket: it fails for one node or for all, records are deleted, time passes."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from simulator.client import Client
from simulator.cluster.client import find_leader, produce, values_of
from simulator.cluster.world import ClusterWorld
from simulator.faults import SHARED, SLOW_STORE, STORE_KINDS
from simulator.topics import delete_up_to, offset_to_delete

_FLIPPED: Final = "flipped bits on the way"
KINDS: Final = (*(kind for kind in STORE_KINDS if kind not in (SHARED, _FLIPPED)), SLOW_STORE)
"""What a damaged object makes of an archive is for the world of one node to find out."""


async def store_faults(world: ClusterWorld, random: Random) -> None:
    """Turn a fault of the store on or off, for one node or for all."""
    kind, names = random.choice(KINDS), list(world.store_faults)
    chosen = names if random.random() < 0.4 else [random.choice(names)]
    is_on = all(kind in world.store_faults[name].on for name in chosen)
    for name in chosen:
        on = world.store_faults[name].on
        (on.discard if is_on else on.add)(kind)
    world.disturbed()
    world.tell(f"{', '.join(chosen)}: {'no more' if is_on else 'now'} {kind}")


async def store_heals(world: ClusterWorld, random: Random) -> None:
    for name, faults in world.store_faults.items():
        if faults.on:
            faults.on.clear()
            world.tell(f"the store works for {name}")


async def settle_down(world: ClusterWorld, random: Random) -> None:
    """Wait for all responses, then for seconds in which segments are copied and deleted locally, records
    expire, and objects are swept."""
    await world.settle()
    seconds = random.choice((4.0, 15.0, 45.0))
    world.tell(f"{seconds} s go by in peace")
    await asyncio.sleep(seconds)


async def lag_behind(world: ClusterWorld, random: Random) -> None:
    """Seal segments whose records are not committed: an in-sync follower is stopped meanwhile."""
    placed = world.oracle.replicas.placed
    there = [
        (topic, partition)
        for topic, partition in world.partitions()
        if topic.tiered and len(placed[topic.topic_id, partition.index].isr) > 1
    ]
    if not there:
        return
    topic, partition = random.choice(there)
    state = placed[topic.topic_id, partition.index]
    follower = world.of_broker(random.choice([one for one in state.isr if one != state.leader]))
    run = None if follower is None else follower.run
    if follower is None or run is None or run.ended:
        return
    seconds = random.choice((1.0, 3.0, 6.0))
    world.tell(f"SIGSTOP {follower.name}, which follows {partition}, for {seconds} s")
    world.disturbed()
    run.process.stop()
    batches = [values_of(world, 1, 400) for _ in range(20)]
    own = Random(random.getrandbits(48))
    world.spawn(produce(world, own, topic, partition, batches, idempotent=False, acks=1, pause_s=0.05))
    await asyncio.sleep(seconds)
    run.process.resume()
    world.disturbed()


async def delete_records(world: ClusterWorld, random: Random) -> None:
    """Delete records at the partition's leader. An acknowledged deletion must last, even if other replicas
    are down meanwhile or lead soon after."""
    there = list(world.partitions())
    if not there:
        return
    topic, partition = random.choice(there)
    await world.settle()
    host = await find_leader(world, random, topic.topic_id, partition.index)
    if host is None or topic.deleted:
        return
    machine = world.machine(host)
    client = Client(machine.address)
    offset = offset_to_delete(random, machine, topic, partition)
    await delete_up_to(client, world.tell, topic, partition, offset)
    client.close()
