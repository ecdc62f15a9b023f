"""Invariants of the archive that all nodes share, for any leader and any keeper of the prefix.

T2, T3  the manifest of a committed entry exists, is one chain without a gap, and ends where the entry does
T5      local bytes are deleted only once a committed entry covers them
T6, T16 versions rise by one, starts and ends do not fall, only the leader commits
T7      HEAD names a committed manifest, and does not go back
T8, T13 no node deletes what HEAD or the committed entry needs; `topics.json` forgets no topic
T9      the bucket has what replicas have below their high watermarks, byte for byte, and nothing above

Committed entries are read from the metadata log, in order, with all else that is committed (`oracle.py`). The
bucket reports each write and each deletion in the middle of a node's call, so a violation is raised at the
end of the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from service.base.errors import FirnError
from service.metadata.records import RemoteLogRecord
from service.partition.partition import Partition
from service.records.batch import complete_headers
from service.remote.catalog import NO_VERSION, CatalogEntry
from service.remote.format.keys import HeadKey, ManifestKey, PageKey, SegmentKey, parse_key
from service.remote.format.manifest import SegmentEntry
from service.remote.format.manifest_codec import decode_head
from simulator.archive import Archive, Live
from simulator.cluster.replicas import Key, Replicas
from simulator.model import Violation
from simulator.store import Deletion

_NOBODY: Final = UUID(int=0)


class Tiers:
    """Checks the archive whenever it changes; the cost is that of the changes."""

    def __init__(self, archive: Archive, replicas: Replicas, gone: Callable[[], frozenset[UUID]]) -> None:
        """`gone` returns the topics whose deletion was requested."""
        self.archive = archive
        self.entries: dict[Key, CatalogEntry] = {}
        """committed entries"""
        self.covered: dict[Key, int] = {}
        """greatest end offset of the committed archive so far"""
        self.commits = 0
        self.handovers = 0
        """commits of a leader to a chain that another epoch's had written"""
        self.on_chain: Callable[[Key, CatalogEntry | None, CatalogEntry, Live], None] = lambda *_: None
        """called for each committed chain, with the entry before"""
        self._replicas = replicas
        self._gone = gone
        self._manifests: dict[Key, set[str]] = {}
        self._proved: set[str] = set()
        """segments whose bytes were compared"""
        self._wrong: list[str] = []

    def check(self) -> None:
        """Raise a `Violation` that was noted in the middle of a node's call."""
        if self._wrong:
            raise Violation(self._wrong[0])

    # What is committed

    def learn(self, record: RemoteLogRecord) -> None:
        """Check a committed catalog entry, and take it. Raises `Violation`."""
        key = record.topic_id or _NOBODY, int(record.partition_id)
        entry = CatalogEntry(
            int(record.version),
            str(record.manifest_key),
            int(record.leader_epoch),
            int(record.start_offset),
            int(record.end_offset),
            int(record.segments),
            int(record.size_bytes),
        )
        before = self.entries.get(key)
        if entry == before:
            return
        name = f"the archive of {key[0]}-{key[1]}"
        self._follows(name, key, before, entry)
        self.entries[key] = entry
        self.covered[key] = max(self.covered.get(key, 0), entry.end_offset)
        self._manifests.setdefault(key, set()).add(entry.manifest_key)
        self.commits += 1
        self.handovers += before is not None and before.leader_epoch != entry.leader_epoch
        if key[0] in self._gone():
            return  # its objects may go already
        try:
            live = self.archive.named(entry.manifest_key)
        except FirnError as e:
            raise Violation(f"T3: {name} is committed as {entry.manifest_key}: {e}") from e
        self._is_a_chain(name, entry, live)
        self.on_chain(key, before, entry, live)
        for segment in live.segments:
            self._is_there(name, segment)
            if key not in self._replicas.shaken and segment.key not in self._proved:
                self._proved.add(segment.key)
                self._is_committed(name, key, segment)

    def _follows(self, name: str, key: Key, before: CatalogEntry | None, entry: CatalogEntry) -> None:
        """T6, T16."""
        placed = self._replicas.placed.get(key)
        if placed is None or entry.leader_epoch != placed.leader_epoch:
            epoch = None if placed is None else placed.leader_epoch
            raise Violation(f"T16: {name} is written in epoch {entry.leader_epoch}, the leader's is {epoch}")
        if entry.version != (NO_VERSION if before is None else before.version) + 1:
            raise Violation(f"T6: {name} goes from {before} to {entry}")
        if before is None or entry.is_given_up:
            return
        if entry.start_offset < before.start_offset or entry.end_offset < before.end_offset:
            raise Violation(f"T6: {name} goes from {before} to {entry}")

    def _is_a_chain(self, name: str, entry: CatalogEntry, live: Live) -> None:
        """T2."""
        expected = entry.start_offset
        for number, segment in enumerate(live.segments):
            if number == 0 and segment.holds(expected):
                expected = segment.base_offset  # the log begins within it
            if segment.base_offset != expected:
                raise Violation(f"T2: {name}: a segment begins at {segment.base_offset}, not at {expected}")
            expected = segment.last_offset + 1
        if (expected, live.end_offset, len(live.segments)) != (entry.end_offset, expected, entry.segments):
            raise Violation(f"T2: {name} ends at {expected}, and its entry is {entry}")

    def _is_there(self, name: str, segment: SegmentEntry) -> None:
        """T3."""
        data = self.archive.object(segment.key)
        if data is None or len(data) != segment.size:
            raise Violation(f"T3: {name} needs {segment.key}, which is not there")

    def _is_committed(self, name: str, key: Key, segment: SegmentEntry) -> None:
        """T9: what is in the object is what lies below the high watermark on replicas, its epochs, too."""
        most, known = self._replicas.most.get(key, 0), self._replicas.committed.get(key, {})
        if segment.last_offset >= most:
            raise Violation(f"T9: {name} has {segment.last_offset}, committed is what lies below {most}")
        data = (self.archive.object(segment.key) or b"")[: segment.log_length]
        epochs = dict(segment.leader_epochs)
        at = segment.base_offset
        for header in complete_headers(data):
            batch = data[header.position : header.position + header.size]
            epoch = header.partition_leader_epoch
            if header.base_offset == at and known.get(at) == batch:
                if epoch not in epochs or epochs[epoch] > at:
                    raise Violation(f"T9, T23: {name}: {at} is of epoch {epoch}, it says {epochs}")
            elif not (header.base_offset == at and self._replicas.erasures.covers(key, known, batch, header)):
                raise Violation(f"T9, T24: {name} has another batch at {at} than was committed")
            at = header.next_offset
        if at != segment.last_offset + 1:
            raise Violation(f"T9: {name}: {segment.key} ends at {at}")

    # What is done to the bucket

    def written(self, key: str, data: bytes, replaced: bytes | None) -> None:
        """T6, T7, T13. `simulator.store.Bucket.on_write`."""
        wrong = self.archive.wrong_with_write(key, data, replaced, self._gone())
        head = parse_key(key)
        if not wrong and isinstance(head, HeadKey) and head.topic_id not in self._gone():
            named = decode_head(data).manifest_key
            if named not in self._manifests.get((head.topic_id, head.partition), ()):
                wrong = f"T7: {key} names {named}, which was never committed"
        if wrong:
            self._wrong.append(wrong)

    def deleted(self, deletion: Deletion) -> None:
        """T8. `simulator.store.Bucket.on_delete`."""
        owner = self.archive.owner(deletion.key)
        if owner is not None and owner in self._gone():
            return
        if self.archive.is_live(deletion.key) or self._is_needed(deletion.key):
            self._wrong.append(f"T8: {deletion.by} deletes {deletion.key}, which is live")

    def _is_needed(self, key: str) -> bool:
        """Return whether the committed entry needs the object: HEAD may lag behind it."""
        parsed = parse_key(key)
        if not isinstance(parsed, SegmentKey | ManifestKey | PageKey):
            return False
        entry = self.entries.get((parsed.topic_id, parsed.partition))
        return entry is not None and key in self.archive.named(entry.manifest_key).keys

    # Replicas

    def look_at(self, name: str, key: Key, partition: Partition) -> None:
        """T5, of a replica to which something was done. Raises `Violation`."""
        log = partition.log
        if log.failure is not None:
            return
        safe = max(log.log_start_offset, self.covered.get(key, 0))
        if log.local_log_start_offset > safe:
            raise Violation(
                f"T5: {name} begins at {log.local_log_start_offset}, the log at {log.log_start_offset}, "
                f"and the bucket ends at {self.covered.get(key, 0)}"
            )

    # At rest

    def not_copied(self, leaders: Iterable[tuple[Key, Partition]]) -> str:
        """Name a partition of `leaders` that is not archived completely, or whose HEAD lags (T7, T11); else
        return ""."""
        for key, partition in leaders:
            if not partition.archive.is_copied:
                continue
            entry = self.entries.get(key)
            end = 0 if entry is None else entry.end_offset
            sealed = partition.log.sealed.describe_all(max(end, partition.start_offset))
            waiting = [one for one in sealed if one.last_offset < partition.high_watermark]
            if waiting:
                return f"{partition.tip}: {waiting[0].last_offset} is sealed, its archive ends at {end}"
            if entry is not None:
                head = next(iter(self.archive.live(*key)[0] & {entry.manifest_key}), None)
                if head is None:
                    return f"{partition.tip}: its HEAD does not name {entry.manifest_key}"
        return ""
