"""Cuts of a world's archive, made with the codecs: what a restore is planned from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from crc32c import crc32c

from service.metadata.batches import encode_batch
from service.metadata.delta import MetadataDelta
from service.metadata.frames import newest
from service.metadata.image import MetadataImage
from service.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from service.metadata.snapshot_codec import encode_image
from service.records.batch import iter_headers
from service.remote.format.cut_codec import (
    Cut,
    CutRef,
    Cuts,
    PartitionCut,
    TailRef,
    decode_cuts,
    encode_cut,
    encode_cuts,
)
from service.remote.format.keys import CUT_NAME, CutKey, MetadataKey, TailKey, cut_key, metadata_key, tail_key
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.stamp import Stamp
from service.remote.format.tail_object import TailSection, decode_footer, encode_footer
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore
from tests.unit.hot.logs import raw
from tests.unit.inspect.archives import image_of
from tests.unit.tiering.world import CLUSTER, WRITER, Replica, World

EVENTS, OFFSETS = UUID(int=7), UUID(int=77)
METADATA = UUID(int=1)
"""Kafka's id of `__cluster_metadata`"""
INTERNAL = "__consumer_offsets"
TIERED = {"remote.storage.enable": "true"}
START = 1000
"""offset at which the metadata's snapshots end"""

Place = tuple[UUID, int]


def log_bytes(replica: Replica) -> bytes:
    """All batches that a partition's local log has."""
    return b"".join(path.read_bytes() for path in sorted(replica.log.dir.glob("*.log")))


def between(data: bytes, first: int, end: int) -> bytes:
    """Those with offsets from `first` to `end`, exclusive."""
    found = bytearray()
    for header in iter_headers(data):
        if first <= header.base_offset and header.last_offset < end:
            found += data[header.position : header.end]
    return bytes(found)


def border(data: bytes, least: int) -> int:
    """The first border of batches at or above `least`."""
    return next(header.last_offset + 1 for header in iter_headers(data) if header.last_offset + 1 >= least)


def section(place: Place, data: bytes, position: int, epoch: int = 0) -> TailSection:
    headers = list(iter_headers(data))
    return TailSection(
        *place,
        leader_epoch=epoch,
        first_offset=headers[0].base_offset,
        end_offset=headers[-1].last_offset + 1,
        position=position,
        length=len(data),
        crc32c=crc32c(data),
        record_count=sum(header.record_count for header in headers),
        max_timestamp=max(header.max_timestamp for header in headers),
        last_batch_epoch=headers[-1].partition_leader_epoch,
    )


@dataclass
class Cutting:
    """Cuts of one world, one after the other."""

    world: World
    records: list[MetadataRecord] = field(default_factory=list)
    """of the metadata, behind the snapshot"""
    internal: bytes = b""
    """the log of the one partition of `__consumer_offsets`"""
    number: int = 0
    cuts: list[CutRef] = field(default_factory=list)

    def image(self) -> MetadataImage:
        """The metadata that the snapshot has."""
        found = image_of(self.world, START)
        records: list[MetadataRecord] = [
            FeatureLevelRecord(name="metadata.version", feature_level=30),
            FeatureLevelRecord(name="transaction.version", feature_level=2),
            TopicRecord(name=INTERNAL, topic_id=OFFSETS),
            PartitionRecord(
                partition_id=0, topic_id=OFFSETS, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=5,
                partition_epoch=0, directories=(None, None, None),
            ),
            ConfigRecord(
                resource_type=2, resource_name=INTERNAL, name="cleanup.policy", value="compact"
            ),
        ]  # fmt: skip
        return MetadataDelta(found).replay_all(records).build(START - 1, 3, found.timestamp_ms)

    def cut(
        self,
        ends: Mapping[Replica, int],
        *,
        is_exact: bool = True,
        is_complete: bool = True,
        saves: bool = True,
        waits: Iterable[Replica] = (),
        starts: Mapping[Replica, int] | None = None,
        tailed: Iterable[Replica] | None = None,
        says: Mapping[Replica, int] | None = None,
        leaderless: Mapping[Replica, int] | None = None,
        let_go: Iterable[Replica] = (),
    ) -> CutRef:
        """Write a cut with these ends, and one tail that has what chains lack; `CUT` names it. `says`: up to
        where partitions are saved as the cut says, which await a segment with the rest. Nobody leads those
        that are `leaderless`; the cut before ended where they say. What was saved of those that are `let_go`
        is gone, as a later segment has it."""
        world = self.world
        self.number += 1
        world.clock.advance(10_000)
        sections: list[tuple[Place, bytes]] = []
        rows: dict[Place, PartitionCut] = {}
        for replica, end in ends.items():
            place = replica.tip.topic_id, replica.tip.partition
            entry = world.entry(replica)
            chain_end = 0 if entry is None else entry.end_offset
            is_saved = saves and replica not in waits and (tailed is None or replica in tailed)
            data = between(log_bytes(replica), chain_end, end) if is_saved and replica not in let_go else b""
            if data:
                sections.append((place, data))
            start = (starts or {}).get(replica, replica.log.log_start_offset)
            saved = (says or {}).get(replica, end if is_saved else max(chain_end, start))
            rows[place] = PartitionCut(
                replica.leader_epoch,
                start,
                end,
                end,
                saved,
                saved,
                0,
                0 if entry is None else entry.version,
                replica in waits or replica in (says or {}),
            )
        for replica, end in (leaderless or {}).items():  # as the cut before has them
            place = replica.tip.topic_id, replica.tip.partition
            rows[place] = PartitionCut(-1, 0, end, end, end, end, -1, 0, False)
        if self.internal:
            sections.append(((OFFSETS, 0), self.internal))
        end = max((header.last_offset + 1 for header in iter_headers(self.internal)), default=0)
        rows[OFFSETS, 0] = PartitionCut(5, 0, end, end, end, end, 5, 0, False)
        if self.records:
            batch = encode_batch(map(newest, self.records), base_offset=START, epoch=3, timestamp_ms=9)
            sections.append(((METADATA, 0), bytes(batch)))
        tails = [self._tail(sections)] if sections else []
        return self._document(rows, tails, is_exact=is_exact, is_complete=is_complete)

    def _tail(self, sections: Sequence[tuple[Place, bytes]]) -> TailRef:
        rows, data = [], b""
        for place, part in sorted(sections):
            rows.append(section(place, part, len(data), 5 if place[0] == OFFSETS else 0))
            data += part
        footer = encode_footer(CLUSTER, self.number, 0, rows, self.stamp())
        key = tail_key(TailKey(self.number, 0, 1, UUID(int=self.number)))
        found = decode_footer(footer, len(data) + len(footer))
        self.world.bucket.put(key, data + footer)
        return TailRef(key, len(data) + len(footer), found.position, found.crc)

    def _document(
        self,
        rows: Mapping[Place, PartitionCut],
        tails: Sequence[TailRef],
        *,
        is_exact: bool,
        is_complete: bool,
    ) -> CutRef:
        world = self.world
        snapshot = b"".join(encode_image(self.image(), 7))
        key = metadata_key(MetadataKey(START, 3, UUID(int=1000 + self.number)))
        world.bucket.put(key, snapshot)
        topics: dict[UUID, list[PartitionCut]] = {}
        for (topic_id, _), row in sorted(rows.items()):
            topics.setdefault(topic_id, []).append(row)
        cut = Cut(
            CLUSTER,
            self.number,
            world.clock.now_ms(),
            is_exact,
            MetadataRef(key, START, 3, len(snapshot), crc32c(snapshot), omitted_users=2),
            START + len(self.records),
            3,
            tuple(sorted(tails)),
            {topic_id: tuple(found) for topic_id, found in topics.items()},
            self.stamp(),
        )
        data = encode_cut(cut)
        ref = CutRef(
            self.number,
            cut_key(CutKey(self.number, UUID(int=self.number))),
            len(data),
            crc32c(data),
            cut.at_ms,
            is_exact,
            is_complete,
        )
        world.bucket.put(ref.key, data)
        self.cuts.append(ref)
        world.bucket.put(CUT_NAME, encode_cuts(Cuts(CLUSTER, tuple(self.cuts), (), self.stamp())))
        return ref

    def stamp(self) -> Stamp:
        return Stamp(self.world.clock.now_ms(), WRITER)


def internal_log(batches: int = 3) -> bytes:
    """Batches of ten records each, of leader epoch 5."""
    return bytes(raw(*((10 * n, 10, 5) for n in range(batches))))


def damage(world: World, key: str, at: int = -20) -> None:
    """Flip a bit of an object."""
    data = bytearray(world.bucket.get(key, max_size=1 << 30))
    data[at] ^= 1
    world.bucket.put(key, bytes(data))


def stored(store: ObjectStore) -> dict[str, str]:
    """Keys and tags of all objects."""
    return {info.key: info.etag for info in store.list("")}


def kept(world: World) -> tuple[int, ...]:
    """Numbers of the cuts that `CUT` names."""
    try:
        return tuple(ref.cut for ref in decode_cuts(world.bucket.get(CUT_NAME, max_size=1 << 16)).kept)
    except ObjectNotFound:
        return ()
