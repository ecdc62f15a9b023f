"""The content of a partition at an isolation level, as a consumer sees it, from Fetch on a raw socket.

The filter is written after Kafka's consumer (``CompletedFetch``), apart from Firn's own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from tests.support.batches import HEADER
from tests.support.wire import RawConnection, leader_of, offsets, schema

UNCOMMITTED, COMMITTED = 0, 1
_CONTROL: Final = 0x20
_TRANSACTIONAL: Final = 0x10


class Seen(NamedTuple):
    """A batch without its records' bytes. `commits` is None but for markers."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    commits: bool | None
    values: tuple[bytes | None, ...]


def fetch(
    bootstrap: str,
    topic: str,
    offset: int,
    isolation: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    at: str | None = None,
) -> Any:
    """Fetch 12 of one partition from its leader, or from the node `at`; return the partition's answer."""
    module = schema(1, 12)
    part = module.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=-1
    )
    request = module.FetchRequest(
        replica_id=-1,
        max_wait=timedelta(milliseconds=max_wait_ms),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation,
        topics=(module.FetchTopic(topic=topic, partitions=(part,)),),
        forgotten_topics_data=(),
    )
    with RawConnection(at or leader_of(bootstrap, topic, partition)) as connection:
        response = connection.call(request)
    assert response.error_code == ErrorCode.none, ErrorCode(response.error_code)
    return response.responses[0].partitions[0]


def seen(records: bytes) -> Iterator[Seen]:
    """The whole batches of a Fetch's records, uncompressed ones alone."""
    position = 0
    while position + HEADER.size <= len(records):
        base, length, *_ = HEADER.unpack_from(records, position)
        if position + 12 + length > len(records):
            return
        yield _batch(base, records[position : position + 12 + length])
        position += 12 + length


def _batch(base: int, data: bytes) -> Seen:
    _, _, _, _, _, attributes, last_delta, _, _, producer_id, epoch, _, count = HEADER.unpack_from(data)
    assert not attributes & 7, "a compressed batch"
    position, values, commits = HEADER.size, [], None
    for _ in range(count):
        size, position = _varint(data, position)
        end = position + size
        _, at = _varint(data, position + 1)
        _, at = _varint(data, at)
        key, at = _bytes(data, at)
        value, _ = _bytes(data, at)
        position = end
        if attributes & _CONTROL:
            assert key is not None
            commits = struct.unpack(">hh", key)[1] == 1
        else:
            values.append(value)
    return Seen(
        base, base + last_delta, producer_id, epoch, bool(attributes & _TRANSACTIONAL), commits, tuple(values)
    )


def values(
    bootstrap: str, topic: str, isolation: int = COMMITTED, *, partition: int = 0, at: str | None = None
) -> list[bytes]:
    """All values of a partition as a consumer of that isolation sees them, from its start on; from the leader
    or from the node `at`, which may be a follower (KIP-392)."""
    with RawConnection(leader_of(bootstrap, topic, partition)) as connection:
        offset: int = offsets(connection, topic, partition, -2).offset
    found: list[bytes] = []
    while True:
        answer = fetch(bootstrap, topic, offset, isolation, partition=partition, at=at)
        assert answer.error_code == ErrorCode.none, ErrorCode(answer.error_code)
        batches = list(seen(bytes(answer.records or b"")))
        if not batches:
            return found
        rows = [(row.producer_id, row.first_offset) for row in answer.aborted_transactions or ()]
        for one in shown(batches, rows):
            found += [
                value
                for number, value in enumerate(one.values)
                if value is not None and one.base_offset + number >= offset
            ]
        offset = batches[-1].last_offset + 1


def shown(batches: Sequence[Seen], aborted: Iterable[tuple[int, int]]) -> Iterator[Seen]:
    """The batches of data that a consumer shows: those of a producer are hidden from the first offset of an
    aborted transaction (producer id, first offset) to its marker."""
    coming = sorted(aborted, key=lambda one: one[1])
    hidden: set[int] = set()
    for one in batches:
        while coming and coming[0][1] <= one.last_offset:
            hidden.add(coming.pop(0)[0])
        if one.commits is not None:
            hidden.discard(one.producer_id)
        elif not (one.is_transactional and one.producer_id in hidden):
            yield one


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint, and the position behind it."""
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw >> 1 ^ -(raw & 1), position
        shift += 7


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _varint(data, position)
    return (None, position) if size < 0 else (data[position : position + size], position + size)
