"""The store refuses some objects for as long as an act lasts, and all other partitions go on meanwhile."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Final

from service.partition.partition import Partition
from service.records.batch import CompressionType
from service.remote.format.keys import topic_prefix
from simulator.beside import PARTITIONS, REFUSALS, Beside, Spared
from simulator.client import Client, NoAnswer
from simulator.faults import WRITES, KeyFault
from simulator.machine import State
from simulator.model import PartitionModel, TopicModel
from simulator.sending import send, values_of
from simulator.topics import create, delete_up_to
from simulator.world import SimWorld

CONFIGS: Final = {
    "internal.segment.bytes": "1500",
    "retention.ms": "-1",
    "file.delete.delay.ms": "1000",
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
}
_MOST_TOPICS: Final = 4
BATCHES: Final = 12
SETTLES_S: Final = 20.0
BACK_S: Final = 60.0
"""A node that was refused for long retries every 30 s."""
_PAUSE_S: Final = 0.3
_ASKED_S: Final = 3.0
"""Time for which consumers are refused before others read."""


async def refuse_objects(world: SimWorld, random: Random) -> None:
    """Let the store refuse one topic's writes or reads, or put its objects into an archive class."""
    if sum(not topic.deleted for topic in world.topics) >= _MOST_TOPICS or not await _is_at_peace(world):
        return
    denied = await create(world, random, "tiered", PARTITIONS, CONFIGS)
    spared = await create(world, random, "tiered", 2, CONFIGS)
    if denied is None or spared is None:
        return
    refusal = random.choice(REFUSALS)
    fault = KeyFault(
        f"{refusal.what} of {denied.name}",
        refusal.verdict,
        refusal.calls,
        (f"{topic_prefix(denied.topic_id)}/",),
        (refusal.suffix,),
    )
    if refusal.calls is not WRITES or random.random() < 0.5:
        await _fill(world, denied)
        await asyncio.sleep(SETTLES_S)
    world.store_faults.on.add(fault)
    world.tell(f"now {fault}")
    await _fill(world, denied)
    for one in denied.partitions:  # something to delete, where that is refused
        await delete_up_to(world.client, world.tell, denied, one, BATCHES // 2)
    await asyncio.sleep(SETTLES_S * random.random())
    beside = Beside(
        world.loop, world.bucket, world.archive, world.tell, _led(world, spared), f"the store says: {fault}"
    )
    await _fill(world, spared)
    await beside.are_copied()
    readers = [
        world.loop.create_task(_read_for_ever(world, denied, one, at))
        for one in denied.partitions
        for at in (0, BATCHES // 2)
    ]
    await asyncio.sleep(_ASKED_S)
    await beside.are_read()
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    await beside.expire_and_are_swept(world.new_uuid, world.machine.clock.now_ms())
    world.store_faults.on.discard(fault)
    world.tell(f"no more {fault}")
    after = f"it is some time since {fault}"
    healed = Beside(world.loop, world.bucket, world.archive, world.tell, _led(world, denied), after)
    await healed.are_copied(BACK_S)


async def _is_at_peace(world: SimWorld) -> bool:
    """End all faults; return whether the node runs without any effect of earlier ones."""
    if world.excuse or world.bucket_damaged or world.store_faults.has_flipped:
        return False
    world.faults.on.clear()
    world.store_faults.on.clear()
    await world.settle()
    if world.troubled:
        await world.stop()
        world.ended_for_a_reason()
    if not await world.ensure_running() and not await world.ensure_running():
        return False
    run = world.machine.run
    return run is not None and run.state is State.READY


def _led(world: SimWorld, topic: TopicModel) -> list[Spared]:
    address = world.machine.address
    return [Spared(topic, one, address, partial(_leading, world, topic, one)) for one in topic.partitions]


def _leading(world: SimWorld, topic: TopicModel, partition: PartitionModel) -> Partition | None:
    found = [one for one in world.partitions_here() or () if one.tip.topic_id == topic.topic_id]
    return next((one for one in found if one.tip.partition == partition.index), None)


async def _fill(world: SimWorld, topic: TopicModel) -> None:
    """Enough for several segments to roll in each partition."""
    for one in topic.partitions:
        await send(
            world, topic, one, [values_of(world, 1, 400) for _ in range(BATCHES)], CompressionType.NONE
        )


async def _read_for_ever(world: SimWorld, topic: TopicModel, partition: PartitionModel, at: int) -> None:
    """Fetch for ever, whatever the response."""
    client = Client(world.machine.address)
    try:
        while True:
            try:
                found = await client.fetch(topic.topic_id, partition.index, at, max_wait_ms=500)
                at = max(at, found.next_offset)
            except NoAnswer:
                pass
            await asyncio.sleep(_PAUSE_S)
    finally:
        client.close()
