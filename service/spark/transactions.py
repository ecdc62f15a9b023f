"""Aborted transactions, from Kafka's ``.txnindex`` section of the segments. [P]

One entry is 34 bytes, big-endian: i16 version, i64 producer id, i64 first offset, i64 last offset (the abort
marker's), i64 last stable offset. An entry lies in the segment that holds the marker, so what was aborted may
begin in an earlier one: whoever reads a range has to look at the segments after it as well, up to an entry
whose last stable offset is not below the range's end (Kafka `TransactionIndex.collectAbortedTxns`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.spark.planner import AbortedTransaction

ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0


class AbortedEntry(NamedTuple):
    """One row of a transaction index, without its version."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def decode_entries(data: Buffer) -> list[AbortedEntry]:
    """The rows of one index. `CorruptionError` for a torn row, an unknown version, offsets that run back."""
    if len(data) % ENTRY.size:
        raise CorruptionError(f"transaction index: {len(data)} bytes are not whole rows of {ENTRY.size}")
    entries = []
    for version, *fields in ENTRY.iter_unpack(data):
        entry = AbortedEntry._make(fields)
        if version != _VERSION or not 0 <= entry.first_offset <= entry.last_offset or entry.producer_id < 0:
            raise CorruptionError(f"transaction index: version {version}, {entry}")
        entries.append(entry)
    return entries


def aborted_between(
    entries: Iterable[AbortedEntry], begin_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Aborted transactions with an offset in ``[begin_offset, end_offset)``, by first offset."""
    found = {
        AbortedTransaction(entry.producer_id, entry.first_offset, entry.last_offset)
        for entry in entries
        if entry.last_offset >= begin_offset and entry.first_offset < end_offset
    }
    return tuple(sorted(found, key=lambda aborted: (aborted.first_offset, aborted.producer_id)))
