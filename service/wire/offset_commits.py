"""OffsetCommit codec for versions 6 to 10, written by hand, since consumers commit all the time. [P]

Requests are named tuples with the fields of `offsets.OffsetCommitRequest`. A test compares every version with
the compiled codec, which reads older versions: current clients do not send these.

Request body; compact and with tags from version 8 on::

    group_id string | generation_id_or_member_epoch i32 | member_id string | group_instance_id nullable (7+)
    topics[] name string (<= 9) or id uuid (10): partitions[] index i32, offset i64, leader epoch i32,
        metadata nullable-string

Response body::

    throttle_time_ms i32 | topics[] name or id: partitions[] index i32, error i16

Source: Kafka ``OffsetCommitRequest.json`` / ``OffsetCommitResponse.json``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.wire.primitives import (
    Cursor,
    Sink,
    write_compact_string,
    write_count,
    write_string,
    write_uuid,
)
from service.wire.schema import Codec, millis

FIRST_BY_HAND: Final = 6
_INSTANCE = 7
_FLEXIBLE = 8
_BY_ID = 10
_NO_RETENTION: Final = -1
_PAUSE_RESULTS: Final = 250

_POSITION = struct.Struct(">iqi")
_RESULT = struct.Struct(">ih")
_FLEXIBLE_RESULT = struct.Struct(">ihx")
_I32 = struct.Struct(">i")


class CommitPartition(NamedTuple):
    """One partition of a request."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class CommitTopic(NamedTuple):
    """One topic of a request, with its name or its id; the other one is empty."""

    name: str
    topic_id: UUID | None
    partitions: tuple[CommitPartition, ...]


class CommitRequest(NamedTuple):
    """A request. Versions from 5 on have no retention time of offsets."""

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    topics: tuple[CommitTopic, ...]
    retention_time: int = _NO_RETENTION


def reader(version: int) -> Callable[[Cursor], CommitRequest] | None:
    """Return the reader of a version's requests; None if the compiled codec reads them."""
    return _READERS.get(version)


def with_writers(codec: Codec, version: int) -> Codec:
    """Return `codec`, a version's compiled response codec, with the hand-written writers where they exist."""
    if version < FIRST_BY_HAND:
        return codec
    return codec._replace(write=partial(_write, version), write_steps=partial(_write_steps, version))


def _read(version: int, cursor: Cursor) -> CommitRequest:
    flexible = version >= _FLEXIBLE
    text = cursor.compact_string if flexible else cursor.string
    group_id = text()
    epoch = cursor.int32()
    member_id = text()
    instance_id = None
    if version >= _INSTANCE:
        instance_id = cursor.nullable_compact_string() if flexible else cursor.nullable_string()
    read_partition = _flexible_partition if flexible else _plain_partition
    topics = []
    for _ in range(cursor.count(flexible, 3 if flexible else 6)):
        name, topic_id = "", None
        if version >= _BY_ID:
            topic_id = cursor.uuid_or_none()
        else:
            name = text()
        count = cursor.count(flexible, 18)
        partitions = tuple([read_partition(cursor) for _ in range(count)])
        if flexible:
            cursor.skip_tagged_fields()
        topics.append(CommitTopic(name, topic_id, partitions))
    if flexible:
        cursor.skip_tagged_fields()
    return CommitRequest(group_id, epoch, member_id, instance_id, tuple(topics))


_READERS: Final = {version: partial(_read, version) for version in range(FIRST_BY_HAND, _BY_ID + 1)}


def _flexible_partition(cursor: Cursor) -> CommitPartition:
    data, at = cursor.data, cursor.position
    index, offset, leader_epoch = _POSITION.unpack_from(data, at)
    at += _POSITION.size
    # The usual case: empty metadata (its compact length is 1) and no tagged fields.
    if data[at : at + 2] == b"\1\0":
        cursor.position = at + 2
        return CommitPartition(index, offset, leader_epoch, "")
    cursor.position = at
    metadata = cursor.nullable_compact_string()
    cursor.skip_tagged_fields()
    return CommitPartition(index, offset, leader_epoch, metadata)


def _plain_partition(cursor: Cursor) -> CommitPartition:
    index, offset, leader_epoch = _POSITION.unpack_from(cursor.data, cursor.position)
    cursor.position += _POSITION.size
    return CommitPartition(index, offset, leader_epoch, cursor.nullable_string())


def _write(version: int, out: bytearray, message: Any) -> None:
    for _ in _results(version, out, message):
        pass


def _write_steps(version: int, sink: Sink, message: Any) -> Generator[None, None, None]:
    return _results(version, sink.out, message)


def _results(version: int, out: bytearray, message: Any) -> Generator[None, None, None]:
    """Write a response, with a pause after every `_PAUSE_RESULTS` partitions."""
    flexible = version >= _FLEXIBLE
    result = (_FLEXIBLE_RESULT if flexible else _RESULT).pack
    write_name: Callable[[bytearray, str], None] = write_compact_string if flexible else write_string
    out += _I32.pack(millis(message.throttle_time))
    write_count(out, len(message.topics), flexible)
    unpaused = 0
    for topic in message.topics:
        if version >= _BY_ID:
            write_uuid(out, topic.topic_id)
        else:
            write_name(out, topic.name)
        partitions = topic.partitions
        write_count(out, len(partitions), flexible)
        for first in range(0, len(partitions), _PAUSE_RESULTS):
            some = partitions[first : first + _PAUSE_RESULTS]
            out += b"".join([result(one.partition_index, one.error_code) for one in some])
            unpaused += len(some)
            if unpaused >= _PAUSE_RESULTS:
                unpaused = 0
                yield
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
