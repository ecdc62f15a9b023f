"""Rows of a transaction index: the aborted transactions. [P]

A row has 34 bytes, big-endian: i16 version, i64 producer id, i64 first offset, i64 last offset (the abort
marker's), i64 last stable offset. It lies in the index of the segment that holds the marker (Kafka
`AbortedTxn`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import Buffer

ROW: Final = struct.Struct(">hqqqq")
FIELDS: Final = struct.Struct(">2xqqqq")
"""A row without its version."""
VERSION: Final = 0
PAIR: Final = slice(2, 18)
"""Place of producer id and first offset in a row; a Fetch response has them in the same bytes."""
WHOLE: Final = slice(0, ROW.size)


class AbortedEntry(NamedTuple):
    """One aborted transaction: a row without its version. Offsets are inclusive; `last_stable_offset` is the
    log's when the marker was appended."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_row(entry: AbortedEntry) -> bytes:
    """Return the bytes of one row."""
    return ROW.pack(VERSION, *entry)


def encode_pair(entry: AbortedEntry) -> bytes:
    """Return the bytes of producer id and first offset."""
    return encode_row(entry)[PAIR]


def decode_rows(data: Buffer) -> list[AbortedEntry]:
    """Parse one index. `CorruptionError` for a torn row, an unknown version, or a wrong order of offsets."""
    return list(iter_rows(data))


def iter_rows(data: Buffer) -> Iterator[AbortedEntry]:
    """Yield the rows of an index one by one, as a list of them takes six times their bytes; errors as in
    `decode_rows`."""
    if len(data) % ROW.size:
        raise CorruptionError(f"transaction index: {len(data)} bytes are not whole rows of {ROW.size}")
    for version, *fields in ROW.iter_unpack(data):
        entry = AbortedEntry._make(fields)
        if version != VERSION or not 0 <= entry.first_offset <= entry.last_offset or entry.producer_id < 0:
            raise CorruptionError(f"transaction index: version {version}, {entry}")
        yield entry
