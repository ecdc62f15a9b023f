"""A transaction index that was found to be wrong is replaced, file and summaries alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.base.errors import StorageError
from service.hot.log import LocalLog
from service.hot.markers import Marker
from service.hot.verification import VERIFICATION_OFF
from service.records.txn_rows import AbortedEntry, decode_rows, encode_row
from tests.unit.hot.logs import START_MS, batch, open_log


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    """Hundreds of aborted transactions in a sealed segment."""
    log = open_log(tmp_path, segment_bytes=60_000)
    sequence = 0
    while len(log.sealed.describe_all()) < 1:
        one = batch(1, producer_id=7, epoch=0, sequence=sequence, is_transactional=True)
        log.append(one, 0, START_MS, VERIFICATION_OFF)
        log.append_markers([Marker(7, 0, 1, False, 1)], 0, START_MS)
        sequence += 1
    return log


def test_look_ups_find_the_rows_of_the_new_index_and_no_others(log: LocalLog) -> None:
    (segment,) = log.sealed.describe_all()
    assert segment.txn_index_path is not None
    rows = decode_rows(segment.txn_index_path.read_bytes())
    assert len(rows) > 256, "more than two blocks"
    kept = rows[::40]
    log.sealed.replace_rows(0, b"".join(map(encode_row, kept)))
    assert decode_rows(segment.txn_index_path.read_bytes()) == kept
    for row in kept:
        found = log.aborted_transactions(row.last_offset, row.last_offset + 1)
        assert AbortedEntry._make(found[0]) == row
    assert [AbortedEntry._make(row) for row in log.aborted_transactions(0, rows[-1].last_offset)] == kept
    log.sealed.replace_rows(0, b"")
    assert not log.aborted_transactions(0, rows[-1].last_offset)
    log.sealed.replace_rows(0, b"".join(map(encode_row, rows)))
    assert len(log.aborted_transactions(0, rows[-1].last_offset + 1)) == len(rows)


def test_an_index_comes_where_there_was_none(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1000)
    while len(log.sealed.describe_all()) < 1:
        log.append(batch(1), 0, START_MS)
    row = AbortedEntry(7, 0, 2, 3)
    log.sealed.replace_rows(0, encode_row(row))
    assert [AbortedEntry._make(one) for one in log.aborted_transactions(0, 5)] == [row]
    with pytest.raises(StorageError, match="has been deleted"):
        log.sealed.replace_rows(1, b"")
