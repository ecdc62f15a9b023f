"""Proves from the bucket alone that what is published can be read: `firn fsck`. No broker, no metadata.

For each partition of `topics.json`: HEAD -> manifest -> pages -> one contiguous chain -> every object
there, with the manifest's size -> footer verified and equal to what the manifest says of it -> with
`deep`, every section's and block's checksum, and every batch: checksum, order of offsets, leader epochs,
counts, least timestamps where they are claimed. Objects that no published manifest names are listed as
orphans. Reads are ranges of a few MiB (or one block where that is larger); listings and chains are walked
side by side, so memory does not grow with the bucket. Nodes may be writing meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from itertools import count, groupby
from typing import Final
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.inspect.fsck_report import FsckReport, PartitionReport
from service.remote.format.keys import (
    CLUSTER_KEY,
    DATA_PREFIX,
    TOPICS_KEY,
    HeadKey,
    ManifestKey,
    PageKey,
    SegmentKey,
    parse_key,
    partition_prefix,
    topic_prefix,
)
from service.remote.format.manifest import Page, PageRef, SegmentEntry
from service.remote.format.manifest_codec import Head, Topics
from service.remote.reading.chain_proof import proved_footer, proved_segments, published_chain
from service.remote.reading.object_reader import Chain, open_cluster, open_head, open_metadata, open_page
from service.remote.reading.segment_proof import prove_segment
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectInfo, ObjectStore
from service.tiering.shared_objects import read_topics

Progress = Callable[[FsckReport], None]

_AHEAD: Final = 64
"""Partitions that are under way, or checked and not yet told, at a time."""
_LOOKS: Final = 4


def fsck(
    store: ObjectStore,
    *,
    topic: str | None = None,
    deep: bool = True,
    progress: Progress | None = None,
    pool: Executor | None = None,
) -> FsckReport:
    """Check the bucket, or one topic (a name of `topics.json`, or an id).

    `progress` is called after each partition with the report so far; with `pool` several partitions are
    checked at a time. Whatever is wrong with the data is in the report; only a store that does not answer
    raises (`StoreUnavailable`, `StoreRefused`).
    """
    check = _Check(store, FsckReport(deep), progress, pool)
    check.run(topic)
    return check.report


class _Check:
    def __init__(
        self, store: ObjectStore, report: FsckReport, progress: Progress | None, pool: Executor | None
    ) -> None:
        self.store = store
        self.report = report
        self._progress = progress
        self._pool = pool
        self._pending: deque[Future[FsckReport]] = deque()

    def run(self, topic: str | None) -> None:
        self._cluster()
        names, wanted = self._topics(topic)
        if topic is not None and wanted is None:
            self.report.error(topic, "no such topic in topics.json")
            return
        listing = self.store.list(topic_prefix(wanted) if wanted is not None else DATA_PREFIX)
        try:
            for owner, infos in groupby(listing, _owner):
                if owner is None:
                    for info in infos:
                        self.report.note(info.key, "not a key of this layout")
                elif names is not None and owner[0] not in names:
                    # Deleted (then its objects go one after the other), or lost: the bucket does not say.
                    for info in infos:
                        self.report.unknown(str(owner[0]), info.size)
                else:
                    self._start(HeadKey(*owner), names[owner[0]] if names is not None else None)
            self._take(0)
        finally:
            for future in self._pending:
                future.cancel()

    def _start(self, key: HeadKey, name: str | None) -> None:
        work = partial(
            check_partition, self.store, key, name, cluster_id=self.report.cluster_id, deep=self.report.deep
        )
        if self._pool is None:
            self._add(work())
            return
        self._pending.append(self._pool.submit(work))
        self._take(_AHEAD)

    def _take(self, left: int) -> None:
        """Wait, in order, until no more than `left` partitions are under way."""
        while len(self._pending) > left:
            self._add(self._pending.popleft().result())

    def _add(self, found: FsckReport) -> None:
        self.report.add(found)
        if self._progress is not None:
            self._progress(self.report)

    def _cluster(self) -> None:
        wrong = ""
        for _ in range(_LOOKS):
            try:
                self.report.cluster_id = open_cluster(self.store)
                open_metadata(self.store)
                return
            except (ObjectNotFound, CorruptionError) as e:
                if str(e) == wrong:
                    break  # a node that replaced the snapshot meanwhile would have made it another error
                wrong = str(e)
        self.report.error(CLUSTER_KEY, wrong)

    def _topics(self, wanted: str | None) -> tuple[dict[UUID, str] | None, UUID | None]:
        """Names by id, None where there is no `topics.json`; and the id of the topic asked for."""
        topics: Topics | None = None
        try:
            topics = read_topics(self.store)
        except CorruptionError as e:
            self.report.error(TOPICS_KEY, str(e))
        if topics is None:
            self.report.note(TOPICS_KEY, "not there: names of topics come from the manifests")
            return None, _as_uuid(wanted)
        if self.report.cluster_id not in (None, topics.cluster_id):
            self.report.error(TOPICS_KEY, f"of cluster {topics.cluster_id}")
        names = {row.topic_id: row.name for row in topics.topics}
        ids = {row.name: row.topic_id for row in topics.topics}
        found = ids.get(wanted) if wanted is not None else None
        as_id = _as_uuid(wanted)
        return names, found if found is not None else as_id if as_id in names else None


def check_partition(
    store: ObjectStore, key: HeadKey, name: str | None, *, cluster_id: str | None, deep: bool
) -> FsckReport:
    """One partition. What is wrong is looked at again before it is said.

    A node may commit while this walks: what HEAD named then is replaced, listed no more, and gone after a
    grace. Errors count when HEAD stood still through a second look.
    """
    for look in count(1):
        report = FsckReport(deep, cluster_id)
        head = _head(store, key)
        infos = store.list(partition_prefix(*key))
        chain = published_chain(
            store, key, cluster_id=cluster_id, topic=name, error=report.error, note=report.note
        )
        if chain is not None:
            _PartitionCheck(store, report, chain, infos).run()
        else:
            for info in infos:
                if not isinstance(parse_key(info.key), HeadKey):
                    report.orphan(info.key, info.size)
        if report.is_clean or (look > 1 and (look == _LOOKS or _head(store, key) == head)):
            break
    return report


def _head(store: ObjectStore, key: HeadKey) -> Head | str:
    """What HEAD says, or why it says nothing: to tell whether it has changed."""
    try:
        return open_head(store, key)
    except (ObjectNotFound, CorruptionError) as e:
        return str(e)


class _PartitionCheck:
    """One chain beside the listing of its partition. Both rise by offset, so they are merged."""

    def __init__(
        self, store: ObjectStore, report: FsckReport, chain: Chain, infos: Iterator[ObjectInfo]
    ) -> None:
        manifest = chain.manifest
        self._store = store
        self._report = report
        self._chain = chain
        self._infos = infos
        self._pages: set[str] = set()
        self._held: ObjectInfo | None = None
        self._row = PartitionReport(
            manifest.topic,
            str(manifest.topic_id),
            manifest.partition,
            manifest.version,
            manifest.start_offset,
            manifest.end_offset,
        )

    def run(self) -> None:
        row, before = self._row, self._report.error_count
        self._report.partitions.append(row)
        for entry in proved_segments(self._chain, self._load, self._report.error):
            self._segment(entry)
        self._rest()
        row.errors = self._report.error_count - before

    def _load(self, ref: PageRef) -> Page:
        self._pages.add(ref.key)
        return open_page(self._store, ref, self._chain.manifest)

    def _segment(self, entry: SegmentEntry) -> None:
        self._row.segments += 1
        self._row.size_bytes += entry.size
        self._report.segments += 1
        manifest = self._chain.manifest
        size = self._listed(entry.key)
        try:
            footer = proved_footer(
                self._store, entry, size, cluster_id=manifest.cluster_id, topic=manifest.topic
            )
            if self._report.deep:
                prove_segment(entry, footer, partial(self._read, entry.key))
            self._row.records += footer.record_count
            self._report.records += footer.record_count
            self._report.batches += footer.batch_count
        except (ObjectNotFound, CorruptionError) as e:
            self._report.error(entry.key, str(e))

    def _listed(self, key: str) -> int | None:
        """Size of `key` in the listing; what the listing has before it belongs to nobody."""
        while True:
            info = self._held if self._held is not None else next(self._infos, None)
            self._held = None
            if info is None:
                return None
            if info.key == key:
                return info.size
            if info.key > key:
                self._held = info
                return None
            self._report.orphan(info.key, info.size)

    def _rest(self) -> None:
        """What the listing has after the last segment: HEAD, manifests, pages and more orphans."""
        held = [self._held] if self._held is not None else []
        for info in (*held, *self._infos):
            parsed = parse_key(info.key)
            is_page = isinstance(parsed, PageKey) and info.key in self._pages
            if isinstance(parsed, HeadKey) or info.key == self._chain.key or is_page:
                continue
            if isinstance(parsed, ManifestKey) and parsed.version > self._chain.manifest.version:
                self._report.note(info.key, "newer than HEAD: not committed, or HEAD has yet to be written")
            self._report.orphan(info.key, info.size)

    def _read(self, key: str, position: int, length: int) -> Buffer:
        data = self._store.get_range(key, position, length)
        self._report.checked_bytes += len(data)
        return data


def _owner(info: ObjectInfo) -> tuple[UUID, int] | None:
    parsed = parse_key(info.key)
    return parsed[:2] if isinstance(parsed, (SegmentKey, ManifestKey, PageKey, HeadKey)) else None


def _as_uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text is not None else None
    except ValueError:
        return None
