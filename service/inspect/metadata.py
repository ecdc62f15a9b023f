"""Dumpers of the metadata log and its snapshots, record by record, and of `quorum-state`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from service.base.errors import CorruptionError
from service.base.uuids import encode_uuid
from service.config.overrides import may_be_secret
from service.config.passwords import HIDDEN
from service.inspect.dump import Dump, Row
from service.inspect.segment import base_offset_of, iter_batches
from service.inspect.source import Source
from service.metadata.batches import ControlRecord, ControlType, MetadataBatch, decode_batches
from service.metadata.controller.requests import ResourceType
from service.metadata.frames import Frame, UnknownRecord
from service.metadata.raft.durable_offset import decode_durable_offset
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.snapshots import parse_name
from service.metadata.raft.state import decode_state
from service.metadata.records import (
    ConfigRecord,
    DelegationTokenRecord,
    MetadataRecord,
    UserScramCredentialRecord,
)
from service.remote.format.keys import METADATA_PREFIX, MetadataKey, parse_key

MAX_STATE_BYTES = 1 << 20
_SECRET = frozenset({DelegationTokenRecord.API_KEY, UserScramCredentialRecord.API_KEY})
"""Types whose records hold secrets in versions that this software does not know, too."""


def dump_metadata_log(source: Source) -> Dump:
    """Dump a segment of `__cluster_metadata-0`: one row for each record."""
    rows = (row for batch in _batches(source) for row in _rows(batch))
    return Dump(
        "metadata log", {"base_offset": base_offset_of(source), "size": source.size}, (("records", rows),)
    )


def dump_metadata_snapshot(source: Source) -> Dump:
    """Dump a `.checkpoint` like the log; `CorruptionError` at the end when its footer is missing."""
    # In a bucket a UUID follows the name, so that no key is ever written twice.
    named = parse_key(f"{METADATA_PREFIX}/{source.name}")
    snapshot = SnapshotId(*named[:2]) if isinstance(named, MetadataKey) else parse_name(source.name)
    if snapshot is None:
        raise CorruptionError(f"{source.name}: a snapshot is named <end offset>-<epoch>.checkpoint")
    return Dump("metadata snapshot", snapshot._asdict(), (("records", _snapshot_rows(source)),))


def dump_bootstrap(source: Source) -> Dump:
    """Dump `bootstrap.checkpoint`: the records with which a new log begins in a formatted directory."""
    return Dump("bootstrap metadata", {}, (("records", _snapshot_rows(source)),))


def dump_quorum_state(source: Source) -> Dump:
    state = decode_state(source.read(MAX_STATE_BYTES))
    fields = state._asdict()
    for name in ("voted_directory", "version") if state.version == 0 else ("voters",):
        del fields[name]
    if state.version:
        fields["voted_directory"] = encode_uuid(state.voted_directory)
    return Dump("quorum state", fields)


def dump_durable_offset(source: Source) -> Dump:
    """Dump `durable-offset`: up to where the metadata log was flushed."""
    offset = decode_durable_offset(source.read(MAX_STATE_BYTES))
    if offset is None:
        raise CorruptionError(f"{source.name}: not 20 digits and their checksum")
    return Dump("durable offset", {"offset": offset})


def _snapshot_rows(source: Source) -> Iterator[Row]:
    control: list[int] = []
    for batch in _batches(source):
        if ControlType.SNAPSHOT_FOOTER in control:
            raise CorruptionError(f"{source.name}: a batch follows the footer")
        control.extend(record.control_type for record in batch.control)
        if control[:1] != [ControlType.SNAPSHOT_HEADER]:
            raise CorruptionError(f"{source.name}: it does not begin with a snapshot's header")
        yield from _rows(batch)
    if ControlType.SNAPSHOT_FOOTER not in control:
        raise CorruptionError(f"{source.name}: the snapshot has no footer, so it is not whole")


def _batches(source: Source) -> Iterator[MetadataBatch]:
    for _, data in iter_batches(source):
        yield from decode_batches(data)


def _rows(batch: MetadataBatch) -> Iterator[Row]:
    described = [*map(_control, batch.control), *map(_frame, batch.frames)]
    for number, row in enumerate(described):
        place = {"offset": batch.base_offset + number, "epoch": batch.epoch, "timestamp": batch.timestamp_ms}
        yield {**place, **row}


def _control(record: ControlRecord) -> dict[str, object]:
    known = record.control_type in list(ControlType)
    kind = ControlType(record.control_type).name if known else f"control type {record.control_type}"
    return {"type": kind, "data": record.value if record.message is None else record.message}


def _frame(frame: Frame) -> dict[str, object]:
    record = frame.record
    if isinstance(record, UnknownRecord):
        data: object = f"{len(record.body)} bytes" if frame.api_key in _SECRET else record.body
        return {"type": f"unknown type {frame.api_key}", "version": frame.version, "data": data}
    shown = _credential(record) if isinstance(record, UserScramCredentialRecord) else _shown(record)
    return {"type": type(record).__name__, "version": frame.version, "data": shown}


def _credential(record: UserScramCredentialRecord) -> dict[str, object]:
    """Return the fields of a credential, with the lengths of its salt and keys in their place."""
    return {
        "name": record.name,
        "mechanism": record.mechanism,
        "salt_bytes": len(record.salt),
        "stored_key_bytes": len(record.stored_key),
        "server_key_bytes": len(record.server_key),
        "iterations": record.iterations,
    }


def _shown(record: MetadataRecord) -> MetadataRecord:
    """Return the record without a password, which Kafka's controllers write into settings of brokers."""
    if (
        isinstance(record, ConfigRecord)
        and record.resource_type == ResourceType.BROKER
        and record.value is not None
        and may_be_secret(record.name)
    ):
        return replace(record, value=HIDDEN)
    return record
