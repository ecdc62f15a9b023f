"""Committed offsets, and those of open transactions: changed by replay alone. [P]

An offset is kept as one byte string, and the (topic, partition) pairs are shared between groups: offsets are
most of a large coordinator's memory, and most of them are never read.

Offsets of a transaction are pending under its producer until its marker; of two writers, the later
record wins (Kafka ``OffsetMetadataManager``).
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from service.base.steps import Steps
from service.base.timeline import Journal, Timeline
from service.base.types import NO_PRODUCER_ID, NO_TIMESTAMP
from service.groups.records import (
    NEWEST_OFFSET_VERSION,
    OffsetValue,
    decode_offset_value,
    decode_place,
)
from service.wire.primitives import uuid_from_bytes

Outer = TypeVar("Outer", bound=Hashable)
Inner = TypeVar("Inner", bound=Hashable)
V = TypeVar("V")

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""

_ROW = struct.Struct(">qiqqq16s")
_NEWEST_HEAD = struct.Struct(">hqi")
_SHORT = struct.Struct(">hqiBq3s16s")
"""value of the newest version without metadata and with a topic id"""
_COMMIT_TIME = struct.Struct(">q")
_COMMIT_OFFSET = struct.Struct(">q")
_RECORD_OFFSET = struct.Struct(">q")
_RECORD_OFFSET_AT: Final = 28
_NO_ID: Final = bytes(16)
_ID_TAG: Final = b"\1\0\x10"
_PLACES_AT_ONCE: Final = 1000


class OffsetAndMetadata(NamedTuple):
    """A committed offset, as `OffsetValue`, and the offset of its record."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int
    topic_id: UUID | None
    record_offset: int


def _pack(value: OffsetValue, record_offset: int) -> bytes:
    raw_id = _NO_ID if value.topic_id is None else value.topic_id.bytes
    row = _ROW.pack(value.offset, value.leader_epoch, value.commit_ms, value.expire_ms, record_offset, raw_id)
    return row + value.metadata.encode() if value.metadata else row


def _row(value: bytes, record_offset: int) -> bytes:
    """Pack a value of type 0 or 1, without decoding the common form first. Raises `CorruptionError`."""
    if len(value) == _SHORT.size:
        version, offset, leader_epoch, metadata_end, commit_ms, tag, raw_id = _SHORT.unpack(value)
        if version == NEWEST_OFFSET_VERSION and metadata_end == 1 and tag == _ID_TAG:
            return _ROW.pack(offset, leader_epoch, commit_ms, NO_TIMESTAMP, record_offset, raw_id)
    size = len(value) - _NEWEST_HEAD.size
    if size >= 10 and value[1] == NEWEST_OFFSET_VERSION and value[0] == 0:
        _, offset, leader_epoch = _NEWEST_HEAD.unpack_from(value)
        # Short metadata, and no tag but the topic's id.
        stop = _NEWEST_HEAD.size + value[_NEWEST_HEAD.size]
        metadata, tags = value[_NEWEST_HEAD.size + 1 : stop], value[stop + 8 :]
        if value[_NEWEST_HEAD.size] - 1 in range(0x7F) and metadata.isascii():
            commit_ms = _COMMIT_TIME.unpack_from(value, stop)[0] if len(tags) else 0
            if tags == b"\0":
                return (
                    _ROW.pack(offset, leader_epoch, commit_ms, NO_TIMESTAMP, record_offset, _NO_ID) + metadata
                )
            if len(tags) == 19 and tags.startswith(_ID_TAG):
                row = _ROW.pack(offset, leader_epoch, commit_ms, NO_TIMESTAMP, record_offset, tags[3:])
                return row + metadata
    return _pack(decode_offset_value(value), record_offset)


def _unpack(row: bytes) -> OffsetAndMetadata:
    offset, leader_epoch, commit_ms, expire_ms, record_offset, raw_id = _ROW.unpack_from(row)
    topic_id = None if raw_id == _NO_ID else uuid_from_bytes(raw_id)
    metadata = row[_ROW.size :].decode()
    return OffsetAndMetadata(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id, record_offset)


class Nested(Generic[Outer, Inner, V]):
    """Dictionary of timelines. An empty one is dropped once no revert can fill it again."""

    __slots__ = ("_empty", "_inner", "_journal")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._inner: dict[Outer, Timeline[Inner, V]] = {}
        self._empty: dict[Outer, None] = {}
        """keys whose timelines are empty, or may be: a revert can empty them, too"""

    def __iter__(self) -> Iterator[Outer]:
        return iter(self._inner)

    def get(self, outer: Outer) -> Timeline[Inner, V] | None:
        return self._inner.get(outer)

    def put(self, outer: Outer, inner: Inner, value: V) -> None:
        timeline = self._inner.get(outer)
        if timeline is None:
            timeline = self._inner[outer] = Timeline(self._journal)
            if len(self._journal):
                self._empty[outer] = None
        timeline[inner] = value

    def put_committed(self, outer: Outer, items: Iterable[tuple[Inner, V]]) -> None:
        """Call `Timeline.put_committed` of the timeline."""
        self.of(outer).put_committed(items)

    def of(self, outer: Outer) -> Timeline[Inner, V]:
        """Return the timeline, for committed changes; a new one if there is none."""
        timeline = self._inner.get(outer)
        if timeline is None:
            timeline = self._inner[outer] = Timeline(self._journal)
        return timeline

    def pop(self, outer: Outer, inner: Inner) -> V | None:
        timeline = self._inner.get(outer)
        if timeline is None:
            return None
        value = timeline.pop(inner, None)
        if not timeline:
            self._empty[outer] = None
        return value

    def count(self) -> int:
        return sum(map(len, self._inner.values()))

    def tidy(self) -> None:
        """Drop empty timelines, if everything is committed: a revert would fill them again."""
        if self._empty and not len(self._journal):
            for outer in self._empty:
                if not self._inner.get(outer, True):
                    del self._inner[outer]
            self._empty.clear()


class CommittedOffsets:
    """Offsets of one shard."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._positions: Nested[str, Place, bytes] = Nested(journal)
        self._pending: Nested[int, tuple[str, Place], bytes] = Nested(journal)
        self._open: Nested[str, Place, tuple[int, ...]] = Nested(journal)
        self._places: dict[bytes, Place] = {}
        """by encoded key part: one object for all groups"""

    # Reads.

    def get(
        self, group: str, topic: str, partition: int, committed: bool = False
    ) -> OffsetAndMetadata | None:
        """Return the group's offset for a partition; `committed`: as of the last committed record."""
        timeline = self._positions.get(group)
        if timeline is None:
            return None
        place = (topic, partition)
        row = timeline.committed(place) if committed else timeline.get(place)
        return None if row is None else _unpack(row)

    def of_group(self, group: str, committed: bool = False) -> Iterator[tuple[Place, OffsetAndMetadata]]:
        """Return all offsets of the group as of now; changes during the iteration are not seen."""
        timeline = self._positions.get(group)
        if timeline is None:
            return iter(())
        rows = tuple(timeline.committed_items() if committed else timeline.items())
        return ((place, _unpack(row)) for place, row in rows)

    def positions(self, group: str) -> Iterator[tuple[Place, int]]:
        """Yield partition and committed offset of the group's offsets, as of when each is reached: of many,
        only their places are copied at once."""
        timeline = self._positions.get(group)
        for place in () if timeline is None else tuple(timeline):
            row = None if timeline is None else timeline.committed(place)
            if row is not None:
                yield place, _offset(row)

    def places(self, group: str) -> Iterator[Place]:
        """Return the partitions with offsets of the group; nothing may change during the iteration."""
        return iter(self._positions.get(group) or ())

    def has(self, group: str, topic: str, partition: int) -> bool:
        timeline = self._positions.get(group)
        return timeline is not None and (topic, partition) in timeline

    def count_of(self, group: str) -> int:
        return len(self._positions.get(group) or ())

    def has_any(self, group: str) -> bool:
        return bool(self._positions.get(group))

    def is_unstable(self, group: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction commits an offset for the partition."""
        timeline = self._open.get(group)
        return timeline is not None and (topic, partition) in timeline

    def is_any_unstable(self, group: str) -> bool:
        return bool(self._open.get(group))

    def unstable_places(self, group: str) -> tuple[Place, ...]:
        """Return the partitions for which open transactions commit offsets of the group."""
        return tuple(self._open.get(group) or ())

    def groups(self) -> Iterator[str]:
        """Return the groups that have offsets."""
        return iter(self._positions)

    def producers(self) -> Iterator[int]:
        """Return the producers of open transactions."""
        return iter(self._pending)

    def pending_of(self, producer_id: int) -> Iterator[tuple[str, Place, OffsetAndMetadata]]:
        """Yield group, partition and offset of what the producer's transaction will commit."""
        timeline = self._pending.get(producer_id)
        if timeline is not None:
            for (group, place), row in timeline.items():
                yield group, place, _unpack(row)

    def count(self) -> int:
        """Return the number of committed offsets of all groups."""
        return self._positions.count()

    # Replay.

    def replay(
        self, record_offset: int, group: str, rest: bytes, value: bytes | None, producer_id: int
    ) -> None:
        """Replay a record of type 0 or 1, whose key `split_offset_key` has split. Raises
        `CorruptionError`."""
        place = self._places.get(rest)
        if place is None:
            place = decode_place(rest)
            if value is not None:
                self._places[rest] = place
        if value is None:
            self._remove(group, place)
        elif producer_id == NO_PRODUCER_ID:
            self._positions.put(group, place, _row(value, record_offset))
        else:
            self._wait(group, place, _row(value, record_offset), producer_id)

    def replay_rows(
        self, record_offset: int, group: str, rests: list[bytes], rows: list[bytes], is_committed: bool
    ) -> None:
        """Replay one record per row, outside of transactions: `rests` are the keys after the group, `rows`
        the packed values. `is_committed`: all are committed, and the journal is at the last one or later."""
        places = [self._places.get(rest) or self._place(rest) for rest in rests]
        if is_committed:
            self._positions.put_committed(group, zip(places, rows, strict=True))
            return
        for place, row in zip(places, rows, strict=True):
            self._journal.at(record_offset)
            self._positions.put(group, place, row)
            record_offset += 1

    def committed_rows(self, group: str) -> dict[Place, bytes]:
        """Return the packed offsets of the group, to set those of committed records in; the journal is at
        the last of these."""
        return self._positions.of(group).committed_values()

    def place_of(self, rest: bytes) -> Place:
        """Return the partition of a record's key, of which `rest` follows the group."""
        return self._places.get(rest) or self._place(rest)

    def _place(self, rest: bytes) -> Place:
        place = self._places[rest] = decode_place(rest)
        return place

    def _wait(self, group: str, place: Place, row: bytes, producer_id: int) -> None:
        """Keep an offset of a transaction until its marker."""
        self._pending.put(producer_id, (group, place), row)
        timeline = self._open.get(group)
        writers = () if timeline is None else timeline.get(place, ())
        if producer_id not in writers:
            self._open.put(group, place, (*writers, producer_id))

    def _remove(self, group: str, place: Place) -> None:
        """Apply a tombstone: drop the offset, and pending ones of transactions."""
        self._positions.pop(group, place)
        for producer_id in self._open.pop(group, place) or ():
            self._pending.pop(producer_id, (group, place))
        self.tidy()

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Apply a marker: commit or drop the pending offsets."""
        timeline = self._pending.get(producer_id)
        if timeline is None:
            return
        for (group, place), row in tuple(timeline.items()):
            self._pending.pop(producer_id, (group, place))
            self._close(group, place, producer_id)
            if commit and _record_offset(row) > self._record_offset_of(group, place):
                self._positions.put(group, place, row)
        self.tidy()

    def _close(self, group: str, place: Place, producer_id: int) -> None:
        timeline = self._open.get(group)
        writers = () if timeline is None else timeline.get(place, ())
        others = tuple(writer for writer in writers if writer != producer_id)
        if others:
            self._open.put(group, place, others)
        else:
            self._open.pop(group, place)

    def _record_offset_of(self, group: str, place: Place) -> int:
        timeline = self._positions.get(group)
        row = None if timeline is None else timeline.get(place)
        return -1 if row is None else _record_offset(row)

    def tidy(self) -> None:
        self._positions.tidy()
        self._pending.tidy()
        self._open.tidy()

    def forget_topics(self, names: frozenset[str]) -> Steps[None]:
        """Drop shared partition objects of deleted topics. They are a cache, not state, so the steps may
        change it."""
        for count, (rest, place) in enumerate(tuple(self._places.items())):
            if count % _PLACES_AT_ONCE == 0:
                yield
            if place[0] in names:
                self._places.pop(rest, None)


def _offset(row: bytes) -> int:
    offset: int = _COMMIT_OFFSET.unpack_from(row)[0]
    return offset


def _record_offset(row: bytes) -> int:
    offset: int = _RECORD_OFFSET.unpack_from(row, _RECORD_OFFSET_AT)[0]
    return offset
