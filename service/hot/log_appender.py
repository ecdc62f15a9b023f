"""Batches that bear their offsets already: looked at, then appended as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from service.base.disk import DiskError
from service.base.errors import CorruptionError
from service.base.types import TopicIdPartition
from service.hot.background_append import RunAhead
from service.hot.producers import EndMarker
from service.hot.recovery_walk import producers_of
from service.records.batch import CONTROL_FLAG, BatchHeader, read_header, verify_crc
from service.records.decode import iter_records
from service.records.scan import BatchScan
from service.records.walk import Read

if TYPE_CHECKING:
    from service.hot.log import LocalLog

_MAX_MARKER_BYTES = 1024


def check_batches(
    data: memoryview, headers: Sequence[BatchHeader], end_offset: int, tip: TopicIdPartition
) -> None:
    """Whether these may follow on a log that ends at `end_offset`; their positions are those in `data`.

    `CorruptionError` for a wrong checksum or offsets that do not go up from there.
    """
    if not headers:
        raise CorruptionError("nothing to append")
    expected = end_offset
    for header in headers:
        if header.base_offset < expected:
            raise CorruptionError(f"batch at offset {header.base_offset}, the log of {tip} is at {expected}")
        if not verify_crc(data, header):
            raise CorruptionError(f"wrong checksum of the batch at offset {header.base_offset} for {tip}")
        expected = header.next_offset


def headers_of(data: memoryview, run: BatchScan) -> list[BatchHeader]:
    return [read_header(data, position) for position in run.positions]


def append_run(log: LocalLog, data: memoryview, run: BatchScan) -> bool:
    """Append batches that `scan_batches` found sound, as `LocalLog.append_fetched` says; whether a segment
    was begun for it.

    Mostly they are plain: then they are written at once, and what has to be known of each is found by the
    kernels.
    """
    _check_next(log, run)
    if len(run.positions) == 1 or not _is_plain(log, run):
        return append_batches(log, data, headers_of(data, run))
    ahead = RunAhead(log, data, run)
    ahead.write()
    end_run(log, ahead)
    ahead.check()
    return False


def begin_run(log: LocalLog, data: memoryview, run: BatchScan) -> RunAhead | None:
    """As `LocalLog.begin_run` says."""
    _check_next(log, run)
    return RunAhead(log, data, run) if _is_plain(log, run) else None


def end_run(log: LocalLog, ahead: RunAhead) -> None:
    """Take in what was written, or take back what an error has left of it."""
    ahead.end()
    if ahead.is_written:
        if log.state.failure is None:
            ahead.is_taken = True
            _is_written(log, ahead.data, ahead.run)
    elif ahead.is_begun:
        ahead.segment.take_back()
        log.write_failed(ahead.segment, ahead.error)


def _check_next(log: LocalLog, run: BatchScan) -> None:
    first, end = run.base_offsets[0], log.state.end_offset
    if first < end:
        raise CorruptionError(f"batch at offset {first}, the log of {log.tip} is at {end}")


def _is_written(log: LocalLog, data: memoryview, run: BatchScan) -> None:
    """The bytes of a plain run are in the active segment's file: what has to be known of them is noted."""
    state, producers = log.state, log.state.producers
    size = run.end - run.positions[0]
    state.segments.active.has_run(size, run)
    producers.end_offset = run.last_offsets[-1] + 1
    state.reached(producers.end_offset)
    state.segments.size += size
    now_ms = state.world.clock.now_ms()
    for header in producers_of(data, run.positions):
        producers.update(header, header.base_offset, header.last_offset, now_ms)


def _is_plain(log: LocalLog, run: BatchScan) -> bool:
    """Whether all are of the log's epoch, none is a control batch, no offset is missing, and all fit the
    active segment."""
    bases, lasts, epochs = run.base_offsets, run.last_offsets, run.leader_epochs
    return (
        epochs[0] == log.state.epochs.latest == log.state.epochs.newest
        and epochs.count(epochs[0]) == len(epochs)
        and max(run.attributes) < CONTROL_FLAG
        and bases[0] == log.state.end_offset
        and sum(lasts) - sum(bases) + len(bases) == lasts[-1] + 1 - bases[0]
        and _fits(log, run)
    )


def _fits(log: LocalLog, run: BatchScan) -> bool:
    """Whether all belong into the active segment, which has some before."""
    active = log.state.segments.active
    size, now_ms = run.end - run.positions[0], log.state.world.clock.now_ms()
    newest, last = max(run.max_timestamps), run.last_offsets[-1]
    try:
        if not active.size or active.must_roll(size, newest, last, now_ms, log.limits):
            return False
    except CorruptionError as e:
        raise log.state.corrupt(e) from e
    entries = len(run.positions)
    offsets, times = active.offset_index, active.time_index
    return offsets.entries + entries < offsets.max_entries and times.entries + entries < times.max_entries - 1


def append_batches(log: LocalLog, data: memoryview, headers: Sequence[BatchHeader]) -> bool:
    """Append what was found sound, batch by batch, as `append_run` does."""
    state = log.state
    producers = state.producers
    markers = [marker_of(data, header) for header in headers]
    rolled = False
    now_ms = state.world.clock.now_ms()
    for header, marker in zip(headers, markers, strict=True):
        base, last = header.base_offset, header.last_offset
        rolled |= log.make_room(header.size, base, last, header.max_timestamp, now_ms)
        if header.partition_leader_epoch > state.epochs.latest:
            log.assign_epoch(header.partition_leader_epoch, base)
        active = state.segments.active
        try:
            active.append(data[header.position : header.end], last, header.max_timestamp)
        except DiskError as e:
            log.write_failed(active, e)
            raise
        if base > state.end_offset and state.cleaned_offset >= 0:
            state.gaps_below = base  # its leader's log was compacted
        state.reached(last + 1)
        state.segments.size += header.size
        if marker is not None:
            producers.end_transaction(header, marker)
        elif header.producer_id >= 0 and not header.is_control:
            producers.update(header, base, last, now_ms)
        producers.end_offset = last + 1
    return rolled


def marker_of(data: memoryview, header: BatchHeader) -> EndMarker | None:
    """The transaction marker in a control batch of a producer, None in any other."""
    if header.producer_id < 0 or not header.is_control:
        return None
    return read_marker(lambda size, position: data[position : position + size], header)


def read_marker(read: Read, header: BatchHeader) -> EndMarker | None:
    """The transaction marker in a control batch, None if it is empty.

    Its value is i16 version, i32 coordinator epoch.
    """
    if header.size > _MAX_MARKER_BYTES:
        raise CorruptionError(f"control batch of {header.size} bytes at {header.position}")
    data = read(header.size, header.position)
    for record in iter_records(data, include_control=True):
        if record.value is None or len(record.value) < 6:
            raise CorruptionError(f"transaction marker without a value at {header.position}")
        return EndMarker(int.from_bytes(record.value[2:6], "big", signed=True), record.timestamp)
    return None
