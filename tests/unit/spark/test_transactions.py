from __future__ import annotations

import struct

import pytest

from service.base.errors import CorruptionError
from service.records.batch import read_header
from service.records.txn_rows import AbortedEntry, decode_rows
from service.spark.plan.splits import AbortedTransaction
from service.spark.plan.txn_index import aborted_between, follow, open_in
from tests.unit.spark.bucket import marker, plain, producer_snapshot, transactional

ROW = struct.Struct(">hqqqq")


def test_rows_are_kafkas() -> None:
    data = ROW.pack(0, 7, 10, 20, 15) + ROW.pack(0, 8, 12, 30, 12)
    assert decode_rows(data) == [AbortedEntry(7, 10, 20, 15), AbortedEntry(8, 12, 30, 12)]
    assert decode_rows(b"") == []


@pytest.mark.parametrize(
    "data",
    [bytes(33), ROW.pack(1, 7, 10, 20, 15), ROW.pack(0, 7, 20, 10, 15), ROW.pack(0, -1, 1, 2, 3)],
)
def test_rows_that_are_none_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="transaction index"):
        decode_rows(data)


def test_a_transaction_matters_where_it_touches_the_range_and_once() -> None:
    entries = [AbortedEntry(7, 10, 20, 15), AbortedEntry(7, 10, 20, 15), AbortedEntry(8, 12, 30, 12)]
    assert aborted_between(entries, 20, 40) == (AbortedTransaction(7, 10, 20), AbortedTransaction(8, 12, 30))
    assert aborted_between(entries, 21, 40) == (AbortedTransaction(8, 12, 30),)
    assert aborted_between(entries, 0, 11) == (AbortedTransaction(7, 10, 20),)
    assert aborted_between(entries, 0, 10) == ()


def test_open_transactions_are_those_of_the_snapshot() -> None:
    assert open_in(producer_snapshot({7: 30, 8: 0})) == {7: 30, 8: 0}
    assert open_in(producer_snapshot({})) == {}


def test_a_transaction_is_open_from_its_first_record_to_its_marker() -> None:
    opened: dict[int, int] = {}
    steps = [
        (plain(0, 0), {}),
        (transactional(10, 7), {7: 10}),
        (transactional(11, 8), {7: 10, 8: 11}),
        (transactional(12, 7), {7: 10, 8: 11}),
        (marker(13, 7, commit=True), {8: 11}),
        (transactional(14, 7), {7: 14, 8: 11}),
        (marker(15, 8, commit=False), {7: 14}),
        (marker(16, 9, commit=True), {7: 14}),
    ]
    for batch, expected in steps:
        follow(opened, read_header(batch))
        assert opened == expected


def test_an_empty_compacted_batch_opens_no_transaction() -> None:
    """Its records are gone, and so may be the marker that ended the transaction."""
    opened: dict[int, int] = {}
    follow(opened, read_header(transactional(10, 7))._replace(record_count=0))
    assert opened == {}
