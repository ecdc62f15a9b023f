"""Transaction index of one segment: its aborted transactions (Kafka `TransactionIndex`).

A row lies in the segment that has the abort marker (`records.txn_rows`). Unlike the other indexes this one is
no hint: a row that is missing shows aborted records as committed. So a row that cannot be written stays in
memory, and no flush passes it (`sync`). The file is checked when the log is opened, and made anew from the
log where it is wrong.

Of each block of rows the last marker, the last stable offset and the least first offset are in memory: a
look-up reads the blocks that it needs, whatever the number of rows. Markers rise from row to row, and stable
offsets never fall.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from service.base.disk import DiskError
from service.base.errors import CorruptionError
from service.base.files import fsync_dir, fsync_file, write_atomically
from service.base.steps import Steps
from service.base.threads import Lock
from service.base.types import Buffer
from service.hot.files import FileHandle
from service.records.txn_rows import FIELDS, ROW, AbortedEntry, decode_rows, encode_row, iter_rows

_log = logging.getLogger(__name__)

_BLOCK_ROWS: Final = 128
_BLOCK_BYTES: Final = _BLOCK_ROWS * ROW.size
_SKIPPED_AT_A_TIME: Final = 1024
MOST_ROWS: Final = 1 << 18
"""Rows at which a segment is full: 9 MiB, which a start and an upload hold in memory."""


class TxnIndex:
    """The rows of one segment. Owned by the loop; `sync` and `rows` are for any thread."""

    __slots__ = (
        "_cuts", "_has_failed", "_is_dirty", "_is_new", "_least", "_lock", "_markers", "_stable",
        "_unwritten", "handle",
    )  # fmt: skip

    def __init__(self, handle: FileHandle, lock: Lock) -> None:
        """`handle`: of a file that does not exist, or whose rows come by `take`."""
        self.handle = handle
        self._lock = lock
        self._unwritten = bytearray()
        self._markers, self._stable, self._least = array("q"), array("q"), array("q")
        self._is_new = not handle.size
        self._is_dirty = self._has_failed = False
        self._cuts = 0

    def __len__(self) -> int:
        return self._size // ROW.size

    @property
    def _size(self) -> int:
        return self.handle.size + len(self._unwritten)

    @property
    def is_late(self) -> bool:
        """Return whether rows wait to be written."""
        return bool(self._unwritten)

    def take(self, rows: Buffer, *, is_durable: bool = True) -> None:
        """Take over the rows that the file has. `is_durable`: a loss of power leaves them there."""
        self._is_dirty = self._is_new = not is_durable
        self._summarize(rows, 0)

    def _summarize(self, rows: Buffer, count: int) -> None:
        """Note rows behind `count` others."""
        for _, first, marker, stable in FIELDS.iter_unpack(rows):
            if count % _BLOCK_ROWS == 0:
                self._markers.append(marker)
                self._stable.append(stable)
                self._least.append(first)
            else:
                self._markers[-1] = marker
                self._stable[-1] = stable
                if first < self._least[-1]:
                    self._least[-1] = first
            count += 1

    # Changes

    def append(self, entries: Sequence[AbortedEntry]) -> None:
        """Add rows whose markers are in the log. Raises nothing: what the disk refuses is written later."""
        with self._lock:
            rows = b"".join(map(encode_row, entries))
            self._summarize(rows, len(self))
            self._unwritten += rows
            try:
                self._write()
            except DiskError as e:
                if not self._has_failed:
                    _log.warning("rows of %s wait to be written: %s", self.handle.path, e)
                self._has_failed = True

    def _write(self) -> None:
        if not self._unwritten:
            return
        self._is_dirty = True
        handle = self.handle
        file = handle.create() if self._is_new and not handle.size else handle.get()
        file.pwrite(self._unwritten, handle.size)
        handle.size += len(self._unwritten)
        self._unwritten = bytearray()
        self._has_failed = False

    def sync(self) -> None:
        """Make all rows durable. `DiskError`."""
        with self._lock:
            self._write()
            is_dirty, self._is_dirty = self._is_dirty, False
        if not is_dirty:
            return
        try:
            file = self.handle.get()  # held until it is flushed: the cache may let go of it meanwhile
            fsync_file(file.disk, file.fd)
            if self._is_new:
                fsync_dir(self.handle.disk, self.handle.path.parent)
                self._is_new = False
        except DiskError:
            self._is_dirty = True
            raise

    def truncate(self, offset: int) -> None:
        """Drop the rows of markers at or above `offset`. `DiskError`."""
        with self._lock:
            self._write()
            block = bisect_left(self._markers, offset)
            if block == len(self._markers):
                return
            self._cuts += 1
            begin = block * _BLOCK_BYTES
            block_rows = self._read(begin, _BLOCK_BYTES)
            count = sum(marker < offset for _, _, marker, _ in FIELDS.iter_unpack(block_rows))
            kept = block_rows[: count * ROW.size]
            size = begin + len(kept)
            self._is_dirty = True
            self.handle.get().truncate(size)
            self.handle.size = size
            del self._markers[block:], self._stable[block:], self._least[block:]
            self._summarize(kept, block * _BLOCK_ROWS)

    def replace(self, rows: Buffer) -> None:
        """Write all rows anew, durably, at once. `DiskError`."""
        with self._lock:
            self._cuts += 1
            write_atomically(self.handle.disk, self.handle.path, bytes(rows))
            self.handle.drop()
            self.handle.size = len(rows)
            self._unwritten = bytearray()
            del self._markers[:], self._stable[:], self._least[:]
            self.take(rows)

    # Look-ups

    def _read(self, position: int, size: int) -> bytes:
        written = self.handle.size
        data = b""
        if position < written:
            wanted = min(size, written - position)
            data = self.handle.get().read(position, wanted)
        beyond = max(position - written, 0)
        return data + self._unwritten[beyond : beyond + size - len(data)]

    def rows(self) -> list[AbortedEntry]:
        """Read all rows. `CorruptionError`, `DiskError`."""
        with self._lock:
            return decode_rows(self._read(0, self._size))

    def find(self, fetch_offset: int, upper_bound: int, part: slice, found: list[bytes]) -> Steps[bool]:
        """Add `part` of the row of each transaction that overlaps ``[fetch_offset, upper_bound)`` to `found`,
        in steps of a block; returns whether later segments have none. `DiskError`."""
        begin = bisect_left(self._markers, fetch_offset)
        end = bisect_left(self._stable, upper_bound)
        size, known, cuts = part.stop - part.start, len(found), self._cuts
        for block in range(begin, min(end + 1, len(self._markers))):
            if self._least[block] >= upper_bound:
                if not block % _SKIPPED_AT_A_TIME:
                    yield
                continue
            yield
            if self._cuts != cuts:  # rows have gone, or other ones are in their places
                del found[known:]
                return (yield from self.find(fetch_offset, upper_bound, part, found))
            data = self._read(block * _BLOCK_BYTES, _BLOCK_BYTES)
            places = range(part.start, len(data), ROW.size)
            if block > begin and self._markers[block] < upper_bound:  # each begins before its marker
                found += [data[at : at + size] for at in places]
                continue
            rows = zip(places, FIELDS.iter_unpack(data), strict=True)
            found += [
                data[at : at + size]
                for at, (_, first, marker, _) in rows
                if marker >= fetch_offset and first < upper_bound
            ]
        return end < len(self._markers)

    def offset_behind(self, fetch_offset: int, rows: int) -> int | None:
        """Return the offset behind the marker of about so many rows of markers at or above `fetch_offset`;
        None if there are fewer."""
        block = bisect_left(self._markers, fetch_offset) + max(rows // _BLOCK_ROWS, 1) - 1
        return self._markers[block] + 1 if block < len(self._markers) else None

    def count_from(self, fetch_offset: int) -> int:
        """Return about how many rows have markers at or above `fetch_offset`."""
        return len(self) - bisect_left(self._markers, fetch_offset) * _BLOCK_ROWS


def check_rows(rows: Buffer, base_offset: int, end_offset: int) -> None:
    """Raise `CorruptionError` unless these may be all rows of a segment with offsets from `base_offset` up to
    `end_offset`, exclusive."""
    marker, stable = base_offset - 1, 0
    for row in iter_rows(rows):
        if not marker < row.last_offset < end_offset:
            raise CorruptionError(f"{row} behind a marker at {marker}, in [{base_offset}, {end_offset})")
        if row.first_offset >= row.last_offset:
            raise CorruptionError(f"{row} begins at its marker")
        marker = row.last_offset
        if not stable <= row.last_stable_offset <= marker + 1:
            raise CorruptionError(f"{row} behind a last stable offset of {stable}")
        stable = row.last_stable_offset
