"""Records of `__transaction_state`: one for each change of a transactional id. [P]

The first two bytes of a key are the record's type, those of a value its version. Integers are big-endian,
``str`` is an i16 length and UTF-8, ``cstr`` an unsigned varint of the length plus one, ``[]`` an i32 count
and ``c[]`` an unsigned varint of the count plus one; null in state Empty::

    key 0       transactional id str
    value, v0   producer id i64, epoch i16, timeout ms i32, state i8,
                [topic str, [partition i32]], last update ms i64, start ms i64
    value, v1   producer id i64, epoch i16, timeout ms i32, state i8,
                c[topic cstr, c[partition i32], tags], last update ms i64, start ms i64,
                tags (0: previous producer id i64, 1: next producer id i64, 2: client's transaction
                version i16, 3: next epoch i16, which nobody writes)

Bytes after a message are ignored, as in Kafka. Source: Kafka 4.3 ``TransactionLog``, schemas
``TransactionLogKey`` and ``TransactionLogValue``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Final

from service.base.errors import CorruptionError
from service.base.types import NO_PRODUCER_ID
from service.transactions.config import TV0
from service.transactions.metadata import Partition, TransactionMetadata
from service.transactions.states import EMPTY, TransactionState
from service.wire import primitives as p
from service.wire.errors import MalformedMessage
from service.wire.primitives import Cursor

TRANSACTION_LOG: Final = 0
"""The type of the keys."""
NEWEST_VERSION: Final = 1

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">hqhib")
"""version, producer id, epoch, timeout, state"""
_TIMES: Final = struct.Struct(">qq")
_SHORTEST_TOPIC: Final = 3
_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION = 0, 1, 2


def encode_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id."""
    out = bytearray(_I16.pack(TRANSACTION_LOG))
    p.write_string(out, transactional_id)
    return bytes(out)


def decode_key(key: bytes) -> str | int:
    """Return the transactional id, or the type of a key that is not known. Raises `CorruptionError`."""
    with _corrupt("key"):
        cursor = Cursor(key)
        kind = cursor.int16()
        return cursor.string() if kind == TRANSACTION_LOG else kind


def encode_value(metadata: TransactionMetadata, version: int) -> bytes:
    """Encode a state. Version 0 has neither the other producer ids nor the client's version."""
    out = bytearray(
        _HEAD.pack(
            version, metadata.producer_id, metadata.producer_epoch, metadata.timeout_ms, metadata.state
        )
    )
    if metadata.state is EMPTY:
        out += b"\x00" if version else b"\xff\xff\xff\xff"
    else:
        _write_partitions(out, metadata.partitions, version)
    out += _TIMES.pack(metadata.updated_ms, metadata.start_ms)
    if version:
        _write_tags(out, metadata)
    return bytes(out)


def decode_value(value: bytes) -> TransactionMetadata | int:
    """Return the state, or the version of a value that is not known. Raises `CorruptionError`."""
    with _corrupt("value"):
        version, producer_id, epoch, timeout_ms, number = _HEAD.unpack_from(value)
        if not 0 <= version <= NEWEST_VERSION:
            return int(version)
        cursor = Cursor(value, _HEAD.size)
        try:
            state = TransactionState(number)
        except ValueError:
            raise MalformedMessage(f"state {number}") from None
        partitions = frozenset(_read_partitions(cursor, state, version > 0))
        updated_ms, start_ms = cursor.int64(), cursor.int64()
        others = _read_tags(cursor) if version else (NO_PRODUCER_ID, NO_PRODUCER_ID, TV0)
        return TransactionMetadata(
            producer_id, epoch, timeout_ms, state, partitions, start_ms, updated_ms, *others
        )


def has_previous_id(value: bytes) -> bool:
    """Return whether the value's version has the previous producer id."""
    return value[1] > 0


def _write_partitions(out: bytearray, partitions: Iterable[Partition], version: int) -> None:
    topics = [(topic, list(rows)) for topic, rows in groupby(sorted(partitions), lambda one: one[0])]
    is_compact = version > 0
    p.write_count(out, len(topics), is_compact)
    for topic, rows in topics:
        (p.write_compact_string if is_compact else p.write_string)(out, topic)
        p.write_count(out, len(rows), is_compact)
        for _, index in rows:
            out += _I32.pack(index)
        if is_compact:
            out.append(0)


def _write_tags(out: bytearray, metadata: TransactionMetadata) -> None:
    tags = []
    if metadata.previous_producer_id != NO_PRODUCER_ID:
        tags.append((_PREVIOUS_ID, _I64.pack(metadata.previous_producer_id)))
    if metadata.next_producer_id != NO_PRODUCER_ID:
        tags.append((_NEXT_ID, _I64.pack(metadata.next_producer_id)))
    if metadata.client_version != TV0:
        tags.append((_CLIENT_VERSION, _I16.pack(metadata.client_version)))
    out.append(len(tags))
    for tag, data in tags:
        out += bytes((tag, len(data)))
        out += data


def _read_partitions(cursor: Cursor, state: TransactionState, is_compact: bool) -> Iterator[Partition]:
    read_string = cursor.compact_string if is_compact else cursor.string
    count = cursor.uvarint() - 1 if is_compact else cursor.int32()
    if count < 0 and state is EMPTY:
        return
    for _ in range(cursor.bound(count, _SHORTEST_TOPIC)):
        topic = read_string()
        for _ in range(cursor.count(is_compact, _I32.size)):
            yield topic, cursor.int32()
        if is_compact:
            cursor.skip_tagged_fields()


def _read_tags(cursor: Cursor) -> tuple[int, int, int]:
    previous_id, next_id, client_version = NO_PRODUCER_ID, NO_PRODUCER_ID, TV0
    for _ in range(cursor.tagged_fields()):
        tag, field = cursor.uvarint(), Cursor(bytes(cursor.take(cursor.uvarint())))
        if tag == _PREVIOUS_ID:
            previous_id = field.int64()
        elif tag == _NEXT_ID:
            next_id = field.int64()
        elif tag == _CLIENT_VERSION:
            client_version = field.int16()
    return previous_id, next_id, client_version


@contextmanager
def _corrupt(what: str) -> Iterator[None]:
    try:
        yield
    except (MalformedMessage, struct.error) as e:
        raise CorruptionError(f"{what} of a transactional id: {e}") from e
