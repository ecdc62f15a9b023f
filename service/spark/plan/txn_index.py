"""Aborted and open transactions, from what Kafka keeps beside a segment. [P]

Aborted ones are in the ``.txnindex`` section (`records.txn_rows`). A row lies in the segment that holds the
marker, so an aborted transaction may begin in an earlier one: a read of a range needs the indexes of the
segments after it as well, up to a row whose last stable offset is not below the range's end (Kafka
`TransactionIndex.collectAbortedTxns`).

Open ones are in the producer snapshot of the segment's end: a producer id and the first offset of its
transaction. The least of these offsets is the last stable offset: nothing from it on is decided, and
`read_committed` ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from service.base.types import Buffer
from service.records.batch import BatchHeader
from service.records.producer_snapshot import decode_rows
from service.records.txn_rows import AbortedEntry
from service.spark.plan.splits import AbortedTransaction


def aborted_between(
    entries: Iterable[AbortedEntry], begin_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions with an offset in ``[begin_offset, end_offset)``, by first offset."""
    found = {
        AbortedTransaction(entry.producer_id, entry.first_offset, entry.last_offset)
        for entry in entries
        if entry.last_offset >= begin_offset and entry.first_offset < end_offset
    }
    return tuple(sorted(found, key=lambda aborted: (aborted.first_offset, aborted.producer_id)))


def open_in(snapshot: Buffer) -> dict[int, int]:
    """Return the transactions that a producer snapshot shows as open. Raises `CorruptionError`."""
    return {
        row.producer_id: row.txn_first_offset for row in decode_rows(snapshot) if row.txn_first_offset >= 0
    }


def follow(opened: dict[int, int], header: BatchHeader) -> None:
    """Update the open transactions with the log's next batch (Kafka `ProducerAppendInfo.append`)."""
    if not header.is_transactional or not header.record_count:
        return  # compaction leaves a batch without records only for its sequence number
    if header.is_control:
        opened.pop(header.producer_id, None)
    else:
        opened.setdefault(header.producer_id, header.base_offset)


def stable_end(opened: Mapping[int, int], start_offset: int, end_offset: int) -> int:
    """Return the last stable offset of a log from `start_offset` to before `end_offset`.

    >>> stable_end({7: 30, 9: 25}, 0, 40), stable_end({7: 30}, 35, 40), stable_end({}, 0, 40)
    (25, 35, 40)
    """
    return min(max(min(opened.values(), default=end_offset), start_offset), end_offset)
