"""Encodes and decodes one metadata record: ``[frame version = 1][api key][version][body]``. [P]

The first three fields are unsigned varints.
Source: Apache Kafka ``AbstractApiMessageSerde``, ``MetadataRecordSerde``.

>>> from service.metadata.records import NoOpRecord
>>> encode_frame(Frame(NoOpRecord(), 0)).hex()
'01140000'
>>> decode_frame(bytes.fromhex("01140000"))
Frame(record=NoOpRecord(), version=0)
"""

from __future__ import annotations

import io
from typing import Any, Final, NamedTuple

from kio.serial import entity_writer

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.metadata.entities import read_entity
from service.metadata.records import RECORD_TYPES, MetadataRecord

FRAME_VERSION: Final = 1
_MAX_SHORT: Final = 2**15 - 1


class UnknownRecord(NamedTuple):
    """Record of a type or version unknown to this software: dumpers show it, the image refuses it."""

    api_key: int
    body: bytes


class Frame(NamedTuple):
    """Record and the version in which it is written."""

    record: MetadataRecord | UnknownRecord
    version: int

    @property
    def api_key(self) -> int:
        if isinstance(self.record, UnknownRecord):
            return self.record.api_key
        return self.record.API_KEY


def newest(record: MetadataRecord) -> Frame:
    """Return a frame of `record` in its newest version."""
    return Frame(record, record.VERSIONS[-1])


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame. Raises `ValueError` for a version that the record's layout does not have."""
    record, version = frame
    if isinstance(record, UnknownRecord):
        return _encode_header(record.api_key, version) + record.body
    if version not in record.VERSIONS:
        raise ValueError(f"{type(record).__name__} cannot be written in version {version}")
    buffer = io.BytesIO()
    buffer.write(_encode_header(record.API_KEY, version))
    writer: Any = entity_writer(type(record))
    writer(buffer, record)
    return buffer.getvalue()


def decode_frame(data: Buffer) -> Frame:
    """Decode one frame that fills `data`; `CorruptionError` where it is malformed."""
    position = 0
    header = []
    for what in ("frame version", "type", "version"):
        value, position = _read_varint(data, position, what)
        header.append(value)
    frame_version, api_key, version = header
    if frame_version != FRAME_VERSION:
        raise CorruptionError(f"metadata record: frame version is {frame_version}, not {FRAME_VERSION}")
    record_type = RECORD_TYPES.get(api_key)
    body = memoryview(data)[position:]
    if record_type is None or version not in record_type.VERSIONS:
        return Frame(UnknownRecord(api_key, bytes(body)), version)
    record, consumed = read_entity(record_type, body, f"metadata record of type {api_key}")
    if consumed != len(body):
        raise CorruptionError(f"metadata record of type {api_key}: {len(body) - consumed} bytes too many")
    return Frame(record, version)


def _encode_header(api_key: int, version: int) -> bytes:
    return bytes([FRAME_VERSION]) + _encode_varint(api_key) + _encode_varint(version)


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: Buffer, position: int, what: str) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 21:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _MAX_SHORT:
                raise CorruptionError(f"metadata record: {what} {value} is too large")
            return value, position
        shift += 7
    raise CorruptionError(f"metadata record: the varint of its {what} does not end")
