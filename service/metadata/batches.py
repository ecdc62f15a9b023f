"""Record batches of the metadata log and its snapshots: batch v2, as Kafka's Raft writes them. [P]

A batch holds either metadata records (no key, a frame as value) or control records, whose key is ``[int16
version = 0][int16 type]`` and whose value is the message of that type (Apache Kafka ``ControlRecordType``,
``BatchBuilder``). All records of a batch have the time of its append.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

from kio.schema.k_raft_version_record.v0.data import KRaftVersionRecord
from kio.schema.leader_change_message.v0.data import LeaderChangeMessage
from kio.schema.snapshot_footer_record.v0.data import SnapshotFooterRecord
from kio.schema.snapshot_header_record.v0.data import SnapshotHeaderRecord
from kio.schema.voters_record.v0.data import VotersRecord
from kio.serial import entity_writer

from service.base.errors import CorruptionError
from service.base.steps import Steps, at_once
from service.base.types import Buffer
from service.metadata.entities import read_entity
from service.metadata.frames import Frame, decode_frame, encode_frame
from service.records.batch import BatchHeader, iter_headers, verify_crc
from service.records.builder import BatchBuilder
from service.records.decode import Record, records_of

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Kafka's ``KafkaRaftClient.MAX_BATCH_SIZE_BYTES``"""

_CONTROL_KEY: Final = struct.Struct(">hh")


class ControlType(IntEnum):
    """Control records of a Raft log; those of other types are ignored."""

    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


ControlMessage = (
    LeaderChangeMessage | SnapshotHeaderRecord | SnapshotFooterRecord | KRaftVersionRecord | VotersRecord
)

_MESSAGES: Final[dict[int, type[ControlMessage]]] = {
    ControlType.LEADER_CHANGE: LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: VotersRecord,
}
_TYPES: Final = {message: control_type for control_type, message in _MESSAGES.items()}


class ControlRecord(NamedTuple):
    """Control record; `message` is None for an unknown type or version."""

    control_type: int
    message: ControlMessage | None
    value: bytes


class MetadataBatch(NamedTuple):
    """Decoded batch: `control` or `frames`, never both. Offsets are inclusive."""

    base_offset: int
    last_offset: int
    epoch: int
    timestamp_ms: int
    control: tuple[ControlRecord, ...]
    frames: tuple[Frame, ...]


def encode_batch(frames: Iterable[Frame], *, base_offset: int, epoch: int, timestamp_ms: int) -> bytearray:
    """Encode a batch of metadata records. `ValueError` where there are none."""
    place = {"base_offset": base_offset, "epoch": epoch, "timestamp_ms": timestamp_ms}
    return at_once(encode_batch_in_steps(frames, **place))


def encode_batch_in_steps(
    frames: Iterable[Frame], *, base_offset: int, epoch: int, timestamp_ms: int
) -> Steps[bytearray]:
    """Encode a batch as `encode_batch` does, in steps."""
    builder = BatchBuilder(base_offset, leader_epoch=epoch)
    for frame in frames:
        yield
        builder.add(timestamp_ms, None, encode_frame(frame))
    yield
    return builder.build()


def encode_control_batch(
    *messages: ControlMessage, base_offset: int, epoch: int, timestamp_ms: int
) -> bytearray:
    """Encode a batch of control records."""
    builder = BatchBuilder(base_offset, leader_epoch=epoch, is_control=True)
    for message in messages:
        buffer = io.BytesIO()
        writer: Any = entity_writer(type(message))
        writer(buffer, message)
        builder.add(timestamp_ms, _CONTROL_KEY.pack(0, _TYPES[type(message)]), buffer.getvalue())
    return builder.build()


def decode_batches(data: Buffer) -> Iterator[MetadataBatch]:
    """Decode the batches that fill `data` exactly. Raises `CorruptionError` at the first invalid one."""
    for header in iter_headers(data):
        yield at_once(decode_batch_in_steps(data, header))


def decode_batch_in_steps(data: Buffer, header: BatchHeader) -> Steps[MetadataBatch]:
    """Decode the batch of `data` that `header` is of, in steps. Raises `CorruptionError`."""
    if not verify_crc(data, header):
        raise CorruptionError(f"metadata batch at offset {header.base_offset}: wrong checksum")
    control: list[ControlRecord] = []
    frames: list[Frame] = []
    for record in records_of(data, header, max_inflated_bytes=2 * MAX_BATCH_BYTES):
        yield
        if header.is_control:
            control.append(_decode_control(record))
        else:
            frames.append(decode_frame(_value(record)))
    return MetadataBatch(
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        epoch=header.partition_leader_epoch,
        timestamp_ms=header.max_timestamp,
        control=tuple(control),
        frames=tuple(frames),
    )


def _value(record: Record) -> bytes:
    if record.value is None:
        raise CorruptionError(f"metadata record at offset {record.offset}: no value")
    return record.value


def _decode_control(record: Record) -> ControlRecord:
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptionError(f"control record at offset {record.offset}: its key holds no type")
    value = _value(record)
    control_type: int = _CONTROL_KEY.unpack_from(record.key)[1]
    message_type = _MESSAGES.get(control_type)
    if message_type is None or value[:2] != b"\x00\x00":
        return ControlRecord(control_type, None, value)
    message, consumed = read_entity(message_type, value, f"control record at offset {record.offset}")
    if consumed != len(value):
        raise CorruptionError(f"control record at offset {record.offset}: bytes are left over")
    return ControlRecord(control_type, message, value)
