"""Files that stay open while a reader holds them, and a cache that bounds the other open files.

A `SegmentFile` closes its descriptor when its last reference is dropped. A fetch response holds a
`FileSlice`, and so the file: its bytes can be sent even if the segment is deleted meanwhile. `FileCache`
holds the recently used files; an evicted one is closed as soon as no slice holds it, so thousands of sealed
segments cost no descriptors.

The loop owns both; `SegmentFile.fd` may be used from any thread.
"""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Final, NamedTuple

from service.base.disk import Disk, DiskError, Open
from service.base.errors import StorageError
from service.base.types import Buffer

_log = logging.getLogger(__name__)

DEFAULT_OPEN_FILES: Final = 256


class SegmentFile:
    """One file of a segment, opened for reading and writing at the first use of `fd`.

    Every method raises `DiskError`. ``kept``: index entries that were read last (`indexes`), dropped with the
    file.
    """

    __slots__ = ("__weakref__", "_fd", "_opened", "disk", "kept", "path")

    def __init__(self, disk: Disk, path: Path, *, fd: int = -1) -> None:
        self.disk = disk
        self.path = path
        self._fd = fd
        self._opened: list[int] = []
        self.kept: tuple[int, int, bytes] | None = None

    @property
    def fd(self) -> int:
        """The descriptor; `MissingFile` if the file was deleted before it was opened."""
        return self._fd if self._fd >= 0 else self._open()

    def fileno(self) -> int:
        return self.fd

    def _open(self) -> int:
        """Open the file; of several threads at once the first to append wins (`list.append` is atomic)."""
        fd = self.disk.open(self.path, Open.WRITE)
        self._opened.append(fd)
        self._fd = self._opened[0]
        if fd != self._fd:
            self.disk.close(fd)
        return self._fd

    def pread(self, size: int, position: int) -> bytes:
        """Read bytes from `position` on, fewer than `size` only at the end of the file."""
        return self.disk.pread(self.fd, size, position)

    def pread_nowait(self, size: int, position: int) -> Buffer | None:
        """See `Disk.pread_nowait`."""
        return self.disk.pread_nowait(self.fd, size, position)

    def fill_nowait(self, space: memoryview, position: int) -> bool:
        """See `Disk.fill_nowait`."""
        return self.disk.fill_nowait(self.fd, space, position)

    def is_resident(self, size: int, position: int) -> bool:
        """See `Disk.is_resident`."""
        return self.disk.is_resident(self.fd, size, position)

    def prefetch(self, size: int, position: int) -> None:
        """See `Disk.prefetch`."""
        self.disk.prefetch(self.fd, size, position)

    def read(self, position: int, size: int) -> bytes:
        """Read exactly `size` bytes; `StorageError` if the file ends before."""
        data = self.disk.pread(self.fd, size, position)
        if len(data) < size:
            raise StorageError(f"{self.path} ends at {position + len(data)}")
        return data

    def send_to(self, socket_fd: int, size: int, position: int) -> int:
        """See `Disk.sendfile`."""
        return self.disk.sendfile(self.fd, position, size, socket_fd)

    def pwrite(self, data: Buffer, position: int) -> None:
        self.disk.pwrite(self.fd, data, position)

    def truncate(self, size: int) -> None:
        self.disk.truncate(self.fd, size)

    def fsync(self) -> None:
        self.disk.fsync(self.fd)

    def close(self) -> None:
        """Close the descriptor now. Only for owners whose file no slice holds."""
        fd, self._fd = self._fd, -1
        self._opened.clear()
        if fd >= 0:
            self.disk.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            try:
                self.close()
            except DiskError as e:  # no caller is left; lost writes are reported by fsync
                # The message alone: a traceback would show whatever the garbage collector interrupted.
                _log.warning("%s", str(e))


class FileSlice(NamedTuple):
    """``size`` bytes of ``file`` from ``position``; keeps the file open. Ready for `os.sendfile`."""

    file: SegmentFile
    position: int
    size: int

    def fileno(self) -> int:
        return self.file.fd

    def read(self) -> bytes:
        """Read the bytes; `StorageError` if the file ends before."""
        return self.file.read(self.position, self.size)


class FileCache:
    """Holds the `capacity` files used last; may be shared by all logs of a node.

    Safe from any thread without a lock: each operation on the dictionary is atomic, in any order.
    """

    def __init__(self, disk: Disk, capacity: int = DEFAULT_OPEN_FILES) -> None:
        self.disk = disk
        self._capacity = max(capacity, 1)
        self._files: OrderedDict[SegmentFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def keep(self, file: SegmentFile) -> None:
        """Note a use of `file`; may evict the least recently used one, which is closed unless a slice holds
        it.
        """
        try:
            self._files.move_to_end(file)
        except KeyError:
            self._files[file] = None
            if len(self._files) > self._capacity:
                self._files.popitem(last=False)

    def forget(self, file: SegmentFile) -> None:
        self._files.pop(file, None)


class FileHandle:
    """One file of a segment: its path, and the open file, reopened if the cache has evicted it.

    ``size``: valid bytes, kept by the owner; bytes behind them are never read.
    """

    __slots__ = ("_cache", "_file", "_pinned", "_retired", "path", "size")

    def __init__(self, path: Path, size: int, cache: FileCache) -> None:
        self.path = path
        self.size = size
        self._cache = cache
        self._file: weakref.ref[SegmentFile] | None = None
        self._pinned: SegmentFile | None = None
        self._retired = False

    @property
    def disk(self) -> Disk:
        return self._cache.disk

    def get(self) -> SegmentFile:
        """Return the file, and keep it in the cache."""
        pinned = self._pinned
        if pinned is not None:
            return pinned
        file = (self._file() if self._file is not None else None) or self.peek()
        self._cache.keep(file)
        if self._retired:  # as in `_keep`
            self._cache.forget(file)
        return file

    def _keep(self, file: SegmentFile) -> None:
        self._cache.keep(file)
        if self._retired:  # checked last: `retire` on another thread sets it first, and then forgets
            self._cache.forget(file)

    def peek(self) -> SegmentFile:
        """Return the file as `get` does, without keeping it in the cache."""
        pinned = self._pinned
        if pinned is not None:
            return pinned
        file = self._file() if self._file is not None else None
        if file is None:
            file = SegmentFile(self._cache.disk, self.path)
            self._file = weakref.ref(file)
        return file

    def create(self) -> SegmentFile:
        """Create the file, empty and open; replaces an existing one."""
        self.drop()
        disk = self._cache.disk
        fd = disk.open(self.path, Open.TRUNCATE)
        self.size = 0
        file = SegmentFile(disk, self.path, fd=fd)
        self._file = weakref.ref(file)
        self._cache.keep(file)
        return file

    def pin(self) -> SegmentFile:
        """Open the file, and keep it open until `unpin`, outside the cache."""
        file = self.peek()
        _ = file.fd
        self._pinned = file
        self._cache.forget(file)
        return file

    def unpin(self) -> None:
        """Leave the open file to the cache. Safe from any thread."""
        file, self._pinned = self._pinned, None
        if file is not None:
            self._keep(file)

    def rename(self, path: Path) -> None:
        """Rename the file; readers keep it open."""
        if path != self.path:
            self._cache.disk.rename(self.path, path)
            self.moved(path)

    def moved(self, path: Path) -> None:
        """Note that the file, or its directory, was renamed."""
        self.path = path
        file = self._file() if self._file is not None else None
        if file is not None:
            file.path = path

    def drop(self) -> None:
        """Drop the file; it is closed with its last slice."""
        file = self._file() if self._file is not None else None
        if file is not None:
            self._cache.forget(file)
        self._pinned = self._file = None

    def retire(self) -> None:
        """Drop the file for good: a later reader opens it only for its own read."""
        self._retired = True
        self.drop()
