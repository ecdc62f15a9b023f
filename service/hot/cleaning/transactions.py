"""Outcome of each transaction met while compacting. [P]

A transaction index lists the aborted ones. Data of an aborted transaction are dropped at once. A marker is
dropped in two steps, and only once no data of its transaction precede it; the index of the copy keeps the
rows whose markers stay.

Source: Kafka `CleanedTransactionMetadata`, `UnifiedLog.collectAbortedTransactions`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.records.batch import BatchHeader
from service.records.decode import iter_records
from service.records.txn_rows import AbortedEntry

_ABORT: Final = 0
_COMMIT: Final = 1


class CleanedTransactions:
    """`key_map.TransactionOutcomes` of one walk through the log, from its start or its first dirty offset on.

    ``kept``: rows of aborted transactions whose markers were met and stay.
    """

    def __init__(self) -> None:
        self._aborted: list[tuple[int, int, AbortedEntry]] = []
        self._numbers = 0
        self._ongoing_aborted: dict[int, tuple[AbortedEntry, bool]] = {}
        self._ongoing_committed: set[int] = set()
        self.kept: list[AbortedEntry] = []

    def add(self, rows: Iterable[AbortedEntry]) -> None:
        """Add aborted transactions; a row may be added more than once."""
        for row in rows:
            self._numbers += 1
            heapq.heappush(self._aborted, (row.first_offset, self._numbers, row))

    def is_aborted(self, header: BatchHeader) -> bool:
        self._begin_up_to(header.last_offset)
        known = self._ongoing_aborted.get(header.producer_id)
        if known is None:
            self._ongoing_committed.add(header.producer_id)
            return False
        self._ongoing_aborted[header.producer_id] = known[0], True
        return True

    def has_ended(self, header: BatchHeader, batch: Buffer) -> bool:
        self._begin_up_to(header.last_offset)
        kind = _kind_of(header, batch)
        if kind is None:
            return True  # it was cleaned before
        if kind == _ABORT:
            known = self._ongoing_aborted.pop(header.producer_id, None)
            if known is None or not known[1]:
                return True
            self.kept.append(known[0])
            return False
        if kind == _COMMIT:
            if header.producer_id in self._ongoing_committed:
                self._ongoing_committed.remove(header.producer_id)
                return False
            return True
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[0][0] <= offset:
            row = heapq.heappop(self._aborted)[2]
            self._ongoing_aborted.setdefault(row.producer_id, (row, False))


def _kind_of(header: BatchHeader, batch: Buffer) -> int | None:
    """Read the kind of a control batch's record: i16 version, i16 kind in its key; None if the batch is
    empty."""
    for record in iter_records(batch, include_control=True):
        if record.key is None or len(record.key) < 4:
            raise CorruptionError(f"control record without a key at offset {header.base_offset}")
        return int.from_bytes(record.key[2:4], "big", signed=True)
    return None


def aborted_between(
    indexes: Iterable[Iterable[AbortedEntry]], start: int, end: int
) -> Iterator[AbortedEntry]:
    """Yield the transactions in these indexes, oldest first, that overlap ``[start, end)``.

    Rows behind one whose last stable offset reaches `end` belong to later transactions.
    """
    for index in indexes:
        for row in index:
            if row.last_offset >= start and row.first_offset < end:
                yield row
            if row.last_stable_offset >= end:
                return
