"""Disasters of one node, one after the other, and what is read back: `python -m simulator.restore`.

A node keeps old records in topics whose retention is said by themselves, by all brokers' default, or by
the node's own dynamic settings. Shortly after these were raised its disk is lost, alone or with one of the
small documents of its bucket damaged, gone or old. A new one, or one from a backup, takes the bucket over,
the way docs/operations.md says. An hour and a month later everything that the bucket had and the node kept is
there, byte for byte.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.broker import effective_settings, takeover
from service.metadata import image_frames
from service.metadata.controller import adoption_control
from service.metadata.image import MetadataImage, PartitionImage, TopicImage
from service.metadata.records import PartitionRecord
from service.records.builder import BatchBuilder
from service.remote.format.keys import CLUSTER_KEY, METADATA_PREFIX, TOPICS_KEY
from service.remote.format.manifest_codec import decode_cluster
from service.tiering import shared_objects
from simulator.apart import apart
from simulator.archive import Archive
from simulator.client import EARLIEST, Client
from simulator.loop import Stuck
from simulator.machine import State
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.platter import Platter
from simulator.sending import values_of
from simulator.store import Object
from simulator.world import SimWorld

DAY_MS: Final = 86_400_000
KEPT_MS: Final = 401 * DAY_MS
"""for how long everything is kept at first: records are 400 days old"""
HOUR_S: Final = 3_600.0
NEWEST_COPY: Final = "the newest copy"
HEADS: Final = "HEADs"
Objects = dict[str, Object]
Harm = Callable[[SimWorld, Random, Objects], None]
"""What befalls the bucket; the last are its objects as they were half-way."""


class RestoredWorld(SimWorld):
    """A world whose cluster's id is known to its operator."""

    cluster_id = ""


class Disaster(NamedTuple):
    """`harm` befalls the bucket; with `repair` an operator runs `firn repair --write` before the recovery;
    `crash_s` ends the first start of the new disk so long after it has begun; with `backup` the disk is put
    back as it was half-way, instead of an empty one."""

    name: str
    harm: Harm
    repair: bool = False
    crash_s: float | None = None
    backup: bool = False


def _nothing(world: SimWorld, random: Random, before: Objects) -> None:
    """The disk alone is lost."""


def _flip(*prefixes: str) -> Harm:
    def harm(world: SimWorld, random: Random, before: Objects) -> None:
        for key in _keys(world, prefixes):
            data = bytearray(world.bucket.objects[key].data)
            bit = random.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
            world.bucket.objects[key] = world.bucket.objects[key]._replace(data=bytes(data))

    return harm


def _gone(*prefixes: str) -> Harm:
    def harm(world: SimWorld, random: Random, before: Objects) -> None:
        for key in _keys(world, prefixes):
            del world.bucket.objects[key]

    return harm


def _old(*prefixes: str) -> Harm:
    def harm(world: SimWorld, random: Random, before: Objects) -> None:
        for key in _keys(world, prefixes):
            if key in before:
                world.bucket.objects[key] = before[key]

    return harm


def _both(first: Harm, second: Harm) -> Harm:
    def harm(world: SimWorld, random: Random, before: Objects) -> None:
        first(world, random, before)
        second(world, random, before)

    return harm


def _keys(world: SimWorld, prefixes: Sequence[str]) -> list[str]:
    copies = sorted(key for key in world.bucket.objects if key.startswith(METADATA_PREFIX))
    if NEWEST_COPY in prefixes:
        return copies[-1:]
    return [
        key
        for key in sorted(world.bucket.objects)
        if key.startswith(tuple(prefixes)) or _is_head(key, prefixes)
    ]


def _is_head(key: str, prefixes: Sequence[str]) -> bool:
    return HEADS in prefixes and key.endswith("/HEAD")


DISASTERS: Final = (
    Disaster("disk lost", _nothing),
    Disaster("disk lost, first start killed at once", _nothing, crash_s=0.05),
    Disaster("disk lost, first start killed early", _nothing, crash_s=0.3),
    Disaster("disk lost, first start killed late", _nothing, crash_s=1.0),
    Disaster("disk lost, first start killed when ready", _nothing, crash_s=3.0),
    Disaster("topics.json damaged", _flip(TOPICS_KEY)),
    Disaster("topics.json damaged, repaired", _flip(TOPICS_KEY), repair=True),
    Disaster("topics.json gone", _gone(TOPICS_KEY)),
    Disaster("topics.json gone, repaired", _gone(TOPICS_KEY), repair=True),
    Disaster("topics.json old", _old(TOPICS_KEY)),
    Disaster("cluster.json damaged, repaired", _flip(CLUSTER_KEY), repair=True),
    Disaster("cluster.json gone", _gone(CLUSTER_KEY)),
    Disaster("cluster.json old", _old(CLUSTER_KEY)),
    Disaster("newest copy of the metadata damaged", _flip(NEWEST_COPY)),
    Disaster("newest copy of the metadata gone", _gone(NEWEST_COPY)),
    Disaster("all copies of the metadata gone", _gone(METADATA_PREFIX)),
    Disaster("HEADs gone", _gone(HEADS)),
    Disaster("HEADs damaged", _flip(HEADS)),
    Disaster("HEADs old", _old(HEADS)),
    Disaster("topics.json and cluster.json gone", _gone(TOPICS_KEY, CLUSTER_KEY)),
    Disaster("newest copy and topics.json gone", _gone(NEWEST_COPY, TOPICS_KEY)),
    Disaster("newest copy gone, cluster.json old", _both(_gone(NEWEST_COPY), _old(CLUSTER_KEY))),
    Disaster("disk from a backup", _nothing, backup=True),
    Disaster("disk from a backup, newest copy damaged", _flip(NEWEST_COPY), backup=True),
    Disaster("disk from a backup, newest copy gone", _gone(NEWEST_COPY), backup=True),
    Disaster("disk from a backup, all copies gone", _gone(METADATA_PREFIX), backup=True),
    Disaster("disk from a backup, HEADs old", _old(HEADS), backup=True),
    Disaster("disk from a backup, topics.json gone", _gone(TOPICS_KEY), backup=True),
)


async def _topic(world: SimWorld, name: str, configs: dict[str, str]) -> TopicModel:
    small = {"internal.segment.bytes": "1500", "local.retention.bytes": "1", "remote.storage.enable": "true"}
    error, topic_id = await world.client.create_topic(name, 1, {**small, **configs})
    if error is not ErrorCode.none or topic_id is None:
        raise Violation(f"{name} was not made: {error.name}")
    topic = TopicModel(name, topic_id, [PartitionModel(name, 0)], True, False, -1)
    world.topics.append(topic)
    return topic


async def _fill(world: SimWorld, topic: TopicModel, batches: int) -> None:
    """Records of 400 days ago."""
    old_ms = world.machine.clock.now_ms() - 400 * DAY_MS
    client = Client(world.machine.address)
    for _ in range(batches):
        [value] = values_of(world, 1, 400)
        builder = BatchBuilder()
        builder.add(old_ms, None, value)
        answer = await client.produce(topic.topic_id, 0, bytes(builder.build()))
        if answer.error is not ErrorCode.none:
            raise Violation(f"{topic.name} takes no records: {answer.error.name}")
        topic.partitions[0].sent.add(value)
        topic.partitions[0].acknowledge(answer.base_offset, [value], old_ms)
    client.close()


async def _alter(world: SimWorld, resource: str, key: str, value: str) -> None:
    error = await world.client.alter_config(4, resource, {key: value})
    if error is not ErrorCode.none:
        raise Violation(f"{key}={value} of broker {resource!r}: {error.name}")


async def _live(world: SimWorld, random: Random) -> tuple[Objects, Platter]:
    """A cluster's life up to the disaster, shortly before which it is told to keep everything for ever; the
    bucket and the disk as they were half-way."""
    await world.start()
    resource = "" if random.random() < 0.5 else "1"
    for _ in range(600):  # each writes a record: offsets of the new metadata are smaller for a while
        await _alter(world, resource, "log.retention.ms", str(KEPT_MS))
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
    if random.random() < 0.5:  # what no copy of the metadata knows
        await _fill(world, await _topic(world, "newest", {"retention.ms": "-1"}), 10)
        await asyncio.sleep(8.0)
    await _alter(world, resource, "log.retention.ms", "-1")
    error = await world.client.alter_config(2, "own", {"retention.ms": "-1"})
    if error is not ErrorCode.none:
        raise Violation(f"retention.ms=-1 of own: {error.name}")
    await asyncio.sleep(random.choice((4.0, 45.0)))
    return before, disk


async def _recover(world: RestoredWorld, disaster: Disaster) -> None:
    cluster = world.bucket.objects.get(CLUSTER_KEY)
    if disaster.repair:
        world.repair_bucket(heads=True)
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


async def _are_led(world: SimWorld, kept: Iterable[str]) -> None:
    """Logs of a backup are compared with their archives before they are led."""
    deadline = world.loop.time() + 30
    for name in kept:
        while (error := (await world.client.offset(name, 0, EARLIEST))[0]) is not ErrorCode.none:
            if world.loop.time() > deadline:
                raise Violation(f"{name} is not led half a minute after the recovery: {error.name}")
            await asyncio.sleep(0.5)


async def _read_back(world: SimWorld, kept: dict[str, dict[int, bytes]]) -> None:
    for name, values in kept.items():
        topic = next(one for one in world.topics if one.name == name and not one.deleted)
        error, start, _ = await world.client.offset(name, 0, EARLIEST)
        if error is not ErrorCode.none or start > 0:
            raise Violation(f"{name} begins at {start} ({error.name}), and everything of it was kept")
        found: dict[int, bytes] = {}
        at, deadline = 0, world.loop.time() + 60
        while at < len(values):
            fetched = await world.client.fetch(topic.topic_id, 0, at, max_wait_ms=500)
            found |= {record.offset: record.value for record in fetched.records}
            at = max(at, fetched.next_offset)
            if world.loop.time() > deadline:
                raise Violation(f"{name}: reading stands still at {at} ({fetched.error.name})")
        for offset, value in values.items():
            if found.get(offset) != value:
                raise Violation(f"{name}: offset {offset} is not what it was")


async def _tiers_on(world: SimWorld) -> None:
    """What is produced from now on is archived, too."""
    topic = next(one for one in world.topics if one.name == "own")
    before = Archive(world.bucket).live(topic.topic_id, 0)[1]
    client = Client(world.machine.address)
    deadline = world.loop.time() + 60
    while Archive(world.bucket).live(topic.topic_id, 0)[1] <= before + 8:
        [value] = values_of(world, 1, 400)
        builder = BatchBuilder()
        builder.add(world.machine.clock.now_ms(), None, value)
        await client.produce(topic.topic_id, 0, bytes(builder.build()))
        await asyncio.sleep(0.5)
        if world.loop.time() > deadline:
            raise Violation(f"own is not archived any more: its archive ends at {before} as before")
    client.close()


async def _suffer(world: RestoredWorld, random: Random, disaster: Disaster) -> None:
    before, disk = await _live(world, random)
    world.cluster_id = decode_cluster(world.bucket.objects[CLUSTER_KEY].data).cluster_id
    await world.settle()
    world.machine.kill()
    kept: dict[str, dict[int, bytes]] = {}
    for topic in world.topics:
        if not topic.deleted:
            end = Archive(world.bucket).live(topic.topic_id, 0)[1]
            acked = topic.partitions[0].acked
            kept[topic.name] = {offset: value for offset, value in acked.items() if offset < end}
    world.bucket_damaged = True
    disaster.harm(world, random, before)
    world.machine.platter = disk if disaster.backup else Platter()
    if not disaster.backup:
        for log_dir in world.machine.log_dirs:
            world.machine.platter.make_root(log_dir)
    await _recover(world, disaster)
    await _are_led(world, kept)
    await _read_back(world, kept)
    for seconds in (HOUR_S, 30 * 24 * HOUR_S):
        world.machine.clock.ahead_ms += int(seconds * 1000)
        await asyncio.sleep(20.0)  # retention looks every second, tiering every half
        await _read_back(world, kept)
    await world.stop()
    await world.start()
    await asyncio.sleep(5.0)
    await _read_back(world, kept)
    await _tiers_on(world)


def suffer(disaster: Disaster, seed: int, before: Callable[[], None] | None = None) -> str | None:
    """Play one disaster in this process, `before` first; what was wrong after it, None where nothing was."""
    if before is not None:
        before()
    world = RestoredWorld(seed)
    try:
        world.run(_suffer(world, Random(seed), disaster))
        world.check()
    except (Violation, Stuck) as e:
        return str(e)
    return None


def settings_not_recovered() -> None:
    """Topics and brokers come back without their settings, and these are taken for known."""
    setattr(adoption_control, "_settings", lambda *_: ())  # noqa: B010


def lives_not_counted() -> None:
    """A node forgets at its next start that it took the bucket over: offsets alone say which is newer."""
    why_later = shared_objects._why_later

    def by_offset(stored: tuple[int, int], ours: tuple[int, int]) -> str | None:
        return why_later((0, stored[1]), (0, ours[1]))

    setattr(shared_objects, "_why_later", by_offset)  # noqa: B010


def unknown_settings_expire() -> None:
    """Retention works of topics whose settings are not known."""
    setattr(effective_settings, "waits_for_settings", lambda *_: False)  # noqa: B010


def loss_not_missed() -> None:
    """The newest copy that can be read is taken for the last one."""
    setattr(takeover, "_why_doubted", lambda *_, **__: None)  # noqa: B010


def newest_by_offset() -> None:
    """The newest copy is the one of the greatest offset, whatever its life and epoch."""
    position = property(lambda image: (0, 0, image.offset + 1))
    setattr(MetadataImage, "position", position)  # noqa: B010


def leaders_forgotten() -> None:
    """A recovery drops who may lead beside the ISR, which is empty after an unclean end."""
    record = image_frames.partition_record

    def without(topic: TopicImage, number: int, own: PartitionImage) -> PartitionRecord:
        return record(topic, number, own._replace(eligible_leader_replicas=(), last_known_elr=()))

    setattr(adoption_control, "partition_record", without)  # noqa: B010


PLANTS: Final = (
    settings_not_recovered,
    lives_not_counted,
    unknown_settings_expire,
    loss_not_missed,
    newest_by_offset,
    leaders_forgotten,
)


def _plants(seed: int) -> int:
    missed = 0
    for plant in PLANTS:
        found = None
        for disaster in DISASTERS:
            problem = apart(lambda one=disaster, bug=plant: suffer(one, seed, bug))  # type: ignore[misc]
            if problem is not None:
                found = f"{disaster.name}: {problem}"
                break
        missed += found is None
        print(f"{plant.__name__:28s}  {found or 'NOT FOUND'}", flush=True)
    return 1 if missed else 0


def main(arguments: list[str] | None = None) -> int:
    """0 when everything was read back after each disaster."""
    parser = argparse.ArgumentParser(prog="python -m simulator.restore", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="of all disasters, each with the next seed")
    parser.add_argument(
        "--plants", action="store_true", help="put known defects back: which is found by what"
    )
    given = parser.parse_args(arguments)
    if given.plants:
        return _plants(given.seed)
    wrong = 0
    for seed in range(given.seed, given.seed + given.rounds):
        for disaster in DISASTERS:
            problem = apart(lambda one=disaster, at=seed: suffer(one, at))  # type: ignore[misc]
            wrong += problem is not None
            print(
                f"{seed:4d}  {disaster.name:42s}  {'all is read back' if problem is None else problem}",
                flush=True,
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
