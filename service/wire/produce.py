"""Produce codec, written by hand: a parsed request has slices of its frame, without a copy. [P]

Versions 3-13: 3-8 plain, 9+ flexible; 3-12 identify topics by name, 13 by id. A test compares every version
with kio.

Request body::

    transactional_id nullable-string | acks i16 | timeout_ms i32
    topics[] name string (<= 12) or id uuid (13): partitions[] index i32, records nullable-bytes

Source: Kafka ``ProduceRequest.json`` / ``ProduceResponse.json``.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from service.base.steps import Steps
from service.base.types import Buffer
from service.wire.errors import MalformedMessage
from service.wire.primitives import (
    MAX_ELEMENTS,
    Cursor,
    uvarint,
    write_compact_string,
    write_count,
    write_nullable_compact_string,
    write_nullable_string,
    write_string,
    write_uvarint,
)

RESULTS_AT_A_TIME: Final = 100
TopicKey = str | UUID
"""Topic of a request: its name (Produce <= 12, Fetch <= 12) or its id. The zero UUID is `UUID(int=0)`."""


ProducedTopic = tuple[TopicKey, list[tuple[int, Buffer | None]]]


class ProduceRequestView(NamedTuple):
    """A produce request. The records of a partition are a slice of the frame, writable if the frame is, or
    None for null.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProducedTopic]


class ProducePartitionResult(NamedTuple):
    """One partition of a response. `record_errors` are (index of the record in its batch, message) pairs
    (version 8+). `current_leader` is (broker id, leader epoch) of the broker to send to instead (version
    10+).
    """

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None


class NodeEndpoint(NamedTuple):
    """Address of a broker that `current_leader` names."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


_HEAD = struct.Struct(">hii")  # acks, timeout, topics (plain)
_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_SIZE = struct.Struct(">ii")
_RESULT_V3 = struct.Struct(">ihqq")  # partition, error, base offset, append time
_RESULT_V5 = struct.Struct(">ihqqq")  # and log start offset
_I32 = struct.Struct(">i")


def parse_produce(
    version: int, frame: Buffer, position: int = 0, most_elements: int = MAX_ELEMENTS
) -> ProduceRequestView:
    """Return the request whose body starts at `position` of `frame`.

    Raises `MalformedMessage`, and `ManyElements` if it has more than `most_elements` array elements.
    """
    cursor = Cursor(frame, position, most_elements)
    try:
        if version >= 9:
            return _parse_flexible(cursor, version >= 13)
        return _parse_plain(cursor)
    except (struct.error, IndexError) as e:
        raise MalformedMessage(f"produce request: {e}") from e


def _parse_plain(cursor: Cursor) -> ProduceRequestView:
    transactional_id = cursor.nullable_string()
    acks, timeout_ms, topic_count = _HEAD.unpack_from(cursor.data, cursor.position)
    cursor.position += _HEAD.size
    topics: list[ProducedTopic] = []
    for _ in range(cursor.bound(topic_count, 6)):
        name = cursor.string()
        topics.append((name, [_plain_partition(cursor) for _ in range(cursor.bound(cursor.int32(), 8))]))
    return ProduceRequestView(transactional_id, acks, timeout_ms, topics)


def _plain_partition(cursor: Cursor) -> tuple[int, Buffer | None]:
    index, size = _INDEX_SIZE.unpack_from(cursor.data, cursor.position)
    cursor.position += 8
    return index, None if size < 0 else cursor.take(size)


def _parse_flexible(cursor: Cursor, by_id: bool) -> ProduceRequestView:
    transactional_id = cursor.nullable_compact_string()
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(cursor.data, cursor.position)
    cursor.position += 6
    topics: list[ProducedTopic] = []
    for _ in range(cursor.bound(cursor.uvarint() - 1, 3)):
        key: TopicKey = cursor.uuid() if by_id else cursor.compact_string()
        partitions = [_flexible_partition(cursor) for _ in range(cursor.bound(cursor.uvarint() - 1, 6))]
        cursor.skip_tagged_fields()
        topics.append((key, partitions))
    cursor.skip_tagged_fields()
    return ProduceRequestView(transactional_id, acks, timeout_ms, topics)


def _flexible_partition(cursor: Cursor) -> tuple[int, Buffer | None]:
    index = cursor.int32()
    size = cursor.uvarint() - 1
    records = None if size < 0 else cursor.take(size)
    cursor.skip_tagged_fields()
    return index, records


def parse_produce_steps(
    version: int, frame: Buffer, position: int = 0
) -> Generator[None, None, ProduceRequestView]:
    """Do what `parse_produce` does, with a pause after every `PAUSE_ELEMENTS` elements."""
    cursor = Cursor(frame, position)
    flexible, by_id = version >= 9, version >= 13
    partition = _flexible_partition if flexible else _plain_partition
    try:
        transactional_id = cursor.nullable_compact_string() if flexible else cursor.nullable_string()
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(cursor.data, cursor.position)
        cursor.position += 6
        topics: list[ProducedTopic] = []
        for _ in range(cursor.count(flexible, 3 if flexible else 6)):
            key: TopicKey = (
                cursor.uuid() if by_id else cursor.compact_string() if flexible else cursor.string()
            )
            partitions = []
            for _ in range(cursor.count(flexible, 6 if flexible else 8)):
                partitions.append(partition(cursor))
                if cursor.is_pause():
                    yield
            if flexible:
                cursor.skip_tagged_fields()
            topics.append((key, partitions))
            if cursor.is_pause():
                yield
        if flexible:
            cursor.skip_tagged_fields()
    except (struct.error, IndexError) as e:
        raise MalformedMessage(f"produce request: {e}") from e
    return ProduceRequestView(transactional_id, acks, timeout_ms, topics)


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProducePartitionResult]]],
    throttle_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> bytearray:
    """Return the whole response frame, size included. Topics have the keys of the request."""
    out = bytearray(8)
    if version >= 9:
        _write_flexible(out, version, topics, throttle_ms, endpoints)
    else:
        _write_plain(out, version, topics, throttle_ms)
    struct.pack_into(">ii", out, 0, len(out) - 4, correlation_id)
    return out


def encode_produce_response_in_steps(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProducePartitionResult]]],
    throttle_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> Steps[bytearray]:
    """Do what `encode_produce_response` does, in steps of `RESULTS_AT_A_TIME` partitions."""
    out = bytearray(8)
    flexible = version >= 9
    if flexible:
        out.append(0)
    write_count(out, len(topics), flexible)
    left = RESULTS_AT_A_TIME
    for key, results in topics:
        _write_topic_key(out, version, key)
        write_count(out, len(results), flexible)
        for at in range(0, len(results), RESULTS_AT_A_TIME):
            some = results[at : at + RESULTS_AT_A_TIME]
            left -= len(some)
            if left < 0:
                yield
                left = RESULTS_AT_A_TIME - len(some)
            if flexible:
                _write_flexible_results(out, version, some)
            else:
                _write_plain_results(out, version, some)
        if flexible:
            out.append(0)
        left -= 1
    out += _I32.pack(throttle_ms)
    if flexible:
        if endpoints and version >= 10:
            write_endpoints_tag(out, endpoints)
        else:
            out.append(0)
    struct.pack_into(">ii", out, 0, len(out) - 4, correlation_id)
    return out


def _write_topic_key(out: bytearray, version: int, key: TopicKey) -> None:
    if version >= 13:
        out += _id(key)
    elif version >= 9:
        write_compact_string(out, _name(key))
    else:
        write_string(out, _name(key))


def _write_plain(
    out: bytearray,
    version: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProducePartitionResult]]],
    throttle_ms: int,
) -> None:
    out += _I32.pack(len(topics))
    for key, results in topics:
        write_string(out, _name(key))
        out += _I32.pack(len(results))
        _write_plain_results(out, version, results)
    out += _I32.pack(throttle_ms)


def _write_plain_results(out: bytearray, version: int, results: Sequence[ProducePartitionResult]) -> None:
    for partition, error, base, appended, start, record_errors, message, _leader in results:
        if version >= 5:
            out += _RESULT_V5.pack(partition, error, base, appended, start)
        else:
            out += _RESULT_V3.pack(partition, error, base, appended)
        if version >= 8:
            out += _I32.pack(len(record_errors))
            for index, text in record_errors:
                out += _I32.pack(index)
                write_nullable_string(out, text)
            write_nullable_string(out, message)


def _write_flexible(
    out: bytearray,
    version: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProducePartitionResult]]],
    throttle_ms: int,
    endpoints: Sequence[NodeEndpoint],
) -> None:
    out.append(0)
    write_uvarint(out, len(topics) + 1)
    for key, results in topics:
        if version >= 13:
            out += _id(key)
        else:
            write_compact_string(out, _name(key))
        write_uvarint(out, len(results) + 1)
        _write_flexible_results(out, version, results)
        out.append(0)
    out += _I32.pack(throttle_ms)
    if endpoints and version >= 10:
        write_endpoints_tag(out, endpoints)
    else:
        out.append(0)


def _write_flexible_results(out: bytearray, version: int, results: Sequence[ProducePartitionResult]) -> None:
    for partition, error, base, appended, start, record_errors, message, leader in results:
        out += _RESULT_V5.pack(partition, error, base, appended, start)
        if record_errors or message is not None:
            _write_errors(out, record_errors, message)
        else:
            out += b"\x01\x00"
        if leader is not None and version >= 10:
            write_leader_tag(out, 0, leader)
        else:
            out.append(0)


def _write_errors(out: bytearray, errors: Sequence[tuple[int, str | None]], message: str | None) -> None:
    write_uvarint(out, len(errors) + 1)
    for index, text in errors:
        out += _I32.pack(index)
        write_nullable_compact_string(out, text)
        out.append(0)
    write_nullable_compact_string(out, message)


def write_leader_tag(out: bytearray, tag: int, leader: tuple[int, int]) -> None:
    """Write a tagged-field section that holds only LeaderIdAndEpoch (KIP-951)."""
    out += bytes((1, tag, 9))
    out += struct.pack(">iib", leader[0], leader[1], 0)


def write_endpoints_tag(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """Write a tagged-field section that holds only NodeEndpoints, with tag 0 (KIP-951)."""
    body = bytearray(uvarint(len(endpoints) + 1))
    for node_id, host, port, rack in endpoints:
        body += _I32.pack(node_id)
        write_compact_string(body, host)
        body += _I32.pack(port)
        write_nullable_compact_string(body, rack)
        body.append(0)
    out += b"\x01\x00"
    write_uvarint(out, len(body))
    out += body


def _name(key: TopicKey) -> str:
    assert isinstance(key, str), "this version identifies topics by name"
    return key


def _id(key: TopicKey) -> bytes:
    assert isinstance(key, UUID), "this version identifies topics by id"
    return key.bytes
