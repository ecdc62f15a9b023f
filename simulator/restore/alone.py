"""Disasters of one node, and what is read back of the bucket.

A node keeps old records in topics whose retention is said by themselves, by all brokers' default, or by
the node's own dynamic settings. Shortly after these were raised its disk is lost, alone or with one of the
small documents of its bucket damaged, gone or old. A new one, one from a backup, or a clone takes the bucket
over, the way docs/operations.md says. An hour and a month later everything that the bucket had and the node
kept is there, byte for byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.remote.format.keys import CLUSTER_KEY, METADATA_PREFIX, TOPICS_KEY
from service.remote.format.manifest_codec import decode_cluster
from simulator.client import EARLIEST, Client
from simulator.machine import State
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.power_loss import Platter
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
    LeaderOf,
    fill,
    kept_of,
    played,
    read_back,
    tiers_on,
)
from simulator.sending import values_of
from simulator.world import SimWorld


class RestoredWorld(SimWorld):
    """A world whose cluster's id is known to its operator."""

    cluster_id = ""
    resource = ""
    """the broker whose dynamic setting says how long topics are kept that say nothing; empty: all of them"""


class Disaster(NamedTuple):
    """Loss of a node's disk. `harm` is done to the bucket. With `repair` an operator runs
    `firn repair --write` before the recovery, with `sweep` also `firn sweep --delete`, and again for each
    topic that it passes over. `crash_s`: the first start of the new disk is killed so long after it has
    begun. With `backup` an older copy of the disk is put back instead of an empty one. `lives`: number of
    disks that are lost; with `same_topics` no topic is created after the first loss. With `clone` the disk
    was started twice, and the one whose records are in the bucket is lost."""

    name: str
    harm: Harm = nothing
    repair: bool = False
    crash_s: float | None = None
    backup: bool = False
    lives: int = 1
    same_topics: bool = False
    clone: bool = False
    sweep: bool = False


DISASTERS: Final = (
    Disaster("disk lost"),
    Disaster("disk lost, first start killed at once", crash_s=0.05),
    Disaster("disk lost, first start killed early", crash_s=0.3),
    Disaster("disk lost, first start killed late", crash_s=1.0),
    Disaster("disk lost, first start killed when ready", crash_s=3.0),
    Disaster("topics.json damaged", flip(TOPICS_KEY)),
    Disaster("topics.json damaged, repaired", flip(TOPICS_KEY), repair=True),
    Disaster("topics.json gone", gone(TOPICS_KEY)),
    Disaster("topics.json gone, repaired", gone(TOPICS_KEY), repair=True),
    Disaster("topics.json old", old(TOPICS_KEY)),
    Disaster("cluster.json damaged, repaired", flip(CLUSTER_KEY), repair=True),
    Disaster("cluster.json gone", gone(CLUSTER_KEY)),
    Disaster("cluster.json old", old(CLUSTER_KEY)),
    Disaster("newest copy of the metadata damaged", flip(NEWEST_COPY)),
    Disaster("newest copy of the metadata gone", gone(NEWEST_COPY)),
    Disaster("all copies of the metadata gone", gone(METADATA_PREFIX)),
    Disaster("HEADs gone", gone(HEADS)),
    Disaster("HEADs damaged", flip(HEADS)),
    Disaster("HEADs old", old(HEADS)),
    Disaster("topics.json and cluster.json gone", gone(TOPICS_KEY, CLUSTER_KEY)),
    Disaster("newest copy and topics.json gone", both(gone(NEWEST_COPY), gone(TOPICS_KEY))),
    Disaster("newest copy gone, cluster.json old", both(gone(NEWEST_COPY), old(CLUSTER_KEY))),
    Disaster("disk from a backup", backup=True),
    Disaster("disk from a backup, newest copy damaged", flip(NEWEST_COPY), backup=True),
    Disaster("disk from a backup, newest copy gone", gone(NEWEST_COPY), backup=True),
    Disaster("disk from a backup, all copies gone", gone(METADATA_PREFIX), backup=True),
    Disaster("disk from a backup, HEADs old", old(HEADS), backup=True),
    Disaster("disk from a backup, topics.json gone", gone(TOPICS_KEY), backup=True),
    Disaster("second disk lost", lives=2),
    Disaster("second disk lost, first life's copies back", put_back(METADATA_PREFIX), lives=2),
    Disaster(
        "second disk lost, first life's copies and cluster.json",
        put_back(METADATA_PREFIX, CLUSTER_KEY),
        lives=2,
    ),
    Disaster("second disk lost, first life's documents back", put_back(*DOCUMENTS), lives=2),
    Disaster(
        "second disk lost, same topics, first life's documents back",
        put_back(*DOCUMENTS),
        lives=2,
        same_topics=True,
    ),
    Disaster("third disk lost", lives=3),
    Disaster("disk of a clone", clone=True),
    Disaster("disk of a clone, HEADs gone", gone(HEADS), clone=True),
    Disaster("swept", sweep=True),
    Disaster("topics.json old, swept", put_back(TOPICS_KEY), sweep=True),
    Disaster("topics.json damaged, repaired, swept", flip(TOPICS_KEY), repair=True, sweep=True),
    Disaster("newest copy gone, swept", gone(NEWEST_COPY), sweep=True),
    Disaster(
        "copies and topics.json old, swept",
        both(gone(METADATA_PREFIX), put_back(METADATA_PREFIX, TOPICS_KEY)),
        sweep=True,
    ),
    Disaster("all documents old, swept", both(gone(METADATA_PREFIX), put_back(*DOCUMENTS)), sweep=True),
)


async def _topic(world: SimWorld, name: str, configs: dict[str, str]) -> TopicModel:
    error, topic_id = await world.client.create_topic(name, 1, {**TIERED, **configs})
    if error is not ErrorCode.none or topic_id is None:
        raise Violation(f"{name} was not made: {error.name}")
    topic = TopicModel(name, topic_id, [PartitionModel(name, 0)], True, False, -1)
    world.topics.append(topic)
    return topic


def _leader_of(world: SimWorld) -> LeaderOf:
    async def node(topic: TopicModel, partition: PartitionModel) -> Client:
        return Client(world.machine.address)

    return node


async def _fill(world: SimWorld, topic: TopicModel, batches: int) -> None:
    """Produce records with timestamps of 400 days ago."""
    old_ms = world.machine.clock.now_ms() - 400 * DAY_MS
    await fill(_leader_of(world), topic, topic.partitions[0], values_of(world, batches, 400), old_ms)


async def _alter(world: SimWorld, resource: str, key: str, value: str) -> None:
    error = await world.client.alter_config(4, resource, {key: value})
    if error is not ErrorCode.none:
        raise Violation(f"{key}={value} of broker {resource!r}: {error.name}")


async def _live(world: RestoredWorld, random: Random) -> tuple[Objects, Platter]:
    """Play the cluster's first life, with a retention of 401 days; return bucket and disk as half-way."""
    await world.start()
    world.resource = "" if random.random() < 0.5 else "1"
    for _ in range(600):  # each writes a record: offsets of the new metadata are smaller for a while
        await _alter(world, world.resource, "log.retention.ms", str(KEPT_MS))
    topics = [
        await _topic(world, "own", {"retention.ms": str(KEPT_MS)}),
        await _topic(world, "by-default", {}),
        await _topic(world, "deleted", {"retention.ms": "-1"}),
    ]
    for topic in topics:
        await _fill(world, topic, random.randint(8, 20))
    await asyncio.sleep(45.0)  # all that is sealed is in the bucket, and so is the metadata
    before, disk = dict(world.bucket.objects), world.machine.platter.copy()
    await world.client.delete_topic(topics[2].topic_id)
    topics[2].deleted = True
    again = await _topic(world, "deleted", {"retention.ms": "-1"})
    again.name = "deleted"
    await _fill(world, again, 10)
    await _fill(world, topics[0], random.randint(4, 8))
    await asyncio.sleep(45.0)
    return before, disk


async def _raise_retention(world: RestoredWorld, random: Random, *, same_topics: bool) -> None:
    """Set the retention of all topics to for ever, shortly before the disaster."""
    if random.random() < 0.5 and not same_topics:  # what no copy of the metadata knows
        await _fill(world, await _topic(world, "newest", {"retention.ms": "-1"}), 10)
        await asyncio.sleep(8.0)
    await _alter(world, world.resource, "log.retention.ms", "-1")
    error = await world.client.alter_config(2, "own", {"retention.ms": "-1"})
    if error is not ErrorCode.none:
        raise Violation(f"retention.ms=-1 of own: {error.name}")
    await asyncio.sleep(random.choice((4.0, 45.0)))


async def _lose_disks(world: RestoredWorld, random: Random, disaster: Disaster) -> Objects:
    """So many lives come and go; in each there is a topic more. The bucket at the end of the first."""
    first: Objects = {}
    for life in range(1, disaster.lives):
        await world.settle()
        first = first or dict(world.bucket.objects)
        world.machine.kill()
        _new_disk(world)
        for topic in world.topics:
            archived = world.archive.live(topic.topic_id, 0)[1]
            topic.partitions[0].past_returns()
            topic.partitions[0].may_lose_from(archived)
        await _recover(world, Disaster("an earlier one"))
        if not disaster.same_topics:
            await _fill(world, await _topic(world, f"life-{life}", {}), 10)
        await _fill(world, world.topics[0], random.randint(4, 8))
        await asyncio.sleep(20.0)
    return first


async def _write_on_both_clones(world: RestoredWorld, random: Random) -> Platter:
    """Start two copies of the disk, which assign the same offsets in the same leader epochs.

    One of them reaches the bucket. Returns the disk of the other."""
    await world.stop()
    image = world.machine.platter.copy()
    topic = world.topics[0]
    end, count = topic.partitions[0].end_offset, random.randint(12, 20)
    world.machine.platter = image.copy()
    await world.start()
    await asyncio.sleep(5.0)  # HEADs are compared, or no records are taken
    world.store_faults.lasting = "store away"
    twin = TopicModel(topic.name, topic.topic_id, [PartitionModel("twin", 0)], True, False, -1)
    await _fill(world, twin, count)
    world.machine.kill()
    other = world.machine.platter
    world.store_faults.lasting = None
    world.machine.platter = image
    await world.start()
    await asyncio.sleep(5.0)
    await _fill(world, topic, count)
    await asyncio.sleep(20.0)
    if min(twin.partitions[0].acked) != end or world.archive.live(topic.topic_id, 0)[1] <= end:
        raise Violation(f"{topic.name}: clones gave away other offsets than those from {end} on")
    return other


def _new_disk(world: SimWorld) -> None:
    world.machine.platter = Platter()
    for log_dir in world.machine.log_dirs:
        world.machine.platter.make_root(log_dir)


async def _recover(world: RestoredWorld, disaster: Disaster) -> None:
    cluster = world.bucket.objects.get(CLUSTER_KEY)
    if disaster.repair:
        world.repair_bucket(heads=True)
    if disaster.sweep:
        for said in world.archive.sweep(world.machine.clock.now_ms()):
            world.tell(f"firn sweep: {said}")
        world.check()
    settings = world.settings
    world.settings = {**settings, "firn.cluster.id": world.cluster_id, "firn.remote.recover": "true"}
    assert cluster is not None or not disaster.repair
    if disaster.crash_s is not None:
        await world.start(wait=False)
        await asyncio.sleep(disaster.crash_s)
        world.machine.kill()
        world.settings = {**settings, "firn.cluster.id": world.cluster_id}
        await world.start()
        if (await world.client.offset("own", 0, EARLIEST))[0] is not ErrorCode.unknown_topic_or_partition:
            return  # it had taken the bucket over, and goes on without the setting
        await world.stop()
        world.settings["firn.remote.recover"] = "true"
    state = await world.start()
    if state is not State.READY:
        run = world.machine.run
        raise Violation(f"the recovery {state.value}: {'' if run is None else run.reason}")
    world.settings = {**settings, "firn.cluster.id": world.cluster_id}


async def _suffer(world: RestoredWorld, random: Random, disaster: Disaster) -> None:
    before, disk = await _live(world, random)
    world.cluster_id = decode_cluster(world.bucket.objects[CLUSTER_KEY].data).cluster_id
    before = await _lose_disks(world, random, disaster) or before
    await _raise_retention(world, random, same_topics=disaster.same_topics)
    if disaster.clone:
        disk = await _write_on_both_clones(world, random)
    await world.settle()
    world.machine.kill()
    kept = kept_of(world.archive, world.topics)
    world.bucket_damaged = True
    disaster.harm(world.bucket, random, before)
    if disaster.backup or disaster.clone:
        world.machine.platter = disk
    else:
        _new_disk(world)
    await _recover(world, disaster)
    leader_of = _leader_of(world)
    await read_back(leader_of, kept)
    for seconds in (HOUR_S, MONTH_S):
        world.machine.clock.ahead_ms += int(seconds * 1000)
        await asyncio.sleep(20.0)  # retention looks every second, tiering every half
        await read_back(leader_of, kept)
    await world.stop()
    await world.start()
    await asyncio.sleep(5.0)
    await read_back(leader_of, kept)
    await tiers_on(
        leader_of, world.archive, kept[0], lambda: values_of(world, 1, 400), world.machine.clock.now_ms
    )


def suffer(
    disaster: Disaster, seed: int, before: Callable[[], None] | None = None, *, tell: bool = False
) -> str | None:
    """Play one disaster in this process, `before` first; return what was wrong after it, None without a
    problem. `tell`: print acts and log lines."""
    if before is not None:
        before()
    world = RestoredWorld(seed)
    return played(world, _suffer(world, Random(seed), disaster), tell=tell)
