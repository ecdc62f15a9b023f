"""Dumpers of a local segment's files: `.log`, `.index`, `.timeindex`, `.txnindex`, `.snapshot`."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Final

from service.base.errors import CorruptionError
from service.base.world import system_world
from service.hot import names
from service.hot.files import SegmentFile
from service.hot.producer_snapshot import MAX_SNAPSHOT_BYTES, decode_snapshot
from service.inspect.dump import Dump, Row
from service.inspect.source import Source
from service.records.batch import BatchHeader
from service.records.decode import Record, iter_records
from service.records.segment_indexes import OFFSET_ENTRY, TIME_ENTRY, decode_entries
from service.records.txn_rows import decode_rows
from service.records.walk import iter_verified

MAX_INDEX_BYTES: Final = 1 << 30
_CONTROL_KEY: Final = struct.Struct(">hh")
_END_OF_TRANSACTION: Final = struct.Struct(">hi")
_ENDS: Final[Mapping[int, str]] = {0: "ABORT", 1: "COMMIT"}


def dump_log(source: Source, *, records: bool = False) -> Dump:
    """Dump the batches of a log, each with its checksum verified; with their records on request."""
    head = {"base_offset": base_offset_of(source), "size": source.size}
    return Dump("log", head, (("batches", _batches(source, records)),))


def iter_batches(source: Source) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield header and bytes of each batch. Raises `CorruptionError` where the file stops being a log."""
    path = source.local_path()
    disk = system_world().disk
    with closing(SegmentFile(disk, path, fd=disk.open(path))) as file:
        for header in iter_verified(file.pread, source.size, path):
            # The checksum is right, and so the length: no more than a batch is read.
            data = file.pread(header.size, header.position)
            yield header._replace(position=0), data


def _batches(source: Source, records: bool) -> Iterator[Row]:
    position = 0
    for header, data in iter_batches(source):
        row = {**describe_batch(header), "position": position}
        position += header.size
        if records and header.is_control:
            row["markers"] = [describe_control(record) for record in iter_records(data, include_control=True)]
        elif records:
            row["records"] = [describe_record(record) for record in iter_records(data)]
        yield row


def describe_batch(header: BatchHeader) -> dict[str, object]:
    """Return a batch's header with the field names of `kafka-dump-log`."""
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "size": header.size,
        "partition_leader_epoch": header.partition_leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "codec": header.codec.name.lower(),
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "crc": header.crc,
    }


def describe_record(record: Record) -> dict[str, object]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": record.headers,
    }


def describe_control(record: Record) -> dict[str, object]:
    """Return the fields of a control record: a transaction's end, or one that is shown raw."""
    try:
        _, kind = _CONTROL_KEY.unpack_from(record.key or b"")
        version, coordinator_epoch = _END_OF_TRANSACTION.unpack_from(record.value or b"")
    except struct.error:
        kind, version = -1, -1
    place = {"offset": record.offset, "timestamp": record.timestamp}
    if version < 0 or kind not in _ENDS:
        return {**place, "type": "control record", "key": record.key, "value": record.value}
    return {**place, "type": _ENDS[kind], "coordinator_epoch": coordinator_epoch}


def dump_offset_index(source: Source) -> Dump:
    """Dump the entries of an offset index. `CorruptionError` where they do not ascend."""
    base = base_offset_of(source)

    def rows() -> Iterator[Row]:
        for relative, position in _entries(source, OFFSET_ENTRY):
            yield {"offset": base + relative, "position": position}

    return Dump("offset index", {"base_offset": base}, (("entries", rows()),))


def dump_time_index(source: Source) -> Dump:
    """Dump the entries of a time index. `CorruptionError` where they do not ascend."""
    base = base_offset_of(source)

    def rows() -> Iterator[Row]:
        for timestamp, relative in _entries(source, TIME_ENTRY):
            yield {"timestamp": timestamp, "offset": base + relative}

    return Dump("time index", {"base_offset": base}, (("entries", rows()),))


def _entries(source: Source, entry: struct.Struct) -> Iterator[tuple[int, int]]:
    try:
        yield from decode_entries(source.read(MAX_INDEX_BYTES), entry)
    except CorruptionError as e:
        raise CorruptionError(f"{source.name}: {e}") from e


def dump_transaction_index(source: Source) -> Dump:
    """Dump a transaction index: the aborted transactions whose markers its segment has."""
    try:
        rows = [row._asdict() for row in decode_rows(source.read(MAX_INDEX_BYTES))]
    except CorruptionError as e:
        raise CorruptionError(f"{source.name}: {e}") from e
    return Dump("transaction index", {"base_offset": base_offset_of(source)}, (("aborted", rows),))


def dump_producer_snapshot(source: Source) -> Dump:
    producers = decode_snapshot(source.read(MAX_SNAPSHOT_BYTES))
    rows = (
        {
            "producer_id": producer_id,
            "producer_epoch": entry.epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_offset,
            "offset_delta": entry.last_offset_delta,
            "last_timestamp": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_first_offset": entry.txn_first_offset,
        }
        for producer_id, entry in producers
    )
    return Dump("producer snapshot", {"offset": base_offset_of(source)}, (("producers", rows),))


def base_offset_of(source: Source) -> int:
    """Return the offset in a segment file's name. `CorruptionError` for a name without one."""
    parsed = names.parse_offset_file(source.name.removesuffix(names.DELETED))
    if parsed is None:
        raise CorruptionError(f"{source.name}: expected 20 digits of base offset as its name")
    return parsed[0]
