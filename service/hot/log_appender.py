"""Appends to one log, as a leader and as a follower (Kafka `UnifiedLog.append`, `LocalLog.append`, `roll`).

Checks come before any change: a batch that is refused leaves no trace, a failed write is undone, and nothing
refuses a batch once it is written. An append is one `pwrite`, without fsync.

A leader's append stamps offsets and epoch. A follower, and the Raft log, append batches that have both
already. A run of such batches is mostly *plain* (`_is_plain`): then one write appends all of it, possibly on
a thread (`background_append`), and kernels find what has to be accounted for: of transactions all of it, in
order. Else batch follows batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kio.schema.errors import ErrorCode

from service.base.disk import DiskError
from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import NO_TIMESTAMP, TopicIdPartition
from service.hot.background_append import BackgroundAppend
from service.hot.deletion_queue import DeletionQueue
from service.hot.durability import Durability
from service.hot.log_io import LogIo
from service.hot.markers import Marker, judge
from service.hot.producers import REMEMBERED_BATCHES
from service.hot.recovery import settings_of
from service.hot.recovery_walk import producers_of
from service.hot.segment import Segment
from service.hot.state import AppendInfo, LogState
from service.hot.verification import VerificationGuard
from service.records.batch import (
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
    iter_headers,
    read_header,
    set_log_append_time,
    stamp,
    verify_crc,
)
from service.records.markers import EndMarker, encode_marker, marker_of
from service.records.produced_run import ProducedRun
from service.records.scan import BatchScan, scan_batches
from service.records.segment_indexes import MAX_RELATIVE_OFFSET
from service.records.validation import AppendOrigin, ValidatedBatch


class LogAppender:
    """Appends batches and rolls segments. Owned by the loop.

    Every method raises `LogOffline` if the replica is offline. ``background``: the background append that is
    under way, None if there is none. ``on_sealed``: called when a segment was sealed, so that it is flushed
    soon.
    """

    __slots__ = ("_durability", "_limits", "_on_sealed", "_queue", "background", "state")

    def __init__(
        self, state: LogState, durability: Durability, queue: DeletionQueue, on_sealed: Callable[[], None]
    ) -> None:
        self.state = state
        self._durability = durability
        self._queue = queue
        self._on_sealed = on_sealed
        self.background: BackgroundAppend | None = None
        self.set_limits()

    def set_limits(self) -> None:
        """Take over segment.bytes and segment.ms; jitter keeps partitions made together from rolling
        together."""
        config = self.state.config
        segment_ms = config.effective_segment_ms
        jitter = min(config.segment_jitter_ms, segment_ms)
        early_ms = self.state.world.random.randrange(jitter) if jitter > 0 else 0
        self._limits = (config.segment_bytes, segment_ms - early_ms)

    # A leader's batches

    def append(
        self, batch: ValidatedBatch, leader_epoch: int, now_ms: int, guard: VerificationGuard | None = None
    ) -> AppendInfo:
        """Append one batch as leader: offsets and epoch are stamped into ``batch.data`` in place.

        `guard`: of a transactional batch whose transaction is not open here and was verified.

        `RequestError` of `ProducerStates.check`, or RECORD_LIST_TOO_LARGE beyond ``segment.bytes``;
        `StorageError` if the disk refuses. Nothing is changed then.
        """
        state = self.state
        if self.background is not None:
            self.finish()
        if state.failure is not None:
            state.check()
        data, header = batch.data, batch.header
        offset = state.end_offset
        producers = state.producers
        producer = header.producer_id >= 0
        if producer:
            original = producers.check(header, offset, batch.origin is AppendOrigin.CLIENT, guard)
            if original is not None:
                first, last, timestamp = original.first_offset, original.last_offset, original.timestamp
                return AppendInfo(first, last, timestamp, state.start, True, False)
        last_offset = offset + header.last_offset_delta
        max_timestamp = header.max_timestamp
        if len(data) > self._limits[0]:
            raise self._too_large(len(data))
        rolled = self._make_room(len(data), offset, last_offset, max_timestamp, now_ms)
        if leader_epoch != state.epochs.latest:
            self._assign_epoch(leader_epoch, offset)
        stamp(data, 0, offset, leader_epoch)
        segments = state.segments
        try:  # invariant L1: where this raises, the batch is not in the log; behind it nothing raises
            segments.active.append(data, last_offset, max_timestamp)
        except DiskError as e:
            self._write_failed(segments.active, e)
            raise
        state.set_end(last_offset + 1)
        segments.size += len(data)
        if producer:
            producers.update(header, offset, last_offset, now_ms)
        producers.end_offset = last_offset + 1
        log_append_time = max_timestamp if header.attributes & LOG_APPEND_TIME_FLAG else NO_TIMESTAMP
        return AppendInfo(offset, last_offset, log_append_time, state.start, False, rolled)

    def append_produced(self, run: ProducedRun, leader_epoch: int, now_ms: int) -> bool:
        """Append a run as leader, with one write; its batches have offsets from the log's end on, and this
        epoch.

        False, with nothing changed, if `append` has to look at its batches one by one: there is something to
        refuse, to finish or to begin before it, or the disk refuses a read or the write.
        """
        state = self.state
        segments = state.segments
        active, producers, size = segments.active, state.producers, len(run.data)
        if (
            self.background is not None
            or state.failure is not None
            or run.base_offset != state.end_offset
            or leader_epoch != state.epochs.latest
            or not active.size
        ):
            return False
        headers = run.headers(REMEMBERED_BATCHES) if run.has_producer else ()
        try:
            if headers and producers.check(headers[0], run.base_offset) is not None:
                return False
            is_full = active.must_roll(size, run.newest[0], run.last_offset, now_ms, self._limits)
        except (RequestError, StorageError, CorruptionError):
            return False
        if is_full or (run.batches > 1 and active.indexes.is_full_after(run.batches)):
            return False
        try:  # as in `append`
            active.append_produced(run)
        except DiskError as e:
            self._write_failed(active, e)
            return False
        state.set_end(run.last_offset + 1)
        segments.size += size
        for header in headers:
            producers.update(header, header.base_offset, header.last_offset, now_ms)
        producers.end_offset = run.last_offset + 1
        return True

    def append_built(self, data: bytearray, records: int, now_ms: int, leader_epoch: int) -> None:
        """Append a batch that this node built itself, of no producer, with `now_ms` as all its times: offset
        and epoch are stamped in place. Raises as `append`."""
        state = self.state
        if self.background is not None:
            self.finish()
        if state.failure is not None:
            state.check()
        size, offset = len(data), state.end_offset
        last_offset = offset + records - 1
        if size > self._limits[0]:
            raise self._too_large(size)
        self._make_room(size, offset, last_offset, now_ms, now_ms)
        if leader_epoch != state.epochs.latest:
            self._assign_epoch(leader_epoch, offset)
        stamp(data, 0, offset, leader_epoch)
        segments = state.segments
        try:  # invariant L1, as in `append`
            segments.active.append(data, last_offset, now_ms)
        except DiskError as e:
            self._write_failed(segments.active, e)
            raise
        segments.size += size
        state.producers.end_offset = last_offset + 1
        state.set_end(last_offset + 1)

    def _too_large(self, size: int) -> RequestError:
        return RequestError(
            ErrorCode.record_list_too_large,
            f"batch of {size} bytes, segments of {self.state.tip} hold {self._limits[0]}",
        )

    def append_markers(
        self, markers: Sequence[Marker], leader_epoch: int, now_ms: int
    ) -> list[AppendInfo | RequestError]:
        """Append transaction markers as leader, with one write unless a segment ends; returns for each the
        offset that it was given, or why it is refused (`markers`).

        `StorageError` if the disk refuses: markers before the failing one may be in the log then.
        """
        state = self._finished()
        verdicts = judge(state.producers, markers)
        is_by_append = state.config.message_timestamp_type == "LogAppendTime"
        data, offset = bytearray(), state.end_offset
        for marker, verdict in zip(markers, verdicts, strict=True):
            if verdict is None:
                batch = encode_marker(*marker[:3], is_commit=marker.is_commit, timestamp=now_ms)
                if is_by_append:
                    set_log_append_time(batch, 0, now_ms)
                stamp(batch, 0, offset, leader_epoch)
                data += batch
                offset += 1
        rolled, next_offset = False, state.end_offset
        if data:
            rolled = self._make_room(len(data), next_offset, offset - 1, now_ms, now_ms)
            if leader_epoch != state.epochs.latest:
                self._assign_epoch(leader_epoch, next_offset)
            view = memoryview(data)
            rolled |= self._append_run(view, scan_batches(view, next_offset=next_offset))
        found: list[AppendInfo | RequestError] = []
        for verdict in verdicts:
            if verdict is None:
                at = next_offset
                next_offset += 1
                time = now_ms if is_by_append else NO_TIMESTAMP
                found.append(AppendInfo(at, at, time, state.start, False, rolled))
            else:
                found.append(verdict)
        return found

    def note_leader_epoch(self, leader_epoch: int) -> None:
        """Note that a leader was elected: `leader_epoch` begins at the log's end, unless it is known already.

        The file is written before the first batch of that epoch; see `epochs`.
        """
        state = self._finished()
        state.epochs.begin(leader_epoch, state.end_offset)

    def roll(self, base_offset: int | None = None) -> bool:
        """Seal the active segment and begin a new one at `base_offset` (default: the log's end).

        Returns False if it is empty already. `DiskError` leaves the log as it was.
        """
        state = self._finished()
        base = state.end_offset if base_offset is None else base_offset
        old = state.segments.active
        if old.base_offset == base:
            return False
        self._durability.settle_cut(old)
        new = Segment.create(
            state.dir, base, settings_of(state.config), state.files, state.world.clock.now_ms()
        )
        state.producers.end_offset = base
        self._durability.take_snapshot()
        old.seal(new.created_ms)
        self._durability.note_sealed(old)
        self._durability.note_dir(state.dir)
        state.segments.add(new)
        state.set_end(state.end_offset)  # the segment that was active may be deleted before the next append
        self.set_limits()
        if not old.size:
            self._queue.remove_segments(len(state.segments) - 2, len(state.segments) - 1, "it is empty")
        self._on_sealed()
        return True

    def _make_room(self, size: int, offset: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Roll if the batch does not fit into the active segment; returns whether it did."""
        try:
            if not self.state.segments.active.must_roll(
                size, max_timestamp, last_offset, now_ms, self._limits
            ):
                return False
        except CorruptionError as e:
            raise self.state.corrupt(e) from e
        # Segments are contiguous even at an offset gap, unless the gap is wider than a segment can span.
        end = self.state.end_offset
        return self.roll(end if last_offset - end <= MAX_RELATIVE_OFFSET else offset)

    def _assign_epoch(self, leader_epoch: int, offset: int) -> None:
        """Write a new epoch to its file, before a batch has it (invariant L6)."""
        if leader_epoch >= 0 and self.state.epochs.assign(leader_epoch, offset):
            self._durability.note(self.state.epochs.path)

    def _write_failed(self, segment: Segment, error: DiskError | None) -> None:
        if segment.is_torn:
            self.state.fail(f"a failed write could not be undone: {error}")

    # Batches that have offsets already

    def append_raw(self, data: memoryview) -> AppendInfo:
        """Append whole batches that have offsets and epochs already (the Raft log); none is too large.

        `CorruptionError` for torn bytes, a wrong checksum or offsets that do not ascend from the log's end,
        before anything is written. On `DiskError` the batches before the failing one stay.
        """
        state = self._finished()
        headers = list(iter_headers(data))
        _check_batches(data, headers, state.end_offset, state.tip)
        rolled = self._append_each(data, headers)
        first, last = headers[0].base_offset, headers[-1].last_offset
        return AppendInfo(first, last, NO_TIMESTAMP, state.start, False, rolled)

    def append_fetched(self, data: memoryview, run: BatchScan) -> AppendInfo:
        """Append contiguous batches as `append_raw` does. `run`: the scan that found them sound, with
        positions in `data`."""
        state, first = self._finished(), run.base_offsets[0]
        rolled = self._append_run(data, run)
        return AppendInfo(first, run.last_offsets[-1], NO_TIMESTAMP, state.start, False, rolled)

    def begin(self, data: memoryview, run: BatchScan) -> BackgroundAppend | None:
        """Begin to append as `append_fetched` does, with a write by another thread; `finish` accounts for it.

        None if the run is not plain: it may need a new segment or an epoch, so it is for `append_fetched`.
        """
        self._finished()
        self._check_next(run)
        markers = _markers_of(data, run)
        self.background = BackgroundAppend(self.state, data, run, markers) if self._is_plain(run) else None
        return self.background

    def finish(self, append: BackgroundAppend | None = None) -> None:
        """Finish the background append `append`, or any: afterwards its run is part of the log, or never will
        be. Waits if a thread is writing, as the log is about to change."""
        under_way = self.background
        if under_way is not None and (append is None or append is under_way):
            self.background = None
            self._end_run(under_way)

    async def append_on_thread(self, io: LogIo, data: memoryview, run: BatchScan) -> bool:
        """Append as `append_fetched` does, but let a thread of `io` wait for the disk if possible.

        False if the log changed before the thread began: nothing is appended then.
        """
        append = self.begin(data, run)
        if append is None:
            self.append_fetched(data, run)
            return True
        writing = io.run(append.write)
        writing.add_done_callback(lambda _: self.finish(append))  # even if the caller was cancelled
        await asyncio.shield(writing)
        append.check()
        return append.is_appended

    def _finished(self) -> LogState:
        """Finish the background append, and return the state to change. `LogOffline`."""
        self.finish()
        self.state.check()
        return self.state

    def _append_run(self, data: memoryview, run: BatchScan) -> bool:
        """Append sound batches; returns whether a segment was rolled."""
        self._check_next(run)
        if len(run.positions) == 1 or not self._is_plain(run):
            return self._append_each(data, [read_header(data, position) for position in run.positions])
        append = BackgroundAppend(self.state, data, run, _markers_of(data, run))
        append.write()
        self._end_run(append)
        append.check()
        return False

    def _end_run(self, append: BackgroundAppend) -> None:
        """Account for a run that was written, or undo a write that failed."""
        append.end()
        if append.is_written:
            if self.state.failure is None:
                append.is_appended = True
                self._account(append)
        elif append.is_begun:
            append.segment.undo_write()
            self._write_failed(append.segment, append.error)

    def _account(self, append: BackgroundAppend) -> None:
        """Account for a plain run whose bytes are in the active segment's file."""
        run, markers = append.run, append.markers
        state, producers = self.state, self.state.producers
        size = run.end - run.positions[0]
        state.segments.active.account_run(size, run)
        producers.end_offset = run.last_offsets[-1] + 1
        state.segments.size += size
        now_ms = state.world.clock.now_ms()
        rows = []
        for header in producers_of(append.data, run.positions):
            if not header.is_control:
                producers.update(header, header.base_offset, header.last_offset, now_ms)
            elif header.position in markers:
                row = producers.end_transaction(header, markers[header.position])
                if row is not None:
                    rows.append(row)
        if rows:
            state.add_rows(state.segments.active, rows)
        # Last: a flush on a thread makes all rows below the end durable.
        state.set_end(producers.end_offset)

    def _check_next(self, run: BatchScan) -> None:
        first, end = run.base_offsets[0], self.state.end_offset
        if first < end:
            raise CorruptionError(f"batch at offset {first}, the log of {self.state.tip} is at {end}")

    def _is_plain(self, run: BatchScan) -> bool:
        """Return whether all batches have the log's epoch, no offset is missing, and all fit into the active
        segment."""
        bases, lasts, epochs = run.base_offsets, run.last_offsets, run.leader_epochs
        return (
            epochs[0] == self.state.epochs.latest == self.state.epochs.newest
            and epochs.count(epochs[0]) == len(epochs)
            and bases[0] == self.state.end_offset
            and sum(lasts) - sum(bases) + len(bases) == lasts[-1] + 1 - bases[0]
            and self._fits(run)
        )

    def _fits(self, run: BatchScan) -> bool:
        """Return whether the run fits into the active segment, which must not be empty."""
        active = self.state.segments.active
        size, now_ms = run.end - run.positions[0], self.state.world.clock.now_ms()
        newest, last = max(run.max_timestamps), run.last_offsets[-1]
        try:
            if not active.size or active.must_roll(size, newest, last, now_ms, self._limits):
                return False
        except CorruptionError as e:
            raise self.state.corrupt(e) from e
        return not active.indexes.is_full_after(len(run.positions))

    def _append_each(self, data: memoryview, headers: Sequence[BatchHeader]) -> bool:
        """Append sound batches one by one; returns whether a segment was rolled."""
        state = self.state
        producers = state.producers
        markers = [marker_of(data, header) for header in headers]
        rolled = False
        now_ms = state.world.clock.now_ms()
        for header, marker in zip(headers, markers, strict=True):
            base, last = header.base_offset, header.last_offset
            rolled |= self._make_room(header.size, base, last, header.max_timestamp, now_ms)
            if header.partition_leader_epoch > state.epochs.latest:
                self._assign_epoch(header.partition_leader_epoch, base)
            active = state.segments.active
            try:
                active.append(data[header.position : header.end], last, header.max_timestamp)
            except DiskError as e:
                self._write_failed(active, e)
                raise
            if base > state.end_offset and state.cleaned_offset >= 0:
                state.gaps_below = base  # the leader's log was compacted
            state.segments.size += header.size
            if marker is not None:
                row = producers.end_transaction(header, marker)
                if row is not None:
                    state.add_rows(active, [row])
            elif header.producer_id >= 0 and not header.is_control:
                producers.update(header, base, last, now_ms)
            producers.end_offset = last + 1
            state.set_end(last + 1)  # as in `_account`
        return rolled


def _markers_of(data: memoryview, run: BatchScan) -> dict[int, EndMarker]:
    """Return the transaction markers of a run by their positions in `data`. `CorruptionError` for one that
    does not parse."""
    if max(run.attributes) < CONTROL_FLAG:
        return {}
    headers = [
        read_header(data, position)
        for position, attributes in zip(run.positions, run.attributes, strict=True)
        if attributes & CONTROL_FLAG
    ]
    found = {header.position: marker_of(data, header) for header in headers}
    return {position: marker for position, marker in found.items() if marker is not None}


def _check_batches(
    data: memoryview, headers: Sequence[BatchHeader], end_offset: int, tip: TopicIdPartition
) -> None:
    """`CorruptionError` unless these batches may follow in a log that ends at `end_offset`: their checksums
    are right and their offsets ascend from there. `headers`: with positions in `data`."""
    if not headers:
        raise CorruptionError("nothing to append")
    expected = end_offset
    for header in headers:
        if header.base_offset < expected:
            raise CorruptionError(f"batch at offset {header.base_offset}, the log of {tip} is at {expected}")
        if not verify_crc(data, header):
            raise CorruptionError(f"wrong checksum of the batch at offset {header.base_offset} for {tip}")
        expected = header.next_offset
