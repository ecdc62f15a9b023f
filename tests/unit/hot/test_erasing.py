"""One log carries out an order of erasure: which records go, and all that is as it was before."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.disk import DiskError
from service.base.errors import CorruptionError, StorageError
from service.config.settings import LogConfig
from service.hot.cleaning.log_rewrite import Aborted
from service.hot.log import LocalLog
from service.hot.verification import VERIFICATION_OFF
from service.records.batch import CompressionType, read_header
from service.records.validation import ValidatedBatch
from tests.support.compaction import START_MS, Pair, make_batch
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.hot.cleanings import clean, put, records_in
from tests.unit.hot.erasures import ORDER, delete_queued, erase, frames, order_of
from tests.unit.hot.logs import TIP, open_log, raw
from tests.unit.hot.transactional import abort, commit

CODECS = [*CompressionType]
SIZES: dict[str, Any] = {"segment_bytes": 900, "index_interval_bytes": 200}


def filled(folder: Path, disk: FaultDisk | None = None, batches: int = 40, **options: Any) -> LocalLog:
    """Batches of three records by two producers; each fifth is all of "gone", each has a record of it."""
    clock = ManualClock(START_MS)
    log = open_log(folder, clock, world=make_world(clock, disk), **{**SIZES, **options})
    for n in range(batches):
        other = b"gone" if n % 5 == 0 else b"k%d" % (n % 3)
        pairs = [Pair(b"gone", b"secret %d" % n), Pair(other, b"x" * (n % 40)), Pair(other, None)]
        put(
            log,
            pairs,
            codec=CODECS[n % len(CODECS)],
            timestamp=START_MS + 10 * n,
            producer=(n % 2, 0, n // 2 * 3),
        )
    return log


def reopened(
    log: LocalLog, folder: Path, *, point: int | None = None, disk: FaultDisk | None = None
) -> LocalLog:
    """Open it again after a kill; from `point` on it is read whole."""
    point = log.recovery_point if point is None else point
    log.close(clean=False)
    world = make_world(ManualClock(START_MS), disk)
    return LocalLog.open(folder / "events-0", TIP, LogConfig(**SIZES), world=world, recovery_point=point)


def bytes_of(folder: Path) -> bytes:
    """All that is in the log's files, those included that wait for their deletion."""
    return b"".join(one.read_bytes() for one in sorted((folder / "events-0").iterdir()))


def test_the_records_of_a_key_go_and_nothing_else(tmp_path: Path) -> None:
    log = filled(tmp_path)
    before, producers = records_in(log), log.producers.freeze()
    headers, epochs, end = frames(log), log.epochs.entries, log.log_end_offset
    done = erase(log, order_of(b"gone", end=end))
    assert records_in(log) == [one for one in before if one.key != b"gone"]
    assert done.counts.records_read - done.counts.records_kept == 56
    assert frames(log) == headers
    assert (log.log_end_offset, log.epochs.entries, log.producers.freeze()) == (end, epochs, producers)
    assert log.state.has_erased(ORDER)
    again = reopened(log, tmp_path, point=0)
    assert records_in(again) == [one for one in before if one.key != b"gone"]
    assert frames(again) == headers
    assert {one: entry.last_sequence for one, entry in again.producers} == {
        one: entry.last_sequence for one, entry in producers.items()
    }
    assert again.state.has_erased(ORDER)


def test_no_byte_of_it_is_left_once_the_log_notes_it(tmp_path: Path) -> None:
    """Whatever ``file.delete.delay.ms`` says. Who reads an old file goes on."""
    hour_ms = 3_600_000
    log = filled(tmp_path, batches=30, file_delete_delay_ms=hour_ms, segment_bytes=1500)
    log.config = replace(log.config, segment_bytes=1500, file_delete_delay_ms=hour_ms)
    seen: list[bytes] = []

    def delete(log: LocalLog) -> None:
        seen.append(bytes_of(tmp_path))
        assert not log.state.has_erased(ORDER)
        delete_queued(log)

    with (tmp_path / "events-0" / "00000000000000000000.log").open("rb") as reader:
        erase(log, order_of(b"gone", end=log.log_end_offset), delete_queued=delete)
        assert b"secret" in reader.read()
    assert b"secret" in seen[0], "else this test shows nothing"
    kept = bytes_of(tmp_path)
    assert b"secret" not in kept
    assert b"gone" not in kept


def test_files_that_retention_took_before_are_deleted_too(tmp_path: Path) -> None:
    log = filled(tmp_path, batches=30, file_delete_delay_ms=3_600_000)
    first = log.state.segments.bases[1]
    log.deletion.delete_segments(first - 1, "retention")
    assert (tmp_path / "events-0" / "00000000000000000000.log").exists()
    erase(log, order_of(b"gone", end=first))
    assert not (tmp_path / "events-0" / "00000000000000000000.log").exists()
    assert log.state.has_erased(ORDER)


def test_a_file_that_is_not_deleted_keeps_the_order_open(tmp_path: Path) -> None:
    log = filled(tmp_path, batches=10)
    clock = log.state.world.clock
    assert isinstance(clock, ManualClock)
    with pytest.raises(StorageError, match=r"files are not deleted yet, such as .*\.log\.deleted"):
        erase(log, order_of(b"gone", end=9), delete_queued=lambda _: clock.advance(30_000))
    assert not log.state.has_erased(ORDER)
    erase(log, order_of(b"gone", end=9))
    assert log.state.has_erased(ORDER)


def test_records_behind_the_end_stay(tmp_path: Path) -> None:
    log = filled(tmp_path)
    before, end = records_in(log), 61
    erase(log, order_of(b"gone", end=end))
    assert records_in(log) == [one for one in before if one.key != b"gone" or one.offset >= end]


def test_records_of_after_a_time_stay(tmp_path: Path) -> None:
    log = filled(tmp_path)
    before, until = records_in(log), START_MS + 200
    erase(log, order_of(b"gone", end=log.log_end_offset, before_ms=until))
    assert records_in(log) == [one for one in before if one.key != b"gone" or one.timestamp >= until]


def test_a_segment_without_a_hit_stays_the_same_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, **SIZES)
    for key in (b"a", b"gone", b"b"):
        put(log, [Pair(key, b"x" * 100)])
        log.appender.roll()
    before = [one.log for one in log.state.segments.all]
    done = erase(log, order_of(b"gone", end=3))
    after = [one.log for one in log.state.segments.all]
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True, True]
    assert done.segments == 1
    assert done.counts.bytes_written < 100
    assert erase(log, order_of(b"gone", end=3)).segments == 0


def test_the_active_segment_is_sealed_where_the_end_lies_in_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, [Pair(b"gone", b"1"), Pair(b"a", b"1")])
    put(log, [Pair(b"gone", b"2")])
    erase(log, order_of(b"gone", end=2))
    assert log.state.segments.bases == [0, 3]
    assert [(one.offset, one.key) for one in records_in(log)] == [(1, b"a"), (2, b"gone")]
    put(log, [Pair(b"gone", b"3")])
    erase(log, order_of(b"gone", end=2, order_id=UUID(int=40)), open_orders=(ORDER, UUID(int=40)))
    assert log.state.segments.bases == [0, 3], "nothing below the end is in the active segment"
    assert log.state.has_erased(ORDER)


def test_transactions_are_as_they_were(tmp_path: Path) -> None:
    """Also those of which no record is left: the row of an abort begins where it began."""
    log = open_log(tmp_path, segment_bytes=300)

    def send(pid: int, sequence: int, *pairs: Pair) -> None:
        data = memoryview(bytearray(make_batch(0, pairs, producer=(pid, 0, sequence), transactional=True)))
        one = ValidatedBatch(data, read_header(data), START_MS, 0, len(pairs))
        log.append(one, 0, START_MS, VERIFICATION_OFF)

    for n in range(6):
        send(1, 3 * n, Pair(b"gone", b"1"))
        send(2, 2 * n, Pair(b"b", b"1"), Pair(b"gone", b"1"))
        send(1, 3 * n + 1, Pair(b"gone", b"2"), Pair(b"a", b"2"))
        abort(log, 1)
        (commit if n % 2 else abort)(log, 2)
    log.high_watermark_moved(log.log_end_offset)
    before, rows = records_in(log), log.aborted_transactions(0, log.log_end_offset)
    headers = frames(log)
    assert len(rows) == 9
    erase(log, order_of(b"gone", end=log.log_end_offset))
    assert records_in(log) == [one for one in before if one.key != b"gone"]
    assert log.aborted_transactions(0, log.log_end_offset) == rows
    again = reopened(log, tmp_path, point=0)
    assert again.aborted_transactions(0, again.log_end_offset) == rows
    assert frames(again) == headers
    again.high_watermark_moved(again.log_end_offset)
    assert again.first_unstable_offset is None


def test_a_reader_keeps_what_it_was_promised(tmp_path: Path) -> None:
    log = filled(tmp_path, file_delete_delay_ms=0)
    found = log.read(0, 1 << 20)
    assert found.slice is not None
    want = found.slice.read()
    found = log.read(0, 1 << 20)
    erase(log, order_of(b"gone", end=log.log_end_offset))
    for path in log.deletion_queue.take_due(1 << 60):
        path.unlink(missing_ok=True)
    assert found.slice is not None
    assert found.slice.read() == want


def test_a_follower_gets_no_gap(tmp_path: Path) -> None:
    """Its own log may never have been compacted: a missing offset would be damage at its next start."""
    log = filled(tmp_path / "leader")
    erase(log, order_of(b"gone", end=log.log_end_offset))
    follower = open_log(tmp_path / "follower", **SIZES)
    while follower.log_end_offset < log.log_end_offset:
        found = log.read(follower.log_end_offset, 700)
        assert found.slice is not None
        follower.appender.append_raw(memoryview(bytearray(found.slice.read())))
    assert frames(follower) == frames(log)
    again = reopened(follower, tmp_path / "follower", point=0)
    assert records_in(again) == records_in(log)


def test_bytes_below_the_start_of_the_log_go_too(tmp_path: Path) -> None:
    log = open_log(tmp_path, file_delete_delay_ms=0)
    put(log, [Pair(b"gone", b"secret")])
    put(log, [Pair(b"a", b"1")])
    log.deletion.advance_log_start(1)
    erase(log, order_of(b"gone", end=2))
    for path in log.deletion_queue.take_due(1 << 60):
        path.unlink(missing_ok=True)
    assert b"secret" not in bytes_of(tmp_path)
    assert [one.key for one in records_in(log)] == [b"a"]


def test_a_log_that_is_cut_below_the_end_has_not_done_it(tmp_path: Path) -> None:
    log = filled(tmp_path)
    end = log.log_end_offset
    erase(log, order_of(b"gone", end=end))
    log.truncation.truncate_to(end)
    assert log.state.has_erased(ORDER), "nothing was cut"
    log.truncation.truncate_to(end - 3)
    assert not log.state.has_erased(ORDER)
    log.appender.append_raw(raw((end - 3, 5, 7)))
    log.durability.flush()
    again = reopened(log, tmp_path)
    assert again.log_end_offset == end + 2
    assert not again.state.has_erased(ORDER), "the file said so before the log was cut"


def test_a_log_that_gets_more_of_the_epochs_of_an_order_has_not_done_it(tmp_path: Path) -> None:
    """The order goes beyond the log's end: an unclean election has lost the rest, and the next one brings it
    back."""
    log = filled(tmp_path)
    end = log.log_end_offset
    erase(log, order_of(b"gone", end=end)._replace(leader_epoch=7))
    assert log.state.has_erased(ORDER)
    assert reopened(log, tmp_path).state.has_erased(ORDER)
    log.appender.append_raw(raw((end, 2, 8)))
    assert log.state.has_erased(ORDER), "records of a later epoch are none of its"
    log.truncation.truncate_to(end)
    assert log.state.has_erased(ORDER)
    log.appender.append_raw(raw((end, 2, 7)))
    assert not log.state.has_erased(ORDER)
    log.durability.flush()
    assert not reopened(log, tmp_path).state.has_erased(ORDER)


def test_a_log_that_begins_anew_below_the_end_has_not_done_it(tmp_path: Path) -> None:
    log = filled(tmp_path)
    end = log.log_end_offset
    erase(log, order_of(b"gone", end=end))
    log.truncation.restart_at(end)
    assert log.state.has_erased(ORDER), "it has nothing below the end"
    log.truncation.restart_at(end - 1)
    assert not log.state.has_erased(ORDER)


def test_a_log_that_a_crash_has_shortened_has_not_done_it(tmp_path: Path) -> None:
    """As of a disk that comes back from before: file and segments need not be of one moment."""
    log = filled(tmp_path, segment_bytes=1 << 20)
    erase(log, order_of(b"gone", end=log.log_end_offset))
    file = (tmp_path / "events-0" / "erasures").read_bytes()
    log.truncation.truncate_to(50)
    log.durability.flush()
    (tmp_path / "events-0" / "erasures").write_bytes(file)
    again = reopened(log, tmp_path)
    assert not again.state.has_erased(ORDER)
    assert str(ORDER).encode() not in (tmp_path / "events-0" / "erasures").read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0\n1\n",
        "1\n0\n",
        "0\n1\nnot-an-id 4\n",
        f"0\n1\n{ORDER} four\n",
        f"0\n1\n{ORDER} 4 5 6\n",
        f"0\n1\n{ORDER} 4 -5\n",
        f"0\n1\n{ORDER}\n",
        f"0\n1\n{ORDER} {'9' * 40}\n",
        "\udcff",
    ],
)
def test_a_file_that_cannot_be_read_counts_as_empty(tmp_path: Path, text: str) -> None:
    log = filled(tmp_path)
    erase(log, order_of(b"gone", end=log.log_end_offset))
    (tmp_path / "events-0" / "erasures").write_bytes(text.encode(errors="surrogateescape"))
    again = reopened(log, tmp_path)
    assert not again.state.has_erased(ORDER)
    assert erase(again, order_of(b"gone", end=again.log_end_offset)).segments == 0
    assert again.state.has_erased(ORDER)


def test_lines_of_orders_that_are_gone_go(tmp_path: Path) -> None:
    log = filled(tmp_path)
    ids = [UUID(int=n) for n in range(1, 4)]
    for one in ids:
        erase(log, order_of(b"gone", end=9, order_id=one), open_orders={one, *ids[1:]})
    assert [log.state.has_erased(one) for one in ids] == [False, True, True]


def test_an_order_that_is_cancelled_meanwhile_changes_no_other_segment(tmp_path: Path) -> None:
    disk, orders = FaultDisk(), {ORDER}
    log = filled(tmp_path, disk)
    before, first_end = records_in(log), log.state.segments.bases[1]

    def cancels(path: Path) -> bool:
        if ".cleaned" in path.name:
            orders.clear()
        return False

    disk.fail("rename", only=cancels)
    with pytest.raises(Aborted):
        erase(log, order_of(b"gone", end=log.log_end_offset), open_orders=orders)
    assert records_in(log) == [one for one in before if one.offset >= first_end or one.key != b"gone"]
    assert not log.state.has_erased(ORDER)


def test_a_truncation_before_the_file_is_written_aborts_it(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    end = log.log_end_offset
    cut: list[Path] = [tmp_path]

    def cuts(path: Path) -> bool:
        if not cut:
            cut.append(path)
            log.truncation.truncate_to(end - 3)
        return False

    disk.fail("fsync_dir", path="events-0", only=cuts)
    log.appender.roll()
    log.durability.flush()
    cut.clear()
    with pytest.raises(Aborted):
        erase(log, order_of(b"gone", end=end))
    assert cut
    assert not log.state.has_erased(ORDER)
    assert log.failure is None


def test_a_segment_that_was_cut_and_sealed_again_is_not_replaced_by_its_old_copy(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(ManualClock(START_MS), disk))
    put(log, [Pair(b"gone", b"1"), Pair(b"a", b"1")])
    put(log, [Pair(b"b", b"1")])
    log.appender.roll()
    log.durability.flush()
    acted: list[Path] = []

    def acts(path: Path) -> bool:
        if not acted:
            acted.append(path)
            log.truncation.truncate_to(2)
            put(log, [Pair(b"c", b"1")])
            log.appender.roll()
        return False

    disk.fail("fsync_dir", only=acts)  # the copy is complete
    with pytest.raises(Aborted):
        erase(log, order_of(b"gone", end=3))
    assert acted
    assert [one.key for one in records_in(log)] == [b"gone", b"a", b"c"]
    erase(log, order_of(b"gone", end=3))
    assert [one.key for one in records_in(log)] == [b"a", b"c"]


def test_segments_that_retention_takes_meanwhile_do_not_matter(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    end, taken = log.log_end_offset, list[int]()

    def takes(path: Path) -> bool:
        if not taken:
            taken.append(log.deletion.delete_segments(20, "for a test"))
        return False

    disk.fail("pread", only=takes, after=3)
    try:
        erase(log, order_of(b"gone", end=end))
    except Aborted:
        erase(log, order_of(b"gone", end=end))
    assert taken[0] > 0
    assert all(one.key != b"gone" for one in records_in(log))


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename", "open"])
def test_a_disk_that_refuses_leaves_the_log_as_it_was(tmp_path: Path, call: str) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    log.appender.roll()
    log.durability.flush()
    before, end = records_in(log), log.log_end_offset
    disk.fail(call, errno.ENOSPC, path=".cleaned", times=1)
    with pytest.raises((StorageError, Aborted)):
        erase(log, order_of(b"gone", end=end))
    assert not log.state.has_erased(ORDER)
    disk.heal()
    if call == "fsync":
        return  # that is final for the directory; the file system may have lost what it was given
    assert records_in(log) == before
    erase(log, order_of(b"gone", end=end))
    assert records_in(log) == [one for one in before if one.key != b"gone"]
    assert not [one for one in log.dir.iterdir() if one.suffix in (".cleaned", ".swap")]


def test_a_file_that_cannot_be_written_says_nothing(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    disk.fail("open", errno.ENOSPC, path="erasures")
    with pytest.raises(DiskError):
        erase(log, order_of(b"gone", end=log.log_end_offset))
    assert not log.state.has_erased(ORDER)
    assert all(one.key != b"gone" for one in records_in(log))
    disk.heal()
    assert erase(log, order_of(b"gone", end=log.log_end_offset)).segments == 0
    assert log.state.has_erased(ORDER)


def test_a_truncation_waits_until_the_file_says_so(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    end = log.log_end_offset
    erase(log, order_of(b"gone", end=end))
    disk.fail("open", errno.ENOSPC, path="erasures")
    with pytest.raises(DiskError):
        log.truncation.truncate_to(end - 3)
    assert log.log_end_offset == end
    assert log.failure is None
    assert log.state.has_erased(ORDER)


def test_damage_is_found_and_nothing_is_replaced(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.appender.roll()
    log.durability.flush()
    path = log.state.segments.all[1].log.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        erase(log, order_of(b"gone", end=log.log_end_offset))
    assert not log.state.has_erased(ORDER)
    assert path.read_bytes() == bytes(data)


def test_a_log_that_is_compacted_since_loses_the_records_too(tmp_path: Path) -> None:
    """A topic may turn to cleanup.policy=compact under an open order. Offsets are missing then; no older
    record of a key comes back, as all of them go."""
    log = filled(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    end = log.log_end_offset
    assert clean(log)
    before = records_in(log)
    assert len(before) < end, "else it was not compacted"
    assert b"gone" in {one.key for one in before}
    erase(log, order_of(b"gone", end=end))
    kept = [one for one in before if one.key != b"gone"]
    assert records_in(log) == kept
    assert log.state.has_erased(ORDER)


def test_a_damaged_segment_keeps_the_records_in_no_other(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.appender.roll()
    log.durability.flush()
    first, damaged = log.state.segments.bases[:2]
    path = log.state.segments.all[1].log.path
    sound = path.read_bytes()
    data = bytearray(sound)
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        erase(log, order_of(b"gone", end=log.log_end_offset))
    assert not log.state.has_erased(ORDER), "the order is open"
    path.write_bytes(sound)
    left = [one.offset for one in records_in(log) if one.key == b"gone"]
    assert left
    assert first < damaged <= min(left)
    assert max(left) < log.state.segments.bases[2]
