"""The local log of one partition: segments, and the state that goes with them.

Source: Kafka `UnifiedLog`, `LocalLog`.

Owned by the event loop, on which everything here runs, but for `open` and `flush`: those may run on a
`log-io` thread. The append path writes with one `pwrite` and never fsyncs. Checks come before any change: a
batch that is refused leaves no trace, and a write that fails is taken back.

    log_start_offset <= local_log_start_offset <= recovery_point <= log_end_offset

Between the first two the log is in the bucket only.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.disk import Disk, DiskError, MissingFile
from service.base.errors import CorruptionError, RequestError
from service.base.files import make_directory, remove_file
from service.base.types import NO_TIMESTAMP, TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot import retention, search
from service.hot.files import FileCache
from service.hot.reading import LogReader, ReadResult
from service.hot.recovery import LoadedLog, OpenRequest, load_log, replay_batch, replay_producers, settings_of
from service.hot.sealed import SealedSegment, describe
from service.hot.segment import Segment
from service.hot.segments import Segments
from service.hot.walk import at_position
from service.records.batch import BatchHeader, iter_headers, stamp, verify_crc
from service.records.validation import ValidatedBatch

_log = logging.getLogger(__name__)

DEFAULT_PRODUCER_EXPIRATION_MS: Final = 86_400_000


class AppendInfo(NamedTuple):
    """Where a batch went; offsets inclusive. ``log_append_time``: ms, -1 under CreateTime.

    Of a duplicate: where it went the first time, with its timestamp then (as Kafka answers).
    """

    first_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool
    rolled: bool


class LocalLog:
    """One partition's local tier; make it with `LocalLog.open`.

    ``last_flush_ms``: when everything was last asked to be made durable. ``on_roll``: called with the log
    after a segment was sealed (the manager flushes it then).
    """

    def __init__(
        self,
        directory: Path,
        tip: TopicIdPartition,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        world: World,
        files: FileCache,
    ) -> None:
        self.dir = directory
        self.tip = tip
        self.producers = loaded.producers
        self.epochs = loaded.epochs
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.last_flush_ms = world.clock.now_ms()
        self.on_roll: Callable[[LocalLog], None] | None = None
        self._clock = world.clock
        self._disk = world.disk
        self._random = world.random
        self._files = files
        self._snapshots = loaded.snapshots
        self._segments = Segments(loaded.segments)
        self._reader = LogReader(self._segments)
        self.local_log_start_offset = max(loaded.log_start_offset, self._segments.bases[0])
        self._unsynced = deque([loaded.epochs.path])
        self._flushing = world.threads.lock()
        self._state_lock = world.threads.lock()
        self._truncations = 0
        self._closed = False
        self.config = config

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
        files: FileCache | None = None,
        producer_expiration_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS,
    ) -> LocalLog:
        """Open the log in `directory`, which is made if it is not there, and recover it unless `clean`.

        `recovery_point`: below it everything is known to be on disk. `log_start_offset`: as checkpointed.
        `DiskError` if the disk does not let us.
        """
        files = FileCache(world.disk) if files is None else files
        make_directory(world.disk, directory)
        loaded = load_log(
            OpenRequest(
                directory,
                config,
                files,
                world.clock.now_ms(),
                recovery_point,
                log_start_offset,
                clean,
                producer_expiration_ms,
            )
        )
        return cls(directory, tip, config, loaded, world=world, files=files)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._segments.size

    @property
    def active_base_offset(self) -> int:
        """First offset of the segment that is written to."""
        return self._segments.active.base_offset

    @property
    def first_base_offset(self) -> int:
        """First offset of the oldest local segment."""
        return self._segments.bases[0]

    @property
    def config(self) -> LogConfig:
        """The topic's settings; may be set at any time, and holds from the next append on."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._set_limits()

    def _set_limits(self) -> None:
        """Draw the jitter for the active segment, so that partitions made together do not roll together."""
        config = self._config
        jitter = min(config.segment_jitter_ms, config.segment_ms)
        early_ms = self._random.randrange(jitter) if jitter > 0 else 0
        self._limits = (config.segment_bytes, config.segment_ms - early_ms)

    # Appending

    def append(self, batch: ValidatedBatch, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append one batch as leader: offsets and epoch are stamped into ``batch.data`` in place.

        `RequestError` of `ProducerStates.check`, or RECORD_LIST_TOO_LARGE beyond ``segment.bytes``;
        `DiskError` if the disk refuses. Nothing is changed then.
        """
        data, header = batch.data, batch.header
        offset = self.log_end_offset
        producer = header.producer_id >= 0
        if producer:
            original = self.producers.check(header, offset)
            if original is not None:
                first, last, timestamp = original.first_offset, original.last_offset, original.timestamp
                return AppendInfo(first, last, timestamp, self.log_start_offset, True, False)
        last_offset = offset + header.last_offset_delta
        max_timestamp = header.max_timestamp
        rolled = self._make_room(len(data), offset, last_offset, max_timestamp, now_ms)
        if leader_epoch != self.epochs.latest:
            self._assign_epoch(leader_epoch, offset)
        stamp(data, 0, offset, leader_epoch)
        segments = self._segments
        segments.active.append(data, last_offset, max_timestamp)
        self.log_end_offset = last_offset + 1
        segments.size += len(data)
        if producer:
            self.producers.update(header, offset, last_offset, now_ms)
        self.producers.end_offset = last_offset + 1
        log_append_time = max_timestamp if header.is_log_append_time else NO_TIMESTAMP
        return AppendInfo(offset, last_offset, log_append_time, self.log_start_offset, False, rolled)

    def append_raw(self, data: memoryview) -> AppendInfo:
        """Append whole batches that bear their offsets and epochs already (the Raft log, followers).

        No producer checks: they were made where the offsets were given. `CorruptionError` for torn bytes, a
        wrong checksum or offsets that do not go up from the log's end, before anything is written. On
        `DiskError` the batches before the failing one stay.
        """
        headers = list(iter_headers(data))
        self._check_raw(data, headers)
        rolled = False
        now_ms = self._clock.now_ms()
        for header in headers:
            base, last = header.base_offset, header.last_offset
            rolled |= self._make_room(header.size, base, last, header.max_timestamp, now_ms)
            if header.partition_leader_epoch > self.epochs.latest:
                self._assign_epoch(header.partition_leader_epoch, base)
            active = self._segments.active
            position = active.size
            active.append(data[header.position : header.end], last, header.max_timestamp)
            self.log_end_offset = last + 1
            self._segments.size += header.size
            replay_batch(self.producers, active.log.get(), at_position(header, position))
        first, last = headers[0].base_offset, headers[-1].last_offset
        return AppendInfo(first, last, NO_TIMESTAMP, self.log_start_offset, False, rolled)

    def _check_raw(self, data: memoryview, headers: list[BatchHeader]) -> None:
        if not headers:
            raise CorruptionError("nothing to append")
        expected = self.log_end_offset
        for header in headers:
            if header.base_offset < expected:
                raise CorruptionError(
                    f"batch at offset {header.base_offset}, the log of {self.tip} is at {expected}"
                )
            if not verify_crc(data, header):
                raise CorruptionError(
                    f"wrong checksum of the batch at offset {header.base_offset} for {self.tip}"
                )
            expected = header.next_offset

    def _make_room(self, size: int, offset: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Roll if the batch does not belong into the active segment; says whether it did."""
        if size > self._limits[0]:
            raise RequestError(
                ErrorCode.record_list_too_large,
                f"batch of {size} bytes, segments of {self.tip} hold {self._limits[0]}",
            )
        if not self._segments.active.must_roll(size, max_timestamp, last_offset, now_ms, self._limits):
            return False
        return self.roll(offset)

    def _assign_epoch(self, leader_epoch: int, offset: int) -> None:
        epochs = self.epochs
        if leader_epoch < 0:
            return
        if epochs.assign(leader_epoch, offset):
            self._unsynced.append(epochs.path)

    def roll(self, base_offset: int | None = None) -> bool:
        """Seal the active segment and begin a new one at `base_offset` (the log's end);
        False if it is empty already.
        """
        base = self.log_end_offset if base_offset is None else base_offset
        old = self._segments.active
        if old.base_offset == base:
            return False
        new = Segment.create(self.dir, base, settings_of(self._config), self._files, self._clock.now_ms())
        self.producers.end_offset = base
        try:
            snapshot = self._snapshots.take(self.producers)
        except DiskError as e:
            _log.warning("no producer snapshot at %d of %s: %s", base, self.tip, e)
        else:
            if snapshot is not None:
                self._unsynced.append(snapshot)
        old.seal(new.created_ms)
        self._segments.add(new)
        self._set_limits()
        if not old.size:
            self._remove(len(self._segments) - 2, len(self._segments) - 1, "it is empty")
        if self.on_roll is not None:
            self.on_roll(self)
        return True

    # Reading

    def read(
        self, offset: int, max_bytes: int, end_offset: int | None = None, min_one: bool = True
    ) -> ReadResult:
        """Bytes from the batch that holds `offset` on, of one segment, never reaching `end_offset`
        (exclusive).

        With `min_one` the first batch comes whole even if it is larger than `max_bytes`; without it nothing
        comes then. `RequestError` OFFSET_OUT_OF_RANGE if `offset` is not within the local log. Of a batch
        that `end_offset` lies in nothing is given.
        """
        log_end = self.log_end_offset
        if not self.local_log_start_offset <= offset <= log_end:
            raise RequestError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} of {self.tip} is not within [{self.local_log_start_offset}, {log_end}]",
            )
        end = log_end if end_offset is None or end_offset > log_end else end_offset
        if offset >= end:
            return ReadResult(None, offset)
        return self._reader.read(offset, max_bytes, end, log_end, min_one)

    def offset_for_timestamp(self, timestamp: int, start_offset: int | None = None) -> search.Found | None:
        """(offset, timestamp, leader epoch) of the first local record at or after `timestamp` ms, None if
        there is none.
        """
        start = self.local_log_start_offset if start_offset is None else start_offset
        return search.offset_for_timestamp(self._segments.all, timestamp, start)

    def max_timestamp_offset(self) -> search.Found | None:
        """(offset, timestamp, leader epoch) of the first local record with the greatest timestamp."""
        return search.max_timestamp_offset(self._segments.all)

    def sealed_segments(self, from_offset: int = 0) -> list[SealedSegment]:
        """All segments but the active one, oldest first, that end beyond `from_offset`.

        Opens nothing it need not.
        """
        segments, bases = self._segments.all, self._segments.bases
        return [
            describe(segments[slot], end, self._snapshots, self.epochs)
            for slot, end in enumerate(bases[1:])
            if end > from_offset
        ]

    def segment_facts(self) -> list[retention.SegmentFacts]:
        """What retention and `firn tiers` ask of each segment, oldest first, the active one last."""
        ends = [*self._segments.bases[1:], self.log_end_offset]
        return [
            retention.SegmentFacts(end, segment.size, segment.largest_timestamp)
            for segment, end in zip(self._segments.all, ends, strict=True)
        ]

    # Going away: retention, start offsets, truncation

    def apply_local_retention(
        self, now_ms: int, remote_end_offset: int | None = None, high_watermark: int | None = None
    ) -> int:
        """Delete the segments that retention lets go; returns how many.

        `remote_end_offset`: the bucket holds all offsets below it (of interest with remote storage only;
        None: nothing).
        """
        bounds = retention.RetentionBounds(
            self.local_log_start_offset,
            self.log_end_offset if high_watermark is None else high_watermark,
            remote_end_offset or 0,
        )
        limits = retention.limits_of(self._config)
        decision = retention.decide(self.segment_facts(), limits, bounds, now_ms)
        if decision.roll:
            self.roll()
        count = min(decision.segments, len(self._segments) - 1)
        if count:
            self._remove_oldest(count, "retention by " + ", ".join(decision.reasons))
        return count

    def delete_segments(self, last_offset: int, reason: str) -> int:
        """Delete the oldest sealed segments that hold nothing above `last_offset`; returns how many."""
        count = self._segments.whole_below(last_offset + 1)
        if count:
            self._remove_oldest(count, reason)
        return count

    def advance_local_start(self, offset: int) -> int:
        """The local log begins at `offset` at the earliest:

        delete what lies wholly below; returns how many segments.
        """
        if offset > self.log_end_offset:
            raise RequestError(ErrorCode.offset_out_of_range, f"{offset} is beyond the end of {self.tip}")
        if offset > self.local_log_start_offset:
            self.local_log_start_offset = offset
        return self.delete_segments(offset - 1, "the local log starts later")

    def advance_log_start(self, offset: int) -> int:
        """The log as a whole begins at `offset` at the earliest (DeleteRecords, total retention, Raft
        snapshots).

        Returns how many local segments went. `RequestError` OFFSET_OUT_OF_RANGE beyond the log's end.
        """
        if offset > self.log_end_offset:
            raise RequestError(ErrorCode.offset_out_of_range, f"{offset} is beyond the end of {self.tip}")
        if offset <= self.log_start_offset:
            return 0
        self.log_start_offset = offset
        if self.epochs.truncate_start(offset):
            self._unsynced.append(self.epochs.path)
        return self.advance_local_start(max(offset, self.local_log_start_offset))

    def _remove_oldest(self, count: int, reason: str) -> None:
        start = self._segments.bases[count]
        self._remove(0, count, reason)
        self.local_log_start_offset = max(self.local_log_start_offset, start)
        config = self._config
        copied = config.remote_storage_enable and not config.remote_log_copy_disable
        if not copied and start > self.log_start_offset:
            self.log_start_offset = start
            if self.epochs.truncate_start(start):
                self._unsynced.append(self.epochs.path)

    def _remove(self, begin: int, end: int, reason: str) -> None:
        """Take segments out of the log; their files go after ``file.delete.delay.ms``."""
        due_ms = self._clock.now_ms() + self._config.file_delete_delay_ms
        for base_offset in self._segments.remove(begin, end, due_ms, reason):
            self._snapshots.remove(base_offset)
        self._reader.forget()

    def take_removals(self, now_ms: int) -> list[Path]:
        """Files of deleted segments whose delay is over, for the caller to unlink (on a `log-io` thread)."""
        return self._segments.take_removals(now_ms)

    def truncate_to(self, offset: int) -> int:
        """Drop all batches that reach to `offset` or beyond; returns the new end of the log.

        A batch that `offset` lies in goes as a whole, so the end may be lower than asked. Below the local
        start the whole local log goes and a new one begins at `offset`.
        """
        if offset >= self.log_end_offset:
            return self.log_end_offset
        segments = self._segments
        if offset < segments.bases[0]:
            return self.restart_at(offset)
        slot = segments.slot_of(offset)
        segment = segments.all[slot]
        place = segment.find(offset)
        with self._state_lock:
            self._truncations += 1
            if slot + 1 < len(segments):
                self._remove(slot + 1, len(segments), f"truncation to {offset}")
            end = offset if place is None else place.base_offset
            before = segment.size
            segment.truncate(segment.size if place is None else place.position, end)
            segments.size -= before - segment.size
            segments.active = segment
            segment.open_for_append()
            self.log_end_offset = end
            self.recovery_point = min(self.recovery_point, end)
            self.log_start_offset = min(self.log_start_offset, end)
            self.local_log_start_offset = min(self.local_log_start_offset, end)
        self._reader.forget()
        if self.epochs.truncate_end(end):
            self._unsynced.append(self.epochs.path)
        self._snapshots.remove_above(end)
        self._snapshots.restore(self.producers, end, segments.bases[0], self._clock.now_ms())
        replay_producers(self.producers, segments.all, self._snapshots, end, self._clock.now_ms())
        return end

    def restart_at(self, offset: int, log_start_offset: int | None = None) -> int:
        """Drop everything and begin anew, empty, at `offset` (a Raft snapshot was taken over, or the disk
        lost what the bucket has); returns `offset`.

        `log_start_offset`: where the log as a whole begins, at `offset` if it is None.
        """
        with self._state_lock:
            self._truncations += 1
            self._remove(0, len(self._segments), f"restart at {offset}")
            self._snapshots.remove_above(-1)
            settings = settings_of(self._config)
            active = Segment.create(self.dir, offset, settings, self._files, self._clock.now_ms())
            self._segments.add(active)
            self.log_start_offset = offset if log_start_offset is None else log_start_offset
            self.local_log_start_offset = self.log_end_offset = self.recovery_point = offset
        self.epochs.clear()
        self.producers.clear(offset)
        return offset

    # Durability

    @property
    def unflushed_records(self) -> int:
        """How many records a crash of the machine may take."""
        return self.log_end_offset - self.recovery_point

    @property
    def flush_due(self) -> bool:
        """Whether ``flush.messages`` asks for a flush before the last append is acknowledged."""
        return self.unflushed_records >= self._config.flush_messages

    def flush(self, up_to: int | None = None) -> int:
        """Make everything below `up_to` (default: the log's end) durable; returns the new recovery point.

        Blocks on the device: for a `log-io` thread, while the loop goes on appending. `DiskError` if the
        device refuses.
        """
        with self._flushing:
            return self._flush(up_to)

    def _flush(self, up_to: int | None) -> int:
        with self._state_lock:
            generation = self._truncations
            end = self.log_end_offset if up_to is None else min(up_to, self.log_end_offset)
            segments = self._segments.between(self.recovery_point, end)
            if end == self.log_end_offset:
                self.last_flush_ms = self._clock.now_ms()
        try:
            # Whatever belongs to records below `end` was put here before they were appended.
            while self._unsynced:
                _fsync_if_there(self._disk, self._unsynced[0])
                self._unsynced.popleft()
            for segment in segments:
                self._flush_segment(segment)
            if segments:
                self._disk.fsync_dir(self.dir)
        except DiskError:
            if not self._closed:  # else the files may go at any time, and nobody needs them
                raise
        with self._state_lock:
            if generation == self._truncations and end > self.recovery_point:
                self.recovery_point = end
            return self.recovery_point

    def _flush_segment(self, segment: Segment) -> None:
        try:
            segment.flush()
        except DiskError:
            if segment in self._segments.all:
                raise

    def close(self, clean: bool = True) -> None:
        """Let go of all files; with `clean`, everything is on disk and says so (blocks;
        may raise `DiskError`).
        """
        if self._closed:
            return
        if clean:
            snapshot = self._snapshots.take(self.producers)
            if snapshot is not None:
                self._unsynced.append(snapshot)
            self._segments.active.finish_indexes()
            self.recovery_point = min(self.recovery_point, self.active_base_offset)
            self.flush()
        self._closed = True
        for path in self.take_removals(1 << 62):
            remove_file(self._disk, path)
        for segment in self._segments:
            segment.close()

    def moved(self, directory: Path) -> None:
        """The directory was renamed (on its way to deletion); readers keep what they have open."""
        self.dir = directory
        self.epochs.moved(directory)
        self._snapshots.moved(directory)
        for segment in self._segments:
            segment.moved(directory)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)


def _fsync_if_there(disk: Disk, path: Path) -> None:
    """Make a file durable that may have been replaced or removed since it was written."""
    with contextlib.suppress(MissingFile):
        fd = disk.open(path)
        try:
            disk.fsync(fd)
        finally:
            disk.close(fd)
