"""The local log of one partition: appending and reading (Kafka `UnifiedLog`, `LocalLog`).

Owned by the event loop, on which everything here runs, but for `open` and `flush`: those may run on a
`log-io` thread. The append path writes with one `pwrite` and never fsyncs. Checks come before any change: a
batch that is refused leaves no trace, a write that fails is taken back, and once a batch is written nothing
refuses it any more.

    log_start_offset <= local_log_start_offset <= recovery_point <= log_end_offset

Between the first two the log is in the bucket only. How records get to the device is `durability`'s, how
segments go is `trimming`'s; `state` is what they share. A replica whose files turn out to be damaged, or
cannot be relied on, is offline from then on: everything here raises `LogOffline`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.disk import DiskError
from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.files import make_directory
from service.base.types import NO_TIMESTAMP, TimestampedOffset, TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.background_append import RunAhead
from service.hot.cleaning.swap import Swapping
from service.hot.durability import Durability, Latch
from service.hot.epochs import LeaderEpochs
from service.hot.files import FileCache
from service.hot.log_appender import append_batches, append_run, begin_run, check_batches, end_run
from service.hot.producers import ProducerEntry, ProducerStates
from service.hot.reading import LogReader, ReadResult
from service.hot.recovery import Known, load_log, make_log, settings_of
from service.hot.sealed_segments import SealedSegments
from service.hot.search import TimeSearch
from service.hot.segment import Segment
from service.hot.segment_deletion import Trimming
from service.hot.state import AppendInfo, LogOffline, LogState, Watcher
from service.records.batch import iter_headers, stamp
from service.records.scan import BatchScan
from service.records.segment_indexes import MAX_RELATIVE_OFFSET
from service.records.validation import Origin, ValidatedBatch

_log = logging.getLogger(__name__)

DEFAULT_PRODUCER_EXPIRATION_MS: Final = 86_400_000


class LocalLog:
    """One partition's local tier; made with `LocalLog.open` or `LocalLog.make`."""

    def __init__(self, state: LogState, latch: Latch) -> None:
        self.state = state
        self.latch = latch
        self._durability = Durability(state, latch)
        self.reader = LogReader(state)
        self.sealed = SealedSegments(state)
        self._watchers: tuple[Watcher[LocalLog], ...] = (self.sealed,)
        self._trimming = Trimming(state, self._durability, self.reader, self._start_moved, self._has_removals)
        self.swapping = Swapping(state, self._trimming, self.reader)
        self.by_time = TimeSearch(state)
        self._closed = False
        state.configure(state.config)
        self._set_limits()

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
    ) -> LocalLog:
        """Open the log in `directory`, which is made if it is not there, and recover it unless `clean`.

        `recovery_point`: below it everything is known to be on disk. `log_start_offset`: as checkpointed.
        `doubtful`, `lost_power`: as `Known` says. `cleaned_offset`: up to there it was compacted, as
        checkpointed, -1 if it never was. `latch`: its log directory's, one of its own where it is alone.
        `DiskError` if the disk does not let us, `CorruptionError` if the log is damaged: its bytes stay then.
        """
        make_directory(world.disk, directory)
        state = LogState(directory, tip, config, world, FileCache(world.disk) if files is None else files)
        clean = clean and not doubtful
        known = Known(recovery_point, log_start_offset, clean, doubtful, lost_power, cleaned_offset)
        is_changed = load_log(state, known, producer_expiration_ms)
        log = cls(state, latch or Latch())
        if is_changed or not clean:
            log._durability.note(state.epochs.path)
        log._durability.is_settled = clean
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
        """A new log in `directory`, which is there and holds nothing; its names are the caller's to flush.

        Raises `DiskError`.
        """
        state = LogState(directory, tip, config, world, files)
        make_log(state, producer_expiration_ms)
        return cls(state, latch)

    def watch(self, watcher: Watcher[LocalLog]) -> None:
        """Tell `watcher` from now on, after `sealed`; one at a time."""
        self._watchers = self.sealed, watcher

    def _start_moved(self) -> None:
        for watcher in self._watchers:
            watcher.start_moved(self)

    def _has_removals(self, due_ms: int) -> None:
        for watcher in self._watchers:
            watcher.has_removals(self, due_ms)

    def check(self) -> None:
        """`LogOffline` where the replica is."""
        self.state.check()

    # What others ask of it

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
        """Why the replica is offline, None while it is not."""
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
        """Below it everything is on the device."""
        return self.state.recovery_point

    @property
    def last_flush_ms(self) -> int:
        """When everything was last asked to be made durable; monotonic ms."""
        return self._durability.last_flush_ms

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self.state.segments.size

    @property
    def active_base_offset(self) -> int:
        """First offset of the segment that is written to; the end, where a restart failed half-way."""
        segments = self.state.segments
        return segments.active.base_offset if len(segments) else self.state.end_offset

    @property
    def first_base_offset(self) -> int:
        """First offset of the oldest local segment; the end, as above."""
        return next(iter(self.state.segments.bases), self.state.end_offset)

    @property
    def config(self) -> LogConfig:
        """The topic's settings; may be set at any time, and holds from the next append on."""
        return self.state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.state.configure(config)
        self._set_limits()
        for watcher in self._watchers:
            watcher.configured(self)

    def _set_limits(self) -> None:
        """Draw the jitter for the active segment, so that partitions made together do not roll together."""
        config = self.state.config
        segment_ms = config.effective_segment_ms
        jitter = min(config.segment_jitter_ms, segment_ms)
        early_ms = self.state.world.random.randrange(jitter) if jitter > 0 else 0
        self.limits = (config.segment_bytes, segment_ms - early_ms)

    def fail(self, why: Exception) -> None:
        """Take the replica offline."""
        self.state.fail(why)

    # Appending

    def append(self, batch: ValidatedBatch, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append one batch as leader: offsets and epoch are stamped into ``batch.data`` in place.

        `RequestError` of `ProducerStates.check`, or RECORD_LIST_TOO_LARGE beyond ``segment.bytes``;
        `StorageError` if the disk refuses. Nothing is changed then.
        """
        state = self.state
        if state.ahead is not None:
            self.settle()
        if state.failure is not None:
            state.check()
        data, header = batch.data, batch.header
        offset = state.end_offset
        producers = state.producers
        producer = header.producer_id >= 0
        if producer:
            original = producers.check(header, offset, batch.origin is Origin.CLIENT)
            if original is not None:
                first, last, timestamp = original.first_offset, original.last_offset, original.timestamp
                return AppendInfo(first, last, timestamp, state.start, True, False)
        last_offset = offset + header.last_offset_delta
        max_timestamp = header.max_timestamp
        if len(data) > self.limits[0]:
            raise RequestError(
                ErrorCode.record_list_too_large,
                f"batch of {len(data)} bytes, segments of {self.tip} hold {self.limits[0]}",
            )
        rolled = self.make_room(len(data), offset, last_offset, max_timestamp, now_ms)
        if leader_epoch != state.epochs.latest:
            self.assign_epoch(leader_epoch, offset)
        stamp(data, 0, offset, leader_epoch)
        segments = state.segments
        try:
            segments.active.append(data, last_offset, max_timestamp)
        except DiskError as e:
            self.write_failed(segments.active, e)
            raise
        state.reached(last_offset + 1)
        segments.size += len(data)
        if producer:
            producers.update(header, offset, last_offset, now_ms)
        producers.end_offset = last_offset + 1
        log_append_time = max_timestamp if header.is_log_append_time else NO_TIMESTAMP
        return AppendInfo(offset, last_offset, log_append_time, state.start, False, rolled)

    def write_failed(self, segment: Segment, error: DiskError | None) -> None:
        if segment.is_torn:
            self.state.fail(f"a failed write could not be taken back: {error}")

    def append_raw(self, data: memoryview) -> AppendInfo:
        """Append whole batches that bear offsets and epochs already (the Raft log); none is too large.

        `CorruptionError` for torn bytes, a wrong checksum or offsets that do not go up from the log's end,
        before anything is written. On `DiskError` the batches before the failing one stay.
        """
        state = self._settled()
        headers = list(iter_headers(data))
        check_batches(data, headers, state.end_offset, self.tip)
        rolled = append_batches(self, data, headers)
        first, last = headers[0].base_offset, headers[-1].last_offset
        return AppendInfo(first, last, NO_TIMESTAMP, state.start, False, rolled)

    def append_fetched(self, data: memoryview, run: BatchScan) -> AppendInfo:
        """As `append_raw`, of neighbouring batches that were found sound: `run`, with positions in `data`."""
        state, first = self._settled(), run.base_offsets[0]
        rolled = append_run(self, data, run)
        return AppendInfo(first, run.last_offsets[-1], NO_TIMESTAMP, state.start, False, rolled)

    def begin_run(self, data: memoryview, run: BatchScan) -> RunAhead | None:
        """As `append_fetched`, but to be written by a thread: `settle` takes it in. None where the disk has
        more to do for it, as a segment or an epoch begins: that is for `append_fetched`."""
        state = self._settled()
        state.ahead = begin_run(self, data, run)
        return state.ahead

    def settle(self, ahead: RunAhead | None = None) -> None:
        """What a thread writes is part of the log, or was not begun and never will be: `ahead`, or any. It is
        waited for where it is under way, as the log is to be changed now."""
        state, under_way = self.state, self.state.ahead
        if under_way is not None and (ahead is None or ahead is under_way):
            state.ahead = None
            end_run(self, under_way)

    def _settled(self) -> LogState:
        """What is to be changed; `LogOffline` where it must not be."""
        self.settle()
        self.state.check()
        return self.state

    def make_room(self, size: int, offset: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Roll if the batch does not belong into the active segment; says whether it did."""
        try:
            if not self.state.segments.active.must_roll(
                size, max_timestamp, last_offset, now_ms, self.limits
            ):
                return False
        except CorruptionError as e:
            raise self.state.corrupt(e) from e
        # Segments meet, even where offsets have a gap; unless the gap is more than a segment can span.
        end = self.state.end_offset
        return self.roll(end if last_offset - end <= MAX_RELATIVE_OFFSET else offset)

    def assign_epoch(self, leader_epoch: int, offset: int) -> None:
        if leader_epoch >= 0 and self.state.epochs.assign(leader_epoch, offset):
            self._durability.note(self.state.epochs.path)

    def note_leader_epoch(self, leader_epoch: int) -> None:
        """A leader was elected: `leader_epoch` begins at the log's end, unless it is known already.

        The file says so before the first batch of that epoch is written; see `epochs`.
        """
        state = self._settled()
        state.epochs.begin(leader_epoch, state.end_offset)

    def end_offset_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(largest known epoch at or below `leader_epoch`, its end offset); (-1, -1) if none is known."""
        self.state.check()
        return self.state.epochs.end_offset_for(leader_epoch, self.state.end_offset)

    def roll(self, base_offset: int | None = None) -> bool:
        """Seal the active segment and begin a new one at `base_offset` (the log's end).

        False if it is empty already. `DiskError` leaves the log as it was.
        """
        state = self._settled()
        base = state.end_offset if base_offset is None else base_offset
        old = state.segments.active
        if old.base_offset == base:
            return False
        new = Segment.create(
            state.dir, base, settings_of(state.config), state.files, state.world.clock.now_ms()
        )
        state.producers.end_offset = base
        self._durability.take_snapshot()
        old.seal(new.created_ms)
        self._durability.note_sealed(old)
        self._durability.note_dir(state.dir)
        state.segments.add(new)
        state.reached(state.end_offset)  # the segment that was active may be deleted before the next append
        self._set_limits()
        if not old.size:
            self._trimming.take_out(len(state.segments) - 2, len(state.segments) - 1, "it is empty")
        for watcher in self._watchers:
            watcher.wants_flush(self)
        return True

    # Reading

    def read(
        self, offset: int, max_bytes: int, end_offset: int | None = None, min_one: bool = True
    ) -> ReadResult:
        """Bytes from the batch that holds `offset` on, never reaching `end_offset` (exclusive).

        With `min_one` the first batch comes whole even if it is larger than `max_bytes`; without it nothing
        comes then. `RequestError` OFFSET_OUT_OF_RANGE if `offset` is not within the local log. Of a batch
        that `end_offset` lies in nothing is given.
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
        """The first local record at or after `timestamp` ms, None if there is none; found at once, here."""
        return self.by_time.find(self.by_time.looks(timestamp, start_offset))

    def max_timestamp_offset(self) -> TimestampedOffset | None:
        """The first local record with the greatest timestamp; found at once, here."""
        return self.by_time.find(self.by_time.looks_for_newest())

    # Going away: see `trimming`

    def apply_local_retention(
        self,
        now_ms: int,
        remote_end_offset: int | None = None,
        high_watermark: int | None = None,
        *,
        is_tiered: bool = False,
        is_archive_empty: bool = False,
    ) -> int:
        """Delete the segments that retention lets go, up to `retention.MOST_AT_ONCE`; returns how many.

        `remote_end_offset`: the bucket holds all offsets below it (None: nothing). `is_tiered`: part of the
        log is committed in the bucket, so that nothing goes from here that is not there. `is_archive_empty`:
        nothing of it is live there.
        """
        self.state.check()
        try:
            return self._trimming.apply_retention(
                self.roll, now_ms, remote_end_offset, high_watermark, is_tiered, is_archive_empty
            )
        except CorruptionError as e:
            raise self.state.corrupt(e) from e

    def delete_segments(self, last_offset: int, reason: str, *, at_once: bool = False) -> int:
        """Delete the oldest sealed segments with nothing above `last_offset`, files `at_once`; how many."""
        self.state.check()
        return self._trimming.delete_segments(last_offset, reason, at_once=at_once)

    def advance_local_start(self, offset: int) -> int:
        """The local log begins at `offset` at the earliest: delete what lies wholly below.

        Returns how many segments went. `RequestError` OFFSET_OUT_OF_RANGE beyond the log's end.
        """
        self.state.check()
        return self._trimming.advance_local_start(offset)

    def advance_log_start(self, offset: int) -> int:
        """The log as a whole begins at `offset` at the earliest (DeleteRecords, retention, Raft snapshots).

        Returns how many local segments went. `RequestError` OFFSET_OUT_OF_RANGE beyond the log's end.
        """
        self.state.check()
        return self._trimming.advance_log_start(offset)

    def move_log_start(self, offset: int) -> None:
        """As `advance_log_start`, but what lies below goes with `delete_below_start`."""
        self.state.check()
        self._trimming.move_log_start(offset)

    def delete_below_start(self) -> int:
        """Delete sealed segments wholly below the log's start, up to `retention.MOST_AT_ONCE`; how many."""
        self.state.check()
        return self._trimming.delete_below_start()

    def take_removals(self, now_ms: int) -> list[Path]:
        """Files of deleted segments whose delay is over, for the caller to unlink in this order.

        The log's start must be durable before the first of them goes.
        """
        return self._trimming.take_removals(now_ms)

    def put_back_removals(self, paths: list[Path], due_ms: int) -> None:
        """What of `take_removals` could not be unlinked: nothing else goes before it."""
        self._trimming.put_back_removals(paths, due_ms)

    def end_after(self, offset: int) -> int:
        """Where the log ends at the least, were it cut by `truncate_to`."""
        self.state.check()
        try:
            return self._trimming.end_after(offset)
        except CorruptionError as e:
            raise self.state.corrupt(e) from e

    def producers_at(self, end: int) -> ProducerStates:
        """As they were when the log ended there. For a `log-io` thread, while nobody appends or cuts."""
        return self._trimming.producers_at(end)

    def truncate_to(self, offset: int, producers: ProducerStates | None = None) -> int:
        """Drop all batches that reach to `offset` or beyond; returns the new end of the log. `producers`: of
        `producers_at`, or they are found out here.

        A batch that `offset` lies in goes as a whole, and so does a gap, so the end may be lower than asked.
        Below the local start the whole local log goes and a new one begins at `offset`. A checkpointed
        recovery point above the new end must have been lowered before: else the log is taken for damaged.
        """
        self._settled()
        return self._or_offline(lambda: self._trimming.truncate_to(offset, producers))

    def restart_at(
        self,
        offset: int,
        log_start_offset: int | None = None,
        *,
        epochs: Sequence[tuple[int, int]] = (),
        producers: Sequence[tuple[int, ProducerEntry]] = (),
    ) -> int:
        """Drop everything and begin anew, empty, at `offset`; returns it.

        A Raft snapshot was taken over, or the disk lost what the bucket has. `log_start_offset`: where the
        log as a whole begins, at `offset` if it is None. `epochs`: (epoch, start offset) of what lies in
        between; `producers`: the state of producers there, as (producer id, entry).
        """
        self._settled()
        trimming = self._trimming
        return self._or_offline(lambda: trimming.restart_at(offset, log_start_offset, epochs, producers))

    def _or_offline(self, work: Callable[[], int]) -> int:
        """What fails half-way leaves memory and disk apart: the next opening brings them together."""
        try:
            self.swapping.finish()
            return work()
        except (StorageError, CorruptionError) as e:
            raise self.state.fail(e) from e

    # Durability: see `durability`

    @property
    def unflushed_records(self) -> int:
        """How many records a crash of the machine may take."""
        return self.state.end_offset - self.state.recovery_point

    @property
    def has_unsynced_files(self) -> bool:
        """Whether side files wait for a flush."""
        return self._durability.has_unsynced_files

    @property
    def flush_due(self) -> bool:
        """Whether ``flush.messages`` asks for a flush before the last append is acknowledged."""
        state = self.state
        return state.end_offset - state.recovery_point >= state.config.flush_messages

    def note_made(self, *side_files: Path) -> None:
        """The directory may be new: the first flush makes it and `side_files` durable with their names."""
        for path in side_files:
            self._durability.note(path)
        for path in (self.dir, self.dir.parent):
            self._durability.note_dir(path)

    def flush(self, up_to: int | None = None) -> int:
        """Make everything below `up_to` (default: the log's end) durable; returns the new recovery point.

        Blocks on the device: for a `log-io` thread, while the loop goes on appending. `FsyncFailed` if the
        device refuses, after which its log directory is not to be relied on; `StorageError` for what else
        fails, to be tried again.
        """
        return self._durability.flush(up_to)

    def retire(self) -> None:
        """The log is not this node's any more: a flush that runs just now may fail for nobody to hear."""
        self._durability.close()

    def close(self, clean: bool = True) -> None:
        """Let go of all files; with `clean`, everything is on disk and says so.

        Deleted segments that still wait for their removal (`take_removals`) are there again at the next
        opening, which judges them anew. Blocks; `StorageError`, and an offline log is never clean.
        """
        if self._closed:
            return
        self.settle()
        state = self.state
        if clean:
            state.check()
            self.swapping.finish()
            self._durability.settle()
        self._closed = True
        self._durability.close()
        for segment in state.segments:
            segment.close()

    def moved(self, directory: Path) -> None:
        """The directory was renamed (on its way to deletion); readers keep what they have open."""
        state = self.state
        state.dir = directory
        state.epochs.moved(directory)
        state.snapshots.moved(directory)
        for segment in state.segments:
            segment.moved(directory)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.state.segments)
