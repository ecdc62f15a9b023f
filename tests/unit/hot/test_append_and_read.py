"""Appending to the local log and reading it back."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.disk import SystemDisk
from service.base.errors import CorruptionError, RequestError, StorageError
from service.hot.files import FileCache
from service.hot.sealed_segments import SealedSegment
from service.records.batch import iter_headers, read_header, set_log_append_time
from tests.unit.hot.logs import START_MS, batch, headers_from, open_log, raw, records_from


def test_an_append_stamps_offsets_and_epoch_and_reads_back_the_same_bytes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = log.append(batch(3), 5, START_MS)
    second = batch(2)
    info = log.append(second, 6, START_MS)
    assert (first.first_offset, first.last_offset, info.first_offset, info.last_offset) == (0, 2, 3, 4)
    assert log.log_end_offset == 5
    found = log.read(3, 1 << 20).slice
    assert found is not None
    assert found.read() == bytes(second.data)
    assert read_header(found.read()).partition_leader_epoch == 6
    assert log.epochs.entries == ((5, 0), (6, 3))
    assert log.size == os.path.getsize(log.dir / "00000000000000000000.log")


def test_log_append_time_is_told_and_create_time_is_not(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.append(batch(), 0, START_MS).log_append_time == -1
    data = batch().data
    set_log_append_time(data, 0, START_MS + 9)
    stamped = batch()._replace(data=data, header=read_header(data))
    assert log.append(stamped, 0, START_MS).log_append_time == START_MS + 9


def test_a_read_within_a_batch_begins_with_that_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(10):
        log.append(batch(5), 0, START_MS)
    found = log.read(23, 1 << 20)
    assert found.start_offset == 20
    assert found.slice is not None
    assert next(iter_headers(found.slice.read())).base_offset == 20


def test_a_read_never_passes_its_end_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1000)
    for _ in range(20):
        log.append(batch(5), 0, START_MS)
    for end in range(101):
        seen = [h.last_offset for h in headers_from(log, 0, end)]
        assert seen == [last for last in range(4, 100, 5) if last < end], end


def test_a_first_batch_larger_than_asked_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(20), 0, START_MS)
    log.append(batch(1), 0, START_MS)
    size = read_header(log.read(0, 1 << 20).slice.read()).size
    whole = log.read(0, 10).slice
    assert whole is not None
    assert whole.size == size
    assert log.read(0, 10, min_one=False).slice is None
    cut = log.read(0, size + 7, min_one=False).slice
    assert cut is not None
    assert cut.size == size + 7


def test_one_call_answers_from_one_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    for _ in range(10):
        log.append(batch(2), 0, START_MS)
    ends = [s.last_offset for s in log.sealed.describe_all()]
    assert len(ends) > 2
    found = log.read(0, 1 << 20).slice
    assert found is not None
    assert list(iter_headers(found.read()))[-1].last_offset == ends[0]
    assert [r.offset for r in records_from(log)] == list(range(20))


def test_offsets_outside_of_the_log_are_out_of_range_and_its_end_is_empty(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    for _ in range(10):
        log.append(batch(2), 0, START_MS)
    log.deletion.advance_local_start(7)
    assert log.read(20, 1000).slice is None
    for offset in (-1, 6, 21):
        with pytest.raises(RequestError) as refused:
            log.read(offset, 1000)
        assert refused.value.code is ErrorCode.offset_out_of_range


def test_a_consumer_at_the_end_sees_each_batch_as_it_comes(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    offset = 0
    for n in range(30):
        assert log.read(offset, 1000).slice is None
        log.append(batch(1 + n % 3), 0, START_MS)
        found = log.read(offset, 1000)
        assert found.slice is not None
        assert found.start_offset == offset
        offset = list(iter_headers(found.slice.read()))[-1].next_offset
        assert offset == log.log_end_offset


def test_a_slice_outlives_the_deletion_of_its_segment(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(
        tmp_path, clock, segment_bytes=300, file_delete_delay_ms=0, files=FileCache(SystemDisk(), 2)
    )
    for _ in range(20):
        log.append(batch(2), 0, START_MS)
    found = log.read(0, 1 << 20).slice
    assert found is not None
    before = found.read()
    log.deletion.advance_log_start(20)
    for path in log.deletion_queue.take_due(clock.now_ms()):
        path.unlink(missing_ok=True)
    assert not (log.dir / "00000000000000000000.log").exists()
    assert found.read() == before
    assert os.pread(found.fileno(), found.size, found.position) == before


def test_sealed_segments_hold_no_descriptors_beyond_the_cache(tmp_path: Path) -> None:
    files = FileCache(SystemDisk(), 8)
    log = open_log(tmp_path, segment_bytes=120, files=files)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        log.append(batch(1), 0, START_MS)
    log.durability.flush()  # until then each is held: the error of a write-back must find somebody to tell
    for offset in range(200):
        assert log.read(offset, 1 << 20).slice is not None
    assert len(log.sealed.describe_all()) == 199
    assert len(os.listdir("/proc/self/fd")) <= before + 8 + 3


def test_reading_a_deleted_segment_leaks_no_descriptor(tmp_path: Path) -> None:
    """A search by time, say: the files are there for `file.delete.delay.ms` yet, and may be read."""
    files = FileCache(SystemDisk(), 8)
    log = open_log(tmp_path, segment_bytes=120, files=files)
    for _ in range(5):
        log.append(batch(1), 0, START_MS)
    log.durability.flush()
    read = next(iter(log.state.segments))
    log.deletion.advance_log_start(2)
    before = len(os.listdir("/proc/self/fd"))
    for handle in read.handles:
        assert handle.get().pread(1, 0) is not None
    assert len(os.listdir("/proc/self/fd")) == before


def test_segments_that_wait_for_their_copy_hold_no_descriptors_beyond_the_cache(tmp_path: Path) -> None:
    files = FileCache(SystemDisk(), 8)
    log = open_log(tmp_path, segment_bytes=120, files=files)
    before = len(os.listdir("/proc/self/fd"))
    waiting: list[SealedSegment] = []
    for _ in range(100):
        log.append(batch(1), 0, START_MS)
        waiting = log.sealed.describe_all()
    log.durability.flush()
    for offset in range(100):
        assert log.read(offset, 1 << 20).slice is not None
    assert len(waiting) == 99
    assert len(os.listdir("/proc/self/fd")) <= before + 8 + 3


def test_segments_that_were_flushed_before_they_were_sealed_hold_no_descriptors_either(
    tmp_path: Path,
) -> None:
    files = FileCache(SystemDisk(), 8)
    log = open_log(tmp_path, segment_bytes=120, files=files)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(60):
        log.append(batch(1), 0, START_MS)
        log.durability.flush()
    log.appender.roll()
    log.durability.flush()
    assert len(log.sealed.describe_all()) == 60
    assert len(os.listdir("/proc/self/fd")) <= before + 8 + 3


def test_a_segment_rolls_when_the_next_batch_does_not_fit(tmp_path: Path) -> None:
    size = len(batch(1).data)
    log = open_log(tmp_path, segment_bytes=3 * size)
    rolled = [log.append(batch(1), 0, START_MS).rolled for _ in range(7)]
    assert rolled == [False, False, False, True, False, False, True]
    assert [(s.base_offset, s.last_offset) for s in log.sealed.describe_all()] == [(0, 2), (3, 5)]


def test_a_segment_rolls_by_record_time_and_by_the_clock_where_there_is_none(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock, segment_ms=1000)
    log.append(batch(timestamp=START_MS), 0, START_MS)
    assert not log.append(batch(timestamp=START_MS + 1000), 0, START_MS).rolled
    assert log.append(batch(timestamp=START_MS + 1001), 0, START_MS).rolled
    log.appender.roll()
    log.append(batch(timestamp=-1), 0, clock.now_ms())
    assert not log.append(batch(timestamp=START_MS + 10_000), 0, clock.now_ms()).rolled
    clock.advance(1001)
    assert log.append(batch(timestamp=-1), 0, clock.now_ms()).rolled


def test_jitter_only_makes_segments_roll_earlier(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_ms=10_000, segment_jitter_ms=9_000)
    log.append(batch(timestamp=START_MS), 0, START_MS)
    assert log.append(batch(timestamp=START_MS + 10_001), 0, START_MS).rolled
    assert not log.append(batch(timestamp=START_MS + 10_001 + 999), 0, START_MS).rolled


def test_a_segment_rolls_when_an_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=0, segment_index_bytes=36)
    for n in range(12):
        log.append(batch(timestamp=START_MS + n), 0, START_MS)
    assert [(s.base_offset, s.last_offset) for s in log.sealed.describe_all()] == [(0, 2), (3, 5), (6, 8)]


def test_a_segment_rolls_before_a_relative_offset_overflows(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.appender.append_raw(raw((0, 1, 0)))
    assert not log.appender.append_raw(raw((2**31 - 1, 1, 0))).rolled
    assert log.appender.append_raw(raw((2**31, 1, 0))).rolled
    assert log.read(2**31, 1 << 20).start_offset == 2**31


def test_a_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    with pytest.raises(RequestError) as refused:
        log.append(batch(10), 0, START_MS)
    assert refused.value.code is ErrorCode.record_list_too_large
    assert (log.log_end_offset, log.size) == (0, 0)


def test_raw_batches_keep_their_offsets_and_epochs(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    info = log.appender.append_raw(raw((0, 2, 1), (2, 3, 1), (5, 1, 4), (6, 2, 4), (8, 5, 9)))
    assert (info.first_offset, info.last_offset, info.rolled) == (0, 12, True)
    assert log.epochs.entries == ((1, 0), (4, 5), (9, 8))
    assert [(h.base_offset, h.partition_leader_epoch) for h in headers_from(log, 0)] == [
        (0, 1),
        (2, 1),
        (5, 4),
        (6, 4),
        (8, 9),
    ]


def test_raw_batches_that_are_wrong_are_refused_as_a_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.appender.append_raw(raw((0, 2, 1)))
    good = raw((2, 2, 1), (4, 2, 1))
    bad_crc = bytearray(good)
    bad_crc[-1] ^= 1
    for data in (raw((1, 1, 1)), raw((2, 2, 1), (3, 1, 1)), good[:-1], memoryview(bad_crc), good[:0]):
        with pytest.raises(CorruptionError):
            log.appender.append_raw(data)
    assert log.log_end_offset == 2
    assert len(list(headers_from(log, 0))) == 1


def test_a_full_disk_takes_the_batch_back_and_the_log_goes_on(tmp_path: Path) -> None:
    """A real short write: the process may not make files longer than a limit."""
    log = open_log(tmp_path)
    log.append(batch(3, producer_id=1, epoch=0, sequence=0), 0, START_MS)
    size = log.size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))
    try:
        with pytest.raises(StorageError):
            log.append(batch(10, producer_id=1, epoch=0, sequence=3), 0, START_MS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (log.log_end_offset, log.size) == (3, size)
    assert os.path.getsize(log.dir / "00000000000000000000.log") == size
    assert log.append(batch(10, producer_id=1, epoch=0, sequence=3), 0, START_MS).first_offset == 3
    assert [r.offset for r in records_from(log)] == list(range(13))


def test_records_are_found_by_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1000, index_interval_bytes=100)
    for n in range(50):
        log.append(batch(2, timestamp=START_MS + 10 * n), 3, START_MS)
    for n in range(50):
        assert log.offset_for_timestamp(START_MS + 10 * n) == (2 * n, START_MS + 10 * n, 3)
        assert log.offset_for_timestamp(START_MS + 10 * n - 1, 2 * n + 1) == (
            2 * n + 1,
            START_MS + 10 * n + 1,
            3,
        )
    assert log.offset_for_timestamp(0) == (0, START_MS, 3)
    assert log.offset_for_timestamp(START_MS + 1000) is None
    assert log.max_timestamp_offset() == (99, START_MS + 491, 3)


def test_times_out_of_order_are_found_at_the_first_offset_that_is_late_enough(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=500, index_interval_bytes=1)
    times = [START_MS + t for t in (5, 50, 3, 60, 2, 60, 90, 1, 7)]
    for timestamp in times:
        log.append(batch(timestamp=timestamp), 0, START_MS)
    for target in range(95):
        expected = next((n for n, t in enumerate(times) if t >= START_MS + target), None)
        found = log.offset_for_timestamp(START_MS + target)
        assert (found[0] if found else None) == expected
    assert log.max_timestamp_offset() == (6, START_MS + 90, 0)


def test_a_log_without_timestamps_has_no_greatest_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.max_timestamp_offset() is None
    log.append(batch(timestamp=-1), 0, START_MS)
    assert log.max_timestamp_offset() is None
    assert log.offset_for_timestamp(0) is None


def test_sealed_segments_tell_tiering_what_it_needs(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock)
    log.append(batch(2, timestamp=START_MS + 7), 1, START_MS)
    log.append(batch(2, timestamp=START_MS), 4, START_MS)
    clock.advance(500)
    log.appender.roll()
    log.append(batch(1), 4, START_MS)
    (sealed,) = log.sealed.describe_all()
    assert (sealed.base_offset, sealed.last_offset) == (0, 3)
    assert sealed.sealed_at_ms == START_MS + 500
    assert sealed.side_file(sealed.txn_index_path, 100) == b"", "there is none"
    assert sealed.producer_snapshot_path == log.dir / "00000000000000000004.snapshot"
    assert os.pread(sealed.log_file.fd, 1 << 20, 0) == sealed.log_file.path.read_bytes()
    assert log.sealed.describe_all(from_offset=4) == []


def test_truncation_drops_whole_batches_and_the_log_goes_on_from_there(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400, index_interval_bytes=1)
    for n in range(20):
        log.append(batch(2, timestamp=START_MS + n), n // 5, START_MS)
    assert log.truncation.truncate_to(100) == 40
    assert log.truncation.truncate_to(21) == 20
    assert log.epochs.entries == ((0, 0), (1, 10))
    assert [h.base_offset for h in headers_from(log, 0)] == list(range(0, 20, 2))
    assert log.max_timestamp_offset() == (19, START_MS + 10, 1)
    assert log.append(batch(1), 7, START_MS).first_offset == 20
    assert log.truncation.truncate_to(0) == 0
    assert (log.size, log.log_end_offset) == (0, 0)


def test_a_restart_leaves_an_empty_log_at_the_new_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    for _ in range(20):
        log.append(batch(2), 0, START_MS)
    log.truncation.restart_at(1000)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset, log.size) == (
        1000,
        1000,
        1000,
        0,
    )
    assert log.append(batch(2), 3, START_MS).first_offset == 1000
    log.close()
    again = open_log(tmp_path, clean=True)
    assert (again.log_start_offset, again.log_end_offset) == (1000, 1002)


def test_a_read_gives_what_fits_and_the_first_batch_in_any_case(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    size = len(batch(2).data)
    for _ in range(3):
        log.append(batch(2), 0, START_MS)

    def read(max_bytes: int, **options: Any) -> int:
        found = log.read(0, max_bytes, **options)
        return 0 if found.slice is None else found.slice.size

    assert [read(n) for n in (1, size - 1, size, size + 1)] == [size, size, size, size + 1]
    assert [read(n) for n in (3 * size - 1, 3 * size, 3 * size + 1)] == [3 * size - 1, 3 * size, 3 * size]
    assert [read(n, min_one=False) for n in (1, size - 1, size)] == [0, 0, size]


def test_a_read_goes_on_in_the_next_segment_while_a_batch_of_it_fits(tmp_path: Path) -> None:
    size = len(batch(2).data)
    log = open_log(tmp_path, segment_bytes=2 * size)
    for _ in range(5):
        log.append(batch(2), 0, START_MS)

    def read(max_bytes: int) -> list[int]:
        found = log.read(0, max_bytes)
        assert found.slice is not None
        return [found.slice.size, *(one.size for one in found.more)]

    assert read(2 * size) == [2 * size]
    assert read(3 * size - 1) == [2 * size]
    assert read(3 * size) == [2 * size, size]
    assert read(4 * size) == [2 * size, 2 * size]
    assert read(9 * size) == [2 * size, 2 * size, size]
