"""Acts that restore an older disk, clone, lose or damage one.

Each tells the model precisely which records may be lost: those neither committed to the bucket nor on the
remaining disk. Objects of the bucket must never be deleted, and their offsets never assigned again; a
partition whose identity is in doubt may refuse requests with an error that says so.
"""

from __future__ import annotations

import asyncio
from pathlib import PurePath
from random import Random
from typing import NamedTuple
from uuid import UUID

from service.records.batch import CompressionType
from service.remote.format.keys import CLUSTER_KEY, TOPICS_KEY, head_key, partition_prefix
from service.remote.format.manifest_codec import decode_cluster, decode_topics
from simulator.durable import durable_end
from simulator.faults import METADATA
from simulator.machine import Machine, State
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.power_loss import File, Platter
from simulator.sending import send, send_one, values_of
from simulator.store import Object
from simulator.topics import create
from simulator.world import CLONE, SimWorld, joinable


class DiskCopy(NamedTuple):
    """A disk as it was, the topics that its metadata knows, and the tags of their HEADs then."""

    platter: Platter
    topics: frozenset[UUID]
    heads: dict[tuple[UUID, int], str | None]


def _heads(world: SimWorld) -> dict[tuple[UUID, int], str | None]:
    found: dict[tuple[UUID, int], str | None] = {}
    for topic in world.topics:
        for partition in topic.partitions:
            head = world.bucket.objects.get(head_key(topic.topic_id, partition.index))
            found[topic.topic_id, partition.index] = head.tag if head else None
    return found


def _archived(world: SimWorld, topic: TopicModel, partition: PartitionModel) -> int:
    return world.archive.live(topic.topic_id, partition.index)[1] if topic.tiered else 0


# Disks


async def copy_disk(world: SimWorld, random: Random) -> None:
    """Copy the disk, while the node runs or is stopped for it; seldom when there is a copy already."""
    if world.disk_copy is not None and random.random() < 0.8:
        return
    await world.settle()
    if random.random() < 0.5:
        await world.stop()
    known = frozenset(topic.topic_id for topic in world.topics if not topic.deleted and not topic.vanished)
    for _, partition in world.partitions():
        partition.rewritten_from = 1 << 62
    world.disk_copy = DiskCopy(world.machine.platter.copy(), known, _heads(world))
    world.tell("the disk is copied")
    await world.ensure_running()


async def restore_disk(world: SimWorld, random: Random) -> None:
    """Put the copy in place of the disk."""
    copied = world.disk_copy
    if copied is None:
        return
    if random.random() < 0.5 and await world.ensure_running():
        await _archive_what_the_copy_lacks(world, random)
    await world.settle()
    if random.random() < 0.5:
        await world.stop()
    world.machine.kill()
    await world.settle()
    await asyncio.sleep(random.choice((0.0, 25.0)))  # what was on its way to the bucket arrives
    world.machine.platter = copied.platter.copy()
    world.troubled = True
    world.tell("the disk is replaced by its copy")
    _past(world, copied)
    world.groups.may_lose(world.machine.platter, world.machine.log_dirs, also_answered=True)
    world.groups.flushed = False  # nobody knows whether the copy says so
    await _and_then(world, random)


async def _archive_what_the_copy_lacks(world: SimWorld, random: Random) -> None:
    """Create and archive a topic that the copy of the disk does not know."""
    topic = await create(world, random, "tiered", 1)
    if topic is not None:
        batches = [values_of(world, 1, 400) for _ in range(20)]
        world.spawn(send(world, topic, topic.partitions[0], batches, CompressionType.NONE))
        await asyncio.sleep(4.0)


async def _and_then(world: SimWorld, random: Random) -> None:
    """Start, produce at once, and now and then wait for what sweeps and expires."""
    if random.random() < 0.3:  # what was begun, as a log that begins anew (L7), is for the next one to finish
        world.machine.kill()
        await world.start(wait=False)
        await asyncio.sleep(random.random() * 0.5)
        world.tell("kill -9 while it starts, or soon after")
        world.machine.kill()
    await world.ensure_running()
    there = [topic for topic in world.topics if topic.tiered and not topic.deleted and not topic.vanished]
    if there:
        topic = random.choice(there)
        await send_one(world, topic, random.choice(topic.partitions))
    seconds = random.choice((0.0, 45.0, 45.0))
    await asyncio.sleep(seconds)
    world.tell(f"{seconds} s go by")
    world.check()


def _past(world: SimWorld, copied: DiskCopy) -> None:
    for topic in world.topics:
        if topic.topic_id not in copied.topics:
            topic.vanished = True
            continue
        for partition in topic.partitions:
            left = durable_end(world.machine.platter, world.machine.log_dirs, topic.name, partition.index)
            archived = _archived(world, topic, partition)
            head = world.bucket.objects.get(head_key(topic.topic_id, partition.index))
            same = copied.heads.get((topic.topic_id, partition.index)) == (head.tag if head else None)
            partition.archived_below = max(partition.archived_below, archived)
            partition.past_returns()
            left = min(left, partition.rewritten_from)
            if same:
                partition.may_lose_from(max(left, archived))
            else:  # read-only until somebody adopts what the bucket has
                partition.may_lose_from(left)
                partition.excused = "its disk is older than its archive"


async def lose_partition(world: SimWorld, random: Random) -> None:
    """Lose a partition's directory."""
    there = list(world.partitions())
    if not there:
        return
    topic, partition = random.choice(there)
    await world.settle()
    world.machine.kill()
    for log_dir in world.machine.log_dirs:
        try:
            world.machine.platter.forget(log_dir / f"{topic.name}-{partition.index}")
        except OSError:
            continue
    archived = _archived(world, topic, partition)
    partition.archived_below = max(partition.archived_below, archived)
    partition.may_lose_from(archived)
    # It begins anew where its archive ends: a log that was deleted up to its end, and never archived, at 0.
    partition.log_start = min(partition.log_start, archived)
    partition.end_offset = min(partition.end_offset, archived)
    partition.deleted_below = 0  # where it begins was lost with it, but for what the archive says
    world.troubled = True
    world.tell(f"{partition} is lost from the disk; archived below {archived}")
    await _and_then(world, random)


async def lose_metadata(world: SimWorld, random: Random) -> None:
    """Lose the metadata log: no topic is known, and no data of them may be deleted."""
    await world.settle()
    world.machine.kill()
    world.machine.platter.forget(world.machine.log_dirs[0] / METADATA)
    for topic in world.topics:
        topic.vanished = True
    world.troubled = True
    world.excuse = "the metadata directory was lost"
    world.groups.forget()
    world.groups_are_gone = True
    world.tell("the metadata directory is lost")
    await _and_then(world, random)


async def flip_bit(world: SimWorld, random: Random) -> None:
    """Flip one bit of one file while the node is down."""
    await world.settle()
    if random.random() < 0.5:
        await world.stop()
    world.machine.kill()
    files = [
        (path, file)
        for log_dir in world.machine.log_dirs
        for path, file in world.machine.platter.files(PurePath(log_dir))
        if file.data
    ]
    if files:
        path, file = random.choice(files)
        _flip(file, random.randrange(8 * len(file.data)))
        world.troubled = True
        world.tell(f"a bit of {path} flips")
        world.excuse_file(PurePath(path))
    await world.ensure_running()


def _flip(file: File, bit: int) -> None:
    file.data[bit // 8] ^= 1 << bit % 8
    if bit // 8 < len(file.durable):
        file.durable[bit // 8] ^= 1 << bit % 8


async def clone_disk(world: SimWorld, random: Random) -> None:
    """Start a copy of the machine beside it on the same bucket, write to both, and stop the copy later."""
    await world.settle()
    await world.stop()
    world.machine.kill()
    before = _heads(world)
    other = Machine(
        CLONE,
        world.loop,
        Random(random.getrandbits(64)),
        world.trace,
        world.bucket,
        world.machine.log_dirs,
        world.faults,
        world.store_faults,
    )
    other.platter = world.machine.platter.copy()
    world.troubled = True
    world.tell("the disk is cloned, and both machines start")
    settings = {
        **world.settings,
        "listeners": "PLAINTEXT://n2:9092",
        "advertised.listeners": "PLAINTEXT://n2:9092",
        **(joinable("n2") if world.is_joinable else {}),
    }
    clone = other.start(settings)
    await asyncio.sleep(random.choice((0.0, 0.1, 4.0)))
    await world.ensure_running()
    await _both_are_written_to(world, random, other)
    await asyncio.sleep(random.choice((1.0, 8.0, 45.0, 45.0)))  # orphans go when they were seen twice
    world.check()
    if clone.state is State.BUG:
        raise Violation(f"{clone.name} ended by a bug: {clone.reason}")
    world.tell("the clone is switched off")
    other.kill()
    for (topic_id, index), tag in before.items():
        head = world.bucket.objects.get(head_key(topic_id, index))
        prefix = partition_prefix(topic_id, index)
        if head is not None and head.by.startswith(CLONE):
            world.two_writers.add(prefix)
        if prefix in world.two_writers or (head.tag if head else None) != tag:
            for topic in world.topics:
                if topic.topic_id == topic_id:
                    topic.partitions[index].excused = "a clone may have written its archive"
    await world.stop()
    world.machine.kill()
    await world.ensure_running()


async def _both_are_written_to(world: SimWorld, random: Random, other: Machine) -> None:
    """Produce to both nodes until segments roll. Records that only the clone got may be lost."""
    for topic, partition in [one for one in world.partitions() if one[0].tiered]:
        batches = [values_of(world, 1, 400) for _ in range(random.choice((0, 12, 20)))]
        world.spawn(send(world, topic, partition, batches, CompressionType.NONE))
        twin = PartitionModel(f"clone of {topic.name}", partition.index)
        batches = [values_of(world, 1, 400) for _ in range(random.choice((0, 12, 20)))]
        world.spawn(send(world, topic, twin, batches, CompressionType.NONE, other.address))


async def new_disk(world: SimWorld, random: Random) -> None:
    """Replace the disk and recover the prefix on the new one with `firn.remote.recover`, as an operator does.

    All data of the bucket comes back; of topics without an archive, their names.
    """
    cluster = world.bucket.objects.get(CLUSTER_KEY)
    listed = world.bucket.objects.get(TOPICS_KEY)
    if cluster is None or listed is None or world.store_faults.on or world.faults.on:
        return
    await world.settle()
    if random.random() < 0.5:
        await world.stop()
    world.machine.kill()
    await asyncio.sleep(random.choice((0.0, 25.0)))  # what was on its way to the bucket arrives
    known = {row.topic_id for row in decode_topics(world.bucket.objects[TOPICS_KEY].data).topics}
    world.machine.platter = Platter()
    for log_dir in world.machine.log_dirs:
        world.machine.platter.make_root(log_dir)
    world.tell("the disk is lost, and a new one takes over what the bucket has")
    for topic in world.topics:
        topic.vanished |= topic.topic_id not in known
        for partition in topic.partitions:
            archived = _archived(world, topic, partition)
            partition.past_returns()
            partition.archived_below = max(partition.archived_below, archived)
            partition.may_lose_from(archived)
    world.groups.forget()
    settings = world.settings
    cluster_id = decode_cluster(cluster.data).cluster_id
    world.settings = {**settings, "firn.cluster.id": cluster_id, "firn.remote.recover": "true"}
    state = await world.start()
    run = world.machine.run
    assert run is not None
    world.ended_for_a_reason()
    if state is not State.READY:
        raise Violation(f"{run.name} {state.value}, to take over a sound bucket: {run.reason}")
    await asyncio.sleep(random.choice((0.0, 0.5, 5.0)))
    world.settings = {**settings, "firn.cluster.id": cluster_id}
    await _and_then(world, random)


# Buckets


async def copy_bucket(world: SimWorld, random: Random) -> None:
    if world.bucket_copy is not None and random.random() < 0.8:
        return
    await world.settle()
    world.bucket_copy = world.bucket.copy()
    world.tell("the bucket is copied")


async def roll_back_bucket(world: SimWorld, random: Random) -> None:
    if world.bucket_copy is not None:
        await _replace_bucket(world, world.bucket_copy, "rolled back to its copy")


async def empty_bucket(world: SimWorld, random: Random) -> None:
    await _replace_bucket(world, {}, "emptied")


async def _replace_bucket(world: SimWorld, objects: dict[str, Object], what: str) -> None:
    await world.settle()
    world.troubled = True
    world.bucket.objects = dict(objects)
    world.tell(f"the bucket is {what}")
    for topic, partition in world.partitions():
        if topic.tiered:
            partition.excused = f"the bucket was {what}"
    world.bucket_damaged = True


# Settings


async def without_url(world: SimWorld, random: Random) -> None:
    """Start the node without `firn.remote.url` for a while."""
    await world.settle()
    await world.stop()
    world.machine.kill()
    world.ended_for_a_reason()
    settings = dict(world.settings)
    url = world.settings.pop("firn.remote.url")
    excuse, troubled = world.excuse, world.troubled
    world.excuse = world.excuse or "it was started without firn.remote.url"
    world.troubled = True
    state = await world.start()
    run = world.machine.run
    assert run is not None
    world.tell(f"started without {url}: {state.value}")
    if state is State.REFUSED and "ConfigError" in run.reason:
        # A deletion that nobody answered may not have happened.
        named = [topic.name for topic in world.topics if topic.tiered]
        if not any(name in run.reason for name in named) and not excuse and not world.faults.on:
            raise Violation(f"refused without naming a topic: {run.reason}")
    await asyncio.sleep(random.choice((0.5, 5.0)))
    await world.stop()
    world.machine.kill()
    world.settings = settings
    world.excuse, world.troubled = excuse, troubled
    world.machine.run = None  # what it ended of was said above
    await world.ensure_running()
