"""Decoded batches of a coordinator's log, ready to be replayed. [P]

The thread that reads a block also verifies checksums, decompresses and finds the fields. The event loop only
replays.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import NO_EPOCH, NO_PRODUCER_ID, Buffer
from service.records.batch import iter_headers, verify_crc
from service.records.decode import index_batch
from service.records.kernel_status import RECORD_FIELDS

_CONTROL_KEY: Final = struct.Struct(">hh")  # version, type
_ABORT: Final = 0
_COMMIT: Final = 1


class StoredBatch(NamedTuple):
    """One batch of the log. ``marker``: the control batch commits (True) or aborts the transaction of
    ``producer_id``; None in a batch of records. There is no producer outside of transactions."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    marker: bool | None
    payload: memoryview
    rows: array[int]

    def records(self, from_offset: int) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Yield offset, key and value of each record from `from_offset` on; `CorruptionError` for one without
        a key."""
        payload, rows, base = self.payload, self.rows, self.base_offset
        for at in range(0, len(rows), RECORD_FIELDS):
            _, delta, key_at, key_size, value_at, value_size, _, _ = rows[at : at + RECORD_FIELDS]
            offset = base + delta
            if offset < from_offset:
                continue
            if key_size < 0:
                raise CorruptionError(f"the record at offset {offset} has no key")
            value = None if value_size < 0 else bytes(payload[value_at : value_at + value_size])
            yield offset, bytes(payload[key_at : key_at + key_size]), value


def decode_batches(data: Buffer) -> list[StoredBatch]:
    """Decode the batches that fill `data`. `CorruptionError` for a torn batch, a wrong checksum, or records
    that do not parse."""
    found = []
    for header in iter_headers(data):
        if not verify_crc(data, header):
            raise CorruptionError(f"the batch at offset {header.base_offset} has a wrong checksum")
        payload, rows = index_batch(data, header)
        marker = _marker(payload, rows) if header.is_control else None
        if header.is_control and marker is None:
            payload, rows = payload[:0], array("q")
        producer = (header.producer_id, header.producer_epoch)
        if not header.is_transactional:
            producer = NO_PRODUCER_ID, NO_EPOCH
        found.append(StoredBatch(header.base_offset, header.last_offset, *producer, marker, payload, rows))
    return found


def _marker(payload: memoryview, rows: array[int]) -> bool | None:
    """Return whether a control batch commits or aborts a transaction; None if it is of another kind, or empty
    after compaction."""
    if not rows or rows[3] < _CONTROL_KEY.size:
        return None
    _, kind = _CONTROL_KEY.unpack_from(payload, rows[2])
    return {_ABORT: False, _COMMIT: True}.get(kind)
