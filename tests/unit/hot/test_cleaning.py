"""One log is compacted: what stays, what its files are, and what its readers see meanwhile."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.base.clock import ManualClock
from service.base.disk import DiskError
from service.base.errors import CorruptionError, StorageError
from service.config.settings import LogConfig
from service.hot.cleaning.log_rewrite import CleanerSettings
from service.hot.log import LocalLog
from service.records.batch import CompressionType
from service.records.txn_rows import AbortedEntry, decode_rows
from tests.support.compaction import START_MS, Pair, last_of_each, make_batch, make_marker
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.hot.cleanings import clean, put, records_in
from tests.unit.hot.logs import TIP, open_log

POLICY: dict[str, Any] = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}


def filled(tmp_path: Path, disk: FaultDisk | None = None, batches: int = 60, **options: Any) -> LocalLog:
    """Seven keys again and again, by two producers, in small segments; the last segment is empty."""
    clock = ManualClock(START_MS)
    settings: dict[str, Any] = {"segment_bytes": 900, "index_interval_bytes": 200, **POLICY, **options}
    log = open_log(tmp_path, clock, world=make_world(clock, disk), **settings)
    for n in range(batches):
        pairs = [Pair(b"k%d" % (n * 3 % 7), b"value %d" % n), Pair(b"k%d" % (n % 7), b"x" * (n % 40))]
        codec = CompressionType.GZIP if n % 5 == 0 else CompressionType.NONE
        put(log, pairs, codec=codec, timestamp=START_MS + 10 * n, producer=(n % 2, 0, n // 2 * 2))
    log.appender.roll()
    log.config = replace(log.config, segment_bytes=2500)  # from now on two become one
    return log


def reopened(log: LocalLog, tmp_path: Path, *, clean: bool = False, **options: Any) -> LocalLog:
    point, cleaned = log.recovery_point, log.state.cleaned_offset
    log.close(clean=clean)
    config = LogConfig(**{"segment_bytes": 900, "index_interval_bytes": 200, **POLICY, **options})
    return LocalLog.open(
        tmp_path / "events-0", TIP, config, world=make_world(ManualClock(START_MS)), recovery_point=point,
        clean=clean, cleaned_offset=cleaned,
    )  # fmt: skip


def test_the_last_record_of_each_key_stays(tmp_path: Path) -> None:
    log = filled(tmp_path)
    before, before_size = records_in(log), log.size
    assert clean(log)
    after = records_in(log)
    assert after == sorted(last_of_each(before).values())
    assert log.log_end_offset == before[-1].offset + 1
    assert log.size < before_size
    assert not clean(log), "nothing is dirty any more"


def test_every_offset_can_be_asked_for(tmp_path: Path) -> None:
    log = filled(tmp_path)
    clean(log)
    kept = records_in(log)
    for offset in range(log.log_end_offset):
        found = log.read(offset, 1 << 20)
        assert found.slice is not None
        assert found.start_offset <= next((one.offset for one in kept if one.offset >= offset), 1 << 60)
    for record in kept:
        assert log.offset_for_timestamp(record.timestamp) == (record.offset, record.timestamp, 0)


def test_a_reader_keeps_what_it_was_promised(tmp_path: Path) -> None:
    log = filled(tmp_path, file_delete_delay_ms=0)
    found = log.read(0, 1 << 20)
    assert found.slice is not None
    parts = (found.slice, *found.more)
    promised = [part.read() for part in parts]
    clean(log)
    for path in log.deletion_queue.take_due(1 << 60):
        path.unlink(missing_ok=True)
    assert [part.read() for part in parts] == promised


def test_compacted_segments_are_deleted_after_their_delay(tmp_path: Path) -> None:
    log = filled(tmp_path, file_delete_delay_ms=1000)
    clean(log)
    assert log.deletion_queue.take_due(START_MS + 999) == []
    doomed = log.deletion_queue.take_due(START_MS + 1000)
    assert {path.suffix for path in doomed} == {".deleted", ".snapshot"}
    for path in doomed:
        path.unlink(missing_ok=True)
    bases = {f"{segment.base_offset:020d}" for segment in log}
    assert {path.name[:20] for path in log.dir.glob("0*")} == bases


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete"])
def test_a_log_that_was_compacted_goes_on_under_any_policy(
    tmp_path: Path, is_clean: bool, policy: str
) -> None:
    log = filled(tmp_path)
    clean(log)
    before = records_in(log)
    end = log.log_end_offset
    again = reopened(log, tmp_path, clean=is_clean, cleanup_policy=policy, retention_ms=-1)
    assert records_in(again) == before
    assert again.log_end_offset == end
    assert put(again, [Pair(b"k1", b"new")]) == end


def test_a_gap_above_the_compacted_segments_is_corruption(tmp_path: Path) -> None:
    log = filled(tmp_path)
    clean(log)
    end = put(log, [Pair(b"k1", b"new")] * 3)
    put(log, [Pair(b"k1", b"newer")])
    active = log.state.segments.active
    data = bytearray(active.log.path.read_bytes())
    data[7] += 1  # the first batch claims to begin one later
    active.log.path.write_bytes(data)
    with pytest.raises(StorageError, match="nowhere"):
        log.read(end, 1 << 20)


def test_producers_are_known_after_a_restart_without_their_snapshots(tmp_path: Path) -> None:
    """Though nothing of what they wrote is left."""
    log = filled(tmp_path)
    put(log, [Pair(b"k%d" % n, b"nobody's") for n in range(7)])
    log.appender.roll()
    clean(log)
    assert len(records_in(log)) == 7
    known = {pid: (entry.epoch, entry.last_sequence) for pid, entry in log.producers}
    assert known == {0: (0, 59), 1: (0, 59)}
    for path in log.dir.glob("*.snapshot"):
        path.unlink()
    again = reopened(log, tmp_path)
    assert {pid: (entry.epoch, entry.last_sequence) for pid, entry in again.producers} == known


def test_more_keys_than_the_memory_holds_are_cleaned_in_parts(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=3000, **POLICY)
    for n in range(300):
        put(log, [Pair(b"key %d" % (n % 100), b"value %d" % n), Pair(b"other %d" % (n % 37), b"")])
    log.appender.roll()
    before = records_in(log)
    clean(log, CleanerSettings(dedupe_bytes=24 * 50))
    assert records_in(log) == sorted(last_of_each(before).values())


def test_deleted_keys_go_once_their_time_is_over(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock, segment_bytes=900, delete_retention_ms=1000, **POLICY)
    put(log, [Pair(b"a", b"1"), Pair(b"b", b"1")])
    put(log, [Pair(b"a", None)])
    log.appender.roll()
    clean(log)
    assert [(one.key, one.value) for one in records_in(log)] == [(b"b", b"1"), (b"a", None)]
    for wait_ms, left in ((999, 2), (1, 1)):
        clock.advance(wait_ms)
        put(log, [Pair(b"c", b"1")])
        log.appender.roll()
        clean(log)
        assert len([one for one in records_in(log) if one.key != b"c"]) == left


def test_a_segment_with_its_transactions(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=10_000, **POLICY)
    data = make_batch(0, [Pair(b"a", b"1")])
    data += make_batch(1, [Pair(b"a", b"2")], producer=(5, 0, 0), transactional=True)
    data += make_marker(2, 5, commit=False)
    log.appender.append_raw(memoryview(bytearray(data)))
    log.appender.roll()
    assert not clean(log), "the marker may still be cut off"
    log.high_watermark_moved(3)
    clean(log)
    row = AbortedEntry(5, 1, 2, 3)
    assert [one.offset for one in records_in(log)] == [0, 2]
    index = log.state.segments.all[0].log.path.with_suffix(".txnindex")
    assert decode_rows(index.read_bytes()) == [row]
    assert log.aborted_transactions(0, 3) == [row]


def test_a_damaged_segment_is_left_as_it_is(tmp_path: Path) -> None:
    log = filled(tmp_path)
    path = log.state.segments.all[2].log.path
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    files = {one.name: one.read_bytes() for one in log.dir.iterdir() if one.suffix == ".log"}
    with pytest.raises(CorruptionError, match="checksum"):
        clean(log)
    assert {one.name: one.read_bytes() for one in log.dir.iterdir() if one.suffix == ".log"} == files
    assert not list(log.dir.glob("*.cleaned"))


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    before = records_in(log)
    disk.fail("pwrite", errno.ENOSPC, path=".cleaned")
    with pytest.raises(DiskError):
        clean(log)
    assert not list(log.dir.glob("*.cleaned"))
    assert records_in(log) == before
    disk.heal()
    assert clean(log)


def test_retention_and_cutting_come_between(tmp_path: Path) -> None:
    log = filled(tmp_path)
    clean(log)
    kept = records_in(log)
    start = kept[len(kept) // 2].offset
    log.deletion.advance_log_start(start)
    assert records_in(log) == [one for one in kept if one.offset >= start]
    end = log.truncation.truncate_to(kept[-1].offset)
    assert [one.offset for one in records_in(log)] == [
        one.offset for one in kept if start <= one.offset < end
    ]
    assert log.state.cleaned_offset == end
    put(log, [Pair(b"k0", b"z")])
    assert records_in(log)[-1].offset == end


def test_kills_within_the_swap(tmp_path: Path) -> None:
    """From the k-th rename on nothing gets through any more, and then it is opened again."""
    for number in range(25):
        disk = FaultDisk()
        log = filled(tmp_path / str(number), disk, batches=12 + number % 20)
        want, end = last_of_each(records_in(log)), log.log_end_offset
        renames = disk.fail("rename", errno.EIO, after=number)
        disk.fail("*", errno.EIO, only=lambda _, renames=renames: renames.hits > 0)  # type: ignore[misc]
        with contextlib.suppress(StorageError, CorruptionError):
            clean(log)
        disk.heal()
        again = reopened(log, tmp_path / str(number))
        assert again.log_end_offset == end
        assert last_of_each(records_in(again)) == want, f"L8: kill {number}"
        assert not {path.suffix for path in again.dir.iterdir()} & {".cleaned", ".swap", ".deleted"}
        if clean(again):
            assert records_in(again) == sorted(want.values())
        again.close(clean=False)


def test_every_call_fails_once_and_the_log_is_whole(tmp_path: Path) -> None:
    """Each call of a cleaning fails, or is the last one before a kill: the same records by key."""
    disk = FaultDisk()
    log = filled(tmp_path / "count", disk, batches=25)
    want = last_of_each(records_in(log))
    disk.calls.clear()
    clean(log)
    calls = sum(disk.calls.values())
    assert calls > 100
    for kill in (False, True):
        for number in range(kill, calls, 9):
            place = tmp_path / f"{kill}-{number}"
            disk = FaultDisk()
            log = filled(place, disk, batches=25)
            log.durability.flush()
            disk.fail("*", errno.EIO, after=number, times=None if kill else 1)
            with contextlib.suppress(StorageError, CorruptionError):
                clean(log)
            disk.heal()
            if not kill and log.failure is None:
                assert last_of_each(records_in(log)) == want, number
                put(log, [Pair(b"k0", b"more")])
            end = log.log_end_offset
            again = reopened(log, place)
            assert again.log_end_offset == end, number
            found = last_of_each(records_in(again))
            assert {key: found[key].value for key in want if key != b"k0"} == {
                key: want[key].value for key in want if key != b"k0"
            }, number
            assert not [one.name for one in again.dir.iterdir() if one.suffix in (".cleaned", ".swap")]
            again.appender.roll()
            if clean(again):
                assert [one.offset for one in records_in(again)] == sorted(
                    one.offset for one in last_of_each(records_in(again)).values()
                )
            again.close(clean=False)


@pytest.mark.parametrize("offset", range(12))
def test_a_cut_where_offsets_are_missing_ends_where_the_disk_says(tmp_path: Path, offset: int) -> None:
    """So the next opening finds the end where the recovery point has it."""
    settings: Any = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0, "segment_bytes": 400}
    log = open_log(tmp_path, **settings)
    for n in (0, 1, 1, 2, 0, 1, 2, 1, 2, 0, 3, 3):
        put(log, [Pair(b"key %d" % n, b"v" * 20)])
    clean(log)
    before = [record.offset for record in records_in(log)]
    assert before[0] > 0, "offsets are missing"
    end = log.truncation.truncate_to(offset)
    assert end <= offset
    assert [record.offset for record in records_in(log)] == [one for one in before if one < end]
    assert all(one >= offset for one in before if one >= end)
    log.close(clean=False)
    again = open_log(
        tmp_path, recovery_point=log.recovery_point, cleaned_offset=log.state.cleaned_offset, **settings
    )
    assert again.log_end_offset == end
    assert put(again, [Pair(b"key", b"v")]) == end
