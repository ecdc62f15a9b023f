"""Opening a log directory after a clean shutdown or a crash (Kafka `LogLoader`). Runs on a `log-io` thread.

After a clean shutdown nothing is read but the last segment's end. Otherwise every segment from the recovery
point on is read whole: batches are verified up to the first that is torn, foreign or out of order, everything
behind it goes, indexes are made anew, leader epochs that did not reach their file are learnt again. Producer
state is the latest snapshot at or before the recovery point, and the batches since.

A crash of the process loses nothing that was written; a crash of the machine may lose what was not fsynced,
also in the middle: a segment that does not begin where the one before it ends is cut away with all that
follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from service.base.disk import Disk, DiskError
from service.base.errors import CorruptionError
from service.base.files import TEMPORARY
from service.base.types import NO_TIMESTAMP
from service.config.settings import LogConfig
from service.hot import names
from service.hot.epochs import LeaderEpochs
from service.hot.files import FileCache, SegmentFile
from service.hot.indexes import MAX_RELATIVE_OFFSET
from service.hot.producer_snapshot import SnapshotFiles
from service.hot.producers import EndMarker, ProducerStates
from service.hot.segment import Segment, SegmentSettings
from service.hot.walk import CHUNK_BYTES, find_offset, iter_batches, iter_verified
from service.records.batch import BatchHeader
from service.records.decode import iter_records

_log = logging.getLogger(__name__)
_MAX_MARKER_BYTES = 1024


class OpenRequest(NamedTuple):
    """What is known of a log before its files are looked at."""

    directory: Path
    config: LogConfig
    files: FileCache
    now_ms: int
    recovery_point: int
    log_start_offset: int
    clean: bool
    producer_expiration_ms: int


class LoadedLog(NamedTuple):
    """What the files hold. At least one segment, ascending; the last one is open for appends."""

    segments: list[Segment]
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshots: SnapshotFiles
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


def settings_of(config: LogConfig) -> SegmentSettings:
    return SegmentSettings(config.segment_index_bytes, config.index_interval_bytes)


def load_log(request: OpenRequest) -> LoadedLog:
    """Read a log directory and make it whole. `DiskError` if the disk does not let us."""
    directory = request.directory
    disk = request.files.disk
    sizes = _tidy(disk, directory)
    segments = [
        Segment(directory, base, sizes[base], settings_of(request.config), request.files, request.now_ms)
        for base in sorted(sizes)
    ]
    producers = ProducerStates(request.producer_expiration_ms)
    snapshots = SnapshotFiles(disk, directory)
    try:
        epochs = LeaderEpochs.load(disk, directory)
    except CorruptionError as e:
        _log.warning("reading all of %s, as its leader epochs are lost: %s", directory, e)
        epochs = LeaderEpochs(disk, directory)
        request = request._replace(clean=False, recovery_point=0)
    loader = _Loader(request, segments, epochs, producers, snapshots)
    end_offset = loader.load()
    first = segments[0].base_offset
    tiered = request.config.remote_storage_enable
    log_start = min(request.log_start_offset, end_offset)
    log_start = log_start if tiered else max(log_start, first)
    epochs.truncate_end(end_offset)
    epochs.truncate_start(log_start)
    snapshots.remove_strays({segment.base_offset for segment in segments})
    segments[-1].open_for_append()
    recovery_point = end_offset if request.clean else min(request.recovery_point, end_offset)
    return LoadedLog(segments, epochs, producers, snapshots, log_start, end_offset, recovery_point)


def _tidy(disk: Disk, directory: Path) -> dict[int, tuple[int, int, int]]:
    """Remove what a crash left half done;
    (log, index, timeindex) sizes of each segment, 0 for missing indexes.
    """
    found: dict[int, dict[str, int]] = {}
    for entry in disk.list(directory):
        if not entry.is_file:
            continue
        parsed = names.parse_offset_file(entry.name)
        if parsed is not None and parsed[1] in names.SEGMENT_SUFFIXES:
            found.setdefault(parsed[0], {})[parsed[1]] = entry.size
        elif entry.name.endswith((names.DELETED, TEMPORARY)) and ".checkpoint" not in entry.name:
            disk.unlink(directory / entry.name)
    sizes = {}
    for base, files in found.items():
        if names.LOG in files:
            index_size = files.get(names.OFFSET_INDEX, 0)
            sizes[base] = (files[names.LOG], index_size, files.get(names.TIME_INDEX, 0))
            continue
        _log.warning("removing indexes without a log at offset %d in %s", base, directory)
        for suffix in files:
            disk.unlink(directory / names.offset_file(base, suffix))
    return sizes


class _Loader:
    """One opening, step by step; see the head of this file."""

    def __init__(
        self,
        request: OpenRequest,
        segments: list[Segment],
        epochs: LeaderEpochs,
        producers: ProducerStates,
        snapshots: SnapshotFiles,
    ) -> None:
        self._request = request
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self._snapshots = snapshots

    def load(self) -> int:
        """Bring everything up to date with the log; returns its end offset."""
        end_offset = None
        if self._segments and self._request.clean:
            end_offset = self._end_of_last()
        if self._segments and end_offset is None:
            end_offset = self._recover()
        elif end_offset is not None:
            self._snapshots.remove_above(end_offset)
            self._restore_producers(end_offset)
        if end_offset is None or end_offset < self._request.log_start_offset:
            end_offset = self._start_afresh(end_offset)
        if end_offset == self._segments[-1].base_offset:
            self._snapshots.take(self._producers)  # of the border before an empty segment; it may be lost
        return end_offset

    def _start_afresh(self, end_offset: int | None) -> int:
        """Nothing is here, or what is here ends before the log begins:

        one empty segment at the start offset.
        """
        start = self._request.log_start_offset
        if end_offset is not None:
            _log.warning("%s ends at %d, before its start %d", self._request.directory, end_offset, start)
        self._drop(self._segments[:])
        self._snapshots.remove_above(-1)
        if self._epochs.entries:
            self._epochs.clear()
        self._producers.clear(start)
        request = self._request
        settings = settings_of(request.config)
        self._segments.append(
            Segment.create(request.directory, start, settings, request.files, request.now_ms)
        )
        return start

    def _end_of_last(self) -> int | None:
        """Offset after the last batch; None if the last segment is not as a clean shutdown leaves it."""
        segment = self._segments[-1]
        try:
            return end_offset_of(segment)
        except (CorruptionError, DiskError) as e:
            _log.warning("recovering %s in spite of a clean shutdown: %s", segment.log.path, e)
            self._request = self._request._replace(recovery_point=segment.base_offset)
            return None

    def _restore_producers(self, end_offset: int) -> None:
        first = self._segments[0].base_offset
        self._snapshots.restore(self._producers, end_offset, first, self._request.now_ms)
        replay_producers(self._producers, self._segments, self._snapshots, end_offset, self._request.now_ms)

    def _recover(self) -> int:
        """Verify all that may not have reached the disk; returns the end offset."""
        bases = [segment.base_offset for segment in self._segments]
        slot = max((i for i, base in enumerate(bases) if base <= self._request.recovery_point), default=0)
        self._snapshots.remove_above(bases[slot])
        self._restore_producers(bases[slot])
        end_offset = bases[slot]
        known_epochs = self._epochs.entries
        for i in range(slot, len(bases)):
            segment = self._segments[i]
            gap = i > slot and segment.base_offset != end_offset
            if gap and "compact" not in self._request.config.cleanup_policy:
                _log.warning("%s does not begin at %d: cut", segment.log.path, end_offset)
                self._drop(self._segments[i:])
                break
            self._producers.end_offset = segment.base_offset
            self._snapshots.take(self._producers)
            end_offset, torn = recover_segment(segment, self._take_over)
            if torn and i + 1 < len(bases):
                self._drop(self._segments[i + 1 :])
                break
        self._producers.end_offset = end_offset
        if self._epochs.entries != known_epochs:
            self._epochs.save()
        return end_offset

    def _take_over(self, file: SegmentFile, header: BatchHeader) -> None:
        if header.partition_leader_epoch > self._epochs.latest:
            self._epochs.note(header.partition_leader_epoch, header.base_offset)
        replay_batch(self._producers, file, header, self._request.now_ms)

    def _drop(self, segments: list[Segment]) -> None:
        for segment in segments:
            _log.warning("dropping %s (%d bytes)", segment.log.path, segment.size)
            for path in segment.mark_deleted():
                self._request.files.disk.unlink(path)
            self._segments.remove(segment)


def recover_segment(
    segment: Segment, take_over: Callable[[SegmentFile, BatchHeader], None]
) -> tuple[int, bool]:
    """Verify a segment, cut what is not valid, make its indexes anew: (end offset, whether anything was cut).

    `take_over` sees each valid batch, in order.
    """
    file = segment.log.get()
    end = segment.size
    valid, next_offset = 0, segment.base_offset
    segment.reset_indexes()
    try:
        for header in iter_verified(file, end):
            if (
                header.base_offset < next_offset
                or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            ):
                raise CorruptionError(f"batch at offset {header.base_offset}, not from {next_offset} on")
            segment.index_recovered(header)
            take_over(file, header)
            valid, next_offset = header.position + header.size, header.next_offset
    except CorruptionError as e:
        _log.warning("%s: valid up to offset %d, %d bytes cut: %s", file.path, next_offset, end - valid, e)
        file.truncate(valid)
        segment.size = valid
        segment.log.resize(valid)
    segment.finish_indexes()
    return next_offset, valid < end


def end_offset_of(segment: Segment) -> int:
    """Offset after a segment's last batch, its base offset if it is empty.

    `CorruptionError` on a torn end.
    """
    if not segment.size:
        return segment.base_offset
    last = segment.offset_index.last() if segment.indexes_hold() else None
    end_offset = segment.base_offset
    for header in iter_batches(segment.log.get(), last[1] if last else 0, segment.size):
        end_offset = header.next_offset
    return end_offset


def replay_producers(
    producers: ProducerStates,
    segments: list[Segment],
    snapshots: SnapshotFiles,
    end_offset: int,
    now_ms: int,
) -> None:
    """Bring `producers` from where it ends to `end_offset` by the batches in between.

    When those were written is not known; `now_ms` takes them for new rather than for expired.
    Snapshots at the borders that are crossed are taken again, where they were lost.
    """
    for slot, segment in enumerate(segments):
        following = segments[slot + 1].base_offset if slot + 1 < len(segments) else end_offset
        if following <= producers.end_offset or segment.base_offset >= end_offset or not segment.size:
            continue
        if segment.base_offset >= producers.end_offset:
            producers.end_offset = segment.base_offset
            snapshots.take(producers)
        try:
            _replay_segment(producers, segment, end_offset, now_ms)
        except CorruptionError as e:
            # Not ours to repair: it lies below the recovery point. Its readers will be told.
            _log.error("producer state of %s is incomplete: %s", segment.log.path, e)
    producers.end_offset = end_offset


def _replay_segment(producers: ProducerStates, segment: Segment, end_offset: int, now_ms: int) -> None:
    file = segment.log.get()
    place = find_offset(file, producers.end_offset, 0, segment.size)
    if place is None:
        return
    for header in iter_batches(file, place.position, segment.size, chunk_bytes=CHUNK_BYTES):
        if header.base_offset >= end_offset:
            return
        replay_batch(producers, file, header, now_ms)


def replay_batch(
    producers: ProducerStates, file: SegmentFile, header: BatchHeader, written_ms: int = NO_TIMESTAMP
) -> None:
    """Account for one batch of the log, as its append did, at `written_ms` if that is known."""
    if header.producer_id >= 0:
        if header.is_control:
            marker = _read_marker(file, header)
            if marker is not None:
                producers.end_transaction(header, marker)
        else:
            producers.update(header, header.base_offset, header.last_offset, written_ms)
    producers.end_offset = header.next_offset


def _read_marker(file: SegmentFile, header: BatchHeader) -> EndMarker | None:
    """The transaction marker in a control batch:

    value is i16 version, i32 coordinator epoch. None if it is empty.
    """
    if header.size > _MAX_MARKER_BYTES:
        raise CorruptionError(f"{file.path}: control batch of {header.size} bytes at {header.position}")
    data = file.pread(header.size, header.position)
    for record in iter_records(data, include_control=True):
        if record.value is None or len(record.value) < 6:
            raise CorruptionError(f"{file.path}: transaction marker without a value at {header.position}")
        return EndMarker(int.from_bytes(record.value[2:6], "big", signed=True), record.timestamp)
    return None
