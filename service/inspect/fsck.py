"""Proof from the bucket alone that committed data can be read: `firn fsck`. No broker.

For each partition: HEAD -> manifest -> pages -> one contiguous chain -> every object exists, with the
manifest's size -> footer verified and equal to its manifest entry -> with `deep`, every section's and block's
checksum, and every batch: checksum, order of offsets, leader epochs, counts, least timestamps where they are
claimed. Rewritten segments have the offsets, epochs and records that they may have by what they took the
place of (`rewrite_check`). HEADs, topics and `topics.json` are compared with the newest copy of the metadata,
which may be older than any of them. Objects that no manifest names are listed as orphans, but for those of a
rewrite under way. Cuts and their tails are checked against the chains (`cut_check`), and the documents of
orders to erase keys (`erasure_check`). Reads are ranges of a few MiB (or one block where that is larger);
listings and chains are walked side by side, so memory does not grow with the bucket. Nodes may write
meanwhile: an error is checked again before it counts, so that a bucket is clean at any moment (invariant
T10).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from itertools import groupby
from typing import Final
from uuid import UUID

from service.base.errors import CorruptionError
from service.inspect.committed import Committed, describe_entry, read_committed
from service.inspect.cut_check import ChainEnd, CutCheck
from service.inspect.erasure_check import check_erasures
from service.inspect.fsck_report import FsckReport
from service.inspect.partition_check import Subject, check_partition
from service.inspect.readable_store import ReadableStore
from service.inspect.unnamed_objects import facts_of, take_over_of
from service.remote.format.cut_codec import ErasureRef
from service.remote.format.keys import (
    CLUSTER_KEY,
    DATA_PREFIX,
    METADATA_PREFIX,
    TOPICS_KEY,
    HeadKey,
    PartitionKey,
    parse_key,
    partition_prefix,
    topic_prefix,
)
from service.remote.reading.object_reader import open_cluster_file, open_metadata
from service.remote.reading.tails import owners_of
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectInfo, ObjectStore

Progress = Callable[[FsckReport], None]

_AHEAD: Final = 64
"""Most partitions that are being checked, or checked and not yet reported."""
_ATTEMPTS: Final = 4


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
    checked at a time. Errors of the data are in the report; only a store that does not answer raises
    (`StoreUnavailable`, and `StoreRefused` of the account, the bucket or a listing).
    """
    check = _Check(ReadableStore(store), FsckReport(deep), progress, pool)
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
        self._owners: frozenset[str] | None = None
        """the prefix's cluster and its ancestors; None where `cluster.json` cannot be read"""
        self._take_over: UUID | None = None
        self._pending: deque[Future[FsckReport]] = deque()
        self._found: set[HeadKey] = set()
        """partitions that have objects"""

    def run(self, topic: str | None) -> None:
        self._cluster()
        committed = read_committed(self.store)
        names, wanted = self._topics(committed, topic)
        if topic is not None and wanted is None:
            self.report.error(topic, "no such topic in topics.json, or in the copy of the metadata")
            return
        listing = self.store.list(topic_prefix(wanted) if wanted is not None else DATA_PREFIX)
        try:
            for owner, infos in groupby(listing, _owner):
                if owner is None:
                    for info in infos:
                        self.report.note(info.key, "not a key of this layout")
                elif names is not None and owner[0] not in names:
                    # The topic was deleted (its objects go one by one), or lost: the bucket does not tell.
                    for info in infos:
                        self.report.unknown(str(owner[0]), info.size)
                else:
                    self._found.add(HeadKey(*owner))
                    self._start(HeadKey(*owner), names[owner[0]] if names is not None else None, committed)
            self._collect(0)
        finally:
            for future in self._pending:
                future.cancel()
        self._compare(committed, wanted)
        listed = self._cuts(wanted)
        if wanted is None:
            check_erasures(self.store, self.report, self._owners, committed, listed)

    def _cuts(self, wanted: UUID | None) -> Sequence[ErasureRef] | None:
        """Check the cuts; return the orders to erase keys that `CUT` lists, None where it cannot be read."""
        ends = {
            (UUID(one.topic_id), one.partition): ChainEnd(one.start_offset, one.end_offset, one.last_epoch)
            for one in self.report.partitions
        }
        check = CutCheck(self.store, self.report, self._owners, ends, wanted, self._pool)
        check.run()
        return check.erasures

    def _start(self, key: HeadKey, name: str | None, committed: Committed) -> None:
        facts = facts_of(self.store, committed, key, self._take_over)
        subject = Subject(key, name, self._owners, committed.entry(key), facts)
        work = partial(check_partition, self.store, subject, deep=self.report.deep)
        if self._pool is None:
            self._add(work())
            return
        self._pending.append(self._pool.submit(work))
        self._collect(_AHEAD)

    def _collect(self, left: int) -> None:
        """Wait, in order, until at most `left` partitions are being checked."""
        while len(self._pending) > left:
            self._add(self._pending.popleft().result())

    def _add(self, found: FsckReport) -> None:
        self.report.add(found)
        if self._progress is not None:
            self._progress(self.report)

    def _cluster(self) -> None:
        wrong = ""
        for _ in range(_ATTEMPTS):
            try:
                cluster = open_cluster_file(self.store)
                self.report.cluster_id, self._owners = cluster.cluster_id, owners_of(cluster)
                self._take_over = take_over_of(cluster)
                open_metadata(self.store)
                return
            except (ObjectNotFound, CorruptionError) as e:
                if str(e) == wrong:
                    break  # had a node replaced the snapshot meanwhile, the error would differ
                wrong = str(e)
        self.report.error(CLUSTER_KEY, wrong)

    def _topics(self, committed: Committed, wanted: str | None) -> tuple[dict[UUID, str] | None, UUID | None]:
        """Return topic names by id, None where they are unknown; and the id of the requested topic."""
        if committed.copy is None:
            self.report.note(
                METADATA_PREFIX, "no copy of the metadata can be read: HEADs are not compared with it"
            )
        for problem in committed.copy_problems:
            self.report.note(METADATA_PREFIX, problem)
        topics = committed.topics
        if committed.topics_ms < 0:
            self.report.note(TOPICS_KEY, "missing: names come from the copy of the metadata, or manifests")
        if topics is not None and self._owners is not None and topics.cluster_id not in self._owners:
            self.report.error(TOPICS_KEY, f"of cluster {topics.cluster_id}")
        if topics is None and committed.copy is None:
            return None, _as_uuid(wanted)
        names = committed.live()
        ids = {name: topic_id for topic_id, name in names.items()}
        found = ids.get(wanted) if wanted is not None else None
        as_id = _as_uuid(wanted)
        return names, found if found is not None else as_id if as_id in names else None

    def _compare(self, before: Committed, wanted: UUID | None) -> None:
        """Compare the bucket with the committed state, read again, as a node may have committed meanwhile."""
        if self.report.is_clean and not self._problems(before, wanted) and not before.topics_problems():
            return
        after = read_committed(self.store)
        if after.are_topics_behind:
            for problem in after.topics_problems():
                self.report.note(TOPICS_KEY, f"{problem}: it was written before the copy of the metadata")
        live = after.live()
        for topic_id in before.live().keys() - live.keys():
            self.report.no_errors_below(f"{topic_prefix(topic_id)}/")
        for where, what in self._problems(after, wanted):
            self.report.error(where, what)

    def _problems(self, committed: Committed, wanted: UUID | None) -> list[tuple[str, str]]:
        found = [
            (
                partition_prefix(*key),
                f"it has no objects; {describe_entry(entry)}",
            )
            for key, entry in committed.archived()
            if key not in self._found and wanted in (None, key.topic_id) and not self._has_objects(key)
        ]
        exists = committed.topics_ms >= 0
        if committed.topics_wrong is not None and (exists or any(committed.archived())):
            found.append((TOPICS_KEY, committed.topics_wrong))
        if not committed.are_topics_behind:
            found += [(TOPICS_KEY, problem) for problem in committed.topics_problems()]
        return found

    def _has_objects(self, key: HeadKey) -> bool:
        """List a partition again: the walk may have passed its place before its first object."""
        return next(iter(self.store.list(partition_prefix(*key))), None) is not None


def _owner(info: ObjectInfo) -> tuple[UUID, int] | None:
    parsed = parse_key(info.key)
    return parsed[:2] if isinstance(parsed, PartitionKey) else None


def _as_uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text is not None else None
    except ValueError:
        return None
