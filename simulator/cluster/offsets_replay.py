"""Replay of `__consumer_offsets`: committed offsets of all groups, as maps of them say. [P]

Offsets of a transaction wait for its marker; of two that are committed the later record counts, whichever
marker comes last. A tombstone takes those that wait, too.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from service.records.batch import BatchHeader, complete_headers
from service.records.decode import records_of

_OFFSET_KINDS: Final = (0, 1)
_COMMIT: Final = 1


class Place(NamedTuple):
    """A group's offset of one partition."""

    group: str
    topic: str
    partition: int


class Written(NamedTuple):
    """A committed offset, and that of the record which says so."""

    at: int
    value: int


class OffsetsReplay:
    """Offsets of one partition of the topic by its committed batches, from offset 0 on."""

    def __init__(self) -> None:
        self.committed: dict[Place, Written] = {}
        self.waiting: dict[int, dict[Place, Written]] = {}
        """by producer id"""
        self.groups: set[str] = set()
        """all that ever had an offset"""

    def take(self, batch: bytes) -> None:
        """Take the next batch."""
        header = next(iter(complete_headers(batch)))
        if header.is_control:
            self._end(batch, header)
            return
        for one in records_of(batch, header):
            place = _place(one.key or b"")
            if place is None:
                continue
            self.groups.add(place.group)
            if one.value is None:
                self.committed.pop(place, None)
                for theirs in self.waiting.values():
                    theirs.pop(place, None)
                continue
            _, value = struct.unpack_from(">hq", one.value)
            into = self.committed
            if header.is_transactional:
                into = self.waiting.setdefault(header.producer_id, {})
            into[place] = Written(one.offset, value)

    def _end(self, batch: bytes, header: BatchHeader) -> None:
        record = next(iter(records_of(batch, header)))
        _, kind = struct.unpack(">hh", record.key or b"\0\0\0\2")
        for place, written in self.waiting.pop(header.producer_id, {}).items():
            if kind == _COMMIT:
                self.committed[place] = max(written, self.committed.get(place, written))

    def of_group(self, group: str) -> dict[tuple[str, int], int]:
        """Return the group's committed offsets, by topic and partition."""
        return {
            (place.topic, place.partition): written.value
            for place, written in self.committed.items()
            if place.group == group
        }


def _place(key: bytes) -> Place | None:
    (kind,) = struct.unpack_from(">h", key)
    if kind not in _OFFSET_KINDS:
        return None
    group, position = _string(key, 2)
    topic, position = _string(key, position)
    return Place(group, topic, *struct.unpack_from(">i", key, position))


def _string(data: bytes, position: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, position)
    end = position + 2 + size
    return data[position + 2 : end].decode(), end
