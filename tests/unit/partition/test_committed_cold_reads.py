"""Reads of the bucket's part of a log: they end at the reader's bound, and bring the aborted transactions."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.partition.unified_log import NOTHING, LogRead, UnifiedLog
from service.records.txn_rows import AbortedEntry, encode_pair
from service.remote.catalog import CatalogEntry
from service.remote.reading.aborted import AbortedRows
from service.remote.reading.reader import RemoteRead, RemoteReader
from tests.unit.hot.logs import START_MS, batch, open_log

MUCH = 1 << 20
ROW = AbortedEntry(7, 3, 8, 9)


class Bucket:
    """What a reader of the bucket is asked, and its answers, which come when they are given."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []
        self.lookups: list[tuple[str, int, int]] = []
        self.reading: Future[RemoteRead] = Future()
        self.finding: Future[AbortedRows] = Future()

    def share(self) -> int:
        return MUCH

    def read(self, tip: object, key: str, offset: int, max_bytes: int, end_offset: int) -> Future[RemoteRead]:
        self.reads.append((offset, end_offset))
        return self.reading

    def aborted(self, tip: object, key: str, fetch_offset: int, bound: int) -> Future[AbortedRows]:
        self.lookups.append((key, fetch_offset, bound))
        return self.finding


def entry(end_offset: int) -> CatalogEntry:
    return CatalogEntry(1, f"manifest-{end_offset}", 0, 0, end_offset, 1, 100)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def unified(tmp_path: Path, bucket: Bucket) -> UnifiedLog:
    """A log from 0 to 30, of which the bucket has what is below 20 and the disk what is above 10."""
    log = open_log(tmp_path, segment_bytes=200, remote_storage_enable=True)
    for _ in range(15):
        log.append(batch(2), 0, START_MS)
    made = UnifiedLog(log, cast("RemoteReader", cast("Any", bucket)))
    made.remote = entry(20)
    log.deletion.advance_local_start(10)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 10, 30)
    return made


def committed(unified: UnifiedLog, offset: int, end: int) -> LogRead:
    return unified.read(offset, MUCH, end, min_one=True, is_committed=True)


def ended(unified: UnifiedLog, read: LogRead) -> LogRead:
    assert read.pending is not None
    assert (read.size, read.aborted) == (0, ())
    assert read.pending.done()
    return unified.ready(read.pending)


def test_the_bound_of_a_reader_that_lags_behind_the_archive_is_handed_to_the_bucket(
    unified: UnifiedLog, bucket: Bucket
) -> None:
    assert unified.read(4, MUCH, 6, min_one=True).pending is bucket.reading
    committed(unified, 5, 6)
    assert bucket.reads == [(4, 6), (5, 6)]
    assert committed(unified, 6, 6) == unified.read(6, MUCH, 6, min_one=True) == NOTHING
    assert len(bucket.reads) == 2, "nothing is to be seen there"


def test_records_come_with_the_transactions_that_overlap_them(unified: UnifiedLog, bucket: Bucket) -> None:
    read = committed(unified, 4, 30)
    bucket.reading.set_result(RemoteRead((b"records",), 9))
    assert bucket.lookups == [("manifest-20", 4, 9)]
    assert read.pending is not None
    assert not read.pending.done()
    bucket.finding.set_result(AbortedRows([ROW], is_complete=True))
    found = ended(unified, read)
    assert (found.parts, found.size, found.aborted) == ((b"records",), 7, [encode_pair(ROW)])
    at_once = committed(unified, 4, 30)
    assert (at_once.pending, at_once.aborted) == (None, [encode_pair(ROW)])
    assert unified.read(4, MUCH, 30, min_one=True).aborted == ()


def test_markers_behind_the_archive_are_found_on_the_disk_and_none_twice(
    unified: UnifiedLog, bucket: Bucket
) -> None:
    local = [AbortedEntry(8, 5, 18, 9), AbortedEntry(9, 6, 22, 23), AbortedEntry(10, 12, 25, 26)]
    unified.local.state.add_rows(unified.local.state.segments.active, local)
    bucket.reading.set_result(RemoteRead((b"records",), 9))
    bucket.finding.set_result(AbortedRows([ROW, local[0]], is_complete=False))
    found = committed(unified, 4, 30)
    assert found.aborted == [*map(encode_pair, (ROW, *local[:2]))]


def test_markers_that_went_to_the_bucket_meanwhile_are_looked_up_there(
    unified: UnifiedLog, bucket: Bucket
) -> None:
    read = committed(unified, 4, 30)
    bucket.reading.set_result(RemoteRead((b"records",), 9))
    unified.remote = entry(28)
    unified.local.deletion.advance_local_start(24)
    before, bucket.finding = bucket.finding, Future()
    before.set_result(AbortedRows([ROW], is_complete=False))
    again = ended(unified, read)
    assert bucket.lookups == [("manifest-20", 4, 9), ("manifest-28", 4, 9)]
    bucket.finding.set_result(AbortedRows([ROW], is_complete=True))
    found = ended(unified, again)
    assert (found.size, found.aborted) == (7, [encode_pair(ROW)])


@pytest.mark.parametrize("part", ["reading", "finding"])
def test_no_record_comes_without_its_transactions(unified: UnifiedLog, bucket: Bucket, part: str) -> None:
    if part == "finding":
        bucket.reading.set_result(RemoteRead((b"records",), 9))
    getattr(bucket, part).set_exception(RequestError(ErrorCode.unknown_server_error, "the store is away"))
    with pytest.raises(RequestError, match="the store is away"):
        committed(unified, 4, 30)
