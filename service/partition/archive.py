"""Archived part of a partition: whether the log takes appends beside it, and which local segments may go.

The bucket has two documents of the archive: the manifest that the committed catalog entry names
(`UnifiedLog.remote`), and HEAD, by which others find the manifest. The leader writes HEAD, so it deletes
local bytes only below the end that HEAD names; for a follower the committed entry suffices. Until HEAD has
been compared with the metadata, the bucket may have offsets that the log would assign again: appends are
held. So are they while the tails of a restore are loaded behind the archive (`replicas/tail_loading.py`).
Owned by the event loop.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol
from weakref import proxy

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.retention import limits_of
from service.partition.unified_log import UnifiedLog
from service.remote.catalog import CatalogEntry, LoadedCut

_log = logging.getLogger("service.partition.partition")

LOADING: Final = "its tail is loading"
"""Why nothing is taken by a partition of a restored cluster until the records of the cut are in its log."""


class TailWatcher(Protocol):
    """Interface of the loader of tails to a partition that waits for its own. Called in the middle of
    requests: it takes note and acts later."""

    def asked(self, tip: TopicIdPartition) -> None:
        """Note that a client asks for what is not loaded yet."""

    def replicated(self, tip: TopicIdPartition) -> None:
        """Note that all in-sync replicas have what was loaded."""


class ArchiveOwner(Protocol):
    """The partition, as its archive uses it."""

    tip: TopicIdPartition
    unified: UnifiedLog
    is_leader: bool
    replica_count: int
    high_watermark: int

    @property
    def is_shared(self) -> bool:
        """True if there are other replicas."""

    def changed(self) -> None:
        """Notify fetches that responses may differ."""


class PartitionArchive:
    """Archived part of one partition, which whoever keeps it has to keep as well."""

    def __init__(self, partition: ArchiveOwner) -> None:
        self._partition: ArchiveOwner = proxy(partition)  # a strong one would be a cycle
        self._log = partition.unified.local
        self.published_offset = 0
        """end of what HEAD names: a leader's local bytes below it may be deleted"""
        self.held: str | None = None
        """reason why appends are rejected"""
        self._doubt: str | None = None
        """reason why they are until `head_judged`"""
        self.loads_to: int | None = None
        """where the log goes on once the tails of a restore are loaded, up to which they are missing; None
        where nothing is loaded"""
        self.loaded: LoadedCut | None = None
        """what this node has loaded into the log since it leads the partition"""
        self.loader: TailWatcher | None = None
        """who loads them, if this node does"""

    # -- HEAD

    def hold_appends(self, reason: str) -> None:
        """Reject appends until `head_judged` allows them: the bucket may have their offsets already."""
        self._doubt = reason
        self._settle()

    def load_up_to(self, go_on: int | None) -> None:
        """Take no record and show none above the high watermark until the log has what a restore loads, up to
        `go_on`; None: it has it."""
        self.loads_to = go_on
        self._settle()

    def is_loading(self, offset: int) -> bool:
        """Return whether the record at `offset`, or the log's end there, is still to be loaded; who asks for
        it is served before others."""
        if self.loads_to is None or not self._partition.high_watermark <= offset <= self.loads_to:
            return False
        self._ask()
        return True

    def _settle(self) -> None:
        self.held = self._doubt if self.loads_to is None else LOADING

    def replicated(self, end_offset: int) -> None:
        """Note that all in-sync replicas have the log up to `end_offset`. Nobody sees it while it loads."""
        if self.loader is not None and self.loads_to is not None and end_offset >= self.loads_to:
            self.loader.replicated(self._partition.tip)

    def _ask(self) -> None:
        if self.loader is not None:
            self.loader.asked(self._partition.tip)

    def check_held(self, what: str) -> None:
        """Raise `RequestError` KAFKA_STORAGE_ERROR, saying that the partition `what`, while appends are
        held."""
        if self.held is not None:
            if self.loads_to is not None:
                self._ask()
            raise RequestError(ErrorCode.kafka_storage_error, f"{self._partition.tip} {what}: {self.held}")

    def head_judged(self, problem: str | None) -> None:
        """Apply the comparison of HEAD with our metadata: None if they agree, otherwise the difference.

        If they differ, no local bytes are deleted because the bucket has them, and held appends stay held.
        """
        if problem is None:
            self._doubt = None
        else:
            self.published_offset = 0
            if self._doubt is not None:
                self._doubt = problem
        self._settle()

    def remote_committed(self, entry: CatalogEntry) -> None:
        """Apply a committed `entry` that HEAD names; offload calls this after each commit and after a
        restart."""
        partition = self._partition
        partition.unified.remote_committed(entry)
        self.published_offset = 0 if self._log.config.gives_up_archive else entry.end_offset
        partition.changed()

    def configure(self, config: LogConfig) -> None:
        """Apply new topic settings: tiering may have been switched off."""
        if config.gives_up_archive:
            self._give_up()
        if not config.remote_storage_enable and self._partition.unified.remote is None:
            self._doubt = None  # nothing was copied, and HEAD is not compared any more
            self._settle()

    def _give_up(self) -> None:
        """Start the log at its local start, as tiering was switched off, and keep local bytes that the bucket
        has (Kafka `TopicConfigHandler.maybeUpdateRemoteLogComponents`)."""
        self.published_offset = 0
        try:
            self._log.deletion.move_log_start(self._log.local_log_start_offset)
        except StorageError as e:
            tip = self._partition.tip
            _log.warning("moving the start of %s out of its abandoned archive failed: %s", tip, e)

    # -- local segments

    @property
    def is_copied(self) -> bool:
        """Sealed segments are copied to the bucket, and deleted here once they are there."""
        return limits_of(self._log.config).remote

    def apply_retention(self, now_ms: int, *, may_let_go: bool = True) -> int:
        """Delete local segments that retention permits; returns how many. A segment goes only once the bucket
        has it, unless the bucket does not take it and it is beyond the retention of both tiers. Without
        `may_let_go` the bucket counts as empty.

        A follower deletes only segments below the log's start, which its leader sets, or in the bucket.
        """
        partition = self._partition
        remote = partition.unified.remote
        is_empty = remote is None or not remote.segments
        if not partition.is_leader and partition.replica_count > 1 and (is_empty or not may_let_go):
            return self._log.deletion.delete_below_start()
        gone = self._log.deletion.apply_retention(
            now_ms,
            self._safe_below if may_let_go else 0,
            partition.high_watermark,
            is_tiered=not is_empty and not self._log.config.gives_up_archive,
            is_archive_empty=is_empty,
        )
        if gone:
            partition.changed()
        return gone

    def let_go_early(self) -> int:
        """Delete the oldest local segment if the bucket has it: committed, and named by HEAD. Returns its
        bytes, 0 if there is none. Ignores local retention; files are deleted at once."""
        segments = self._log.state.segments
        if len(segments) < 2 or not self.is_copied:
            return 0
        end_offset, size = segments.bases[1], segments.all[0].size
        if end_offset > min(self._safe_below, self._partition.high_watermark):
            return 0
        if not self._log.deletion.delete_segments(
            end_offset - 1, "the disk fills up; the archive has them", at_once=True
        ):
            return 0
        self._partition.changed()
        return size

    def seal_early(self, least_bytes: int) -> bool:
        """Seal the active segment if it has so many bytes, so that it may be copied; whether it was."""
        size = self._log.state.segments.active.size
        return self.is_copied and size >= least_bytes and self._log.appender.roll()

    @property
    def _safe_below(self) -> int:
        """Offset below which local bytes may be deleted, as the bucket has them."""
        partition = self._partition
        if partition.is_leader or not partition.is_shared or self._log.config.gives_up_archive:
            return self.published_offset
        remote = partition.unified.remote
        return 0 if remote is None or remote.is_given_up else remote.end_offset
