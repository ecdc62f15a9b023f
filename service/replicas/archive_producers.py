"""Producers with which a log begins at its archive's end: their sequences, and their open transactions.

A log that begins there without a transaction that is open shows its records as decided, and that of another
producer never becomes stable. So what the snapshot says is compared with the segment's `open_from`, which its
writer has from the batches themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.base.errors import CorruptionError
from service.base.types import NO_OFFSET
from service.hot.producer_snapshot import decode_snapshot
from service.hot.producers import ProducerEntry

if TYPE_CHECKING:
    from service.remote.reading.reader import ArchiveEnd


def producers_of(end: ArchiveEnd) -> list[tuple[int, ProducerEntry]]:
    """Return producer ids and their states at the archive's end.

    Raises `CorruptionError` where the snapshot is none, or has other open transactions than the segment.
    """
    producers = decode_snapshot(end.producer_snapshot) if end.producer_snapshot else []
    behind = end.entry.end_offset
    firsts = [entry.txn_first_offset for _, entry in producers if entry.txn_first_offset >= 0]
    opened = min(firsts, default=behind)
    if max(firsts, default=NO_OFFSET) >= behind or end.open_from not in (NO_OFFSET, opened):
        raise CorruptionError(
            f"{end.entry.manifest_key}: by the producers of its last segment transactions are open from "
            f"{opened} on, the segment says {end.open_from} and ends before {behind}"
        )
    return producers
