"""Bucket of a cluster that is lost, with many partitions and any number of segments, for `bench.restoring`.

Documents, tails and the newest segment of each partition are as a cluster leaves them; the other segments are
sparse files, put where the store keeps its objects.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.metadata.controller.catalog_control import remote_log_record
from service.metadata.delta import MetadataDelta
from service.metadata.features import cluster_bootstrap_records
from service.metadata.image import MetadataImage
from service.metadata.records import ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord
from service.metadata.snapshot_codec import encode_image
from service.remote.catalog import CatalogEntry
from service.remote.format.cut_codec import PartitionCut
from service.remote.format.keys import (
    CLUSTER_KEY,
    TOPICS_KEY,
    MetadataKey,
    SegmentKey,
    head_key,
    metadata_key,
    segment_key,
)
from service.remote.format.manifest import Manifest, SegmentEntry
from service.remote.format.manifest_codec import (
    ClusterFile,
    TopicsFileRow,
    encode_cluster,
    encode_head,
    encode_manifest,
    encode_page,
    encode_topics,
    head_of,
)
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.stamp import Stamp, Writer
from service.remote.reading.object_reader import Chain, entry_of
from service.remote.stores.store import ObjectStore
from service.tiering.archive_attempt import catalog_entry
from tests.support.cut_archives import CutWriter, Saved, row
from tests.support.hand_made_cuts import batch
from tests.unit.remote.archive import CLUSTER, TIP, plan_segment

PARTITIONS_OF_A_TOPIC: Final = 100
RECORDS: Final = 10
"""of a segment, and of what each partition has behind its chain"""
SEGMENT_BYTES: Final = 100 << 20
EPOCH: Final = 3
START_MS: Final = 1_700_000_000_000
METADATA_END: Final = 50_000
GROUPS: Final = 50
"""partitions of `__consumer_offsets`"""


class _Partition(NamedTuple):
    topic: str
    topic_id: UUID
    number: int


class LostBucket:
    """Archive in `store`, whose objects are files in `folder`."""

    def __init__(self, store: ObjectStore, folder: Path, pool: Executor, seed: int = 5) -> None:
        self._store = store
        self._folder = folder
        self._pool = pool
        self._random = random.Random(seed)
        self._stamp = Stamp(START_MS, Writer(1, self._new_uuid()))

    def _new_uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128))

    def fill(self, partitions: int, segments: int) -> None:
        """Write everything; `segments` are those of all partitions together."""
        each = segments // partitions
        topics = [(f"events-{number}", self._new_uuid()) for number in range(-(-partitions // 100))]
        places = [
            _Partition(*topics[number // PARTITIONS_OF_A_TOPIC], number % PARTITIONS_OF_A_TOPIC)
            for number in range(partitions)
        ]
        chains = list(self._pool.map(lambda place: self._chain(place, each), places))
        groups = self._new_uuid()
        metadata = self._metadata(places, chains, groups)
        cluster = ClusterFile(CLUSTER, self._stamp, metadata)
        self._store.put(CLUSTER_KEY, encode_cluster(cluster))
        rows = [TopicsFileRow(name, topic_id, 1, {}) for name, topic_id in topics]
        self._store.put(TOPICS_KEY, encode_topics(CLUSTER, METADATA_END, rows, self._stamp))
        self._cut(places, chains, groups, metadata)

    # -- chains

    def _chain(self, place: _Partition, count: int) -> CatalogEntry:
        entries = [*self._sparse(place, count - 1), self._newest(place, count - 1)]
        manifest = Manifest(CLUSTER, place.topic_id, place.topic, place.number)
        change = manifest.append(
            entries, leader_epoch=EPOCH, new_uuid=self._new_uuid, encode_page=encode_page, stamp=self._stamp
        )
        for _, ref, data in change.pages:
            self._store.put(ref.key, data)
        key, data = change.manifest.key(self._new_uuid()), encode_manifest(change.manifest)
        self._store.put(key, data)
        head = head_of(change.manifest, key, data)
        self._store.put(head_key(place.topic_id, place.number), encode_head(head))
        return catalog_entry(Chain(replace(change.manifest, stored_key=key), head))

    def _sparse(self, place: _Partition, count: int) -> Iterator[SegmentEntry]:
        for number in range(count):
            base = number * RECORDS
            key = segment_key(
                SegmentKey(place.topic_id, place.number, base, base + RECORDS - 1, EPOCH, self._new_uuid())
            )
            path = self._folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(SEGMENT_BYTES + 40_000)
            yield SegmentEntry(
                base_offset=base,
                last_offset=base + RECORDS - 1,
                size=SEGMENT_BYTES + 40_000,
                log_length=SEGMENT_BYTES,
                max_timestamp=START_MS + base + RECORDS,
                max_timestamp_offset=base + RECORDS - 1,
                leader_epochs=((EPOCH, 0),),
                key=key,
                footer_position=SEGMENT_BYTES + 30_000,
                footer_crc=self._random.getrandbits(32),
                min_timestamp=START_MS + base,
            )

    def _newest(self, place: _Partition, number: int) -> SegmentEntry:
        base = number * RECORDS
        planned = plan_segment(
            batch(base, [b"%d" % one for one in range(RECORDS)], EPOCH),
            base_offset=base,
            last_offset=base + RECORDS - 1,
            epochs=((EPOCH, 0),),
            uuid=self._new_uuid(),
            tip=TIP._replace(topic_id=place.topic_id, topic=place.topic, partition=place.number),
            producer_snapshot=b"",
        )
        self._store.put(planned.key, b"".join(planned.parts()))
        return entry_of(planned.footer)

    # -- documents

    def _metadata(self, places: list[_Partition], chains: list[CatalogEntry], groups: UUID) -> MetadataRef:
        records: list[MetadataRecord] = list(cluster_bootstrap_records())
        internal = [_Partition("__consumer_offsets", groups, number) for number in range(GROUPS)]
        for place in (*places, *internal):
            if place.number == 0:
                records.append(TopicRecord(name=place.topic, topic_id=place.topic_id))
                key, value = ("cleanup.policy", "compact")
                if place.topic_id != groups:
                    key, value = ("remote.storage.enable", "true")
                records.append(
                    ConfigRecord(resource_type=2, resource_name=place.topic, name=key, value=value)
                )
            records.append(
                PartitionRecord(
                    partition_id=place.number,
                    topic_id=place.topic_id,
                    replicas=(1, 2, 3),
                    isr=(1, 2, 3),
                    leader=1,
                    leader_epoch=EPOCH,
                    partition_epoch=0,
                    directories=(None, None, None),
                )
            )
        records += [
            remote_log_record(place.topic_id, place.number, entry)
            for place, entry in zip(places, chains, strict=True)
        ]
        image = MetadataDelta(MetadataImage()).replay_all(records).build(METADATA_END - 1, 3, START_MS)
        data = b"".join(encode_image(image, START_MS))
        key = metadata_key(MetadataKey(METADATA_END, 3, self._new_uuid()))
        self._store.put(key, data)
        return MetadataRef(key, METADATA_END, 3, len(data), crc32c(data))

    def _cut(
        self, places: list[_Partition], chains: list[CatalogEntry], groups: UUID, metadata: MetadataRef
    ) -> None:
        """Write the cut: each partition ends one batch behind its chain."""
        writer = CutWriter(self._store, CLUSTER, self._stamp, metadata=metadata)
        values = [b"v" * 100] * RECORDS
        saved: list[Saved] = []
        topics: dict[UUID, list[PartitionCut]] = {groups: [row(0)] * GROUPS}
        for place, entry in zip(places, chains, strict=True):
            end = entry.end_offset + RECORDS
            log = batch(entry.end_offset, values, EPOCH)
            saved.append(Saved(place.topic_id, place.number, log, EPOCH))
            known = row(end, leader_epoch=EPOCH, last_epoch=EPOCH, version=entry.version)
            topics.setdefault(place.topic_id, []).append(known)
        tails = [writer.tail(saved[number::3], node=number + 1) for number in range(3)]
        writer.cut(topics, sorted(tails), at_ms=START_MS)
