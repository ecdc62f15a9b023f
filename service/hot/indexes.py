"""Files of a segment's two sparse indexes. No checksum: a doubtful index is rebuilt from the log.

For the format see `records.segment_indexes`. Kafka preallocates an active segment's index and truncates it
when the segment is sealed; here a file has exactly its entries at any time, which Kafka's tools read as well.
No file is mapped or held in memory: a lookup is a few `pread`s from the page cache.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import ClassVar, Final

from service.base.errors import CorruptionError
from service.base.types import NO_TIMESTAMP
from service.hot.files import FileHandle, SegmentFile
from service.records.segment_indexes import MAX_RELATIVE_OFFSET, OFFSET_ENTRY, TIME_ENTRY, IndexEntry

_BLOCK_ENTRIES: Final = 256


class _Index:
    """Fixed-width entries in one file; `_floor` finds the last whose `field` is not above a target."""

    ENTRY: ClassVar[struct.Struct]

    __slots__ = ("base_offset", "entries", "handle", "max_entries")

    def __init__(self, handle: FileHandle, base_offset: int, max_bytes: int) -> None:
        self.handle = handle
        self.base_offset = base_offset
        self.entries = handle.size // self.ENTRY.size
        self.max_entries = max_bytes // self.ENTRY.size

    @property
    def size(self) -> int:
        """Bytes of the file that hold entries."""
        return self.entries * self.ENTRY.size

    def truncate_entries(self, entries: int) -> None:
        """Keep the first `entries` entries and truncate the file."""
        width = self.ENTRY.size
        file = self.handle.get()
        file.kept = None
        file.truncate(entries * width)
        self.entries = entries
        self.handle.size = entries * width

    def replace(self, data: bytes) -> None:
        """Replace the file by one with these entries, up to its maximum."""
        file = self.handle.create()
        self.entries = 0
        data = data[: self.max_entries * self.ENTRY.size]
        file.pwrite(data, 0)
        self.entries = len(data) // self.ENTRY.size
        self.handle.size = len(data)

    def forget(self) -> None:
        """Use no entries of the file until it is rebuilt."""
        self.handle.peek().kept = None
        self.entries = 0

    def _append(self, *fields: int) -> None:
        """Append one entry; `DiskError` leaves the entries unchanged."""
        handle, entry = self.handle, self.ENTRY
        file = handle.get()
        position = self.entries * entry.size
        file.disk.pwrite(file.fd, entry.pack(*fields), position)
        self.entries += 1
        handle.size = position + entry.size

    def _append_packed(self, data: bytes) -> None:
        """Append packed entries, as `_append` does."""
        if not data:
            return
        file = self.handle.get()
        position = self.entries * self.ENTRY.size
        file.pwrite(data, position)
        self.entries += len(data) // self.ENTRY.size
        self.handle.size = position + len(data)

    def _entry(self, file: SegmentFile, slot: int) -> tuple[int, ...]:
        width = self.ENTRY.size
        data = file.pread(width, slot * width)
        if len(data) != width:
            raise CorruptionError(f"{file.path} ends before entry {slot} of {self.entries}")
        return self.ENTRY.unpack(data)

    def _kept(self, file: SegmentFile, field: int, target: int) -> tuple[int, int, bytes] | None:
        """Return the block that was read last, if it answers: a sequential reader needs the same entries
        again."""
        entries, width = self.entries, self.ENTRY.size
        kept = file.kept
        if kept is not None:
            low, high, block = kept
            unpack = self.ENTRY.unpack_from
            if (
                high <= entries
                and unpack(block)[field] <= target
                and (high == entries or target < unpack(block, (high - low - 1) * width)[field])
            ):
                return kept
        return None

    def _block(self, file: SegmentFile, field: int, target: int) -> tuple[int, int, bytes]:
        """Read entries ``[low, high)`` with the last one at or below `target`; returns (low, high, bytes)."""
        kept = self._kept(file, field, target)
        if kept is not None:
            return kept
        entries, width = self.entries, self.ENTRY.size
        low, high = 0, entries
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if self._entry(file, middle)[field] <= target:
                low = middle
            else:
                high = middle
        block = file.pread((high - low) * width, low * width)
        if len(block) != (high - low) * width:
            raise CorruptionError(f"{file.path} ends before entry {high} of {self.entries}")
        file.kept = low, high, block
        return low, high, block

    def _floor(self, field: int, target: int) -> tuple[int, tuple[int, ...], int] | None:
        """Return (slot, entry, second field of the previous entry) of the last with ``entry[field] <=
        target``.

        None if there is none. 0 for a previous entry that does not exist, or was not read.
        """
        if not self.entries:
            return None
        file = self.handle.get()
        low, high, block = self._block(file, field, target)
        width = self.ENTRY.size
        unpack = self.ENTRY.unpack_from
        begin, end = (
            0,
            high - low,
        )  # everything before `begin` is at or below the target, from `end` on above it
        while begin < end:
            middle = (begin + end) // 2
            if unpack(block, middle * width)[field] <= target:
                begin = middle + 1
            else:
                end = middle
        if not begin:
            return None
        before = unpack(block, (begin - 2) * width)[1] if begin > 1 else 0
        return low + begin - 1, unpack(block, (begin - 1) * width), before


class OffsetIndex(_Index):
    """Offset to position. An entry stands for a batch and is found by its last offset or a later one."""

    ENTRY = OFFSET_ENTRY
    __slots__ = ()

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries

    def append(self, last_offset: int, position: int) -> None:
        self._append(last_offset - self.base_offset, position)

    def append_all(self, entries: Iterable[IndexEntry]) -> None:
        pack, base = self.ENTRY.pack, self.base_offset
        self._append_packed(b"".join([pack(one.last_offset - base, one.position) for one in entries]))

    def is_kept(self, offset: int) -> bool:
        """Return whether `lookup` needs no read."""
        return (
            self._kept(self.handle.get(), 0, min(offset - self.base_offset, MAX_RELATIVE_OFFSET)) is not None
        )

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return a position at or before the batch with `offset`, and that of the previous entry."""
        found = self._floor(0, min(offset - self.base_offset, MAX_RELATIVE_OFFSET))
        if found is None:
            return 0, 0
        _, (_, position), before = found
        if position < 0 or before < 0:
            raise CorruptionError(f"{self.handle.path} points before the log, to {min(position, before)}")
        return position, before

    def last(self) -> tuple[int, int] | None:
        """Return (offset, position) of the last entry."""
        return self._absolute(self.entries - 1) if self.entries else None

    def first_from(self, position: int) -> tuple[int, int] | None:
        """Return (offset, position) of the first entry for a batch at `position` or behind it."""
        found = self._floor(1, position - 1)
        slot = 0 if found is None else found[0] + 1
        return self._absolute(slot) if slot < self.entries else None

    def _absolute(self, slot: int) -> tuple[int, int]:
        relative, position = self._entry(self.handle.get(), slot)
        return self.base_offset + relative, position

    def peek_last_position(self) -> int:
        """Return the position of the last entry, 0 if there is none; leaves the file closed."""
        if not self.entries:
            return 0
        disk = self.handle.disk
        fd = disk.open(self.handle.path)
        try:
            data = disk.pread(fd, self.ENTRY.size, (self.entries - 1) * self.ENTRY.size)
        finally:
            disk.close(fd)
        return self.ENTRY.unpack(data)[1] if len(data) == self.ENTRY.size else 0

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above `offset`."""
        found = self._floor(0, offset - self.base_offset - 1)
        self.truncate_entries(found[0] + 1 if found else 0)


class TimeIndex(_Index):
    """Timestamp to offset. The last slot is kept free for the entry that sealing adds (as Kafka does)."""

    ENTRY = TIME_ENTRY
    __slots__ = ("_last",)

    def __init__(self, handle: FileHandle, base_offset: int, max_bytes: int) -> None:
        super().__init__(handle, base_offset, max_bytes)
        self._last: tuple[int, int] | None = None

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries - 1

    def last(self) -> tuple[int, int]:
        """Return (timestamp, offset) of the last entry; (-1, base offset) of an empty index."""
        if self._last is None:
            self._last = (NO_TIMESTAMP, self.base_offset)
            if self.entries:
                timestamp, relative = self._entry(self.handle.get(), self.entries - 1)
                self._last = (timestamp, self.base_offset + relative)
        return self._last

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` is greater than the last one's."""
        last = self._last or self.last()
        if timestamp > last[0]:
            self._append(timestamp, offset - self.base_offset)
            self._last = (timestamp, offset)

    def append_all(self, entries: Iterable[IndexEntry]) -> None:
        """Append the entries whose timestamp is greater than that of the previous one."""
        last, rows = self.last(), []
        for one in entries:
            if one.newest > last[0]:
                last = one.newest, one.newest_offset
                rows.append(self.ENTRY.pack(one.newest, one.newest_offset - self.base_offset))
        self._append_packed(b"".join(rows))
        self._last = last

    def lookup(self, timestamp: int) -> int:
        """Return an offset before which every timestamp is at most `timestamp`; at least the base offset."""
        found = self._floor(0, timestamp)
        return self.base_offset + found[1][1] if found else self.base_offset

    def truncate_to(self, offset: int) -> None:
        """Drop the entries for offsets at or above `offset`."""
        found = self._floor(1, offset - self.base_offset - 1)
        self.truncate_entries(found[0] + 1 if found else 0)

    def truncate_entries(self, entries: int) -> None:
        super().truncate_entries(entries)
        self._last = None

    def replace(self, data: bytes) -> None:
        self._last = None
        super().replace(data)

    def forget(self) -> None:
        super().forget()
        self._last = None
