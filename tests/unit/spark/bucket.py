"""Buckets made by hand, and a store that tells what was asked of it."""

from __future__ import annotations

import random
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from service.base.threads import SystemThreads
from service.base.types import Buffer
from service.records.builder import BatchBuilder
from service.records.producer_snapshot import ProducerRow, encode_rows
from service.remote.format.keys import MAX_OFFSET, TOPICS_KEY, head_key
from service.remote.format.manifest import Manifest, ManifestLimits, SegmentEntry
from service.remote.format.manifest_codec import (
    TopicsFileRow,
    encode_head,
    encode_manifest,
    encode_page,
    encode_topics,
    head_of,
)
from service.remote.format.segment_object import SegmentIdentity, plan_object
from service.remote.reading.log_scan import scan_log
from service.remote.reading.object_reader import entry_of, open_page
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.store import ObjectInfo
from service.spark.options import ReadOptions, parse_options
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.ranges import plan_ranges, resolve_ranges
from service.spark.plan.splits import Split
from tests.support.built_batches import build_batch

START_MS = 1_700_000_000_000
CLUSTER = "c-1"
TXN_ROW = struct.Struct(">hqqqq")


class CountingStore(MemoryStore):
    """Counts GETs and their bytes by key; listing is an error, as nothing that reads the archive may list."""

    def __init__(self) -> None:
        super().__init__(SystemThreads())
        self.gets: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def reset(self) -> None:
        self.gets.clear()
        self.bytes.clear()

    def _count(self, key: str, size: int) -> None:
        self.gets[key] += 1
        self.bytes[key] += size

    def get(self, key: str, *, max_size: int) -> bytes:
        data = super().get(key, max_size=max_size)
        self._count(key, len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        data = super().get_range(key, start, length)
        self._count(key, length)
        return data

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        raise AssertionError("manifests say where footers are")

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        raise AssertionError(f"{prefix} was listed")

    def got(self, ending: str) -> Counter[str]:
        """GETs of keys that end so."""
        return Counter({key: count for key, count in self.gets.items() if key.endswith(ending)})


class GatedStore(CountingStore):
    """Answers for HEADs when so many are asked for at the same time; else the first of them fail."""

    def __init__(self, together: int) -> None:
        super().__init__()
        self._gate = threading.Barrier(together)

    def get(self, key: str, *, max_size: int) -> bytes:
        if key.endswith("HEAD"):
            self._gate.wait(10)
        return super().get(key, max_size=max_size)


@dataclass
class Bucket:
    """Topics in a counting store. Every change is committed at once."""

    store: CountingStore = field(default_factory=CountingStore)
    block_bytes: int = 2048
    limits: ManifestLimits = field(default_factory=ManifestLimits)
    topics: dict[str, TopicsFileRow] = field(default_factory=dict)
    manifests: dict[tuple[str, int], Manifest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = random.Random(5)

    def new_uuid(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128))

    def topic(self, name: str, partitions: int = 1) -> None:
        self.topics[name] = TopicsFileRow(name, self.new_uuid(), partitions, {})
        self.publish_topics()

    def publish_topics(self) -> None:
        """`topics.json` as `topics` is now."""
        self.store.put(TOPICS_KEY, encode_topics(CLUSTER, 1, list(self.topics.values())))

    def topic_id(self, name: str) -> UUID:
        return self.topics[name].topic_id

    def manifest(self, topic: str, partition: int) -> Manifest:
        empty = Manifest(CLUSTER, self.topic_id(topic), topic, partition)
        return self.manifests.get((topic, partition), empty)

    def end(self, topic: str, partition: int = 0) -> int:
        return self.manifest(topic, partition).end_offset

    def add(
        self,
        topic: str,
        partition: int = 0,
        batches: Iterable[bytes] | int = 10,
        *,
        last_offset: int | None = None,
        txn_rows: Iterable[tuple[int, int, int, int]] = (),
        opened: Mapping[int, int] | None = None,
        start_ms: int | None = None,
        is_older: bool = False,
        with_key_filter: bool = False,
    ) -> SegmentEntry:
        """One more segment: these batches, or so many of ten records each, a second apart from `start_ms`.

        `opened` are the transactions (producer id, first offset) of its producer snapshot; None: it has none.
        `is_older`: as software wrote it that knew no `open_from`, which needs to know what is open.
        """
        base = self.end(topic, partition)
        if isinstance(batches, int):
            first_ms = START_MS + 1000 * base if start_ms is None else start_ms
            batches = [plain(base + 10 * i, first_ms + 10_000 * i) for i in range(batches)]
        log = b"".join(batches)
        found = scan_log(
            lambda position, length: log[position : position + length],
            0,
            len(log),
            first_offset=base,
            last_offset=MAX_OFFSET,
            name=topic,
            block_bytes=self.block_bytes,
            with_key_filter=with_key_filter,
        )
        last = found.last_offset if last_offset is None else last_offset
        topic_id = self.topic_id(topic)
        identity = SegmentIdentity(CLUSTER, topic_id, topic, partition, base, last, 0, self.new_uuid())
        planned = plan_object(
            identity,
            log=lambda: [log],
            log_length=len(log),
            blocks=found.blocks,
            offset_index=b"",
            time_index=b"",
            txn_index=b"".join(TXN_ROW.pack(0, *row) for row in txn_rows),
            producer_snapshot=b"" if opened is None else producer_snapshot(opened),
            leader_epochs=((0, base),),
            key_filter=found.key_filter,
            keyed_record_count=found.keyed_record_count,
            transactional_batch_count=found.transactional_batch_count,
            open_from=-1 if is_older else _open_from(found.transactional_batch_count, opened, last),
        )
        self.store.put_stream(planned.key, planned.parts(), planned.size)
        entry = entry_of(planned.footer)
        change = self.manifest(topic, partition).append(
            [entry], leader_epoch=0, new_uuid=self.new_uuid, encode_page=encode_page, limits=self.limits
        )
        for _, ref, data in change.pages:
            self.store.put(ref.key, data)
        self._commit(change.manifest)
        return entry

    def drop_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """Retention: the log starts at `offset`, and what nobody names any more is deleted."""
        manifest = self.manifest(topic, partition)
        drop = manifest.drop_before(
            offset, leader_epoch=0, load=lambda ref: open_page(self.store, ref, manifest)
        )
        self._commit(drop.manifest)
        self.store.delete(drop.keys)

    def _commit(self, manifest: Manifest) -> None:
        self.manifests[manifest.topic, manifest.partition] = manifest
        key, data = manifest.key(self.new_uuid()), encode_manifest(manifest)
        self.store.put(key, data)
        self.store.put(
            head_key(manifest.topic_id, manifest.partition), encode_head(head_of(manifest, key, data))
        )

    def plan(self, where: str | None = None, **options: object) -> list[Split]:
        """The splits of a read of this bucket."""
        if where is not None:
            options["where"] = where
        read = options_of(**options)
        with ArchiveReader(self.store, read_committed=read.read_committed, threads=4) as archive:
            return plan_batch(archive, read)


def plan_batch(archive: ArchiveReader, options: ReadOptions) -> list[Split]:
    """The splits of one batch read."""
    return plan_ranges(archive, resolve_ranges(archive, options), options)


def options_of(**options: object) -> ReadOptions:
    given = {name: str(value) for name, value in options.items()}
    return parse_options({"url": "file:///none", **given})


def _open_from(transactional: int | None, opened: Mapping[int, int] | None, last_offset: int) -> int:
    """The `open_from` of a segment's footer, -1 where it has no transactions or they are not known."""
    if opened is None or not (transactional or opened):
        return -1
    return min(opened.values(), default=last_offset + 1)


def producer_snapshot(opened: Mapping[int, int]) -> bytes:
    """Encode a snapshot of producers with these open transactions, and of one without."""
    rows = [ProducerRow(pid, 0, 0, first, 0, START_MS, 0, first) for pid, first in opened.items()]
    return encode_rows([*rows, ProducerRow(99, 3, 7, 1, 1, START_MS, -1, -1)])


def plain(base_offset: int, first_ms: int, count: int = 10, value_bytes: int = 100) -> bytes:
    """A batch of records a second apart."""
    rows = [(first_ms + 1000 * i, b"k", b"%0*d" % (value_bytes, base_offset + i)) for i in range(count)]
    return bytes(build_batch(rows, base_offset=base_offset))


def transactional(base_offset: int, producer_id: int, count: int = 1) -> bytes:
    builder = BatchBuilder(base_offset, producer_id=producer_id, producer_epoch=0, is_transactional=True)
    for i in range(count):
        builder.add(START_MS + base_offset + i, None, b"of %d" % producer_id)
    return bytes(builder.build())


def marker(base_offset: int, producer_id: int, *, commit: bool) -> bytes:
    builder = BatchBuilder(
        base_offset, producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=True
    )
    builder.add(START_MS + base_offset, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0))
    return bytes(builder.build())
