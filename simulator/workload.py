"""Workload that the sweep (`simulator.sweep`) repeats: every kind of call is in it, at least once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

from service.records.batch import CompressionType
from simulator import acts, group_acts
from simulator.client import NoAnswer
from simulator.model import PartitionModel, TopicModel
from simulator.sending import send, send_idempotent
from simulator.topics import COMPACTED, delete_up_to
from simulator.world import SETTINGS, SimWorld

SETTINGS_OF_SWEEP: Final = {
    **SETTINGS,
    "metadata.log.max.record.bytes.between.snapshots": "1500",
    "firn.disk.check.interval.ms": "60000",
}
CONFIGS: Final = {"internal.segment.bytes": "700", "file.delete.delay.ms": "1000", "retention.ms": "-1"}
TIERED: Final = {"remote.storage.enable": "true", "local.retention.bytes": "1"}


async def _create(world: SimWorld, name: str, configs: dict[str, str], *, flushed: bool = False) -> None:
    if not await world.ensure_running():
        return
    configs = {**CONFIGS, **configs, **({"flush.messages": "1"} if flushed else {})}
    try:
        error, topic_id = await world.client.create_topic(name, 1, configs)
    except NoAnswer:
        return
    if topic_id is not None and error.value == 0:
        tiered = "remote.storage.enable" in configs
        model = PartitionModel(name, 0, compacted="cleanup.policy" in configs)
        world.topics.append(TopicModel(name, topic_id, [model], tiered, flushed, -1))


async def _produce(world: SimWorld, name: str, *, idempotent: bool = False) -> None:
    if not await world.ensure_running():
        return
    for topic, partition in list(world.partitions()):
        if topic.name == name:
            batches = []
            for _ in range(6):
                world.values += 2
                batches.append([b"v%d." % (world.values - 1) + bytes(150), b"v%d." % world.values])
            work = send_idempotent if idempotent else send
            await work(world, topic, partition, batches, CompressionType.NONE)


async def _settle(world: SimWorld) -> None:
    await asyncio.sleep(4.0)


async def _alter(world: SimWorld) -> None:
    if await world.ensure_running():
        for _ in range(3):
            await acts.alter_topic(world, Random(1))


async def _delete(world: SimWorld) -> None:
    if await world.ensure_running() and len(world.topics) > 1:
        world.topics[-1].deleted = True
        try:
            await world.client.delete_topic(world.topics[-1].topic_id)
        except NoAnswer:
            return


async def _delete_records(world: SimWorld, name: str, offset: int) -> None:
    if await world.ensure_running():
        for topic, partition in list(world.partitions()):
            if topic.name == name:
                await delete_up_to(world.client, world.tell, topic, partition, offset)


async def _restart(world: SimWorld) -> None:
    await world.stop()
    world.machine.kill()
    await world.ensure_running()


async def _commit(world: SimWorld) -> None:
    """Commit offsets of a group without members, on a topic that is not deleted."""
    await _group(world, "simple", 0)


async def _group(world: SimWorld, kind: str, members: int) -> None:
    """So many members join; who may commits."""
    topic = next((one for one in world.topics if one.name == "sure"), None)
    if topic is not None and await world.ensure_running():
        await group_acts.one_of_each(world, topic, kind, members)


STEPS: Final[Sequence[Callable[[SimWorld], Awaitable[None]]]] = (
    lambda world: _create(world, "plain", {}),
    lambda world: _create(world, "sure", {}, flushed=True),
    lambda world: _create(world, "cold", TIERED),
    lambda world: _create(world, "keyed", COMPACTED),
    lambda world: _produce(world, "keyed", idempotent=True),
    lambda world: _produce(world, "plain"),
    lambda world: _produce(world, "sure", idempotent=True),
    lambda world: _produce(world, "cold"),
    _settle,
    _commit,
    lambda world: _group(world, "classic", 1),
    lambda world: _group(world, "consumer", 2),
    _alter,
    lambda world: _create(world, "gone", TIERED),
    lambda world: _produce(world, "gone"),
    lambda world: _produce(world, "cold", idempotent=True),
    lambda world: _produce(world, "keyed"),
    _settle,
    _delete,
    lambda world: _delete_records(world, "sure", 7),
    lambda world: _delete_records(world, "cold", 10),
    _restart,
    _commit,
    lambda world: _produce(world, "sure"),
    lambda world: _produce(world, "cold"),
    _settle,
)
