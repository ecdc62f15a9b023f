"""Dumper of `__transaction_state` segments: the states of transactional ids, record by record.

A record without a value is a tombstone. A record of an unknown type or version is named and shown raw; so is
one whose key or value does not parse, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from service.base.errors import CorruptionError
from service.inspect.dump import Dump, Row
from service.inspect.segment import base_offset_of, describe_control, describe_record, iter_batches
from service.inspect.source import Source
from service.records.batch import BatchHeader
from service.records.decode import Record, iter_records
from service.transactions.records import decode_key, decode_value

TRANSACTION_TOPIC: Final = "__transaction_state"


def is_transactions_folder(folder: str) -> bool:
    """Return whether a folder is a partition directory of `__transaction_state`."""
    topic, _, partition = folder.rpartition("-")
    return topic == TRANSACTION_TOPIC and partition.isdecimal()


def dump_transaction_log(source: Source) -> Dump:
    """Dump a segment of `__transaction_state`: one row for each record."""
    rows = (row for header, data in iter_batches(source) for row in _rows(header, data))
    head = {"base_offset": base_offset_of(source), "size": source.size}
    return Dump("transaction log", head, (("records", rows),))


def _rows(header: BatchHeader, data: bytes) -> Iterator[Row]:
    for record in iter_records(data, include_control=True):
        if header.is_control:
            yield describe_control(record)
        else:
            yield {"offset": record.offset, "timestamp": record.timestamp, **decoded(record)}


def decoded(record: Record) -> dict[str, object]:
    """Return the id and the fields of its state; what does not parse is shown raw, beside an `error`."""
    raw = {name: found for name, found in describe_record(record).items() if name in ("key", "value")}
    if record.key is None:
        return {"type": "unknown", **raw, "error": "a record without a key"}
    try:
        key = decode_key(record.key)
    except CorruptionError as e:
        return {"type": "unknown", **raw, "error": str(e)}
    if isinstance(key, int):
        return {"type": f"unknown type {key}", **raw}
    row: dict[str, object] = {"transactional_id": key}
    if record.value is None:
        return {**row, "value": None, "tombstone": True}
    try:
        found = decode_value(record.value)
    except CorruptionError as e:
        return {**row, "value": record.value, "error": str(e)}
    if isinstance(found, int):
        return {**row, "version": found, "value": record.value}
    fields = found._asdict()
    del fields["last_producer_epoch"]  # not of the log
    partitions = [f"{topic}-{number}" for topic, number in sorted(found.partitions)]
    version = int.from_bytes(record.value[:2], "big", signed=True)
    return {**row, "version": version, **fields, "state": found.state.word, "partitions": partitions}
