"""What a look for an offset would read from the device: it is brought before, by a thread.

A reader that is far behind begins where nobody has read for long. The index says where that is; neither its
pages nor the headers that it leads to may be in the page cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.base.disk import DiskError
from service.base.types import Buffer
from service.hot.files import FileHandle, FileSlice
from service.hot.segment import Segment
from service.records.walk import BatchPlace

_AROUND_BYTES: Final = 1 << 16
MOST_STEPS: Final = 3
"""Until all is here: the index, the header that it leads to, and the one behind a large batch."""


class _NotHere(Exception):
    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position


def find_near(segment: Segment, offset: int) -> tuple[BatchPlace | None, Sequence[FileSlice]]:
    """As `Segment.find`, where it need not wait for the device; else what it would have to wait for next.
    Asked again once that was brought, what comes after it. `CorruptionError`, `DiskError`."""
    index, size = segment.offset_index, segment.size
    looked = [] if index.is_kept(offset) else [_missing(index.handle, 0, index.size)]
    if not segment.is_checked:
        times = segment.time_index
        looked += _missing(times.handle, 0, times.size), _missing(segment.log, size - _AROUND_BYTES, size)
    found = [one for one in looked if one is not None]
    if found:
        return None, found
    file = segment.log.get()

    def read(count: int, position: int) -> Buffer:
        data = file.pread_nowait(count, position)
        if data is None:
            raise _NotHere(position)
        return data

    try:
        return segment.find(offset, read), ()
    except _NotHere as e:
        return None, (FileSlice(file, e.position, min(_AROUND_BYTES, size - e.position)),)


def _missing(handle: FileHandle, begin: int, end: int) -> FileSlice | None:
    """These bytes of a file, if the page cache lacks some. What is wrong with it, who reads it finds out."""
    begin = max(begin, 0)
    if begin >= end:
        return None
    try:
        file = handle.get()
        return None if file.is_resident(end - begin, begin) else FileSlice(file, begin, end - begin)
    except DiskError:
        return None


def bring(slices: Sequence[FileSlice]) -> None:
    """Read them into the page cache. `DiskError`; blocks, and may run on any thread."""
    for one in slices:
        one.file.prefetch(one.size, one.position)
