"""State that the parts of one log share: its files in order, its offsets, and whether it is offline."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from service.base.disk import Disk
from service.base.errors import CorruptionError, StorageError
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot import names
from service.hot.epochs import LeaderEpochs
from service.hot.erased_orders import ErasedOrders
from service.hot.files import FileCache, FileHandle
from service.hot.producer_snapshot import SnapshotFiles
from service.hot.producers import ProducerStates
from service.hot.segment import Segment
from service.hot.segments import Segments
from service.hot.txn_index import TxnIndex
from service.records.txn_rows import AbortedEntry

_log = logging.getLogger(__name__)

L = TypeVar("L", contravariant=True)


class LogOffline(StorageError):
    """The replica's files are damaged, or cannot be relied on. It serves no request until the next start."""


class AppendInfo(NamedTuple):
    """Offsets that a batch was given; inclusive. ``log_append_time``: ms, -1 under CreateTime.

    For a duplicate: the offsets and the timestamp of the first append (as in Kafka).
    """

    first_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool
    rolled: bool


class LogListener(Protocol[L]):
    """Called by logs on the loop when something has changed."""

    def needs_flush(self, log: L) -> None:
        """A segment was sealed: it waits for a flush."""

    def start_moved(self, log: L) -> None:
        """The log's start has moved: a checkpoint should contain it soon."""

    def files_queued(self, log: L, due_ms: int) -> None:
        """Files were queued for deletion: `DeletionQueue.take_due` returns them at `due_ms`."""

    def configured(self, log: L) -> None:
        """The log's settings have changed."""


class LogState:
    """Offsets, segments and side files of one log. Owned by the loop.

    ``lock`` guards what a flush on another thread reads: segments, ends and ``truncations``. ``failure``: why
    the replica is offline, None if it is not. ``cleaned_offset``: end of the compacted part, -1 if the log
    was never to be compacted. ``gaps_below``: end of the part in which offsets may be missing, as compaction
    removes them.
    """

    __slots__ = (
        "cleaned_offset", "config", "dir", "disk", "end_offset", "epochs", "erased", "failure", "files",
        "gaps_below", "local_start", "lock", "on_end_moved", "on_failure", "producers", "recovery_point",
        "segments", "snapshots", "start", "tip", "truncations", "world",
    )  # fmt: skip

    def __init__(
        self, directory: Path, tip: TopicIdPartition, config: LogConfig, world: World, files: FileCache
    ) -> None:
        self.dir = directory
        self.tip = tip
        self.config = config
        self.world = world
        self.disk: Disk = world.disk
        self.files = files
        self.lock = world.threads.lock()
        self.failure: LogOffline | None = None
        self.on_failure: Callable[[], None] | None = None
        self.truncations = 0
        self.segments: Segments
        self.epochs: LeaderEpochs
        self.erased = ErasedOrders(world.disk, directory, world.threads)
        """orders of erasure that were carried out here"""
        self.producers: ProducerStates
        self.snapshots: SnapshotFiles
        self.start = 0
        self.local_start = 0
        self.end_offset = 0
        self.on_end_moved: Callable[[int, int, int], None] | None = None
        """called with the log end and the active segment's base and bytes, before a record becomes visible"""
        self.recovery_point = 0
        self.cleaned_offset = -1
        self.gaps_below = 0

    def has_erased(self, order_id: UUID) -> bool:
        """Return whether an order of erasure was carried out here."""
        return self.erased.has(order_id, self.epochs, self.end_offset)

    def set_end(self, offset: int) -> None:
        """Move the log end to `offset`; the active segment is up to date already."""
        self.end_offset = offset
        if self.on_end_moved is not None:
            active = self.segments.active
            self.on_end_moved(offset, active.base_offset, active.size)

    def add_rows(self, segment: Segment, rows: list[AbortedEntry]) -> None:
        """Add the rows of abort markers that `segment` has got; later ones have none. Raises nothing."""
        index = segment.txn_index
        if index is None:
            index = segment.txn_index = TxnIndex(self.txn_index_of(segment), self.world.threads.lock())
        index.append(rows)
        if self.segments.indexed[-1:] != [segment]:
            self.segments.note_rows()

    def txn_index_of(self, segment: Segment, size: int = 0) -> FileHandle:
        """Return the file of a segment's transaction index, which has `size` bytes."""
        return FileHandle(segment.log.path.with_suffix(names.TXN_INDEX), size, self.files)

    def announce_end(self, offset: int, base_offset: int, size: int) -> None:
        """Report a lower log end before a truncation: a process that is killed halfway has lost nothing."""
        if self.on_end_moved is not None:
            self.on_end_moved(offset, base_offset, size)

    def configure(self, config: LogConfig) -> None:
        """Apply new settings. Once a log is to be compacted, offsets may be missing, whatever the policy is
        later."""
        self.config = config
        if config.is_compacted and self.cleaned_offset < 0:
            self.cleaned_offset = self.start

    def fail(self, why: Exception | str) -> LogOffline:
        """Take the replica offline, for good; returns the error to raise. Calls `on_failure` on this
        thread."""
        if self.failure is None:
            self.failure = LogOffline(f"{self.tip} is offline: {why}")
            _log.error("%s", self.failure)
            if self.on_failure is not None:
                self.on_failure()
        return LogOffline(str(self.failure))

    def corrupt(self, error: CorruptionError) -> LogOffline:
        """Take the replica offline because of damaged bytes, which stay as they are."""
        return self.fail(f"damaged, and left as it is: {error}")

    def check(self) -> None:
        """Raise `LogOffline` if the replica is offline."""
        if self.failure is not None:
            raise LogOffline(str(self.failure))
