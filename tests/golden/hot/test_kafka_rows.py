"""Transactions that a real broker wrote are served as it served them, and our rows are its rows (X12)."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from service.base.clock import ManualClock
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.log_dir import decode_uuid
from service.hot.transactions import OpenTransactions
from service.records.batch import iter_headers
from service.records.decode import iter_records
from service.records.markers import read_marker
from service.records.open_spans import RowReplay
from service.records.producer_snapshot import ProducerRow, decode_rows
from service.records.scan import scan_batches
from tests.support.world import make_world

GOLDEN = Path(__file__).parent / "kafka-rows"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
TIP = TopicIdPartition(decode_uuid("_BfIN2PVRce2G9_PIdBD0Q"), "golden", 0)
WRITTEN_MS = 1_795_903_000_000
END = 26


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "golden-0", tmp_path / "golden-0")
    return tmp_path / "golden-0"


def opened(directory: Path, *, clean: bool = False) -> LocalLog:
    log = LocalLog.open(
        directory,
        TIP,
        LogConfig(index_interval_bytes=100),
        world=make_world(ManualClock(WRITTEN_MS)),
        clean=clean,
        recovery_point=END if clean else 0,
    )
    log.high_watermark_moved(END)
    return log


def files(directory: Path, suffix: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob(f"*{suffix}"))}


def snapshots(directory: Path) -> dict[str, list[ProducerRow]]:
    """Without times: those of a producer that recovery finds are new."""
    return {
        name: sorted(row._replace(last_timestamp=0) for row in decode_rows(data))
        for name, data in files(directory, ".snapshot").items()
    }


def committed(log: LocalLog, end: int) -> list[list[object]]:
    """Offset and value of each record that a consumer of committed records shows."""
    aborted = sorted(log.aborted_transactions(0, end), key=lambda row: row.first_offset)
    skipped: set[int] = set()
    found = log.read(0, 1 << 20, end)
    assert found.slice is not None
    data = b"".join(part.read() for part in (found.slice, *found.more))
    seen: list[list[object]] = []
    for header in iter_headers(data):
        while aborted and aborted[0].first_offset <= header.last_offset:
            skipped.add(aborted.pop(0).producer_id)
        batch = data[header.position : header.end]
        marker = read_marker(lambda size, at: data[at : at + size], header) if header.is_control else None
        if marker is not None and not marker.is_commit:
            skipped.discard(header.producer_id)
        if not (header.is_transactional and header.producer_id in skipped):
            seen += [[one.offset, (one.value or b"").decode()] for one in iter_records(batch)]
    return seen


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_with_transactions_of_kafkas_is_served_as_kafka_did(directory: Path, clean: bool) -> None:
    before = files(directory, ".txnindex")
    log = opened(directory, clean=clean)
    assert log.first_unstable_offset == EXPECTED["last_stable_offset"] == 19
    assert log.oldest_open is not None
    assert log.oldest_open[1] == 19
    assert committed(log, 19) == EXPECTED["committed"]
    assert files(directory, ".txnindex") == before
    assert [len(data) // 34 for data in before.values()] == [1, 2, 1]


def test_our_recovery_makes_kafkas_transaction_indexes_and_snapshots(directory: Path) -> None:
    rows, producers = files(directory, ".txnindex"), snapshots(directory)
    for path in (*directory.glob("*.txnindex"), *directory.glob("*.snapshot")):
        path.unlink()
    opened(directory).close()
    assert files(directory, ".txnindex") == rows
    assert snapshots(directory) == producers


def test_a_follower_of_kafkas_makes_its_transaction_indexes_and_snapshots(
    directory: Path, tmp_path: Path
) -> None:
    log = LocalLog.open(
        tmp_path / "follower",
        TIP,
        LogConfig(index_interval_bytes=100),
        world=make_world(ManualClock(WRITTEN_MS)),
    )
    for path in sorted(directory.glob("*.log")):
        if int(path.stem):
            log.appender.roll(int(path.stem))
        data = memoryview(path.read_bytes())
        for header in [*iter_headers(data)][:1]:
            log.appender.append_raw(data[header.position : header.end])
            rest = data[header.end :]
            if rest:
                log.appender.append_fetched(rest, scan_batches(rest, next_offset=log.log_end_offset))
    log.close()
    assert files(tmp_path / "follower", ".txnindex") == files(directory, ".txnindex")
    assert snapshots(tmp_path / "follower") == snapshots(directory)
    assert files(tmp_path / "follower", ".log") == files(directory, ".log")


def test_the_snapshot_at_its_base_and_a_segment_give_kafkas_rows(directory: Path) -> None:
    logs = sorted(directory.glob("*.log"))
    for path, following in pairwise([*logs, directory / f"{END:020}.log"]):
        snapshot = path.with_suffix(".snapshot")
        replay = RowReplay(decode_rows(snapshot.read_bytes()) if snapshot.exists() else ())
        data = path.read_bytes()
        replay.add(scan_batches(data), data)
        index = path.with_suffix(".txnindex")
        assert replay.rows == (index.read_bytes() if index.exists() else b"")
        open_there = OpenTransactions()
        open_there.load(
            (
                (row.producer_id, row.txn_first_offset)
                for row in decode_rows(following.with_suffix(".snapshot").read_bytes())
                if row.txn_first_offset >= 0
            ),
            0,
        )
        assert list(replay.spans) == list(open_there)
