"""Disasters of three nodes, and what is read back of the bucket.

Topics have three replicas, and old records that are kept by settings of their own, of all brokers or of each.
Shortly after these were raised the disks are lost: of all nodes, with their metadata, so that one node takes
the bucket over alone and the others join it (`operating`); or of some or all that keep their metadata logs,
where the cluster goes on by itself. The small documents of the bucket are damaged, gone or old meanwhile, or
an old disk comes back beside. All that the bucket had is read back, also a month later, and of other leaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.remote.format.keys import CLUSTER_KEY, METADATA_PREFIX, TOPICS_KEY
from service.remote.format.manifest_codec import decode_cluster
from simulator.cluster.client import values_of
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.restore import beside
from simulator.restore.harms import (
    DOCUMENTS,
    HEADS,
    NEWEST_COPY,
    Harm,
    Objects,
    both,
    flip,
    gone,
    nothing,
    old,
    put_back,
)
from simulator.restore.kept import (
    DAY_MS,
    HOUR_S,
    KEPT_MS,
    MONTH_S,
    TIERED,
    Kept,
    fill,
    kept_of,
    played,
    read_back,
    tiers_on,
)
from simulator.restore.operating import (
    SeveralWorld,
    alter_broker,
    go_on,
    grow,
    lose_all,
    take_over,
)

ALL: Final = ("n1", "n2", "n3")
_ALTERED: Final = 60
"""times: each writes a record, so that offsets of the new metadata are smaller for a while"""
_SETTLED_S: Final = 20.0


class Disaster(NamedTuple):
    """Loss of a cluster's disks. `logs`: machines that lose their log directories, but keep their metadata.
    Without any, all disks are lost, and the first node recovers the bucket as `node_id`, with its old logs if
    it `keeps_logs`; its first start is killed `crash_s` after it has begun. `harm` is done to the bucket;
    with `repair` an operator runs `firn repair --write`. `lives`: number of times that all disks are lost.
    With `of_each` the retention is set on each broker; without, a draw decides. `after` runs beside the
    restored cluster."""

    name: str
    harm: Harm = nothing
    repair: bool = False
    crash_s: float | None = None
    logs: tuple[str, ...] = ()
    node_id: int = 1
    of_each: bool = False
    keeps_logs: bool = False
    lives: int = 1
    after: Callable[[SeveralWorld, Random], Awaitable[None]] | None = None


DISASTERS: Final = (
    Disaster("all disks lost"),
    Disaster("all disks lost, first start killed at once", crash_s=0.05),
    Disaster("all disks lost, first start killed early", crash_s=0.3),
    Disaster("all disks lost, first start killed late", crash_s=1.0),
    Disaster("all disks lost, first start killed when ready", crash_s=4.0),
    Disaster("topics.json damaged", flip(TOPICS_KEY)),
    Disaster("topics.json damaged, repaired", flip(TOPICS_KEY), repair=True),
    Disaster("topics.json gone", gone(TOPICS_KEY)),
    Disaster("topics.json old", put_back(TOPICS_KEY)),
    Disaster("cluster.json damaged, repaired", flip(CLUSTER_KEY), repair=True),
    Disaster("cluster.json gone", gone(CLUSTER_KEY)),
    Disaster("cluster.json old", put_back(CLUSTER_KEY)),
    Disaster("newest copy of the metadata damaged", flip(NEWEST_COPY)),
    Disaster("newest copy of the metadata gone", gone(NEWEST_COPY)),
    Disaster("all copies of the metadata gone", gone(METADATA_PREFIX)),
    Disaster("copies old", both(gone(METADATA_PREFIX), put_back(METADATA_PREFIX))),
    Disaster("all documents old", both(gone(METADATA_PREFIX), put_back(*DOCUMENTS))),
    Disaster("HEADs gone", gone(HEADS)),
    Disaster("HEADs damaged", flip(HEADS)),
    Disaster("HEADs old", old(HEADS)),
    Disaster("all disks lost, taken over under another node id", node_id=4, of_each=True),
    Disaster("all disks lost, but for the logs of one node", keeps_logs=True),
    Disaster("all disks lost twice, first life's documents back", put_back(*DOCUMENTS), lives=2),
    Disaster("all disks lost, an old one is back beside", after=beside.old_disk),
    Disaster("all disks lost, the old majority is back beside", after=beside.old_majority),
    Disaster("all disks lost, taken over twice", after=beside.second_take_over),
    Disaster("all disks lost, documents of a clone's life come", after=beside.documents_of_a_clone),
    Disaster("logs of one node lost", logs=ALL[:1]),
    Disaster("logs of two nodes lost", logs=ALL[1:]),
    Disaster("logs of all nodes lost", logs=ALL),
    Disaster("logs of all nodes lost, topics.json damaged", flip(TOPICS_KEY), logs=ALL),
    Disaster("logs of all nodes lost, topics.json old", put_back(TOPICS_KEY), logs=ALL),
    Disaster("logs of all nodes lost, cluster.json gone", gone(CLUSTER_KEY), logs=ALL),
    Disaster("logs of all nodes lost, copies gone", gone(METADATA_PREFIX), logs=ALL),
    Disaster("logs of all nodes lost, HEADs gone", gone(HEADS), logs=ALL),
    Disaster("logs of all nodes lost, HEADs damaged", flip(HEADS), logs=ALL),
    Disaster("logs of two nodes lost, all documents gone", gone(*DOCUMENTS), logs=ALL[:2]),
)


async def _topic(world: SeveralWorld, name: str, configs: dict[str, str]) -> TopicModel:
    client = world.client()
    error, topic_id = await client.create_topic(name, 2, {**TIERED, **configs}, len(world.serving))
    client.close()
    if error is not ErrorCode.none or topic_id is None:
        raise Violation(f"{name} was not made: {error.name}")
    partitions = [PartitionModel(name, index, is_replicated=True) for index in range(2)]
    topic = TopicModel(name, topic_id, partitions, True, False, -1)
    world.topics.append(topic)
    return topic


async def _fill(world: SeveralWorld, topic: TopicModel, batches: int) -> None:
    """Produce records with timestamps of 400 days ago."""
    old_ms = world.real_ms() - 400 * DAY_MS
    for partition in topic.partitions:
        await fill(world.leader_of, topic, partition, values_of(world, batches, 400), old_ms)


async def _alter_topic(world: SeveralWorld, name: str, key: str, value: str) -> None:
    client = world.client()
    error = await client.alter_config(2, name, {key: value})
    client.close()
    if error is not ErrorCode.none:
        raise Violation(f"{key}={value} of {name}: {error.name}")


async def _live(world: SeveralWorld, random: Random) -> Objects:
    """Play the cluster's first life, with a retention of 401 days; return the bucket as half-way."""
    for machine in world.machines:
        world.start(machine)
    for machine in world.machines:
        await world.is_ready(machine)
    for _ in range(_ALTERED):
        await alter_broker(world, "log.retention.ms", str(KEPT_MS))
    own = await _topic(world, "own", {"retention.ms": str(KEPT_MS)})
    by_default = await _topic(world, "by-default", {})
    deleted = await _topic(world, "deleted", {"retention.ms": "-1"})
    for topic in (own, by_default, deleted):
        await _fill(world, topic, random.randint(8, 16))
    await asyncio.sleep(_SETTLED_S)
    before = dict(world.bucket.objects)
    world.cluster_id = decode_cluster(before[CLUSTER_KEY].data).cluster_id
    deleted.deleted = True
    client = world.client()
    await client.delete_topic(deleted.topic_id)
    client.close()
    await asyncio.sleep(1.0)
    await _fill(world, await _topic(world, "deleted", {"retention.ms": "-1"}), 10)
    await _fill(world, own, random.randint(4, 8))
    await asyncio.sleep(_SETTLED_S)
    return before


async def _raise_retention(world: SeveralWorld, random: Random) -> None:
    """Set the retention of all topics to for ever, shortly before the disaster."""
    if random.random() < 0.5:
        await _fill(world, await _topic(world, "newest", {"retention.ms": "-1"}), 10)
        await asyncio.sleep(8.0)
    await alter_broker(world, "log.retention.ms", "-1")
    await _alter_topic(world, "own", "retention.ms", "-1")
    await asyncio.sleep(random.choice((4.0, _SETTLED_S)))


async def _suffer(world: SeveralWorld, random: Random, disaster: Disaster) -> None:
    of_each = random.random() < 0.5 or disaster.of_each
    world.resources = ("1", "2", "3") if of_each else ("",)
    before = await _live(world, random)
    for life in range(1, disaster.lives):
        await world.settle()
        for topic, partition in world.partitions():
            partition.past_returns()
            partition.may_lose_from(world.archive.live(topic.topic_id, partition.index)[1])
        lose_all(world)
        await take_over(world)
        await grow(world)
        await _fill(world, await _topic(world, f"life-{life}", {}), 10)
        await _fill(world, world.topics[0], random.randint(4, 8))
        await asyncio.sleep(_SETTLED_S)
    await _raise_retention(world, random)
    await world.settle()
    for machine in world.machines:
        world.kill(machine)
    kept = kept_of(world.archive, world.topics)
    world.may_damage = True
    disaster.harm(world.bucket, random, before)
    if disaster.repair:
        world.archive.repair(world.new_uuid, world.real_ms(), heads=True)
    if disaster.logs:
        await go_on(world, disaster.logs, random)
    else:
        lose_all(world, keeps_logs=disaster.keeps_logs)
        await take_over(world, disaster.node_id, disaster.crash_s)
        await read_back(world.leader_of, kept)
    if disaster.after is not None:
        await disaster.after(world, random)
    elif not disaster.logs:
        await grow(world)
    await _stays(world, kept)


async def _stays(world: SeveralWorld, kept: list[Kept]) -> None:
    """Check after an hour, a month and new leaders that all is there, and that new records are archived."""
    await read_back(world.leader_of, kept)
    for seconds in (HOUR_S, MONTH_S):
        world.jump(seconds)
        await asyncio.sleep(10.0)  # retention looks every second, tiering every half
        await read_back(world.leader_of, kept)
    first = world.serving[0]
    await world.stop(first)
    if world.serving:
        await read_back(world.leader_of, kept)
    world.start(first)
    await world.is_ready(first)
    await read_back(world.leader_of, kept)
    await tiers_on(world.leader_of, world.archive, kept[0], lambda: values_of(world, 1, 400), world.real_ms)
    world.check()


def suffer(
    disaster: Disaster, seed: int, before: Callable[[], None] | None = None, *, tell: bool = False
) -> str | None:
    """Play one disaster in this process, `before` first; return what was wrong after it, None without a
    problem. `tell`: print acts and log lines."""
    if before is not None:
        before()
    world = SeveralWorld(seed, apart=bool(disaster.logs) or disaster.keeps_logs)
    return played(world, _suffer(world, Random(seed), disaster), tell=tell)
