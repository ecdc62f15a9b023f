"""Records of offsets and classic groups in `__consumer_offsets`: types 0, 1 and 2. [P]

The first two bytes of a key are the record's type, those of a value its version. Layouts, integers
big-endian, ``str`` is an i16 length and UTF-8, ``cstr`` and ``cbytes`` an unsigned varint of the length plus
one::

    key 0, 1          group str, topic str, partition i32
    value of 0, v0    offset i64, metadata str, commit time i64
    value of 1, v0-2  offset i64, metadata str, commit time i64 (v1: expiry time i64)
              v3      offset i64, leader epoch i32, metadata str, commit time i64
              v4      offset i64, leader epoch i32, metadata cstr, commit time i64, tags (0: topic id)
    key 2             group str
    value of 2, v0-3  protocol type str, generation i32, protocol str?, leader str?, (v2+: state time i64),
                      members
              v4      the same in compact types
    member            id str, (v3+: instance id str?), client id str, host str, (v1+: rebalance timeout i32),
                      session timeout i32, subscription bytes, assignment bytes

Type 0 is the name of type 1 before 0.9. This module writes 1 (v4; v1 for an offset with an expiry time) and 2
(v3, as Kafka does). Bytes after a message are ignored, as in Kafka. Source: Kafka 4.3 ``group-coordinator``
record schemas.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.types import NO_LEADER_EPOCH, NO_TIMESTAMP
from service.coordinator.shard import CoordinatorRecord
from service.wire import primitives as p
from service.wire.errors import MalformedMessage
from service.wire.primitives import Cursor

LEGACY_OFFSET_COMMIT: Final = 0
OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2

NEWEST_OFFSET_VERSION: Final = 4
EXPIRING_OFFSET_VERSION: Final = 1
"""The only version with an expiry time."""
NEWEST_GROUP_VERSION: Final = 4
WRITTEN_GROUP_VERSION: Final = 3
"""Kafka reads version 4 and does not write it yet."""
MAX_STRING_BYTES: Final = 0x7FFF
"""Longest string that is not compact; group ids and topics in keys are not."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_OFFSET_HEAD = struct.Struct(">hqi")
_I64 = struct.Struct(">q")


class OffsetKey(NamedTuple):
    """Group, topic and partition of a committed offset."""

    group: str
    topic: str
    partition: int


class OffsetValue(NamedTuple):
    """A committed offset. Times in ms; -1: no leader epoch, no expiry time of its own. Older offsets have no
    topic id."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = NO_TIMESTAMP
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Key of a classic group."""

    group: str


@dataclass(frozen=True, slots=True)
class ClassicMemberValue:
    """A member of a classic group: its metadata under the group's protocol, and its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A classic group at the end of a rebalance. ``state_ms`` is when it entered its state, -1 if not
    known."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[ClassicMemberValue, ...] = ()


def record_type(key: bytes) -> int:
    """Return the type in a key, known or not. Raises `CorruptionError`."""
    if len(key) < _I16.size:
        raise CorruptionError(f"a key of {len(key)} bytes has no type")
    kind: int = _I16.unpack_from(key)[0]
    return kind


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """Decode a key; None for a type of another module. Raises `CorruptionError`."""
    kind = record_type(key)
    if kind in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
        return decode_offset_key(key)
    return decode_group_key(key) if kind == GROUP_METADATA else None


def decode_offset_key(key: bytes) -> OffsetKey:
    """Decode key 0 or 1. Raises `CorruptionError`."""
    with _corrupt("offset key"):
        cursor = Cursor(key, _I16.size)
        return OffsetKey(cursor.string(), cursor.string(), cursor.int32())


def split_offset_key(key: bytes) -> tuple[str, bytes]:
    """Return the group of a key 0 or 1, and the rest of the key for `decode_place`. Raises
    `CorruptionError`."""
    stop = 4 + int.from_bytes(key[2:4], "big", signed=True)
    if not 4 <= stop <= len(key):
        raise CorruptionError(f"offset key: a group of {stop - 4} bytes in a key of {len(key)}")
    try:
        return str(key[4:stop], "utf-8"), key[stop:]
    except UnicodeDecodeError as e:
        raise CorruptionError(f"offset key: {e}") from e


def decode_place(rest: bytes) -> tuple[str, int]:
    """Decode topic and partition: the rest of a key 0 or 1 after the group. Raises `CorruptionError`."""
    with _corrupt("offset key"):
        cursor = Cursor(rest)
        return cursor.string(), cursor.int32()


def decode_group_key(key: bytes) -> GroupKey:
    """Decode key 2. Raises `CorruptionError`."""
    with _corrupt("group key"):
        return GroupKey(Cursor(key, _I16.size).string())


def decode_offset_value(value: bytes) -> OffsetValue:
    """Decode a value of type 0 or 1, in any version. Raises `CorruptionError`."""
    with _corrupt("offset value"):
        cursor = Cursor(value)
        version = _version(cursor, NEWEST_OFFSET_VERSION)
        offset = cursor.int64()
        leader_epoch = cursor.int32() if version >= 3 else NO_LEADER_EPOCH
        metadata = cursor.compact_string() if version >= 4 else cursor.string()
        commit_ms = cursor.int64()
        expire_ms = cursor.int64() if version == EXPIRING_OFFSET_VERSION else NO_TIMESTAMP
        topic_id = _topic_id(cursor) if version >= 4 else None
        return OffsetValue(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id)


def _topic_id(cursor: Cursor) -> UUID | None:
    topic_id = None
    for _ in range(cursor.tagged_fields()):
        tag, size = cursor.uvarint(), cursor.uvarint()
        field = cursor.take(size)
        if tag == 0:
            if size != 16:
                raise MalformedMessage(f"topic id of {size} bytes")
            topic_id = Cursor(field).uuid_or_none()
    return topic_id


def decode_group_value(value: bytes) -> GroupValue:
    """Decode a value of type 2, in any version. Raises `CorruptionError`."""
    with _corrupt("group value"):
        cursor = Cursor(value)
        version = _version(cursor, NEWEST_GROUP_VERSION)
        compact = version >= 4
        protocol_type = cursor.compact_string() if compact else cursor.string()
        generation = cursor.int32()
        read_optional = cursor.nullable_compact_string if compact else cursor.nullable_string
        protocol, leader = read_optional(), read_optional()
        state_ms = cursor.int64() if version >= 2 else NO_TIMESTAMP
        members = tuple([_member(cursor, version) for _ in range(cursor.count(compact, 16))])
        return GroupValue(protocol_type, generation, protocol, leader, state_ms, members)


def _member(cursor: Cursor, version: int) -> ClassicMemberValue:
    compact = version >= 4
    read_string: Callable[[], str] = cursor.compact_string if compact else cursor.string
    read_optional = cursor.nullable_compact_string if compact else cursor.nullable_string
    read_bytes = cursor.compact_bytes if compact else cursor.bytes
    member_id = read_string()
    instance_id = read_optional() if version >= 3 else None
    client_id, host = read_string(), read_string()
    rebalance_ms = cursor.int32() if version >= 1 else -1
    session_ms = cursor.int32()
    subscription, assignment = bytes(read_bytes()), bytes(read_bytes())
    if compact:
        cursor.skip_tagged_fields()
    # Version 0 has no rebalance timeout; the session timeout stands for it, as in Kafka.
    return ClassicMemberValue(
        member_id,
        instance_id,
        client_id,
        host,
        session_ms if rebalance_ms == -1 else rebalance_ms,
        session_ms,
        subscription,
        assignment,
    )


def encode_offset(key: OffsetKey, value: OffsetValue) -> CoordinatorRecord:
    """Return the record of a commit. Raises `ValueError` for a string that no version can hold."""
    return CoordinatorRecord(offset_key(key.group, key.topic, key.partition), offset_value(value))


def offset_tombstone(key: OffsetKey) -> CoordinatorRecord:
    """Return the record that deletes an offset."""
    return CoordinatorRecord(offset_key(key.group, key.topic, key.partition), None)


def offset_key(group: str, topic: str, partition: int) -> bytes:
    return offset_key_prefix(group, topic) + _I32.pack(partition)


def offset_key_prefix(group: str, topic: str) -> bytes:
    """Return the common prefix of the keys of a topic's partitions; the partition's i32 follows."""
    out = bytearray(_I16.pack(OFFSET_COMMIT))
    _write_short(out, group)
    _write_short(out, topic)
    return bytes(out)


def offset_value(value: OffsetValue) -> bytes:
    if value.expire_ms != NO_TIMESTAMP:
        out = bytearray(_I16.pack(EXPIRING_OFFSET_VERSION) + _I64.pack(value.offset))
        _write_short(out, value.metadata)
        return bytes(out + _I64.pack(value.commit_ms) + _I64.pack(value.expire_ms))
    metadata = value.metadata.encode()
    tags = b"\x00" if value.topic_id is None else b"\x01\x00\x10" + value.topic_id.bytes
    head = _OFFSET_HEAD.pack(NEWEST_OFFSET_VERSION, value.offset, value.leader_epoch)
    return head + p.uvarint(len(metadata) + 1) + metadata + _I64.pack(value.commit_ms) + tags


def offset_value_end(commit_ms: int, topic_id: UUID | None) -> bytes:
    """Return the common end of the values of offsets without metadata that are committed together
    (`short_offset_value`)."""
    tags = b"\x00" if topic_id is None else b"\x01\x00\x10" + topic_id.bytes
    return b"\x01" + _I64.pack(commit_ms) + tags


def short_offset_value(offset: int, leader_epoch: int, end: bytes) -> bytes:
    """Return the value of an offset without metadata and expiry time, equal to `offset_value`."""
    return _OFFSET_HEAD.pack(NEWEST_OFFSET_VERSION, offset, leader_epoch) + end


def encode_group(key: GroupKey, value: GroupValue) -> CoordinatorRecord:
    """Return the record of a group's state. Raises `ValueError` for a string that it cannot hold."""
    out = bytearray(_I16.pack(WRITTEN_GROUP_VERSION))
    _write_short(out, value.protocol_type)
    out += _I32.pack(value.generation)
    _write_short_or_null(out, value.protocol)
    _write_short_or_null(out, value.leader)
    out += _I64.pack(value.state_ms) + _I32.pack(len(value.members))
    for member in value.members:
        _write_short(out, member.member_id)
        _write_short_or_null(out, member.instance_id)
        _write_short(out, member.client_id)
        _write_short(out, member.client_host)
        out += _I32.pack(member.rebalance_timeout_ms) + _I32.pack(member.session_timeout_ms)
        p.write_bytes(out, member.subscription)
        p.write_bytes(out, member.assignment)
    return CoordinatorRecord(_group_key(key.group), bytes(out))


def group_tombstone(group: str) -> CoordinatorRecord:
    """Return the record that deletes a classic group."""
    return CoordinatorRecord(_group_key(group), None)


def _group_key(group: str) -> bytes:
    out = bytearray(_I16.pack(GROUP_METADATA))
    _write_short(out, group)
    return bytes(out)


def _write_short(out: bytearray, text: str) -> None:
    raw = text.encode()
    if len(raw) > MAX_STRING_BYTES:
        raise ValueError(f"a string of {len(raw)} bytes exceeds {MAX_STRING_BYTES}")
    out += _I16.pack(len(raw))
    out += raw


def _write_short_or_null(out: bytearray, text: str | None) -> None:
    if text is None:
        out += b"\xff\xff"
    else:
        _write_short(out, text)


def _version(cursor: Cursor, newest: int) -> int:
    version = cursor.int16()
    if not 0 <= version <= newest:
        raise MalformedMessage(f"unknown version {version}")
    return version


@contextmanager
def _corrupt(what: str) -> Iterator[None]:
    try:
        yield
    except (struct.error, MalformedMessage) as e:
        raise CorruptionError(f"{what}: {e}") from e


__all__ = [
    "GROUP_METADATA",
    "LEGACY_OFFSET_COMMIT",
    "MAX_STRING_BYTES",
    "OFFSET_COMMIT",
    "ClassicMemberValue",
    "GroupKey",
    "GroupValue",
    "OffsetKey",
    "OffsetValue",
    "decode_group_key",
    "decode_group_value",
    "decode_key",
    "decode_offset_key",
    "decode_offset_value",
    "encode_group",
    "encode_offset",
    "group_tombstone",
    "offset_key",
    "offset_key_prefix",
    "offset_tombstone",
    "offset_value",
    "record_type",
]
