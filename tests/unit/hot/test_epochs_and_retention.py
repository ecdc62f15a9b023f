"""Leader epochs, and which segments may go."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from service.base.clock import ManualClock
from service.base.disk import SystemDisk
from service.base.errors import CorruptionError
from service.config.settings import LogConfig
from service.hot.epochs import LeaderEpochs
from service.hot.log import LocalLog
from service.hot.retention import (
    RetentionBounds,
    RetentionLimits,
    SegmentFacts,
    decide,
    limits_of,
)
from tests.unit.hot.logs import START_MS, batch, open_log, raw

OVERDUE_MS = 600_000
"""So long a log waits for a bucket that does not take what is too old."""


def epochs(path: Path, *entries: tuple[int, int]) -> LeaderEpochs:
    made = LeaderEpochs(SystemDisk(), path)
    for epoch, start in entries:
        made.assign(epoch, start)
    return made


def test_epochs_are_written_as_kafka_does_and_read_back(tmp_path: Path) -> None:
    epochs(tmp_path, (0, 0), (3, 17))
    text = (tmp_path / "leader-epoch-checkpoint").read_text()
    assert [line.split() for line in text.splitlines()] == [["0"], ["2"], ["0", "0"], ["3", "17"]]
    assert LeaderEpochs.load(SystemDisk(), tmp_path).entries == ((0, 0), (3, 17))


def test_an_epoch_without_records_is_replaced(tmp_path: Path) -> None:
    made = epochs(tmp_path, (0, 0), (1, 10), (2, 10))
    assert made.entries == ((0, 0), (2, 10))
    assert not made.assign(2, 11)
    assert made.assign(1, 12)
    assert made.entries == ((0, 0), (1, 12))


def test_end_offsets_answer_as_offset_for_leader_epoch_does(tmp_path: Path) -> None:
    made = epochs(tmp_path, (2, 10), (4, 20), (7, 30))
    asked = {
        -5: (-5, 10),
        -1: (-1, -1),
        0: (0, 10),
        2: (2, 20),
        3: (2, 20),
        4: (4, 30),
        6: (4, 30),
        7: (7, 99),
        8: (-1, -1),
    }
    assert {epoch: made.end_offset_for(epoch, 99) for epoch in asked} == asked
    assert epochs(tmp_path / "empty").end_offset_for(0, 5) == (-1, -1)


def test_truncation_at_either_end(tmp_path: Path) -> None:
    made = epochs(tmp_path, (0, 0), (1, 10), (2, 20))
    assert made.truncate_start(15)
    assert made.entries == ((1, 15), (2, 20))
    assert not made.truncate_start(15)
    assert made.truncate_end(20)
    assert made.entries == ((1, 15),)
    assert made.latest == 1
    assert LeaderEpochs.load(SystemDisk(), tmp_path).entries == ((1, 15),)


def test_the_epoch_of_an_offset(tmp_path: Path) -> None:
    made = epochs(tmp_path, (0, 0), (1, 10), (2, 20))
    assert [made.epoch_at(offset) for offset in (-1, 0, 9, 10, 25)] == [-1, 0, 0, 1, 2]


@pytest.mark.parametrize(
    "text", ["1\n0\n", "0\n2\n0 0\n", "0\n1\nx 0\n", "0\n1\n0\n", "0\n1\n-1 5\n", "", "\xff"]
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_bytes(text.encode("latin1"))
    with pytest.raises(CorruptionError):
        LeaderEpochs.load(SystemDisk(), tmp_path)


def test_a_bit_that_flips_in_a_checkpoint_changes_no_epoch(tmp_path: Path) -> None:
    epochs(tmp_path, (0, 0), (3, 17))
    path = tmp_path / "leader-epoch-checkpoint"
    whole = path.read_bytes()
    noticed = 0
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert LeaderEpochs.load(SystemDisk(), tmp_path).entries == ((0, 0), (3, 17))
        except CorruptionError:
            noticed += 1
    assert noticed > len(whole) * 8 - 10, "but for one white space in the place of another"


def test_a_checkpoint_that_kafka_wrote_has_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 17\n")
    assert LeaderEpochs.load(SystemDisk(), tmp_path).entries == ((0, 0), (3, 17))


NO_LIMIT = RetentionLimits(-1, -1, False)
SEGMENTS = [
    SegmentFacts(10, 100, 1000),
    SegmentFacts(20, 100, 2000),
    SegmentFacts(30, 100, 3000),
    SegmentFacts(35, 50, 3500),
]
OPEN = RetentionBounds(0, 35, 0, sum(one.size for one in SEGMENTS))


@pytest.mark.parametrize(
    ("limits", "bounds", "now_ms", "count", "roll"),
    [
        (NO_LIMIT, OPEN, 10**9, 0, False),
        (NO_LIMIT, OPEN._replace(start_offset=20), 0, 2, False),
        (NO_LIMIT, OPEN._replace(start_offset=19), 0, 1, False),
        (RetentionLimits(1500, -1, False), OPEN, 3501, 2, False),
        (RetentionLimits(1500, -1, False), OPEN, 3500, 1, False),
        (RetentionLimits(1500, -1, False), OPEN._replace(high_watermark=19), 9999, 1, False),
        (RetentionLimits(0, -1, False), OPEN, 9999, 4, True),
        (RetentionLimits(-1, 350, False), OPEN, 0, 0, False),
        (RetentionLimits(-1, 250, False), OPEN, 0, 1, False),
        (RetentionLimits(-1, 249, False), OPEN, 0, 1, False),
        (RetentionLimits(-1, 50, False), OPEN, 0, 3, False),
        (RetentionLimits(-1, 0, False), OPEN, 0, 4, True),
        (RetentionLimits(0, -1, True), OPEN, 9999, 0, False),
        (RetentionLimits(0, -1, True), OPEN._replace(remote_end_offset=20), 9999, 2, False),
        (RetentionLimits(0, -1, True), OPEN._replace(remote_end_offset=19), 9999, 1, False),
        (RetentionLimits(0, -1, True), OPEN._replace(remote_end_offset=30), 9999, 3, True),
        (RetentionLimits(-1, -1, True), OPEN._replace(start_offset=20), 0, 2, False),
        (RetentionLimits(0, -1, True, (1500, -1)), OPEN, 3501, 0, False),
        (RetentionLimits(0, -1, True, (1500, -1)), OPEN._replace(is_archive_empty=True), 3501, 2, False),
        (RetentionLimits(-1, 0, True, (-1, 250)), OPEN, 0, 1, False),
        (RetentionLimits(-1, 0, True, (-1, 251)), OPEN, 0, 0, False),
        (RetentionLimits(-1, 0, True, (-1, 100)), OPEN._replace(remote_end_offset=10), 0, 2, False),
        (RetentionLimits(1500, -1, False), OPEN, -9999, 0, False),
    ],
)
def test_segments_go_from_the_oldest_on_while_a_rule_takes_them(
    limits: RetentionLimits, bounds: RetentionBounds, now_ms: int, count: int, roll: bool
) -> None:
    decision = decide(SEGMENTS, limits, bounds, now_ms)
    assert (decision.segments, decision.roll) == (count, roll)
    assert bool(decision.reasons) == bool(count)


def facts(*rows: tuple[int, int, int]) -> list[SegmentFacts]:
    return [SegmentFacts(*row) for row in rows]


def test_fifty_segments_go_at_a_time() -> None:
    many = facts(*[(n, 10, 0) for n in range(1, 62)])
    found = decide(many, RetentionLimits(0, -1, False), RetentionBounds(0, 99, 0, 610), 10)
    assert (found.segments, found.roll, found.reasons) == (50, False, ("time",))
    rest = decide(many[50:], RetentionLimits(0, -1, False), RetentionBounds(0, 99, 0, 110), 10)
    assert (rest.segments, rest.roll) == (11, True)


def test_an_empty_sealed_segment_goes_by_time_and_not_by_size() -> None:
    empty = facts((10, 0, 100), (20, 50, 100), (30, 50, 100))
    bounds = RetentionBounds(0, 30, 0, 100)
    assert decide(empty, RetentionLimits(-1, 100, False), bounds, 200).segments == 0
    assert decide(empty, RetentionLimits(-1, 50, False), bounds, 200).segments == 0
    assert decide(empty, RetentionLimits(99, -1, False), bounds, 200).segments == 3


def test_a_log_without_a_limit_of_bytes_loses_nothing_by_them() -> None:
    assert decide(SEGMENTS, RetentionLimits(10_000, -1, False), OPEN, 5000).segments == 0
    assert decide(SEGMENTS, RetentionLimits(10_000, 0, False), OPEN, 5000).reasons == ("size",)


def test_all_reasons_are_told_once_and_in_order() -> None:
    bounds = OPEN._replace(start_offset=10)
    found = decide(SEGMENTS, RetentionLimits(600, 150, False), bounds, 3700)
    assert (found.segments, found.reasons) == (3, ("start offset", "size", "time"))
    beyond = decide(SEGMENTS, RetentionLimits(0, -1, True, (-1, 100)), OPEN, 9999)
    assert (beyond.segments, beyond.reasons) == (2, ("total retention",))


def test_nothing_at_all_may_be_kept() -> None:
    """Limits of 0 hold; negative ones are none."""
    bounds = OPEN._replace(is_archive_empty=True)
    assert decide(SEGMENTS, RetentionLimits(0, -1, True, (0, -1)), bounds, 3501).segments == 4
    assert decide(SEGMENTS, RetentionLimits(0, -1, True, (0, -1)), bounds, 3500).segments == 3
    assert decide(SEGMENTS, RetentionLimits(0, -1, True, (-1, 0)), OPEN, 3501).segments == 4
    assert decide(SEGMENTS, RetentionLimits(0, -1, True, (-1, 50)), OPEN, 3501).segments == 3


def test_an_empty_active_segment_stays() -> None:
    facts = [SegmentFacts(10, 100, 1000), SegmentFacts(10, 0, 1000)]
    decision = decide(
        facts, RetentionLimits(0, 0, False), RetentionBounds(0, 10, 0, sum(one.size for one in facts)), 10**9
    )
    assert (decision.segments, decision.roll) == (1, False)


def test_local_limits_hold_only_where_segments_are_copied() -> None:
    tiered = LogConfig(
        retention_ms=900, local_retention_ms=5, local_retention_bytes=6, remote_storage_enable=True
    )
    assert limits_of(tiered) == RetentionLimits(5, 6, True)
    assert limits_of(LogConfig(retention_ms=900, local_retention_ms=5)) == RetentionLimits(900, -1, False)
    frozen = LogConfig(
        retention_ms=900, local_retention_ms=5, remote_storage_enable=True, remote_log_copy_disable=True
    )
    assert limits_of(frozen) == RetentionLimits(900, -1, False)
    compacted = LogConfig(cleanup_policy="compact", retention_ms=900, retention_bytes=800)
    assert limits_of(compacted) == RetentionLimits(-1, -1, False)
    both = LogConfig(cleanup_policy="compact,delete", retention_ms=900, retention_bytes=800)
    assert limits_of(both) == RetentionLimits(900, 800, False)
    off = LogConfig(retention_ms=900, retention_bytes=800)
    assert limits_of(off, is_tiered=True) == RetentionLimits(900, 800, True)
    assert limits_of(frozen, is_tiered=True) == RetentionLimits(900, -1, False)


def test_without_remote_storage_retention_moves_the_start_of_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400, retention_bytes=800)
    for _ in range(20):
        log.append(batch(2), 0, START_MS)
    before = len(log.sealed.describe_all())
    gone = log.deletion.apply_retention(START_MS)
    assert gone > 0
    assert len(log.sealed.describe_all()) == before - gone
    assert log.log_start_offset == log.local_log_start_offset == 2 * 2 * gone
    assert 800 <= log.size < 1200
    assert log.epochs.entries == ((0, log.log_start_offset),)


class TestBeyondTotalRetention:
    """Retention of a tiered log whose bucket accepts nothing."""

    @staticmethod
    def filled(directory: Path, clock: ManualClock, **options: Any) -> LocalLog:
        log = open_log(directory, clock, segment_bytes=400, remote_storage_enable=True, **options)
        for _ in range(20):
            log.append(batch(2), 0, START_MS)
        return log

    @staticmethod
    def apply(log: LocalLog, clock: ManualClock, *, is_archive_empty: bool = True) -> int:
        return log.deletion.apply_retention(
            clock.now_ms(), 0, log.log_end_offset, is_archive_empty=is_archive_empty
        )

    def test_overdue_segments_expire_by_age_without_a_copy(self, tmp_path: Path) -> None:
        clock = ManualClock(START_MS)
        log = self.filled(tmp_path, clock, retention_ms=60_000, local_retention_ms=0)
        clock.advance(50_000)
        assert self.apply(log, clock) == 0
        clock.advance(20_000)
        assert self.apply(log, clock) == 0  # a clock that has jumped looks the same
        clock.advance(OVERDUE_MS - 1)
        assert self.apply(log, clock) == 0
        clock.advance(1)
        assert self.apply(log, clock, is_archive_empty=False) == 0  # what comes before it may be younger
        assert self.apply(log, clock) == 0
        clock.advance(OVERDUE_MS)
        assert self.apply(log, clock) > 5
        assert log.log_start_offset == log.local_log_start_offset == log.log_end_offset

    def test_overdue_segments_expire_by_size_without_a_copy(self, tmp_path: Path) -> None:
        clock = ManualClock(START_MS)
        log = self.filled(tmp_path, clock, retention_ms=-1, retention_bytes=800, local_retention_bytes=1)
        assert self.apply(log, clock, is_archive_empty=False) == 0
        clock.advance(OVERDUE_MS)
        assert self.apply(log, clock, is_archive_empty=False) > 2
        assert 800 <= log.size < 1200
        assert log.log_start_offset == log.local_log_start_offset > 0

    def test_unlimited_retention_keeps_segments_without_a_copy(self, tmp_path: Path) -> None:
        clock = ManualClock(START_MS)
        log = self.filled(tmp_path, clock, retention_ms=-1, local_retention_bytes=1)
        for _ in range(5):
            clock.advance(OVERDUE_MS)
            assert self.apply(log, clock) == 0


@pytest.mark.parametrize("timestamp", [START_MS + 10**9, -1])
def test_records_from_the_future_stay_and_those_without_a_time_age_with_their_file(
    tmp_path: Path, timestamp: int
) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock, segment_bytes=400, retention_ms=1000)
    for _ in range(20):
        log.append(batch(1, timestamp=timestamp), 0, START_MS)
    for path in log.dir.glob("*.log"):
        os.utime(path, (START_MS / 1000, START_MS / 1000))
    log.close()
    log = open_log(tmp_path, clock, segment_bytes=400, retention_ms=1000)
    assert log.deletion.apply_retention(START_MS + 900) == 0
    gone = log.deletion.apply_retention(START_MS + 5000)
    assert (gone > 3) is (timestamp < 0)
    # An empty log has nothing that could be too old.
    log.deletion.advance_log_start(log.log_end_offset)
    log.appender.roll()
    log.deletion.apply_retention(START_MS)
    assert log.deletion.apply_retention(START_MS + 10**12) == 0


def test_retention_asks_the_disk_nothing_about_an_empty_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be ten thousand of them, and each question gives the interpreter away."""
    log = open_log(tmp_path, retention_ms=1000, retention_bytes=1)
    monkeypatch.delattr(SystemDisk, "stat")
    assert log.deletion.apply_retention(START_MS + 10**12) == 0


def test_a_watcher_of_sealed_segments_is_called_on_every_change(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400, retention_bytes=800)
    news: list[int] = []
    log.sealed.watch(lambda: news.append(log.log_end_offset))
    for _ in range(20):
        log.append(batch(2), 0, START_MS)
    assert len(news) == len(log.sealed.describe_all())
    for change in (
        lambda: log.deletion.apply_retention(START_MS),
        lambda: log.deletion.advance_log_start(log.log_start_offset + 1),
        lambda: setattr(log, "config", LogConfig()),
    ):
        del news[:]
        change()
        assert news
    del news[:]
    log.sealed.watch(None)
    log.appender.roll()
    assert not news


def fill(log: LocalLog) -> None:
    for _ in range(10):
        log.append(batch(2), 0, START_MS)


def test_the_log_says_whether_only_local_copies_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = "service.hot.segments"
    caplog.set_level(logging.INFO, name)
    tiered = open_log(
        tmp_path / "tiered", segment_bytes=400, local_retention_ms=0, remote_storage_enable=True
    )
    fill(tiered)
    tiered.deletion.apply_retention(START_MS + 10_000, remote_end_offset=9)
    alone = open_log(tmp_path / "alone", segment_bytes=400, retention_ms=0)
    fill(alone)
    alone.deletion.apply_retention(START_MS + 10_000)
    said = [one.getMessage().rpartition(": ")[2] for one in caplog.records if one.name == name]
    assert said == ["local retention by time; the archive has them", "retention by time"]


def test_with_remote_storage_only_what_the_bucket_holds_goes_and_the_start_stays(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400, local_retention_ms=0, remote_storage_enable=True)
    for _ in range(10):
        log.append(batch(2), 0, START_MS)
    assert log.deletion.apply_retention(START_MS + 10_000) == 0
    assert log.deletion.apply_retention(START_MS + 10_000, remote_end_offset=9) == 2
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 8)
    assert log.deletion.apply_retention(START_MS + 10_000, remote_end_offset=100, high_watermark=13) == 1
    assert log.local_log_start_offset == 12


def test_an_active_segment_that_is_too_old_is_sealed_so_that_it_can_go(tmp_path: Path) -> None:
    log = open_log(tmp_path, retention_ms=1000)
    log.append(batch(2), 0, START_MS)
    assert log.deletion.apply_retention(START_MS + 1001) == 0
    assert log.deletion.apply_retention(START_MS + 1002) == 1
    assert (log.log_start_offset, log.log_end_offset, log.size) == (2, 2, 0)
    assert log.append(batch(1), 0, START_MS).first_offset == 2


def test_files_of_deleted_segments_stay_for_the_delay(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock, segment_bytes=400, file_delete_delay_ms=1000)
    for _ in range(10):
        log.append(batch(2), 0, START_MS)
    assert log.deletion.delete_segments(7, "test") == 2
    clock.advance(999)
    assert log.deletion_queue.take_due(clock.now_ms()) == []
    assert (log.dir / "00000000000000000000.log").exists()
    clock.advance(1)
    gone = log.deletion_queue.take_due(clock.now_ms())
    assert [p.name for p in gone if p.suffix == ".log"] == [
        "00000000000000000000.log",
        "00000000000000000004.log",
    ]
    assert log.dir / "00000000000000000004.snapshot" in gone
    assert (log.dir / "00000000000000000008.snapshot").exists()


def test_a_log_that_closes_while_files_are_being_removed_unlinks_nothing_before_them(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock, segment_bytes=400, file_delete_delay_ms=1000)
    for _ in range(10):
        log.append(batch(2), 0, START_MS)
    assert log.deletion.delete_segments(7, "test") == 2
    clock.advance(1000)
    assert log.deletion_queue.take_due(clock.now_ms())  # by somebody who is ended before he has unlinked them
    assert log.deletion.delete_segments(13, "test") == 1
    log.close()
    assert (log.dir / "00000000000000000008.log").exists()
    again = open_log(tmp_path, clock, clean=True)
    assert (again.log_start_offset, again.log_end_offset) == (0, 20)


def test_retention_of_a_tiered_log_stops_at_the_committed_end(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400, retention_ms=0)
    for _ in range(10):
        log.append(batch(2), 0, START_MS)
    later = START_MS + 10_000
    assert log.deletion.apply_retention(later, 0, is_tiered=True) == 0
    assert log.deletion.apply_retention(later, 9, is_tiered=True) == 2
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 8)
    assert log.deletion.apply_retention(later) > 0


def test_an_epoch_that_began_before_the_start_moved_is_in_the_file_before_its_first_record(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    for n in range(10):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
    log.appender.note_leader_epoch(1)
    log.deletion.advance_log_start(5)
    log.append(batch(1), 1, START_MS)
    assert LeaderEpochs.load(SystemDisk(), log.dir).entries == ((0, 5), (1, 10))


def test_truncation_at_the_end_forgets_an_empty_leader_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(10), 3, START_MS)
    log.appender.note_leader_epoch(4)
    assert (log.epochs.newest, log.end_offset_of_epoch(3)) == (4, (3, 10))
    assert log.truncation.truncate_to(10) == 10
    assert (log.epochs.newest, log.end_offset_of_epoch(4)) == (3, (-1, -1))
    log.appender.append_raw(raw((10, 1, 3)))
    assert log.end_offset_of_epoch(3) == (3, 11)


def test_a_tiered_log_that_is_cut_below_what_is_here_begins_where_it_did(tmp_path: Path) -> None:
    """The bucket holds the rest: a start that went up would have its next leader delete that."""
    log = open_log(tmp_path, segment_bytes=700, remote_storage_enable=True)
    for n in range(30):
        log.append(batch(1), n // 10, START_MS)
    log.deletion.delete_segments(24, "they are in the bucket")
    assert log.local_log_start_offset > 20
    assert log.truncation.truncate_to(15) == 15
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 15, 15)
    assert log.epochs.entries == ((0, 0), (1, 10))
    assert open_log(tmp_path, remote_storage_enable=True).log_start_offset == 0
