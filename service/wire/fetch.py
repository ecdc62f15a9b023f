"""Fetch codec, written by hand: a response is a list of small heads and record slices. [P]

So record bytes never become Python objects on their way from a file to a socket.

Versions 4-18: 4-11 plain, 12+ flexible. Topics are identified by name up to 12, by id from 13 on. The replica
id is in a tagged struct from 15 on. A test compares every version with kio.

Source: Kafka ``FetchRequest.json`` / ``FetchResponse.json``, KIP-74, KIP-227, KIP-320, KIP-392, KIP-516,
KIP-903.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from service.base.steps import Steps, at_once
from service.base.types import Buffer
from service.wire.errors import MalformedMessage
from service.wire.primitives import (
    MAX_ELEMENTS,
    Cursor,
    text_of,
    uuid_from_bytes,
    write_compact_string,
    write_count,
    write_string,
)
from service.wire.produce import NodeEndpoint, TopicKey, write_endpoints_tag

RESULTS_AT_A_TIME: Final = 100
ABORTED_AT_A_TIME: Final = 10_000
_NO_HIGH_WATERMARK = 2**63 - 1
_READ_COMMITTED: Final = 1


class Sized(Protocol):
    """Bytes that are not in memory, for example a slice of a segment file."""

    @property
    def size(self) -> int:
        """Number of bytes to send."""


RecordsPart = Buffer | Sized


class FetchPartition(NamedTuple):
    """One partition of a request. Fields that the version lacks have the protocol's defaults."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int
    replica_directory_id: UUID | None = None
    high_watermark: int = _NO_HIGH_WATERMARK


FetchTopic = tuple[TopicKey, list[FetchPartition]]
ForgottenTopic = tuple[TopicKey, list[int]]


class FetchRequestView(NamedTuple):
    """A fetch request. `replica_id` is -1 for a consumer."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack_id: str
    cluster_id: str | None

    @property
    def reads_committed(self) -> bool:
        """Return whether a consumer fetches committed transactions only (Kafka `FetchIsolation`)."""
        return self.isolation_level == _READ_COMMITTED and self.replica_id < 0


class FetchPartitionResult(NamedTuple):
    """One partition of a response.

    `records` are consecutive parts on the wire (empty: no records), `aborted` has int64 producer id and int64
    first offset of each, as on the wire, or is None, `diverging_epoch` is (epoch, end offset),
    `current_leader` is (broker id, epoch), `snapshot_id` is (end offset, epoch).
    """

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[RecordsPart] = ()
    aborted: Sequence[bytes] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    snapshot_id: tuple[int, int] | None = None


class Results(Protocol):
    """Partitions of one topic of a response: bytes are partitions that are encoded already."""

    def __len__(self) -> int:
        """Return the number of partitions."""

    def __iter__(self) -> Iterator[FetchPartitionResult | bytes]: ...


class EncodedResults:
    """Results of which some are encoded already, many in one piece of bytes."""

    __slots__ = ("_count", "_pieces")

    def __init__(self) -> None:
        self._count = 0
        self._pieces: list[FetchPartitionResult | bytes] = []

    def add(self, piece: FetchPartitionResult | bytes, count: int) -> None:
        """Add a result, or `count` encoded ones (`encode_without_records`)."""
        self._pieces.append(piece)
        self._count += count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[FetchPartitionResult | bytes]:
        return iter(self._pieces)


_I32 = struct.Struct(">i")
_LIMITS = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_PAIR = struct.Struct(">ii")
_RESULT_V4 = struct.Struct(">ihqq")  # partition, error, high watermark, last stable offset
_RESULT_V5 = struct.Struct(">ihqqq")  # and log start offset
# partition; [9+ leader epoch]; offset; [12+ last fetched epoch]; [5+ log start offset]; max bytes
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")
_FLEXIBLE_HEAD = struct.Struct(">iiibiib")  # limits, session, one more than the number of topics
_ORDINARY_ROW = struct.Struct(">iiqiqib")  # a partition and the number of its tagged fields
_OFFSET_IN_ROW = 8
_ORDINARY_END = b"\0\1\1"  # no tagged fields, no forgotten topics, no rack
_NO_TAGS = b"\0"
_REPLICA_TAG = b"\1\1\x0d"  # one tagged field: tag 1, of 13 bytes
_REPLICA_STATE = struct.Struct(">iqb")  # id, epoch, no tagged fields


def parse_fetch(
    version: int, frame: Buffer, position: int = 0, most_elements: int = MAX_ELEMENTS
) -> FetchRequestView:
    """Return the request whose body starts at `position` of `frame`.

    Raises `MalformedMessage`, and `ManyElements` if it has more than `most_elements` array elements.
    """
    try:
        ordinary = _parse_ordinary(version, frame, position, most_elements) if version >= 12 else None
        if ordinary is not None:
            return ordinary
        cursor = Cursor(frame, position, most_elements)
        head = parse_head(version, cursor)
        topics = [_parse_topic(version, cursor) for _ in range(topic_count(version, cursor))]
        forgotten = [_parse_forgotten(version, cursor) for _ in range(_forgotten_count(version, cursor))]
        return parse_end(version, cursor, head, topics, forgotten)
    except (struct.error, IndexError) as e:
        raise MalformedMessage(f"fetch request: {e}") from e


def _parse_ordinary(
    version: int, frame: Buffer, position: int, most_elements: int
) -> FetchRequestView | None:
    """Return the request if it has one topic, few partitions, no rack and no tagged fields but those of a
    replica, as most requests of followers and of consumers without a session have; otherwise None. A third
    of the time of the fields one by one."""
    replica_id = replica_epoch = -1
    if version <= 14:
        (replica_id,) = _I32.unpack_from(frame, position)
        position += 4
    wait, least, most, isolation, session_id, epoch, topics = _FLEXIBLE_HEAD.unpack_from(frame, position)
    position += _FLEXIBLE_HEAD.size
    if topics != 2:
        return None
    key: TopicKey
    if version >= 13:
        if len(frame) <= position + 16:
            return None
        key, position = uuid_from_bytes(bytes(frame[position : position + 16])), position + 16
    else:
        end = position + frame[position]
        if not position < end < min(position + 0x80, len(frame)):
            return None  # no name, or one whose length takes two bytes
        key, position = text_of(frame[position + 1 : end]), end
    count = frame[position] - 1
    rows, end = position + 1, position + 1 + count * _ORDINARY_ROW.size
    if not 0 < count < min(most_elements, 0x7F) or frame[end : end + 3] != _ORDINARY_END:
        return None
    if frame[end + 3 : end + 4] != _NO_TAGS:
        if version < 15 or frame[end + 3 : end + 6] != _REPLICA_TAG:
            return None
        replica_id, replica_epoch, more = _REPLICA_STATE.unpack_from(frame, end + 6)
        if more:
            return None
    partitions = []
    for *fields, tags in _ORDINARY_ROW.iter_unpack(frame[rows:end]):
        if tags:
            return None
        partitions.append(FetchPartition(*fields))
    return FetchRequestView(
        replica_id, replica_epoch, wait, least, most, isolation, session_id, epoch,
        [(key, partitions)], [], "", None,
    )  # fmt: skip


def offset_position(version: int, frame: Buffer, position: int) -> int | None:
    """Return the position of the offset in a request that `_parse_ordinary` takes, if it asks for one
    partition and nothing is behind that; None for any other. `position`: where the body begins.

    Raises `MalformedMessage`.
    """
    if version < 12:
        return None
    try:
        ordinary = _parse_ordinary(version, frame, position, MAX_ELEMENTS)
    except (struct.error, IndexError) as e:
        raise MalformedMessage(f"fetch request: {e}") from e
    if ordinary is None or len(ordinary.topics[0][1]) != 1:
        return None
    position += (4 if version <= 14 else 0) + _FLEXIBLE_HEAD.size
    position += 1 + (16 if version >= 13 else frame[position])
    is_all = position + _ORDINARY_ROW.size + len(_ORDINARY_END + _NO_TAGS) == len(frame)
    return position + _OFFSET_IN_ROW if is_all else None


def parse_fetch_steps(
    version: int, frame: Buffer, position: int = 0
) -> Generator[None, None, FetchRequestView]:
    """Do what `parse_fetch` does, with a pause after every `PAUSE_ELEMENTS` elements."""
    try:
        cursor = Cursor(frame, position)
        head = parse_head(version, cursor)
        topics: list[FetchTopic] = []
        for _ in range(topic_count(version, cursor)):
            topics.append((yield from _parse_topic_steps(version, cursor)))
            if cursor.is_pause():
                yield
        forgotten: list[ForgottenTopic] = []
        for _ in range(_forgotten_count(version, cursor)):
            forgotten.append(_parse_forgotten(version, cursor))
            if cursor.is_pause():
                yield
        return parse_end(version, cursor, head, topics, forgotten)
    except (struct.error, IndexError) as e:
        raise MalformedMessage(f"fetch request: {e}") from e


def parse_head(version: int, cursor: Cursor) -> tuple[int, ...]:
    """Read what precedes the topics: replica id, max wait, min bytes, max bytes, isolation level, session id,
    session epoch."""
    replica_id = cursor.int32() if version <= 14 else -1
    limits = _LIMITS.unpack_from(cursor.data, cursor.position)
    cursor.position += _LIMITS.size
    if version < 7:
        return replica_id, *limits, 0, -1
    session = _PAIR.unpack_from(cursor.data, cursor.position)
    cursor.position += _PAIR.size
    return replica_id, *limits, *session


def topic_count(version: int, cursor: Cursor) -> int:
    return cursor.count(version >= 12, 3 if version >= 12 else 6)


def _forgotten_count(version: int, cursor: Cursor) -> int:
    return topic_count(version, cursor) if version >= 7 else 0


def _parse_topic(version: int, cursor: Cursor) -> FetchTopic:
    flexible = version >= 12
    key = topic_key(version, cursor)
    read = _read_partition_flexible if flexible else _read_partition_plain
    partitions = [read(version, cursor) for _ in range(cursor.count(flexible, 16))]
    if flexible:
        cursor.skip_tagged_fields()
    return key, partitions


def _parse_topic_steps(version: int, cursor: Cursor) -> Generator[None, None, FetchTopic]:
    flexible = version >= 12
    key = topic_key(version, cursor)
    read = _read_partition_flexible if flexible else _read_partition_plain
    partitions = []
    for _ in range(cursor.count(flexible, 16)):
        partitions.append(read(version, cursor))
        if cursor.is_pause():
            yield
    if flexible:
        cursor.skip_tagged_fields()
    return key, partitions


def _parse_forgotten(version: int, cursor: Cursor) -> ForgottenTopic:
    flexible = version >= 12
    key = topic_key(version, cursor)
    partitions = [cursor.int32() for _ in range(cursor.count(flexible, 4))]
    if flexible:
        cursor.skip_tagged_fields()
    return key, partitions


def parse_end(
    version: int,
    cursor: Cursor,
    head: tuple[int, ...],
    topics: list[FetchTopic],
    forgotten: list[ForgottenTopic],
) -> FetchRequestView:
    replica_id, wait, min_bytes, max_bytes, isolation, session_id, session_epoch = head
    flexible = version >= 12
    rack_id = ""
    if version >= 11:
        rack_id = cursor.compact_string() if flexible else cursor.string()
    cluster_id, replica_epoch = None, -1
    if flexible:
        cluster_id, replica_id, replica_epoch = _read_tags(version, cursor, replica_id)
    return FetchRequestView(
        replica_id, replica_epoch, wait, min_bytes, max_bytes, isolation, session_id, session_epoch,
        topics, forgotten, rack_id, cluster_id,
    )  # fmt: skip


def topic_key(version: int, cursor: Cursor) -> TopicKey:
    if version >= 13:
        return cursor.uuid()
    return cursor.compact_string() if version == 12 else cursor.string()


def row_bytes(version: int) -> int:
    """Return the size of a partition of a request that has no tagged fields."""
    if version >= 12:
        return _PARTITION_V12.size + 1  # the count of tagged fields
    if version >= 9:
        return _PARTITION_V9.size
    return (_PARTITION_V5 if version >= 5 else _PARTITION_V4).size


def parse_partition(version: int, row: bytes) -> FetchPartition:
    """Return the partition of a request whose bytes are `row`."""
    read = _read_partition_flexible if version >= 12 else _read_partition_plain
    return read(version, Cursor(row))


def _read_partition_plain(version: int, cursor: Cursor) -> FetchPartition:
    data, position = cursor.data, cursor.position
    epoch, start = -1, -1
    if version >= 9:
        partition, epoch, offset, start, max_bytes = _PARTITION_V9.unpack_from(data, position)
        cursor.position += _PARTITION_V9.size
    elif version >= 5:
        partition, offset, start, max_bytes = _PARTITION_V5.unpack_from(data, position)
        cursor.position += _PARTITION_V5.size
    else:
        partition, offset, max_bytes = _PARTITION_V4.unpack_from(data, position)
        cursor.position += _PARTITION_V4.size
    return FetchPartition(partition, epoch, offset, -1, start, max_bytes)


def _read_partition_flexible(version: int, cursor: Cursor) -> FetchPartition:
    partition = FetchPartition(*_PARTITION_V12.unpack_from(cursor.data, cursor.position))
    cursor.position += _PARTITION_V12.size
    if version < 17:
        cursor.skip_tagged_fields()
        return partition
    for _ in range(cursor.tagged_fields()):
        tag, stop = _tag(cursor)
        if tag == 0:
            partition = partition._replace(replica_directory_id=cursor.uuid_or_none())
        elif tag == 1 and version >= 18:
            partition = partition._replace(high_watermark=cursor.int64())
        else:
            cursor.position = stop
        _end_tag(cursor, tag, stop)
    return partition


def _read_tags(version: int, cursor: Cursor, replica_id: int) -> tuple[str | None, int, int]:
    cluster_id, replica_epoch = None, -1
    for _ in range(cursor.tagged_fields()):
        tag, stop = _tag(cursor)
        if tag == 0:
            cluster_id = cursor.nullable_compact_string()
        elif tag == 1 and version >= 15:
            replica_id = cursor.int32()
            replica_epoch = cursor.int64()
            cursor.skip_tagged_fields()
        else:
            cursor.position = stop
        _end_tag(cursor, tag, stop)
    return cluster_id, replica_id, replica_epoch


def _tag(cursor: Cursor) -> tuple[int, int]:
    """Return a tagged field's number and the position after its value. Raises `MalformedMessage` if the value
    is cut short.
    """
    tag = cursor.uvarint()
    size = cursor.uvarint()
    start = cursor.position
    if start + size > cursor.end:
        raise MalformedMessage(f"tagged field {tag} of {size} bytes, {cursor.end - start} left")
    return tag, start + size


def _end_tag(cursor: Cursor, tag: int, stop: int) -> None:
    if cursor.position != stop:
        raise MalformedMessage(f"tagged field {tag} ends at byte {cursor.position}, its size says {stop}")


def encode_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Results]],
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[RecordsPart]:
    """Return the whole response frame as parts to send in order: encoded heads and, between them, the
    `records` parts as given. Topics have the keys of the request. `throttle_ms` in milliseconds.
    """
    return at_once(
        encode_fetch_response_in_steps(
            version, correlation_id, topics, error_code, session_id, throttle_ms, endpoints
        )
    )


def encode_fetch_response_in_steps(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Results]],
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> Steps[list[RecordsPart]]:
    """Do what `encode_fetch_response` does, in steps of `RESULTS_AT_A_TIME` partitions."""
    left = RESULTS_AT_A_TIME
    flexible = version >= 12
    out = bytearray(8)
    if flexible:
        out.append(0)
    out += _I32.pack(throttle_ms)
    if version >= 7:
        out += struct.pack(">hi", error_code, session_id)
    write_count(out, len(topics), flexible)
    head, size = out, 0
    sent: list[RecordsPart] = [out]
    for key, results in topics:
        write_topic_key(out, version, key)
        write_count(out, len(results), flexible)
        for result in results:
            left -= 1
            if not left:
                yield
                left = RESULTS_AT_A_TIME
            if isinstance(result, bytes):
                out += result
                continue
            records_size = records_bytes(result.records)
            _write_result(out, version, result)
            if result.aborted:
                yield from _write_aborted(out, result.aborted, flexible)
            if version >= 11:
                out += _I32.pack(result.preferred_read_replica)
            write_count(out, records_size, flexible)
            if records_size:
                size += len(out) + records_size
                sent.extend(result.records)
                out = bytearray()
                sent.append(out)
            if flexible:
                _write_result_tags(out, result)
        if flexible:
            out.append(0)
    if flexible:
        if endpoints and version >= 16:
            write_endpoints_tag(out, endpoints)
        else:
            out.append(0)
    size += len(out)
    if not out:
        sent.pop()
    struct.pack_into(">ii", head, 0, size - 4, correlation_id)
    return sent


def encode_without_records(version: int, result: FetchPartitionResult) -> bytes:
    """Return one partition of a response, without records and aborted transactions, as its bytes."""
    out = bytearray()
    flexible = version >= 12
    _write_result(out, version, result)
    if version >= 11:
        out += _I32.pack(result.preferred_read_replica)
    write_count(out, 0, flexible)
    if flexible:
        _write_result_tags(out, result)
    return bytes(out)


def records_bytes(records: Sequence[RecordsPart]) -> int:
    """Return the total size of `records` parts in bytes."""
    total = 0
    for part in records:
        total += len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size
    return total


def write_topic_key(out: bytearray, version: int, key: TopicKey) -> None:
    """Write a topic's id or name, as the version has it."""
    if version >= 13:
        assert isinstance(key, UUID), "this version identifies topics by id"
        out += key.bytes
        return
    assert isinstance(key, str), "this version identifies topics by name"
    if version == 12:
        write_compact_string(out, key)
    else:
        write_string(out, key)


def _write_result(out: bytearray, version: int, result: FetchPartitionResult) -> None:
    """Write the head of a result, up to the count of its aborted transactions."""
    partition, error, high_watermark, stable, start, _records, aborted, *_rest = result
    if version >= 5:
        out += _RESULT_V5.pack(partition, error, high_watermark, stable, start)
    else:
        out += _RESULT_V4.pack(partition, error, high_watermark, stable)
    flexible = version >= 12
    if aborted is None:
        out += b"\x00" if flexible else b"\xff\xff\xff\xff"
    else:
        write_count(out, len(aborted), flexible)


def _write_aborted(out: bytearray, aborted: Sequence[bytes], flexible: bool) -> Steps[None]:
    """Write aborted transactions, in steps of `ABORTED_AT_A_TIME`."""
    end = b"\0" if flexible else b""
    for at in range(0, len(aborted), ABORTED_AT_A_TIME):
        if at:
            yield
        out += end.join(aborted[at : at + ABORTED_AT_A_TIME]) + end


def _write_result_tags(out: bytearray, result: FetchPartitionResult) -> None:
    tags = 0
    body = bytearray()
    if result.diverging_epoch is not None:
        tags += 1
        body += struct.pack(">bbiqb", 0, 13, *result.diverging_epoch, 0)
    if result.current_leader is not None:
        tags += 1
        body += struct.pack(">bbiib", 1, 9, *result.current_leader, 0)
    if result.snapshot_id is not None:
        tags += 1
        body += struct.pack(">bbqib", 2, 13, *result.snapshot_id, 0)
    out.append(tags)
    out += body
