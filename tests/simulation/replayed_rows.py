"""Open transactions and aborted rows that a log must have: those of a replay of its batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from service.hot.log import LocalLog
from service.records.txn_rows import AbortedEntry

Kind: TypeAlias = Literal["data", "commit", "abort"]
_BEYOND_ALL = 1 << 60


class Replayed(NamedTuple):
    """Open transactions by producer id, and the aborted ones."""

    open: dict[int, int]
    rows: list[AbortedEntry]


def replay(batches: Iterable[tuple[int, int, Kind]]) -> Replayed:
    """Replay batches: first offset, producer id (-1: none) and kind, in order."""
    found = Replayed({}, [])
    for offset, producer_id, kind in batches:
        if producer_id < 0:
            continue
        if kind == "data":
            found.open.setdefault(producer_id, offset)
            continue
        first = found.open.pop(producer_id, None)
        if first is not None and kind == "abort":
            stable = min(found.open.values(), default=offset + 1)
            found.rows.append(AbortedEntry(producer_id, first, offset, stable))
    return found


def check_transactions(log: LocalLog, expected: Replayed) -> None:
    """Compare the log's rows and open transactions with those of the replay. Of a log whose first segments
    are gone, those that began in the segments that are there."""
    base = log.first_base_offset
    rows = log.aborted_transactions(0, _BEYOND_ALL)
    if base:
        there = {row[:1] + row[2:3] for row in rows}
        missing = [
            row for row in expected.rows if row.first_offset > base and row[:1] + row[2:3] not in there
        ]
        assert not missing, f"rows {missing} are missing among {rows}"
        return
    known: Mapping[int, int] = dict(log.producers.transactions or {})
    assert (rows, known) == (expected.rows, expected.open)
