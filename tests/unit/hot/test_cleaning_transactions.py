"""Transactions in compaction: aborted data is removed, and markers once no data precedes them."""

from __future__ import annotations

import pytest

from service.base.errors import CorruptionError
from service.hot.cleaning.transactions import CleanedTransactions, aborted_between
from service.records.batch import BatchHeader, read_header, stamp
from service.records.builder import BatchBuilder
from service.records.txn_rows import AbortedEntry

ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def data(producer: int, offset: int, count: int = 1) -> BatchHeader:
    builder = BatchBuilder(producer_id=producer, producer_epoch=0, base_sequence=0, is_transactional=True)
    for n in range(count):
        builder.add(1000 + n, b"k", b"v")
    made = bytearray(builder.build())
    stamp(made, 0, offset, 0)
    return read_header(made)


def marker(producer: int, offset: int, key: bytes | None) -> tuple[BatchHeader, bytes]:
    builder = BatchBuilder(producer_id=producer, producer_epoch=0, is_transactional=True, is_control=True)
    builder.add(1000, key, b"\0\0\0\0\0\0")
    made = bytearray(builder.build())
    stamp(made, 0, offset, 0)
    return read_header(made), bytes(made)


def row(producer: int, first: int, last: int) -> AbortedEntry:
    return AbortedEntry(producer, first, last, last + 1)


def test_data_of_an_aborted_transaction_are_and_those_before_and_behind_it_are_not() -> None:
    walk = CleanedTransactions()
    walk.add([row(7, 10, 20)])
    assert walk.is_aborted(data(7, 5)) is False
    assert walk.is_aborted(data(7, 8, count=2)) is False, "it ends where the other begins"
    assert walk.is_aborted(data(7, 10)) is True
    assert walk.is_aborted(data(8, 11)) is False, "another producer's"
    assert walk.is_aborted(data(7, 19)) is True
    assert walk.has_ended(*marker(7, 20, ABORT)) is False
    assert walk.is_aborted(data(7, 21)) is False


def test_a_marker_stays_while_data_of_its_transaction_do() -> None:
    """Those of aborted ones go with this cleaning, so their marker goes with a later one."""
    walk = CleanedTransactions()
    walk.add([row(7, 10, 20)])
    assert walk.is_aborted(data(7, 10))
    assert walk.has_ended(*marker(7, 20, ABORT)) is False
    assert walk.kept == [row(7, 10, 20)]
    assert walk.is_aborted(data(8, 21)) is False
    assert walk.has_ended(*marker(8, 22, COMMIT)) is False


def test_a_marker_whose_data_are_gone_goes() -> None:
    walk = CleanedTransactions()
    walk.add([row(7, 10, 20)])
    assert walk.has_ended(*marker(7, 20, ABORT)) is True
    assert walk.has_ended(*marker(8, 21, COMMIT)) is True
    assert walk.has_ended(*marker(9, 22, ABORT)) is True, "of one that no index names"
    assert walk.is_aborted(data(7, 25)) is False, "that one was over before"
    assert walk.kept == []


def test_a_commit_ends_what_it_commits() -> None:
    walk = CleanedTransactions()
    assert walk.is_aborted(data(8, 1)) is False
    assert walk.has_ended(*marker(8, 2, COMMIT)) is False
    assert walk.has_ended(*marker(8, 3, COMMIT)) is True, "an empty one"


def test_transactions_of_one_producer_follow_each_other() -> None:
    """However their rows come."""
    walk = CleanedTransactions()
    walk.add([row(7, 30, 40), row(7, 10, 20)])
    assert walk.is_aborted(data(7, 10))
    assert walk.has_ended(*marker(7, 20, ABORT)) is False
    assert walk.is_aborted(data(7, 25)) is False
    assert walk.has_ended(*marker(7, 26, COMMIT)) is False
    assert walk.is_aborted(data(7, 30))
    assert walk.has_ended(*marker(7, 40, ABORT)) is False
    assert walk.kept == [row(7, 10, 20), row(7, 30, 40)]


def test_rows_that_begin_at_one_offset_are_taken_in_the_order_in_which_they_came() -> None:
    walk = CleanedTransactions()
    walk.add([AbortedEntry(7, 10, 20, 21), AbortedEntry(7, 10, 18, 19)])
    assert walk.is_aborted(data(7, 10))
    assert walk.has_ended(*marker(7, 20, ABORT)) is False
    assert walk.kept == [AbortedEntry(7, 10, 20, 21)]


def test_a_marker_of_another_kind_stays_and_one_without_records_has_ended() -> None:
    walk = CleanedTransactions()
    assert walk.has_ended(*marker(7, 20, b"\0\0\0\2")) is False
    _, whole = marker(7, 20, COMMIT)
    empty = bytearray(whole[:61])  # the header alone, of no record
    empty[8:12], empty[57:61] = (61 - 12).to_bytes(4, "big"), bytes(4)
    assert walk.has_ended(read_header(empty), bytes(empty)) is True


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_marker_without_a_kind_is_damage(key: bytes | None) -> None:
    with pytest.raises(CorruptionError):
        CleanedTransactions().has_ended(*marker(7, 20, key))


def test_a_kind_is_read_behind_the_version_and_more_may_follow() -> None:
    walk = CleanedTransactions()
    walk.is_aborted(data(7, 10))
    assert walk.has_ended(*marker(7, 20, b"\0\5\0\1\0\0")) is False
    assert walk.has_ended(*marker(7, 21, b"\0\0\0\1")) is True


def test_rows_of_a_stretch_are_those_that_touch_it() -> None:
    rows = [row(1, 0, 9), row(2, 5, 10), row(3, 15, 18), row(4, 19, 25), row(5, 20, 26), row(6, 27, 28)]
    assert [one.producer_id for one in aborted_between([rows], 10, 20)] == [2, 3, 4]
    assert [one.producer_id for one in aborted_between([rows[:3], rows[3:]], 10, 20)] == [2, 3, 4]
    assert list(aborted_between([], 10, 20)) == []
    at_end = [AbortedEntry(1, 20, 25, 15), AbortedEntry(2, 19, 25, 15)]
    assert [one.producer_id for one in aborted_between([at_end], 10, 20)] == [2]


def test_the_scan_of_aborted_transactions_stops_at_a_stable_row() -> None:
    def rows(*, is_last: bool) -> list[AbortedEntry]:
        return [AbortedEntry(1, 0, 12, 20 if is_last else 19), row(2, 11, 13)]

    assert [one.producer_id for one in aborted_between([rows(is_last=True)], 10, 20)] == [1]
    assert [one.producer_id for one in aborted_between([rows(is_last=False)], 10, 20)] == [1, 2]
