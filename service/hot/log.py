"""The local log of one partition (Kafka `UnifiedLog`, `LocalLog`): its parts, its offsets, and reads.

Owned by the event loop, on which everything here runs, except `open` and `Durability.flush`: those may run on
a `log-io` thread.

    log_start_offset <= local_log_start_offset <= recovery_point <= log_end_offset

Between the first two the log is in the bucket only. The parts share `state`:

    appender     appends batches and rolls segments
    durability   flushes
    deletion     deletes segments at the front, `truncation` those at the end; `deletion_queue` has the files
    sealed       the sealed segments, for tiering
    runs         all segments as files, for tails
    swapping     replaces segments that were compacted

They refer to the log weakly, so that a deleted one is freed at once.

A replica is offline once its files are found damaged, or cannot be relied on: from then on every method
raises `LogOffline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError
from service.base.files import make_directory
from service.base.steps import at_once
from service.base.types import NO_TIMESTAMP, TimestampedOffset, TopicIdPartition
from service.base.weak import weakly
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.cleaning.swap import Swapping
from service.hot.deletion_queue import DeletionQueue
from service.hot.durability import Durability
from service.hot.epochs import LeaderEpochs
from service.hot.files import FileCache
from service.hot.fsync_failure import Latch
from service.hot.log_appender import LogAppender
from service.hot.log_runs import LogRuns
from service.hot.log_truncation import LogTruncation
from service.hot.producers import ProducerStates
from service.hot.reading import LogReader, ReadResult
from service.hot.recovery import Known, load_log, make_log
from service.hot.sealed_segments import SealedSegments
from service.hot.search import TimestampSearch
from service.hot.segment import Segment
from service.hot.segment_deletion import SegmentDeletion
from service.hot.state import LogListener, LogOffline, LogState
from service.records.txn_rows import WHOLE, AbortedEntry, decode_rows

DEFAULT_PRODUCER_EXPIRATION_MS: Final = 86_400_000


class LocalLog:
    """One partition's local tier; made with `LocalLog.open` or `LocalLog.make`.

    ``append``, ``append_markers``: the methods of `LogAppender`, without a call in between; likewise
    ``high_watermark_moved``, ``has_open_transaction`` and ``begin_verification`` of `ProducerStates`.
    """

    def __init__(self, state: LogState, latch: Latch) -> None:
        self.state = state
        self.latch = latch
        self.sealed = SealedSegments(state)
        self.runs = LogRuns(state)
        self._listeners: tuple[LogListener[LocalLog], ...] = (self.sealed,)
        self.durability = durability = Durability(state, latch)
        self.reader = reader = LogReader(state)
        self.deletion_queue = queue = DeletionQueue(state, durability, reader, weakly(self._files_queued))
        self.appender = appender = LogAppender(state, durability, queue, weakly(self._segment_sealed))
        self.append = appender.append
        self.append_markers = appender.append_markers
        self.high_watermark_moved = state.producers.high_watermark_moved
        self.has_open_transaction = state.producers.has_open_transaction
        self.begin_verification = state.producers.begin_verification
        self.swapping = swapping = Swapping(state, reader, queue)
        moved = weakly(self._start_moved)
        self.deletion = SegmentDeletion(state, queue, swapping, appender.roll, moved)
        self.truncation = LogTruncation(state, durability, reader, appender, swapping, queue, moved)
        self.timestamp_search = TimestampSearch(state)
        self.has_erased_records: Callable[[], bool] = lambda: False
        """whether its disk is from before an order of erasure that was carried out on it: consumers and tails
        get nothing then"""
        self.on_start_moved: Callable[[], None] | None = None
        """called when the log's start has moved, in either direction"""
        self._closed = False
        state.configure(state.config)

    @classmethod
    def open(
        cls,
        directory: Path,
        tip: TopicIdPartition,
        config: LogConfig,
        *,
        world: World,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean: bool = False,
        doubtful: bool = False,
        lost_power: bool = False,
        cleaned_offset: int = -1,
        files: FileCache | None = None,
        latch: Latch | None = None,
        producer_expiration_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS,
        high_watermark: int | None = None,
    ) -> LocalLog:
        """Open the log in `directory`, which is made if it does not exist, and recover it unless `clean`.

        `recovery_point`: everything below it is known to be durable. `log_start_offset`: from the checkpoint.
        `doubtful`, `lost_power`: see `Known`. `cleaned_offset`: end of the compacted part, from the
        checkpoint; -1 if it was never compacted. `latch`: that of its log directory; by default its own.
        `high_watermark`: from the checkpoint, None if there is no other replica.
        `DiskError` if the disk refuses, `CorruptionError` if the log is damaged: its files stay as they are.
        """
        make_directory(world.disk, directory)
        state = LogState(directory, tip, config, world, FileCache(world.disk) if files is None else files)
        clean = clean and not doubtful
        known = Known(
            recovery_point, log_start_offset, clean, doubtful, lost_power, cleaned_offset, high_watermark
        )
        is_changed = load_log(state, known, producer_expiration_ms)
        log = cls(state, latch or Latch())
        if is_changed or not clean:
            log.durability.note(state.epochs.path)
        if not clean and state.end_offset:  # the process that was killed may have cut it
            log.durability.note_cut(state.segments.active)
        log.durability.is_settled = clean
        return log

    @classmethod
    def make(
        cls,
        directory: Path,
        tip: TopicIdPartition,
        config: LogConfig,
        *,
        world: World,
        files: FileCache,
        latch: Latch,
        producer_expiration_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS,
    ) -> LocalLog:
        """Make a new log in `directory`, which exists and is empty; the caller flushes the new names.

        Raises `DiskError`.
        """
        state = LogState(directory, tip, config, world, files)
        make_log(state, producer_expiration_ms)
        return cls(state, latch)

    def listen(self, listener: LogListener[LocalLog]) -> None:
        """Call `listener` from now on, after `sealed`; one at a time."""
        self._listeners = self.sealed, listener

    def _start_moved(self) -> None:
        if self.on_start_moved is not None:
            self.on_start_moved()
        for listener in self._listeners:
            listener.start_moved(self)

    def _files_queued(self, due_ms: int) -> None:
        for listener in self._listeners:
            listener.files_queued(self, due_ms)

    def _segment_sealed(self) -> None:
        for listener in self._listeners:
            listener.needs_flush(self)

    def check(self) -> None:
        """Raise `LogOffline` if the replica is offline."""
        self.state.check()

    # Offsets, sizes, settings

    @property
    def dir(self) -> Path:
        return self.state.dir

    @property
    def tip(self) -> TopicIdPartition:
        return self.state.tip

    @property
    def producers(self) -> ProducerStates:
        return self.state.producers

    @property
    def epochs(self) -> LeaderEpochs:
        return self.state.epochs

    @property
    def failure(self) -> LogOffline | None:
        """Return why the replica is offline, None if it is not."""
        return self.state.failure

    @property
    def log_start_offset(self) -> int:
        return self.state.start

    @property
    def local_log_start_offset(self) -> int:
        return self.state.local_start

    @property
    def log_end_offset(self) -> int:
        return self.state.end_offset

    @property
    def recovery_point(self) -> int:
        """Everything below this offset is durable."""
        return self.state.recovery_point

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self.state.segments.size

    @property
    def active_base_offset(self) -> int:
        """Base offset of the active segment; the log end if a restart failed halfway."""
        segments = self.state.segments
        return segments.active.base_offset if len(segments) else self.state.end_offset

    @property
    def first_base_offset(self) -> int:
        """Base offset of the oldest local segment; the log end likewise."""
        return next(iter(self.state.segments.bases), self.state.end_offset)

    @property
    def config(self) -> LogConfig:
        """The topic's settings; may be set at any time, and apply from the next append on."""
        return self.state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.state.configure(config)
        self.appender.set_limits()
        for listener in self._listeners:
            listener.configured(self)

    def fail(self, why: Exception) -> None:
        """Take the replica offline."""
        self.state.fail(why)

    def end_offset_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (largest known epoch at or below `leader_epoch`, its end offset); (-1, -1) if none is
        known."""
        self.state.check()
        return self.state.epochs.end_offset_for(leader_epoch, self.state.end_offset)

    # Transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open, or whose marker the high watermark has not
        passed; not below the log's start. None if all is stable up to the high watermark."""
        first = self.state.producers.first_unstable_offset
        return None if first is None else max(first, self.state.start)

    @property
    def oldest_open(self) -> tuple[int, int, int] | None:
        """Producer id, first offset and last timestamp (ms) of the oldest open transaction, None if none is
        open."""
        producers = self.state.producers
        oldest = None if producers.transactions is None else producers.transactions.oldest()
        if oldest is None:
            return None
        entry = producers.get(oldest[0])
        return (*oldest, NO_TIMESTAMP if entry is None else entry.last_timestamp)

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedEntry]:
        """Return the aborted transactions that overlap ``[fetch_offset, upper_bound)`` and whose markers are
        in the local log, by their markers. `StorageError`."""
        self.state.check()
        rows = at_once(self.state.segments.aborted_from(fetch_offset, upper_bound, WHOLE))
        return decode_rows(b"".join(rows))

    @property
    def unflushed_records(self) -> int:
        """Return how many records a crash of the machine may take."""
        return self.state.end_offset - self.state.recovery_point

    @property
    def flush_due(self) -> bool:
        """Return whether ``flush.messages`` asks for a flush before the last append is acknowledged."""
        state = self.state
        return state.end_offset - state.recovery_point >= state.config.flush_messages

    # Reading

    def read(
        self, offset: int, max_bytes: int, end_offset: int | None = None, min_one: bool = True
    ) -> ReadResult:
        """Read up to `max_bytes` bytes from the batch that contains `offset`, up to `end_offset` (exclusive).

        With `min_one` the first batch is returned whole even if it is larger than `max_bytes`; without it
        nothing is returned then. A batch that contains `end_offset` is left out. `RequestError`
        OFFSET_OUT_OF_RANGE if `offset` is not within the local log.
        """
        state = self.state
        if state.failure is not None:
            state.check()
        log_end = state.end_offset
        if not state.local_start <= offset <= log_end:
            raise RequestError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} of {self.tip} is not within [{state.local_start}, {log_end}]",
            )
        end = log_end if end_offset is None or end_offset > log_end else end_offset
        if offset >= end:
            return ReadResult(None, offset)
        try:
            return self.reader.read(offset, max_bytes, end, log_end, min_one)
        except CorruptionError as e:
            raise state.corrupt(e) from e

    def offset_for_timestamp(
        self, timestamp: int, start_offset: int | None = None
    ) -> TimestampedOffset | None:
        """Find the first local record at or after `timestamp` ms, None if there is none; on this thread."""
        search = self.timestamp_search
        return search.run(search.by_timestamp(timestamp, start_offset))

    def max_timestamp_offset(self) -> TimestampedOffset | None:
        """Find the first local record with the greatest timestamp; on this thread."""
        search = self.timestamp_search
        return search.run(search.by_max_timestamp())

    # The end of its use

    def close(self, clean: bool = True) -> None:
        """Close all files; with `clean`, everything is durable first.

        Files that still wait in `deletion_queue` are found again by the next opening, which decides about
        them itself. Blocks; `StorageError`, and an offline log is never clean.
        """
        if self._closed:
            return
        self.appender.finish()
        state = self.state
        if clean:
            state.check()
            self.swapping.finish()
            self.durability.settle()
        self._closed = True
        self.durability.close()
        for segment in state.segments:
            segment.close()

    def moved(self, directory: Path) -> None:
        """Note that the directory was renamed (before its deletion); readers keep files that are open."""
        state = self.state
        state.dir = directory
        state.epochs.moved(directory)
        state.erased.moved(directory)
        state.snapshots.moved(directory)
        for segment in state.segments:
            segment.moved(directory)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.state.segments)
