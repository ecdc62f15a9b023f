"""The transaction index of a segment: rows that wait for the disk, cuts, look-ups, and wrong files."""

from __future__ import annotations

import random
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path

import pytest

from service.base.disk import DiskError
from service.base.errors import CorruptionError
from service.base.steps import at_once
from service.hot.files import FileCache, FileHandle
from service.hot.log import LocalLog
from service.hot.txn_index import TxnIndex, check_rows
from service.records.producer_snapshot import encode_rows as encode_snapshot
from service.records.scan import scan_batches
from service.records.txn_rows import AbortedEntry, encode_row
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.hot.logs import START_MS, batch, open_log
from tests.unit.hot.transactional import abort, commit, data_of, marker_of, plain, send


def index_of(log: LocalLog, base: int = 0) -> Path:
    return log.dir / f"{base:020}.txnindex"


def transactions(log: LocalLog, count: int) -> list[AbortedEntry]:
    """Aborted ones, each of a batch and a marker."""
    begin = log.log_end_offset
    for _ in range(count):
        send(log, 7, -1)
        abort(log, 7)
    return [AbortedEntry(7, at, at + 1, at + 2) for at in range(begin, begin + 2 * count, 2)]


def test_a_row_that_the_disk_refuses_is_known_and_no_flush_passes_it(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk))
    disk.fail("pwrite", ENOSPC, path=".txnindex")
    rows = transactions(log, 2)
    assert log.aborted_transactions(0, 4) == rows
    with pytest.raises(DiskError):
        log.durability.flush()
    assert log.recovery_point == 0
    log.appender.roll()
    assert log.sealed.spans(0, 1) == []
    disk.heal()
    log.durability.flush()
    assert log.recovery_point == 4
    assert index_of(log).read_bytes() == b"".join(map(encode_row, rows))
    assert log.aborted_transactions(0, 4) == rows
    assert len(log.sealed.spans(0, 1)) == 1


def test_a_flush_makes_rows_durable_before_the_recovery_point_moves(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk))
    transactions(log, 1)
    disk.fail("fsync", ENOSPC, path=".txnindex")
    with pytest.raises(DiskError):
        log.durability.flush()
    assert log.recovery_point == 0


def test_a_cut_takes_the_rows_of_the_markers_behind_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    rows = transactions(log, 300)
    log.truncation.truncate_to(511)
    assert log.aborted_transactions(0, 1000) == rows[:255]
    assert index_of(log).read_bytes() == b"".join(map(encode_row, rows[:255]))
    assert log.first_unstable_offset == 0, "nobody said that anything is replicated"
    assert log.oldest_open == (7, 510, START_MS)
    abort(log, 7)
    assert log.aborted_transactions(505, 1000) == [*rows[252:255], AbortedEntry(7, 510, 511, 512)]
    log.truncation.truncate_to(0)
    assert log.aborted_transactions(0, 1000) == []
    assert not log.state.segments.indexed


def test_a_look_up_finds_what_a_scan_finds_and_reads_little(tmp_path: Path) -> None:
    chance = random.Random(5)
    spans: dict[int, int] = {}
    rows: list[AbortedEntry] = []
    for offset in range(1, 6000):
        producer = chance.randrange(6)
        if producer in spans:
            first = spans.pop(producer)
            rows.append(AbortedEntry(producer, first, offset, min(spans.values(), default=offset + 1)))
        elif chance.random() < 0.9:
            spans[producer] = offset
    disk = FaultDisk()
    path = tmp_path / f"{0:020}.txnindex"
    index = TxnIndex(FileHandle(path, 0, FileCache(disk)), make_world().threads.lock())
    for at in range(0, len(rows), 7):
        index.append(rows[at : at + 7])
    check_rows(b"".join(map(encode_row, rows)), 0, 6000)
    for _ in range(300):
        begin = chance.randrange(6000)
        end = begin + chance.choice((1, 10, 300))
        before = disk.calls["pread"]
        found: list[bytes] = []
        at_once(index.find(begin, end, slice(0, 34), found))
        assert found == [
            encode_row(row) for row in rows if row.last_offset >= begin and row.first_offset < end
        ]
        assert disk.calls["pread"] - before <= 5


@pytest.mark.parametrize(
    "rows",
    [
        [(7, 10, 12, 13), (7, 11, 12, 13)],
        [(7, 10, 14, 15), (7, 11, 13, 15)],
        [(7, 10, 20, 21)],
        [(7, 3, 9, 10)],
        [(7, 12, 12, 13)],
        [(7, 10, 12, 14)],
        [(7, 10, 12, 13), (8, 11, 14, 12)],
    ],
    ids=["twice", "back", "behind", "before", "empty", "unstable", "stability falls"],
)
def test_rows_that_cannot_be_right_are_named(rows: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(CorruptionError):
        check_rows(b"".join(encode_row(AbortedEntry(*row)) for row in rows), 10, 20)


def test_a_run_with_markers_between_its_batches_is_one_write(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk))
    plain(log)
    data, rows = bytearray(), []
    for offset in range(1, 101, 2):
        data += data_of(offset, 7, offset // 2) + marker_of(offset + 1, 7, is_commit=offset % 4 == 1)
        if offset % 4 == 3:
            rows.append(AbortedEntry(7, offset, offset + 1, offset + 2))
    before = disk.calls["pwrite"]
    log.appender.append_fetched(memoryview(data), scan_batches(data))
    assert disk.calls["pwrite"] - before == 4, "the run, its rows, and an entry of each other index"
    assert log.aborted_transactions(0, 101) == rows
    entry = log.producers.get(7)
    assert entry is not None
    assert (entry.last_sequence, entry.txn_first_offset, entry.coordinator_epoch) == (49, -1, 1)


def test_a_marker_of_an_older_coordinator_is_no_reason_for_a_follower_to_refuse_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    plain(log)
    data = b"".join(
        (
            data_of(1, 7, 0, epoch=5),
            marker_of(2, 7, is_commit=False, epoch=5, coordinator=9),
            marker_of(3, 7, is_commit=True, epoch=4, coordinator=8),
        )
    )
    log.appender.append_fetched(memoryview(data), scan_batches(data))
    entry = log.producers.get(7)
    assert entry is not None
    assert (entry.epoch, entry.coordinator_epoch, log.log_end_offset) == (4, 8, 4)


# A start


def reopened(tmp_path: Path, log: LocalLog, *, clean: bool, mark: int | None = None) -> LocalLog:
    return open_log(
        tmp_path, clean=clean, recovery_point=log.recovery_point, high_watermark=mark, segment_bytes=1000
    )


@pytest.mark.parametrize("damage", [b"torn", encode_row(AbortedEntry(7, 90, 9999, 91))])
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_an_index_that_cannot_be_right_is_made_anew_from_the_log(
    tmp_path: Path, damage: bytes, has_snapshot: bool
) -> None:
    log = open_log(tmp_path, segment_bytes=1000)
    send(log, 8, -1)
    rows = transactions(log, 20)
    abort(log, 8)
    rows = [row._replace(last_stable_offset=0) for row in rows] + [AbortedEntry(8, 0, 41, 42)]
    assert log.aborted_transactions(0, 42) == rows
    log.close()
    damaged = sorted(log.dir.glob("*.txnindex"))[1]
    right = damaged.read_bytes()
    damaged.write_bytes(right + damage)
    if not has_snapshot:
        damaged.with_suffix(".snapshot").write_bytes(b"")
    log = reopened(tmp_path, log, clean=True)
    assert damaged.read_bytes() == right
    assert log.aborted_transactions(0, 42) == rows


@pytest.mark.parametrize("segment_bytes", [1 << 30, 1000])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda row: row._replace(producer_id=8),
        lambda row: row._replace(first_offset=row.first_offset - 1),
        lambda row: AbortedEntry(8, row.first_offset - 3, row.last_offset - 1, row.last_stable_offset - 1),
    ],
    ids=["producer", "first", "marker"],
)
@pytest.mark.parametrize("padding", [0, 100_000], ids=["replayed", "looked up"])
def test_a_plausible_row_that_the_log_contradicts_is_made_anew(
    tmp_path: Path, wrong: Callable[[AbortedEntry], AbortedEntry], padding: int, segment_bytes: int
) -> None:
    log = open_log(tmp_path, segment_bytes=segment_bytes)
    if padding and segment_bytes > padding:
        log.append(batch(1, value=bytes(padding)), 0, START_MS)
    for producer in 8, 7:
        send(log, producer, -1)
        commit(log, producer)
    rows = transactions(log, 1)
    log.close()
    [path] = log.dir.glob("*.txnindex")
    path.write_bytes(encode_row(wrong(rows[0])))
    log = reopened(tmp_path, log, clean=True)
    assert log.aborted_transactions(0, log.log_end_offset) == rows
    assert path.read_bytes() == encode_row(rows[0])


def test_a_row_that_is_lost_is_found_where_the_segment_is_read_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    rows = transactions(log, 20)
    log.close()
    index_of(log).write_bytes(b"".join(map(encode_row, rows[:10] + rows[11:])))
    log = reopened(tmp_path, log, clean=True)
    assert log.aborted_transactions(0, 40) == rows


def test_a_row_that_the_snapshot_at_the_base_does_not_know_stays_if_the_log_has_its_marker(
    tmp_path: Path,
) -> None:
    """One of the two is wrong: nothing is uploaded then, and nothing is shown that may be aborted."""
    log = open_log(tmp_path)
    send(log, 7, -1)
    log.appender.roll()
    log.durability.flush()
    abort(log, 7)
    log.close()
    (log.dir / f"{1:020}.snapshot").write_bytes(encode_snapshot([]))
    log = reopened(tmp_path, log, clean=True)
    assert log.aborted_transactions(0, 2) == [AbortedEntry(7, 0, 1, 2)]


@pytest.mark.parametrize("count", [1, 20], ids=["looked up", "replayed"])
def test_damage_in_the_log_does_not_keep_it_from_opening(tmp_path: Path, count: int) -> None:
    log = open_log(tmp_path)
    log.append(batch(1, value=bytes(100_000)), 0, START_MS)
    rows = transactions(log, count)
    plain(log)
    log.close()
    with (log.dir / f"{0:020}.log").open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    log = reopened(tmp_path, log, clean=True)
    assert log.aborted_transactions(0, 100) == rows


def test_an_index_that_is_full_seals_its_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.hot.segment.MOST_ROWS", 10)
    log = open_log(tmp_path)
    rows = transactions(log, 25)
    assert sorted(path.stat().st_size // 34 for path in log.dir.glob("*.txnindex")) == [5, 10, 10]
    assert log.aborted_transactions(0, 50) == rows


def test_the_rows_of_a_torn_tail_go_with_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    rows = transactions(log, 2)
    log.close(clean=False)
    path = log.dir / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[:-1])
    log = reopened(tmp_path, log, clean=False)
    assert log.aborted_transactions(0, 4) == rows[:1]
    assert index_of(log).read_bytes() == encode_row(rows[0])
    assert log.oldest_open is not None
    assert log.oldest_open[:2] == (7, 2)


def test_an_index_whose_only_marker_is_lost_goes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    transactions(log, 1)
    log.close(clean=False)
    path = log.dir / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[:-1])
    log = reopened(tmp_path, log, clean=False)
    assert log.aborted_transactions(0, 2) == []
    assert not index_of(log).exists()


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_knows_of_transactions_whose_markers_are_not_replicated(tmp_path: Path, clean: bool) -> None:
    """A snapshot behind the high watermark does not say where they began."""
    log = open_log(tmp_path)
    plain(log, 3)
    send(log, 7, -1, 2)  # 3, 4
    plain(log)
    commit(log, 7)  # 6
    log.appender.roll()
    plain(log)
    log.durability.flush()
    log.close(clean)
    log = reopened(tmp_path, log, clean=clean, mark=5)
    log.high_watermark_moved(5)
    assert log.first_unstable_offset == 3
    log.high_watermark_moved(7)
    assert log.first_unstable_offset is None
    log.close(clean)
    log = reopened(tmp_path, log, clean=clean, mark=7)
    assert log.first_unstable_offset is None


@pytest.mark.parametrize("steps", [1, 3])
def test_a_look_up_that_is_under_way_when_rows_are_cut_finds_those_that_are_left(
    tmp_path: Path, steps: int
) -> None:
    """A look-up of many rows goes on in later turns; a follower may cut its log meanwhile."""
    log = open_log(tmp_path)
    rows = transactions(log, 1000)
    finding = log.state.segments.aborted_from(0, 2000, slice(0, 34))
    for _ in range(steps):
        next(finding)
    log.truncation.truncate_to(200)
    assert at_once(finding) == [encode_row(row) for row in rows[:100]]


def test_a_look_up_that_is_under_way_when_rows_are_replaced_finds_the_right_ones(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    rows = [encode_row(row) for row in transactions(log, 600)]
    log.sealed.replace_rows(0, b"".join(rows[1:]))  # the first one is lost
    finding = log.state.segments.aborted_from(0, 1200, slice(0, 34))
    for _ in range(3):
        next(finding)
    log.sealed.replace_rows(0, b"".join(rows))
    assert at_once(finding) == rows
