"""Rows of aborted transactions are those of the batches, or nothing is uploaded."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.hot.sealed_segments import SealedSegment
from service.records.producer_snapshot import ProducerRow, decode_rows, encode_rows
from service.records.txn_rows import ROW, encode_row
from service.remote.format.manifest import SegmentEntry
from service.remote.format.segment_object import SegmentIdentity
from service.remote.reading.object_reader import open_footer_of, read_section
from service.remote.stores.memory_store import MemoryStore
from service.tiering.copier import CallProgress, copy_segment
from service.tiering.planner import Copy
from service.tiering.transaction_proof import WrongRows
from tests.support.kafka_segments import segments
from tests.support.transactional_log import TransactionalLog, random_log, snapshot_of
from tests.unit.remote.archive import TOPIC_ID, index_of

TIP = TopicIdPartition(TOPIC_ID, "flights", 3)


class Folder:
    """A partition's folder with the segments of a log, cut at these offsets, as a broker leaves it."""

    def __init__(self, path: Path, log: TransactionalLog, ends: list[int]) -> None:
        self.path, self.log = path, log
        self.store = MemoryStore(SystemThreads())
        begin = log.base_offset
        for end in ends:
            data = b"".join(batch.data for batch in log.batches if begin <= batch.base_offset < end)
            self.file(begin, "log").write_bytes(data)
            for index in ("index", "timeindex"):
                self.file(begin, index).write_bytes(b"")
            if rows := index_of(log, begin, end):
                self.file(begin, "txnindex").write_bytes(rows)
            self.file(end, "snapshot").write_bytes(snapshot_of(log.open_at(end)))
            begin = end

    def file(self, offset: int, kind: str) -> Path:
        return self.path / f"{offset:020}.{kind}"

    def copy(self, segment: SealedSegment, from_offset: int | None = None) -> SegmentEntry:
        start = segment.base_offset if from_offset is None else from_offset
        identity = SegmentIdentity("c", *TIP, start, segment.last_offset, 0, TOPIC_ID)
        return copy_segment(self.store, Copy(segment, start), identity, CallProgress(), 500)

    def section(self, entry: SegmentEntry, name: str) -> bytes:
        return read_section(self.store, entry.key, open_footer_of(self.store, entry).sections[name])


def cut(tmp_path: Path, seed: int, batches: int = 80) -> Folder:
    rng = random.Random(seed)
    log = random_log(rng, batches)
    borders = [batch.last_offset + 1 for batch in log.batches]
    return Folder(tmp_path, log, sorted({*rng.sample(borders, 3), borders[-1]}))


def open_from(log: TransactionalLog, begin: int, end: int) -> int:
    opened = log.open_at(end)
    if not opened and not log.has_transactions(begin, end):
        return -1
    return min(opened.values(), default=end)


@pytest.mark.parametrize("seed", range(12))
def test_true_rows_of_any_log_are_uploaded_with_where_transactions_are_open(
    tmp_path: Path, seed: int
) -> None:
    folder = cut(tmp_path, seed)
    for segment in segments(tmp_path):
        entry = folder.copy(segment)
        begin, end = segment.base_offset, segment.last_offset + 1
        assert folder.section(entry, "txn_index") == index_of(folder.log, begin, end)
        assert folder.section(entry, "producer_snapshot") == snapshot_of(folder.log.open_at(end))
        assert entry.open_from == open_from(folder.log, begin, end)


@pytest.mark.parametrize("seed", range(12))
def test_a_copy_of_a_segments_end_has_the_rows_of_that_end_proved_from_its_base_on(
    tmp_path: Path, seed: int
) -> None:
    folder, rng = cut(tmp_path, seed), random.Random(seed)
    for segment in segments(tmp_path):
        end = segment.last_offset + 1
        inside = [b.base_offset for b in folder.log.batches if segment.base_offset <= b.base_offset < end]
        start = rng.choice(inside)
        entry = folder.copy(segment, start)
        assert folder.section(entry, "txn_index") == index_of(folder.log, start, end)
        assert entry.open_from == open_from(folder.log, start, end)


def swapped(data: bytes) -> bytes:
    return data[ROW.size : 2 * ROW.size] + data[: ROW.size] + data[2 * ROW.size :]


HARMS: list[Callable[[bytes], bytes]] = [
    lambda data: b"",
    lambda data: data[ROW.size :],
    lambda data: data[: -ROW.size],
    lambda data: data[:-1],
    lambda data: data + data[-ROW.size :],
    lambda data: bytes(len(data)),
    lambda data: b"\x00\x01" + data[2:],
    lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:],
    lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    lambda data: data[:17] + bytes([data[17] ^ 1]) + data[18:],
    swapped,
]
"""Rows lost, torn, doubled, of another version, of a plausible but wrong producer, in another order."""


@pytest.mark.parametrize("harm", HARMS)
def test_an_index_that_is_not_the_logs_is_built_anew_and_nothing_is_uploaded(
    tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    log = TransactionalLog()
    for _ in range(4):
        log.write(7)
        log.write(2)
        log.end(7, is_commit=False)
        log.end(2, is_commit=True)
    folder = Folder(tmp_path, log, [log.end_offset])
    right = index_of(log, 0, log.end_offset)
    path = folder.file(0, "txnindex")
    path.write_bytes(harm(right))
    (segment,) = segments(tmp_path)
    with pytest.raises(WrongRows, match=str(path)) as caught:
        folder.copy(segment)
    assert caught.value.rows == right
    assert list(folder.store.list("")) == []
    path.write_bytes(caught.value.rows)
    folder.copy(segment)


def test_an_index_that_was_lost_is_built_anew(tmp_path: Path) -> None:
    log = TransactionalLog()
    log.write(7)
    log.end(7, is_commit=False)
    folder = Folder(tmp_path, log, [2])
    folder.file(0, "txnindex").unlink()
    (segment,) = segments(tmp_path)
    with pytest.raises(WrongRows) as caught:
        folder.copy(segment)
    assert caught.value.rows == encode_row(log.rows[0])


def across(tmp_path: Path) -> Folder:
    """7 begins in the first segment, and is aborted in the second, which begins at 2."""
    log = TransactionalLog()
    log.plain()
    log.write(7)
    log.end(7, is_commit=False)
    log.plain()
    return Folder(tmp_path, log, [2, 4])


def test_a_segment_whose_producers_are_lost_is_refused_by_name_where_it_has_transactions(
    tmp_path: Path,
) -> None:
    folder = across(tmp_path)
    folder.file(2, "snapshot").unlink()
    first, second = segments(tmp_path)
    folder.copy(first)
    with pytest.raises(CorruptionError, match="no producer snapshot at its base"):
        folder.copy(second)


def test_a_row_that_the_producers_at_the_base_do_not_know_is_refused_by_name(tmp_path: Path) -> None:
    """A row too few shows aborted records, one too many hides others: nothing tells which file is wrong."""
    folder = across(tmp_path)
    folder.file(2, "snapshot").write_bytes(snapshot_of({}))
    _, second = segments(tmp_path)
    with pytest.raises(CorruptionError, match="begins before the segment") as caught:
        folder.copy(second)
    assert not isinstance(caught.value, WrongRows)


def test_plain_segments_need_no_producers(tmp_path: Path) -> None:
    log = TransactionalLog(base_offset=10)
    log.plain(5)
    folder = Folder(tmp_path, log, [15])
    (segment,) = segments(tmp_path)
    assert folder.copy(segment).open_from == -1


def test_open_transactions_are_those_of_the_batches_whatever_the_snapshot_says(tmp_path: Path) -> None:
    log = TransactionalLog()
    log.write(7)
    log.write(8)
    log.end(8, is_commit=True)
    folder = Folder(tmp_path, log, [3])
    wrong = [ProducerRow(7, 3, 9, 0, 0, 5, 1, -1), ProducerRow(8, 2, 4, 1, 0, 6, 1, 1)]
    folder.file(3, "snapshot").write_bytes(encode_rows(wrong))
    (segment,) = segments(tmp_path)
    entry = folder.copy(segment)
    assert entry.open_from == 0
    rows = decode_rows(folder.section(entry, "producer_snapshot"))
    assert rows == [wrong[0]._replace(txn_first_offset=0), wrong[1]._replace(txn_first_offset=-1)]
    folder.file(3, "snapshot").write_bytes(encode_rows(wrong[1:]))
    with pytest.raises(CorruptionError, match="lacks producer 7"):
        folder.copy(segment)


def test_a_segment_without_a_snapshot_says_what_is_open_all_the_same(tmp_path: Path) -> None:
    folder = across(tmp_path)
    folder.file(4, "snapshot").unlink()
    first, second = segments(tmp_path)
    assert folder.copy(first).open_from == 1
    entry = folder.copy(second)
    assert entry.open_from == 4
    assert folder.section(entry, "producer_snapshot") == b""


def test_a_compacted_segment_keeps_rows_whose_records_are_gone(tmp_path: Path) -> None:
    log = TransactionalLog()
    log.write(7)
    log.plain()
    log.end(7, is_commit=False)
    folder = Folder(tmp_path, log, [3])
    folder.file(0, "log").write_bytes(b"".join(batch.data for batch in log.batches[1:]))
    (segment,) = segments(tmp_path)
    assert folder.section(folder.copy(segment), "txn_index") == encode_row(log.rows[0])
    folder.file(0, "txnindex").write_bytes(encode_row(log.rows[0]._replace(last_offset=9)))
    with pytest.raises(CorruptionError, match=r"txnindex: .*marker at 9"):
        folder.copy(segment)
