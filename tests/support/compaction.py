"""Compaction as a model: a few lines over decoded records, and batches to try it on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from service.hot.cleaning.transactions import CleanedTransactions
from service.records.batch import CompressionType, read_header, stamp
from service.records.builder import BatchBuilder
from service.records.decode import Record, iter_records
from service.records.key_map import KeyMap, memory_for
from service.records.recopy import CopyRules, LastBatches, Recopy
from service.records.scan import scan_batches

START_MS = 1_700_000_000_000


class Pair(NamedTuple):
    """A record to be; `key` None is a record without one, `value` None a tombstone."""

    key: bytes | None
    value: bytes | None


def make_batch(
    base_offset: int,
    pairs: Sequence[Pair],
    *,
    codec: CompressionType = CompressionType.NONE,
    timestamp: int = START_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    log_append_time: int | None = None,
    transactional: bool = False,
) -> bytes:
    """A batch whose n-th record has `timestamp` + n."""
    builder = BatchBuilder(
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        log_append_time=log_append_time,
        is_transactional=transactional,
    )
    for number, (key, value) in enumerate(pairs):
        builder.add(timestamp + number, key, value, [("h", b"x")] if number % 3 == 0 else ())
    batch = builder.build()
    stamp(batch, 0, base_offset, 4)
    return bytes(batch)


def make_marker(offset: int, producer_id: int, *, commit: bool, timestamp: int = START_MS) -> bytes:
    """The end of a transaction."""
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=True)
    builder.add(timestamp, bytes((0, 0, 0, commit)), bytes(6))
    batch = builder.build()
    stamp(batch, 0, offset, 4)
    return bytes(batch)


def key_map(
    log: bytes, from_offset: int = 0, fates: CleanedTransactions | None = None, most: int = 1 << 20
) -> KeyMap:
    """The keys of a whole log."""
    keys = KeyMap(bytearray(memory_for(1 << 40, most, 0.9)), bytes(range(16)), 0.9)
    keys.add(memoryview(log), scan_batches(log), from_offset, fates or CleanedTransactions())
    return keys


def recopied(
    log: bytes,
    keys: KeyMap,
    rules: CopyRules,
    *,
    fates: CleanedTransactions | None = None,
    producers: Mapping[int, tuple[int, int]] | None = None,
    buffer_bytes: int = 512,
) -> bytes:
    """Return the recopied bytes of a whole log."""
    copy = Recopy(keys, fates or CleanedTransactions(), rules, LastBatches(producers or {}), buffer_bytes)
    out = bytearray()
    for part in copy.copy(memoryview(log), scan_batches(log)):
        out += part
    for part in copy.rest():
        out += part
    return bytes(out)


def records_of(log: bytes) -> list[Record]:
    """All records, markers among them."""
    return list(iter_records(log, include_control=True))


def last_of_each(records: Iterable[Record]) -> dict[bytes, Record]:
    """The last record of each key."""
    return {bytes(record.key): record for record in records if record.key is not None}


def header_rows(log: bytes) -> list[tuple[int, int, int, int, int]]:
    """(base offset, last offset, producer, base sequence, records) of each batch."""
    found = scan_batches(log)
    assert found.end == len(log), found.status
    headers = [read_header(log, position) for position in found.positions]
    return [
        (one.base_offset, one.last_offset, one.producer_id, one.base_sequence, one.record_count)
        for one in headers
    ]
