"""What a look for an offset would read from the device: it is brought before, by a thread.

A reader that is far behind begins where nobody has read for long. The index says where that is; neither its
pages nor the headers that it leads to may be in the page cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.base.disk import DiskError
from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.hot.files import FileHandle, FileSlice, SegmentFile
from service.hot.segment import Segment
from service.records.walk import find_offset

_AROUND_BYTES: Final = 1 << 16
MOST_STEPS: Final = 3
"""Until all is here: the index, the header that it leads to, and the one behind a large batch."""


class _NotHere(Exception):
    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position


def far(segment: Segment, offset: int) -> Sequence[FileSlice]:
    """What `Segment.find` would have to wait for next. Asked again, what comes after that. What is wrong with
    the files `find` meets, too, and says."""
    index, size = segment.offset_index, segment.size
    looked = [_missing(index.handle, 0, index.size)]
    if not segment.is_checked:
        times = segment.time_index
        looked += _missing(times.handle, 0, times.size), _missing(segment.log, size - _AROUND_BYTES, size)
    found = [one for one in looked if one is not None]
    if not found and (header := _missing_header(segment, offset)) is not None:
        found.append(header)
    return found


def _missing(handle: FileHandle, begin: int, end: int) -> FileSlice | None:
    """These bytes of a file, if the page cache lacks some."""
    begin = max(begin, 0)
    if begin >= end:
        return None
    try:
        file = handle.get()
        return None if file.is_near(end - begin, begin) else FileSlice(file, begin, end - begin)
    except DiskError:
        return None


def _missing_header(segment: Segment, offset: int) -> FileSlice | None:
    try:
        position, _ = segment.offset_index.lookup(offset)
        file, size = segment.log.get(), segment.size
        find_offset(lambda count, at: _here(file, count, at), offset, position, size)
    except _NotHere as e:
        return FileSlice(file, e.position, min(_AROUND_BYTES, size - e.position))
    except (CorruptionError, DiskError):
        pass
    return None


def _here(file: SegmentFile, size: int, position: int) -> Buffer:
    data = file.pread_now(size, position)
    if data is None:
        raise _NotHere(position)
    return data


def bring(slices: Sequence[FileSlice]) -> None:
    """Read them into the page cache. `DiskError`; blocks, and may run on any thread."""
    for one in slices:
        one.file.bring(one.size, one.position)
