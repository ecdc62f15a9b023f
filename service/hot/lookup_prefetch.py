"""Prefetch of the index and log pages that an offset lookup would otherwise read from disk on the event loop.

A lagging consumer starts at an offset that nobody has read for long. Neither the pages of the index nor the
batch headers that its entries point to may be in the page cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.base.disk import DiskError
from service.base.types import Buffer
from service.hot.files import FileHandle, FileSlice
from service.hot.segment import Segment
from service.records.walk import BatchPlace

_READ_BYTES: Final = 1 << 16
MOST_PREFETCHES: Final = 3
"""Prefetches until a lookup finds all pages: the index, the header that it points to, and the header behind a
large batch."""


class _NotResident(Exception):
    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position


def find_if_resident(segment: Segment, offset: int) -> tuple[BatchPlace | None, Sequence[FileSlice]]:
    """Look up `offset` as `SegmentIndexes.find` does, if that needs no disk read; else return the pages to
    prefetch.

    Call it again after the prefetch: other pages may be missing then. `CorruptionError`, `DiskError`.
    """
    indexes, size = segment.indexes, segment.size
    index = indexes.offset
    missing = [] if index.is_kept(offset) else [_missing(index.handle, 0, index.size)]
    if not indexes.is_checked:
        times = indexes.time
        missing += _missing(times.handle, 0, times.size), _missing(segment.log, size - _READ_BYTES, size)
    found = [one for one in missing if one is not None]
    if found:
        return None, found
    file = segment.log.get()

    def read(count: int, position: int) -> Buffer:
        data = file.pread_nowait(count, position)
        if data is None:
            raise _NotResident(position)
        return data

    try:
        return indexes.find(offset, read), ()
    except _NotResident as e:
        return None, (FileSlice(file, e.position, min(_READ_BYTES, size - e.position)),)


def _missing(handle: FileHandle, begin: int, end: int) -> FileSlice | None:
    """Return these bytes of a file if they are not all in the page cache. Errors are left to the read."""
    begin = max(begin, 0)
    if begin >= end:
        return None
    try:
        file = handle.get()
        return None if file.is_resident(end - begin, begin) else FileSlice(file, begin, end - begin)
    except DiskError:
        return None


def prefetch(slices: Sequence[FileSlice]) -> None:
    """Read `slices` into the page cache. `DiskError`; blocks, and may run on any thread."""
    for one in slices:
        one.file.prefetch(one.size, one.position)
