"""Reader of the archive's documents: `topics.json`, HEADs, manifests, footers. It never lists the bucket.

The driver uses it while it plans. Calls block; calls about many partitions or segments use a few threads. A
`PartitionSnapshot` is one committed version of a partition, and later calls about it are answered from that
version.

For `read_committed` a partition ends at its last stable offset, which is that of the newest segment's end:
aborted transactions below it have their markers, and so their index entries, in the archive. The manifest's
row tells it where there are transactions, otherwise the segment's producer snapshot. A segment without one is
scanned batch by batch.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from uuid import UUID

from service.base.errors import ConfigError
from service.base.types import NO_OFFSET, NO_PRODUCER_ID
from service.records.batch import BatchHeader, iter_headers
from service.records.txn_rows import AbortedEntry, decode_rows
from service.remote.format.block_table import BlockTable
from service.remote.format.keys import TOPICS_KEY, HeadKey
from service.remote.format.manifest import Load, Manifest, ManifestPage, PageRef, SegmentEntry, live_segments
from service.remote.format.manifest_codec import TopicsFile, TopicsFileRow
from service.remote.format.segment_object import Footer
from service.remote.reading.chunk import Chunk, ChunkRange, split_chunks, verify_chunk
from service.remote.reading.key_filters import may_have_keys
from service.remote.reading.object_reader import (
    open_footer_of,
    open_page,
    open_published,
    open_topics,
    read_section,
)
from service.remote.reading.time_search import search_log
from service.remote.stores.errors import ObjectNotFound, naming
from service.remote.stores.store import ObjectStore
from service.spark.options import Assign, Choice, Subscribe
from service.spark.plan.memory import PlanCache
from service.spark.plan.snapshots import ChosenPartition, PartitionSnapshot
from service.spark.plan.txn_index import follow, open_in, stable_end

log = logging.getLogger(__name__)

THREADS: Final = 16
_FETCH_BYTES: Final = 8 << 20
_LISTED: Final = 20

_T = TypeVar("_T")
_R = TypeVar("_R")


class ArchiveReader:
    """The archive under one store, read only. Close it, or use it in a ``with``.

    With `read_committed` partitions end at their last stable offset. `cache` holds objects that earlier plans
    of the same bucket have read, and gets those that this one reads.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        read_committed: bool = False,
        cache: PlanCache | None = None,
        threads: int = THREADS,
    ) -> None:
        self.store = store
        self._read_committed = read_committed
        self._cache = PlanCache(0, 0) if cache is None else cache
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="firn-plan")
        self._topics: TopicsFile | None = None

    def __enter__(self) -> ArchiveReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def topics(self) -> tuple[TopicsFileRow, ...]:
        """Return the topics that `topics.json` lists, read once. `ConfigError` when the prefix has none."""
        return self._listing().topics

    def cluster_id(self) -> str:
        """Return the cluster that writes the archive, by `topics.json`."""
        return self._listing().cluster_id

    def ancestors(self) -> frozenset[str]:
        """Return the clusters that the archive's cluster was restored from, by `topics.json`."""
        return frozenset(one.cluster_id for one in self._listing().ancestors)

    def _listing(self) -> TopicsFile:
        if self._topics is None:
            try:
                self._topics = open_topics(self.store)
            except ObjectNotFound as e:
                raise ConfigError(
                    f"there is no {TOPICS_KEY} under this url: it is no Firn archive, or it is still empty"
                ) from e
        return self._topics

    def choose(self, choice: Choice) -> list[ChosenPartition]:
        """Return the partitions that the options name, by topic and number.

        `ConfigError` for an unknown topic or partition; a pattern that matches nothing gives an empty list.
        """
        if isinstance(choice, Subscribe):
            rows = [(name, self._topic(name)) for name in choice.topics]
            return _distinct(_all_partitions(name, row) for name, row in rows)
        if isinstance(choice, Assign):
            return _distinct(
                self._assigned(name, partitions) for name, partitions in choice.partitions.items()
            )
        pattern = re.compile(choice.pattern)
        rows = [(row.name, row) for row in self.topics() if pattern.fullmatch(row.name)]
        return _distinct(_all_partitions(name, row) for name, row in rows)

    def _topic(self, name: str) -> TopicsFileRow:
        """Find a topic by name, then by id: a topic may be called like another one's id."""
        for row in self.topics():
            if row.name == name:
                return row
        topic_id = parse_topic_id(name)
        for row in self.topics():
            if row.topic_id == topic_id:
                return row
        raise ConfigError(
            f"the archive has no topic {name!r}; {_listed(row.name for row in self.topics())}. "
            "A topic that was just created appears a moment later"
        )

    def _assigned(self, name: str, partitions: Sequence[int]) -> Iterator[ChosenPartition]:
        row = self._topic(name)
        for partition in partitions:
            if partition >= row.partitions:
                raise ConfigError(
                    f"topic {row.name} has {row.partitions} partitions, there is no {partition}"
                )
            yield ChosenPartition(row.name, row.topic_id, partition, name)

    def snapshots(self, chosen: Iterable[ChosenPartition]) -> list[PartitionSnapshot]:
        """Return the manifest that HEAD names now, for each partition."""
        return self._each(self._snapshot, chosen)

    def renewed(self, snapshots: Sequence[PartitionSnapshot]) -> list[PartitionSnapshot]:
        """Return the snapshots with what can be refreshed without a request to the bucket: here nothing."""
        return list(snapshots)

    def decided_later(self, snapshot: PartitionSnapshot) -> list[AbortedEntry]:
        """Return aborted transactions of the chain whose markers lie behind it, as far as these are read."""
        return []

    def forget_others(self, chosen: Iterable[ChosenPartition]) -> None:
        """Drop cached objects of partitions that are not among these."""
        self._cache.keep_only({HeadKey(one.topic_id, one.partition) for one in chosen})

    def _snapshot(self, chosen: ChosenPartition) -> PartitionSnapshot:
        key = HeadKey(chosen.topic_id, chosen.partition)
        manifest = self._newest_manifest(key)
        if manifest is None or not self._read_committed:
            return PartitionSnapshot(chosen, manifest)
        return PartitionSnapshot(chosen, manifest, stable_end=self._stable_end(manifest))

    def _stable_end(self, manifest: Manifest) -> int:
        newest = manifest.entries[-1] if manifest.entries else None
        if newest is not None and newest.open_from != NO_OFFSET:
            return stable_end({NO_PRODUCER_ID: newest.open_from}, manifest.start_offset, manifest.end_offset)
        opened = self._open_transactions(manifest)
        return stable_end(opened, manifest.start_offset, manifest.end_offset)

    def _newest_manifest(self, key: HeadKey) -> Manifest | None:
        manifests = self._cache.manifests
        found = open_published(
            self.store, key, lambda head: manifests.get(key, (head.manifest_key, head.crc32c))
        )
        if found is None:
            return None
        manifest, head = found
        manifests.put(key, (head.manifest_key, head.crc32c), manifest, 1 + len(manifest.children))
        return manifest

    def _open_transactions(self, manifest: Manifest) -> Mapping[int, int]:
        """Return the transactions that are open at the archive's end: producer id -> first offset."""
        load = self.loader(manifest)
        newest = next(live_segments(manifest, load, manifest.end_offset - 1), None)
        if newest is None:
            return {}
        opened = self.open_after(manifest, newest)
        if opened is None:
            opened = self._scan_open(manifest, live_segments(manifest, load))
        self._cache.open_transactions.put(_key(manifest), newest.key, opened, 1 + len(opened))
        return opened

    def open_after(self, manifest: Manifest, entry: SegmentEntry) -> Mapping[int, int] | None:
        """Return the transactions that are open at a segment's end; None if it has no producer snapshot."""
        known = self._cache.open_transactions.get(_key(manifest), entry.key)
        if known is not None:
            return known
        with naming(entry.key):
            section = open_footer_of(self.store, entry).sections["producer_snapshot"]
            return open_in(read_section(self.store, entry.key, section)) if section.length else None

    def _scan_open(self, manifest: Manifest, segments: Iterable[SegmentEntry]) -> Mapping[int, int]:
        """Find the transactions open at the end of segments, the last without a producer snapshot."""
        known: Mapping[int, int] | None = None
        bare: list[SegmentEntry] = []
        for entry in reversed(list(segments)):
            known = self.open_after(manifest, entry)
            if known is not None:
                break
            if self.footer(entry).transactional_batch_count != 0:
                bare.append(entry)
        if bare:
            log.warning(
                "%s has no producer snapshot: read_committed scans all its batches, and those of the other "
                "segments without one from offset %d on, %d bytes",
                bare[0].key,
                bare[-1].base_offset,
                sum(entry.log_length for entry in bare),
            )
        opened = dict(known or {})
        for entry in reversed(bare):
            for header in self._headers(entry):
                follow(opened, header)
        return opened

    def _headers(self, entry: SegmentEntry) -> Iterator[BatchHeader]:
        """Yield the header of every batch of a segment, block by block, after the block's checksum."""
        blocks = self.footer(entry).blocks
        with naming(entry.key):
            for wanted in split_chunks(blocks, _FETCH_BYTES):
                data = self.store.get_range(entry.key, wanted.position, wanted.length)
                yield from iter_headers(verify_chunk(data, wanted, blocks).data)

    def loader(self, manifest: Manifest) -> Load:
        """Return a loader of this manifest's pages. It caches 8: callers ask for neighbours in turn."""
        kept: dict[str, ManifestPage] = {}

        def load(ref: PageRef) -> ManifestPage:
            page = kept.get(ref.key)
            if page is None:
                page = open_page(self.store, ref, manifest)
                if len(kept) >= 8:
                    del kept[next(iter(kept))]
                kept[ref.key] = page
            return page

        return load

    def footers(self, entries: Iterable[SegmentEntry]) -> list[Footer]:
        """Return the footer of each segment, in order, verified against its manifest entry."""
        return self._each(self.footer, entries)

    def footer(self, entry: SegmentEntry) -> Footer:
        return open_footer_of(self.store, entry)

    def may_have_keys(self, entries: Iterable[SegmentEntry], filter_hashes: bytes) -> list[bool]:
        """Return for each segment whether a record may have one of the keys; see `key_filters`. One that is
        not there may: its task says what is lost."""
        return self._each(lambda entry: self._may_have(entry, filter_hashes), entries)

    def _may_have(self, entry: SegmentEntry, filter_hashes: bytes) -> bool:
        try:
            return may_have_keys(self.store, self.footer(entry), filter_hashes)
        except ObjectNotFound:
            return True

    def aborted(self, entry: SegmentEntry) -> list[AbortedEntry]:
        """Return the segment's transaction index, empty for nearly all; it costs a read of the footer."""
        with naming(entry.key):
            section = open_footer_of(self.store, entry).sections["txn_index"]
            return decode_rows(read_section(self.store, entry.key, section))

    def aborted_of(self, entries: Iterable[SegmentEntry]) -> list[list[AbortedEntry]]:
        """Return the transaction index of each segment, in order."""
        return self._each(self.aborted, entries)

    def offsets_for_timestamps(
        self, snapshots: Sequence[PartitionSnapshot], timestamps_ms: Sequence[int]
    ) -> list[int | None]:
        """Return for each partition the offset of the first record not older than its time, or None.

        Records at and behind the border do not count.
        """
        pairs = list(zip(snapshots, timestamps_ms, strict=True))
        return self._each(lambda pair: self._offset_for_timestamp(*pair), pairs)

    def _offset_for_timestamp(self, snapshot: PartitionSnapshot, timestamp_ms: int) -> int | None:
        manifest = snapshot.manifest
        if manifest is None:
            return None
        load = self.loader(manifest)
        found = search_log(manifest, load, lambda entry: self.footer(entry).blocks, self._chunk, timestamp_ms)
        return found.offset if found is not None and found.offset < snapshot.border else None

    def _chunk(self, entry: SegmentEntry, blocks: BlockTable, index: int) -> Chunk:
        """Return one verified block of a segment."""
        block = blocks[index]
        wanted = ChunkRange(index, index + 1, block.position, block.length)
        with naming(entry.key):
            data = self.store.get_range(entry.key, block.position, block.length)
            return verify_chunk(data, wanted, blocks)

    def _each(self, work: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        return list(self._pool.map(work, items))


def parse_topic_id(text: str) -> UUID | None:
    """Parse a topic id as the bucket writes it (with hyphens) or Kafka's tools print it (22 characters)."""
    if re.fullmatch(r"[A-Za-z0-9_-]{22}", text):
        try:
            return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
        except (binascii.Error, ValueError):
            return None
    try:
        return UUID(text)
    except ValueError:
        return None


def _listed(names: Iterable[str]) -> str:
    """Name the first topics: ``there are flights, planes and 7 more``."""
    ordered = sorted(names)
    if not ordered:
        return "it has none yet"
    more = f" and {len(ordered) - _LISTED} more" if len(ordered) > _LISTED else ""
    return f"there are {', '.join(ordered[:_LISTED])}{more}"


def _key(manifest: Manifest) -> HeadKey:
    return HeadKey(manifest.topic_id, manifest.partition)


def _all_partitions(asked: str, row: TopicsFileRow) -> Iterator[ChosenPartition]:
    for partition in range(row.partitions):
        yield ChosenPartition(row.name, row.topic_id, partition, asked)


def _distinct(groups: Iterable[Iterable[ChosenPartition]]) -> list[ChosenPartition]:
    """Return each partition once, though its topic may be given by name and by id."""
    found: Mapping[tuple[UUID, int], ChosenPartition] = {
        (chosen.topic_id, chosen.partition): chosen for group in groups for chosen in group
    }
    return list(found.values())
