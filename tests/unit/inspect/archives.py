"""An archive that a node has made, with one of everything, and what is true of it: for offline tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.clock import ManualClock
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.metadata.controller.catalog_control import remote_log_record
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    TombstoneRecord,
    TopicRecord,
)
from service.metadata.snapshot_codec import encode_image
from service.remote.format.keys import (
    HeadKey,
    ManifestKey,
    MetadataKey,
    PageKey,
    SegmentKey,
    metadata_key,
    parse_key,
    segment_key,
)
from service.remote.format.manifest import ManifestLimits, live_segments
from service.remote.format.manifest_codec import ClusterFile
from service.remote.format.metadata_ref import MetadataRef
from service.remote.reading.object_reader import open_page, open_published, open_topics
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.store import ObjectStore
from service.tiering.prefix_fence import OwnWrites, update_cluster
from tests.unit.tiering.merges import MergingWorld, OutsideWorker
from tests.unit.tiering.stepped import SteppedManager
from tests.unit.tiering.world import CLUSTER, GRACE_MS, World

EVENTS, OTHER, GONE = UUID(int=7), UUID(int=8), UUID(int=9)
AGAIN_BEFORE, AGAIN = UUID(int=10), UUID(int=11)
"""one name, given anew"""

Place = tuple[UUID, int]


def image_of(world: World, offset: int) -> MetadataImage:
    """The metadata of a world, which ends before `offset`."""
    records: list[MetadataRecord] = []
    for name, topic_id in world.topic_ids.items():
        records.append(TopicRecord(name=name, topic_id=topic_id))
        records += [
            PartitionRecord(
                partition_id=one.tip.partition,
                topic_id=topic_id,
                replicas=(1,),
                isr=(1,),
                leader=1,
                leader_epoch=one.leader_epoch,
                partition_epoch=0,
                directories=(None,),
            )
            for one in world.replicas
            if one.tip.topic_id == topic_id
        ]
        records += [
            ConfigRecord(resource_type=2, resource_name=name, name=key, value=value)
            for key, value in world.topic_configs.get(name, {}).items()
        ]
    records += [remote_log_record(*key, entry) for key, entry in world.catalog.entries.items()]
    records += [TombstoneRecord(**one._asdict()) for one in world.catalog.buried.values()]
    return MetadataDelta(MetadataImage()).replay_all(records).build(offset - 1, 3, world.clock.now_ms())


def copy_metadata(world: World, offset: int | None = None, life: int = 0) -> str:
    """Put a copy of the world's metadata into its bucket, and have `cluster.json` name it; its key."""
    end = world.metadata_offset + 1 if offset is None else offset
    data = b"".join(encode_image(replace(image_of(world, end), life=life), 7))
    ref = MetadataRef(metadata_key(MetadataKey(end, 3, UUID(int=end))), end, 3, len(data), crc32c(data))
    world.bucket.put(ref.key, data)

    def name(cluster: ClusterFile) -> ClusterFile:
        return cluster._replace(metadata=ref)

    update_cluster(world.bucket, CLUSTER, name, OwnWrites())
    return ref.key


class Stored(NamedTuple):
    """An object, and when the store got it."""

    data: bytes
    stored_ms: int


class Archive(NamedTuple):
    """All objects, older versions of those that are replaced in place, and what is true of them."""

    objects: Mapping[str, Stored]
    older: Mapping[str, bytes]
    live: frozenset[str]
    """keys of what a reader may need: documents, chains of topics that live"""
    kinds: Mapping[str, tuple[str, ...]]
    """keys by what they are"""
    newest_copy: str
    now_ms: int

    def store(self) -> MemoryStore:
        """A store with these objects, of these times."""
        clock = ManualClock(0)
        store = MemoryStore(SystemThreads(), clock)
        for key, (data, stored_ms) in sorted(self.objects.items(), key=lambda one: one[1].stored_ms):
            clock.advance(stored_ms - clock.now_ms())
            store.put(key, data)
        clock.advance(self.now_ms - clock.now_ms())
        return store


def records(store: ObjectStore) -> dict[tuple[str, UUID, int], tuple[int, bytes]]:
    """Name, id and partition -> start offset and bytes of the log, of all topics that `topics.json` names."""
    found = {}
    for row in open_topics(store).topics:
        for number in range(row.partitions):
            if (read := partition_records(store, (row.topic_id, number))) is not None:
                found[row.name, row.topic_id, number] = read
    return found


def partition_records(store: ObjectStore, place: Place) -> tuple[int, bytes] | None:
    """Start offset and bytes of the log that HEAD leads to; None where there is no HEAD."""
    chain = open_published(store, HeadKey(*place))
    if chain is None:
        return None
    manifest = chain.manifest
    log = b"".join(
        bytes(store.get_range(entry.key, 0, entry.log_length))
        for entry in live_segments(manifest, lambda ref: open_page(store, ref, manifest))
    )
    return manifest.start_offset, log


class _PagedWorld(MergingWorld):
    def _boot(self) -> SteppedManager:
        self.limits = ManifestLimits(entries=3, page_refs=2)
        return super()._boot()


def make_archive(tmp: Path) -> Archive:
    """Two partitions of "events", one with two levels of pages and a merged segment, one that begins within a
    page; "other", made after the older copy; "gone", deleted; "again", deleted and made again under its name.
    """
    world = _PagedWorld(tmp, partitions=2)
    world.topic_configs = {"events": {"retention.ms": "-1"}, "other": {"retention.ms": "86400000"}}
    long, masked = world.replicas
    gone = world.add(TopicIdPartition(GONE, "gone", 0))
    again = world.add(TopicIdPartition(AGAIN_BEFORE, "again", 0))
    world.manager.maintenance.topics_changed()
    for one, count in ((long, 10), (masked, 8), (gone, 3), (again, 4)):
        world.fill(count, one)
    _run(world)
    masked.log.deletion.advance_log_start(world.live(masked)[1].base_offset + 1)
    _run(world)
    older_copy = copy_metadata(world)
    older = {
        info.key: world.bucket.get(info.key, max_size=1 << 30)
        for info in world.bucket.list("")
        if info.key.endswith(("/HEAD", "cluster.json", "topics.json"))
    }
    other = world.add(TopicIdPartition(OTHER, "other", 0))
    world.delete_topic("gone")
    world.delete_topic("again")
    again = world.add(TopicIdPartition(AGAIN, "again", 0))
    world.manager.maintenance.topics_changed()
    for one, count in ((long, 5), (masked, 2), (other, 4), (again, 2)):
        world.fill(count, one)
    world.clock.advance(world.settings.topics_debounce_ms)
    world.run()
    worker, run = OutsideWorker(world, long), world.run_of(long, 4, 2)
    worker.begin(run)
    worker.commit(worker.make(run))
    for partition in (0, 1):
        orphan = segment_key(SegmentKey(EVENTS, partition, 0, 9, 0, UUID(int=1 + partition)))
        world.bucket.put(orphan, b"?")
    world.clock.advance(1)
    world.metadata_offset += 1
    newest_copy = copy_metadata(world)
    world.clock.advance(1)
    world.bucket.put("probe/00000000-0000-0000-0000-000000000001", b"one")
    world.clock.advance(1)
    objects = {
        info.key: Stored(world.bucket.get(info.key, max_size=1 << 30), info.last_modified_ms)
        for info in world.bucket.list("")
    }
    live = frozenset({*world.live_keys(), newest_copy})
    kinds: dict[str, list[str]] = {}
    for key in sorted(objects):
        kinds.setdefault(_kind(key, live, older_copy), []).append(key)
    return Archive(
        objects,
        older,
        live,
        {kind: tuple(keys) for kind, keys in kinds.items()},
        newest_copy,
        world.clock.now_ms(),
    )


def _run(world: World) -> None:
    """Work, and let the grace of what that drops go by."""
    for _ in range(2):
        world.run()
        world.clock.advance(GRACE_MS)
    world.run()


def _kind(key: str, live: frozenset[str], older_copy: str) -> str:
    parsed = parse_key(key)
    if isinstance(parsed, MetadataKey):
        return "older copy" if key == older_copy else "newest copy"
    if key in ("cluster.json", "topics.json") or key.startswith("probe/"):
        return key.split("/")[0]
    if key not in live:
        return "dead"
    if isinstance(parsed, PageKey):
        return "page" if parsed.level == 0 else "upper page"
    names = {HeadKey: "HEAD", ManifestKey: "manifest", SegmentKey: "segment"}
    return names[type(parsed)]


def places(archive: Archive) -> Iterator[Place]:
    """Partitions that live, in order."""
    for key in sorted(archive.live):
        parsed = parse_key(key)
        if isinstance(parsed, HeadKey):
            yield parsed.topic_id, parsed.partition
