"""Open transactions: from where on a log is not stable, which were aborted; refused markers (X9)."""

from __future__ import annotations

from errno import EIO
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.disk import DiskError
from service.base.errors import RequestError
from service.base.steps import at_once
from service.hot.log import LocalLog
from service.hot.markers import Marker
from service.hot.state import AppendInfo, LogOffline
from service.hot.transactions import OpenTransactions
from service.records.scan import scan_batches
from service.records.txn_rows import AbortedEntry
from tests.unit.hot.logs import START_MS, batch, open_log
from tests.unit.hot.transactional import abort, commit, data_of, marker_of, plain, send


def test_a_log_without_transactions_is_stable(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    plain(log, 5)
    assert (log.first_unstable_offset, log.oldest_open) == (None, None)
    assert log.aborted_transactions(0, 5) == []


def test_a_log_is_unstable_from_the_oldest_open_transaction_on(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    plain(log, 3)
    send(log, 7, 0)
    send(log, 8, 0)
    send(log, 7, 1)
    assert log.first_unstable_offset == 3
    assert log.oldest_open == (7, 3, START_MS)
    commit(log, 7)
    log.high_watermark_moved(7)
    assert (log.first_unstable_offset, log.oldest_open) == (4, (8, 4, START_MS))


def test_a_transaction_is_stable_once_the_high_watermark_has_passed_its_marker(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 7, 0)
    assert commit(log, 7).first_offset == 1
    for mark in (0, 1):
        log.high_watermark_moved(mark)
        assert log.first_unstable_offset == 0
    log.high_watermark_moved(2)
    assert log.first_unstable_offset is None


def test_the_completed_transaction_that_began_first_counts() -> None:
    spans = OpenTransactions()
    for pid, first in ((1, 5), (2, 10), (3, 12)):
        spans.begin(pid, first)
    spans.complete(2, 20, is_commit=True)
    spans.complete(1, 21, is_commit=True)
    spans.complete(3, 22, is_commit=True)
    told = []
    for mark in (20, 21, 22, 23):
        spans.high_watermark_moved(mark)
        told.append(spans.first_unstable_offset)
    assert told == [5, 5, 12, None]


def test_an_abort_makes_a_row_with_the_last_stable_offset_and_a_commit_makes_none(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 7, 0)  # 0
    send(log, 8, 0)  # 1
    send(log, 9, 0, 2)  # 2, 3
    abort(log, 8)  # 4
    commit(log, 7)  # 5
    abort(log, 9)  # 6
    rows = [AbortedEntry(8, 1, 4, 0), AbortedEntry(9, 2, 6, 7)]
    assert log.aborted_transactions(0, 7) == rows
    assert log.aborted_transactions(5, 7) == rows[1:]
    assert log.aborted_transactions(0, 2) == rows[:1]
    data = (log.dir / f"{0:020}.txnindex").read_bytes()
    assert data == bytes.fromhex(
        "0000" "0000000000000008" "0000000000000001" "0000000000000004" "0000000000000000"
        "0000" "0000000000000009" "0000000000000002" "0000000000000006" "0000000000000007"
    )  # fmt: skip


def test_a_marker_without_a_transaction_is_written_and_makes_no_row(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert abort(log, 7, epoch=3, coordinator=5).first_offset == 0
    entry = log.producers.get(7)
    assert entry is not None
    assert (entry.epoch, entry.coordinator_epoch) == (3, 5)
    assert log.aborted_transactions(0, 1) == []
    assert not (log.dir / f"{0:020}.txnindex").exists()


def marked(log: LocalLog, *markers: Marker) -> list[int | ErrorCode]:
    found = log.append_markers(markers, 0, START_MS)
    return [one.code if isinstance(one, RequestError) else one.first_offset for one in found]


def test_the_markers_of_one_call_are_one_write_and_each_has_its_own_answer(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    plain(log)
    send(log, 7, 0, epoch=4)
    send(log, 8, 0)
    found = log.append_markers(
        [Marker(7, 3, 1, False, 1), Marker(8, 0, 1, False, 1), Marker(7, 4, 1, True, 1)], 6, START_MS
    )
    assert isinstance(found[0], RequestError)
    assert found[0].code is ErrorCode.invalid_producer_epoch
    assert found[1:] == [AppendInfo(3, 3, -1, 0, False, False), AppendInfo(4, 4, -1, 0, False, False)]
    assert log.log_end_offset == 5
    assert log.epochs.entries == ((0, 0), (6, 3))
    assert log.aborted_transactions(0, 5) == [AbortedEntry(8, 2, 3, 1)]


@pytest.mark.parametrize("version", [0, 1])
def test_a_marker_of_the_first_protocol_has_the_producers_epoch_or_a_newer_one(
    tmp_path: Path, version: int
) -> None:
    log = open_log(tmp_path)
    send(log, 7, 0, epoch=4)
    assert marked(log, Marker(7, 3, 1, True, version)) == [ErrorCode.invalid_producer_epoch]
    assert marked(log, Marker(7, 4, 1, True, version), Marker(7, 4, 1, True, version)) == [1, 2]
    assert marked(log, Marker(7, 6, 1, True, version)) == [3]
    assert marked(log, Marker(7, 5, 1, True, version)) == [ErrorCode.invalid_producer_epoch]


def test_a_marker_of_the_second_protocol_has_a_newer_epoch_unless_nothing_is_open(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 7, 0, epoch=4)
    assert marked(log, Marker(7, 4, 1, True, 2)) == [ErrorCode.invalid_producer_epoch]
    assert marked(log, Marker(7, 5, 1, True, 2), Marker(7, 5, 1, True, 2)) == [1, 2]
    assert marked(log, Marker(7, 4, 1, True, 2)) == [ErrorCode.invalid_producer_epoch]
    send(log, 7, 0, epoch=5)
    assert marked(log, Marker(7, 5, 1, True, 2)) == [ErrorCode.invalid_producer_epoch]
    send(log, 9, 0, epoch=32767)
    assert marked(log, Marker(9, 32767, 1, False, 2)) == [5]


def test_a_marker_of_an_older_coordinator_is_fenced_and_the_epoch_is_looked_at_first(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 7, 0, epoch=2)
    assert marked(log, Marker(7, 2, 9, True, 1), Marker(7, 2, 8, True, 1)) == [
        1,
        ErrorCode.transaction_coordinator_fenced,
    ]
    assert marked(log, Marker(7, 1, 8, True, 1)) == [ErrorCode.invalid_producer_epoch]
    assert marked(log, Marker(7, 2, 9, False, 1)) == [2]


def test_a_marker_has_the_topics_type_of_timestamps(tmp_path: Path) -> None:
    log = open_log(tmp_path, message_timestamp_type="LogAppendTime")
    [found] = log.append_markers([Marker(7, 0, 1, True, 1)], 0, START_MS)
    assert found == AppendInfo(0, 0, START_MS, 0, False, False)
    entry = log.producers.get(7)
    assert entry is not None
    assert entry.last_timestamp == START_MS


def test_markers_that_do_not_fit_begin_a_new_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    for pid in (1, 2, 3):
        send(log, pid, 0)
    found = log.append_markers([Marker(pid, 0, 1, False, 1) for pid in (1, 2, 3)], 0, START_MS)
    assert [one.first_offset for one in found if isinstance(one, AppendInfo)] == [3, 4, 5]
    assert len(list(log)) > 1
    assert log.aborted_transactions(0, 6) == [
        AbortedEntry(1, 0, 3, 1),
        AbortedEntry(2, 1, 4, 2),
        AbortedEntry(3, 2, 5, 6),
    ]


def test_a_batch_within_a_transaction_of_its_epoch_needs_no_guard(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 7, 0)
    more = batch(producer_id=7, epoch=0, sequence=1, is_transactional=True)
    assert log.append(more, 0, START_MS).first_offset == 1
    assert log.has_open_transaction(7, 0)
    assert not log.has_open_transaction(7, 1)
    assert not log.has_open_transaction(8, 0)


def test_a_flush_beside_an_append_leaves_no_row_behind(tmp_path: Path) -> None:
    """The recovery point passes a marker once its row is on disk: a flush runs on another thread."""
    for is_run in False, True:
        log = open_log(tmp_path / str(is_run))
        send(log, 5, 0)
        found: list[bool] = []

        def flush(end: int, base: int, size: int, log: LocalLog = log, found: list[bool] = found) -> None:
            log.durability.flush()
            size = sum(path.stat().st_size for path in log.dir.glob("*.txnindex"))
            found.append(log.recovery_point < 2 or size == 34)

        log.state.on_end_moved = flush
        if is_run:
            run = memoryview(marker_of(1, 5, is_commit=False) + data_of(2, 6, 0))
            log.appender.append_fetched(run, scan_batches(run))
        else:
            abort(log, 5)
        assert log.recovery_point > 1
        assert all(found)
        log.close(clean=False)


def test_a_marker_behind_a_cut_below_the_high_watermark_waits_to_be_replicated(tmp_path: Path) -> None:
    log = open_log(tmp_path, high_watermark=0)
    plain(log, 10)
    plain(log)
    send(log, 5, 0)
    commit(log, 5)
    log.high_watermark_moved(13)
    log.truncation.truncate_to(10)  # after an unclean election
    send(log, 6, 0)
    abort(log, 6)
    assert log.first_unstable_offset == 10
    log.close(clean=False)


def test_an_open_transaction_below_the_first_segment_survives_an_older_high_watermark(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    send(log, 5, 0)
    for _ in range(6):
        plain(log, 2)
    send(log, 6, 0)
    commit(log, 6)
    log.deletion.advance_log_start(8)
    log.deletion.delete_below_start()
    for path in log.deletion_queue.take_due(START_MS + 1_000_000):
        path.unlink(missing_ok=True)
    log.durability.flush()
    start, recovery_point = log.log_start_offset, log.recovery_point
    assert log.first_base_offset > 2
    log.close(clean=False)
    log = open_log(
        tmp_path, segment_bytes=200, recovery_point=recovery_point, log_start_offset=start, clean=False,
        high_watermark=2,
    )  # fmt: skip
    assert log.oldest_open is not None
    assert log.oldest_open[:2] == (5, 0)
    assert log.first_unstable_offset == start
    log.close(clean=False)


def test_a_restart_that_was_never_announced_leaves_the_transactions_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producers with which the log was to begin anew are no snapshot of the old log."""
    log = open_log(tmp_path)
    send(log, 5, 0)
    log.appender.roll()
    abort(log, 5)
    log.durability.flush()

    def refused(*_: object) -> None:
        raise DiskError("writing", "restart-checkpoint", EIO)

    monkeypatch.setattr("service.hot.log_truncation.announce_restart", refused)
    with pytest.raises(LogOffline):
        log.truncation.restart_at(1)
    log.close(clean=False)
    log = open_log(tmp_path, recovery_point=1, clean=False)
    assert log.log_end_offset == 2
    assert log.aborted_transactions(0, 2) == [AbortedEntry(5, 0, 1, 2)]
    assert not list(log.dir.glob("restart*"))
    log.close(clean=False)


@pytest.mark.parametrize("is_opened_again", [False, True])
@pytest.mark.parametrize("is_rolled", [False, True])
def test_a_cut_marker_leaves_the_transaction_open_of_a_producer_that_was_forgotten(
    tmp_path: Path, is_rolled: bool, is_opened_again: bool
) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock=clock, high_watermark=0)
    plain(log)
    send(log, 5, 0)
    if is_rolled:
        log.appender.roll()
    commit(log, 5)
    log.high_watermark_moved(3)
    clock.advance(log.producers.expiration_ms)
    assert at_once(log.producers.expire(clock.now_ms())) == 1
    if is_opened_again:
        log.close(clean=True)
        log = open_log(tmp_path, clock=clock, high_watermark=3)
    log.truncation.truncate_to(2)  # after an unclean election
    assert log.first_unstable_offset == 1
    assert log.producers.has_open_transaction(5, 0)
