from __future__ import annotations

import struct

import pytest

from service.base.errors import CorruptionError
from service.spark.planner import AbortedTransaction
from service.spark.transactions import AbortedEntry, aborted_between, decode_entries

ROW = struct.Struct(">hqqqq")


def test_rows_are_kafkas() -> None:
    data = ROW.pack(0, 7, 10, 20, 15) + ROW.pack(0, 8, 12, 30, 12)
    assert decode_entries(data) == [AbortedEntry(7, 10, 20, 15), AbortedEntry(8, 12, 30, 12)]
    assert decode_entries(b"") == []


@pytest.mark.parametrize(
    "data",
    [bytes(33), ROW.pack(1, 7, 10, 20, 15), ROW.pack(0, 7, 20, 10, 15), ROW.pack(0, -1, 1, 2, 3)],
)
def test_rows_that_are_none_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="transaction index"):
        decode_entries(data)


def test_a_transaction_matters_where_it_touches_the_range_and_once() -> None:
    entries = [AbortedEntry(7, 10, 20, 15), AbortedEntry(7, 10, 20, 15), AbortedEntry(8, 12, 30, 12)]
    assert aborted_between(entries, 20, 40) == (AbortedTransaction(7, 10, 20), AbortedTransaction(8, 12, 30))
    assert aborted_between(entries, 21, 40) == (AbortedTransaction(8, 12, 30),)
    assert aborted_between(entries, 0, 11) == (AbortedTransaction(7, 10, 20),)
    assert aborted_between(entries, 0, 10) == ()
