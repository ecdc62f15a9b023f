"""Aborted transactions in what is read of the local log: of these bytes, none twice, and many in slices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.hot.log import LocalLog
from service.hot.verification import VERIFICATION_OFF
from service.partition.unified_log import MOST_ABORTED, LogRead, UnifiedLog
from service.records.batch import complete_headers
from service.records.txn_rows import AbortedEntry, encode_pair
from tests.unit.hot.logs import START_MS, batch, open_log
from tests.unit.partition.test_stable_offset import marker

MUCH = 1 << 30


def aborted_after(log: LocalLog, producer_id: int, count: int = 1, *, sequence: int = 0) -> AbortedEntry:
    """A transaction of `count` records that is aborted at once."""
    first = log.log_end_offset
    made = batch(count, producer_id=producer_id, epoch=0, sequence=sequence, is_transactional=True)
    log.append(made, 0, START_MS, VERIFICATION_OFF)
    log.append_markers([marker(producer_id, is_commit=False)], 0, START_MS)
    return AbortedEntry(producer_id, first, first + count, first + count + 1)


def end_of(read: LogRead) -> int:
    data = b"".join(bytes(one) if not hasattr(one, "read") else one.read() for one in read.parts)
    return max(header.next_offset for header in complete_headers(data))


def test_each_read_has_the_transactions_that_overlap_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=20_000, index_interval_bytes=500)
    rows = [aborted_after(log, n, 1 + n % 3) for n in range(300)]
    end = log.log_end_offset
    assert len(log.state.segments) > 3
    unified = UnifiedLog(log, None)
    for max_bytes in (200, 3_000, MUCH):
        offset = 0
        while offset < end:
            read = unified.read(offset, max_bytes, end, min_one=True, is_committed=True)
            reached = end_of(read)
            found = list(read.aborted)
            needed = [
                encode_pair(row) for row in rows if row.last_offset >= offset and row.first_offset < reached
            ]
            assert found[: len(needed)] == needed
            assert len(found) <= len(needed) + 12, "an index interval further at most"
            assert len(set(found)) == len(found)
            offset = reached
    assert unified.read(0, MUCH, end, min_one=True).aborted == ()
    bounded = unified.read(0, MUCH, 5, min_one=True, is_committed=True)
    assert bounded.aborted == [*map(encode_pair, rows[:2])]


def test_a_log_without_aborted_transactions_looks_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, segment_bytes=2_000)
    aborted_after(log, 7)
    for _ in range(40):
        log.append(batch(1), 0, START_MS)
    assert len(log.state.segments) > 2
    monkeypatch.setattr("service.hot.reading.LogReader.end_of", None)
    unified = UnifiedLog(log, None)
    assert unified.read(41, MUCH, 42, min_one=True, is_committed=True).aborted == ()
    with pytest.raises(TypeError):
        unified.read(0, MUCH, 42, min_one=True, is_committed=True)


def test_a_read_ends_where_there_are_too_many(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=100)
    for _ in range((2 * MOST_ABORTED + 2_000) // 10):
        log.append(batch(20, value=b""), 0, START_MS)
    rows = [AbortedEntry(n, 2 * n, 2 * n + 1, 2 * n + 2) for n in range(log.log_end_offset // 2)]
    log.state.add_rows(log.state.segments.active, rows)
    unified, offset, reads = UnifiedLog(log, None), 0, 0
    found: list[bytes] = []

    async def go_on() -> LogRead:
        read = unified.read(offset, MUCH, log.log_end_offset, min_one=True, is_committed=True)
        return read if read.pending is None else unified.ready(await waited(read))

    while offset < log.log_end_offset:
        read = asyncio.run(go_on())
        assert len(read.aborted) <= MOST_ABORTED + 128
        found += read.aborted
        offset, reads = end_of(read), reads + 1
    assert list(dict.fromkeys(found)) == [*map(encode_pair, rows)]
    assert reads == 3


async def waited(read: LogRead) -> asyncio.Future[LogRead]:
    assert isinstance(read.pending, asyncio.Future)
    assert (read.parts, read.size, read.aborted) == ((), 0, ())
    await read.pending
    return read.pending


def test_many_that_overlap_are_found_in_later_turns_for_the_bytes_of_the_first(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(4):
        log.append(batch(1), 0, START_MS)
    rows = [AbortedEntry(n, 0, 10 + n, 0) for n in range(MOST_ABORTED)]
    log.state.add_rows(log.state.segments.active, rows)
    unified = UnifiedLog(log, None)

    async def read() -> LogRead:
        begun = unified.read(0, MUCH, 3, min_one=True, is_committed=True)
        log.append(batch(1), 0, START_MS)
        return unified.ready(await waited(begun))

    found = asyncio.run(read())
    assert found.aborted == [*map(encode_pair, rows)]
    assert end_of(found) == 3
    assert found.size == sum(part.size for part in found.parts if hasattr(part, "size"))
