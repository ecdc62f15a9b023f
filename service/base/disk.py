"""The disk as a parameter: one port for files and directories, one error for every failed call.

A node has one `SystemDisk`. The simulator has a model of a disk that loses, tears and fails writes and fills
up. Code below `node/node.py` reaches files through this port alone, so each failed call raises `DiskError`.
Safe from any thread.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from errno import EACCES, EAGAIN, EDQUOT, EIO, ENOENT, ENOSPC, ENOTDIR, EOPNOTSUPP
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Protocol

from service.base.errors import StorageError
from service.base.page_cache import is_cached
from service.base.types import Buffer

FULL: Final = (ENOSPC, EDQUOT)
"""Error numbers that mean "no space"; space may be freed later."""


class DiskError(StorageError):
    """Failed call on a file or directory.

    ``errno`` is POSIX's; ``path`` names the file or directory.
    """

    def __init__(self, doing: str, path: Path | str, errno: int) -> None:
        super().__init__(f"{doing} {path}: {os.strerror(errno)}")
        self.doing = doing
        self.path = Path(path)
        self.errno = errno


class MissingFile(DiskError):
    """There is no such file or directory."""


class NotOpened(DiskError):
    """A directory could not be opened to be flushed: nothing is lost by that, it may be tried again."""


class LockHeld(DiskError):
    """Another process, or this one, holds the lock."""


def os_error_text(error: OSError) -> str:
    """Return the operating system's text for `error`, without the text that Python's caller added."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error.strerror)


def disk_error(doing: str, path: Path | str, error: OSError) -> DiskError:
    """Return `error` as a `DiskError`, or as a `MissingFile` for ENOENT and ENOTDIR."""
    errno = error.errno or EIO
    kind = MissingFile if errno in (ENOENT, ENOTDIR) else DiskError
    return kind(doing, path, errno)


class Open(Enum):
    """Mode in which `Disk.open` opens a file."""

    READ = os.O_RDONLY
    """read only; the file must exist"""
    WRITE = os.O_RDWR
    """read and write; the file must exist"""
    CREATE = os.O_RDWR | os.O_CREAT
    """read and write; the file is created if it is missing"""
    TRUNCATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    """read and write; the file is created, or emptied"""


class Space(NamedTuple):
    """Bytes of a file system: its size, and the bytes that this process may still allocate."""

    total: int
    usable: int


class Entry(NamedTuple):
    """One entry of a directory. A symbolic link is neither file nor directory."""

    name: str
    is_file: bool
    is_dir: bool
    size: int
    modified_ms: int


class Disk(Protocol):
    """Port to files by descriptor and directories by path. Every method raises `DiskError` and nothing else,
    except `sendfile`, which also raises the socket's errors.
    """

    def open(self, path: Path, how: Open = Open.READ) -> int:
        """Return a descriptor. `MissingFile` if there is no file and `how` does not create one."""

    def close(self, fd: int) -> None:
        """Close the descriptor. It is closed even if this raises."""

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read `size` bytes from `position`; fewer at the end of the file only."""

    def pread_nowait(self, fd: int, size: int, position: int) -> Buffer | None:
        """Read `size` bytes from `position`, or return None if the read would wait for the device or the file
        ends first. Systems without RWF_NOWAIT read as `pread` does."""

    def fill_nowait(self, fd: int, space: memoryview, position: int) -> bool:
        """Fill `space` from `position` as `pread_nowait` reads; return False where that returns None."""

    def is_resident(self, fd: int, size: int, position: int) -> bool:
        """Return whether these bytes can be read without waiting for the device, as far as known."""

    def prefetch(self, fd: int, size: int, position: int) -> None:
        """Read these bytes, up to the end of the file, into the page cache, and switch the kernel's readahead
        off for `fd`: later reads fetch what they ask for and no more. Callers prefetch what follows."""

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        """Write all of `data`. If this raises, any part of it may have been written."""

    def sendfile(self, fd: int, position: int, size: int, socket_fd: int) -> int:
        """Send at most `size` bytes from `position` to a socket; return the count, 0 at the end of file only.

        Raises `BlockingIOError` while the socket's buffer is full, and `ConnectionError` or `TimeoutError`
        if the peer is gone.
        """

    def fsync(self, fd: int) -> None:
        """Return once the file is on the device. After an error the durable content is unknown."""

    def fdatasync(self, fd: int) -> None:
        """Return once the file's content and size, but not its times or owner, are on the device."""

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file, or extend it with zeros, to `size` bytes."""

    def size(self, fd: int) -> int:
        """Return the file's size in bytes."""

    def stat(self, path: Path) -> Entry:
        """Return the entry at `path` without following links. `MissingFile` if there is none."""

    def space(self, path: Path) -> Space:
        """Return the total and usable bytes of the file system of `path`."""

    def device(self, path: Path) -> int:
        """Return the device number of the file system of `path`; equal for paths of one file system."""

    def list(self, path: Path) -> list[Entry]:
        """Return the directory's entries, sorted by name."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source`, replacing `target` if it exists. Durable after `fsync_dir`, as are all names."""

    def unlink(self, path: Path) -> None:
        """Remove a file. `MissingFile` if there is none."""

    def mkdir(self, path: Path) -> None:
        """Create one directory; it must not exist, its parent must."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""

    def fsync_dir(self, path: Path) -> None:
        """Make the directory's names durable: what was made, renamed or removed in it. `NotOpened` where it
        could not be asked for."""

    def lock(self, path: Path) -> int:
        """Create the file if it is missing and lock it for this process; `LockHeld` if it is locked already.

        Closing the returned descriptor releases the lock.
        """


class SystemDisk:
    """The disk of this machine."""

    _locked: ClassVar[set[Path]] = set()
    """Paths that this process has locked, through any object of this class."""

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}  # for messages

    def open(self, path: Path, how: Open = Open.READ) -> int:
        try:
            fd = os.open(path, how.value | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise disk_error("opening", path, e) from e
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        path = self._paths.pop(fd, None)
        if path is not None:
            self._locked.discard(path)
        try:
            os.close(fd)
        except OSError as e:
            raise disk_error("closing", path or f"descriptor {fd}", e) from e

    def pread(self, fd: int, size: int, position: int) -> bytes:
        try:
            data = os.pread(fd, size, position)
            if len(data) < size:
                data = self._read_rest(fd, size, position, data)
            return data
        except OSError as e:
            raise self._error("reading", fd, e) from e

    def pread_nowait(self, fd: int, size: int, position: int) -> Buffer | None:
        data = bytearray(size)
        return data if self.fill_nowait(fd, memoryview(data), position) else None

    def fill_nowait(self, fd: int, space: memoryview, position: int) -> bool:
        if _NOW is not None:
            try:
                return os.preadv(fd, (space,), position, _NOW) == len(space)
            except BlockingIOError:
                return False
            except OSError as e:
                if e.errno != EOPNOTSUPP:
                    raise self._error("reading", fd, e) from e
        found = self.pread(fd, len(space), position)
        if len(found) < len(space):
            return False
        space[:] = found
        return True

    def is_resident(self, fd: int, size: int, position: int) -> bool:
        is_resident = is_cached(fd, size, position)
        if is_resident is None:
            at = (*range(position, position + size, _STRIDE_BYTES), position + size - 1)
            is_resident = all(self.pread_nowait(fd, 1, one) for one in at)
        return is_resident

    def prefetch(self, fd: int, size: int, position: int) -> None:
        if _ADVISE is not None:
            with self._saying("reading", fd):
                _ADVISE(fd, 0, 0, os.POSIX_FADV_RANDOM)
        end = position + size
        while position < end:
            found = len(self.pread(fd, min(end - position, _BROUGHT_BYTES), position))
            if not found:
                break
            position += found

    @staticmethod
    def _read_rest(fd: int, size: int, position: int, data: bytes) -> bytes:
        """Read what the first call left: one call returns at most 2 GiB, and less after a signal."""
        while len(data) < size:
            more = os.pread(fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        try:
            written = os.pwrite(fd, data, position)
            if written != len(data):
                self._write_rest(fd, data, position, written)
        except OSError as e:
            raise self._error("writing", fd, e) from e

    @staticmethod
    def _write_rest(fd: int, data: Buffer, position: int, written: int) -> None:
        view = memoryview(data)
        while written < len(view):
            count = os.pwrite(fd, view[written:], position + written)
            if not count:
                raise OSError(EIO, "nothing was written")
            written += count

    def sendfile(self, fd: int, position: int, size: int, socket_fd: int) -> int:
        try:
            return os.sendfile(socket_fd, fd, position, size)
        except (BlockingIOError, ConnectionError, TimeoutError):
            raise
        except OSError as e:
            raise self._error("sending", fd, e) from e

    def fsync(self, fd: int) -> None:
        with self._saying("flushing", fd):
            os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        with self._saying("flushing", fd):
            _sync_data(fd)

    def truncate(self, fd: int, size: int) -> None:
        with self._saying("truncating", fd):
            os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        with self._saying("inspecting", fd):
            return os.fstat(fd).st_size

    def stat(self, path: Path) -> Entry:
        with _saying("inspecting", path):
            return _entry(path.name, os.lstat(path))

    def space(self, path: Path) -> Space:
        with _saying("inspecting", path):
            found = os.statvfs(path)
        return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def device(self, path: Path) -> int:
        with _saying("inspecting", path):
            return os.stat(path).st_dev

    def list(self, path: Path) -> list[Entry]:
        with _saying("listing", path), os.scandir(path) as entries:
            found = []
            for entry in entries:
                try:
                    found.append(_entry(entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue  # removed after scandir returned it
            return sorted(found)

    def rename(self, source: Path, target: Path) -> None:
        with _saying("renaming", source):
            os.replace(source, target)

    def unlink(self, path: Path) -> None:
        with _saying("removing", path):
            os.unlink(path)

    def mkdir(self, path: Path) -> None:
        with _saying("making", path):
            os.mkdir(path)

    def rmdir(self, path: Path) -> None:
        with _saying("removing", path):
            os.rmdir(path)

    def fsync_dir(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as e:
            error = disk_error("opening", path, e)
            if isinstance(error, MissingFile):
                raise error from e
            raise NotOpened(error.doing, path, error.errno) from e
        with _saying("flushing", path):
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def lock(self, path: Path) -> int:
        with _saying("locking", path):
            real = path.resolve()
        if real in self._locked:  # POSIX locks belong to a process: lockf would succeed again
            raise LockHeld("locking", path, EAGAIN)
        fd = self.open(path, Open.CREATE)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            self.close(fd)
            held = e.errno in (EACCES, EAGAIN)
            raise (LockHeld if held else DiskError)("locking", path, e.errno or EIO) from e
        self._paths[fd] = real
        self._locked.add(real)
        return fd

    def _error(self, doing: str, fd: int, error: OSError) -> DiskError:
        return disk_error(doing, self._paths.get(fd, f"descriptor {fd}"), error)

    @contextmanager
    def _saying(self, doing: str, fd: int) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise self._error(doing, fd, e) from e


@contextmanager
def _saying(doing: str, path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise disk_error(doing, path, e) from e


def _entry(name: str, found: os.stat_result) -> Entry:
    kind = found.st_mode & _KIND
    return Entry(name, kind == _FILE, kind == _DIRECTORY, found.st_size, found.st_mtime_ns // 1_000_000)


_sync_data: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)
"""fsync on macOS, which has no fdatasync."""

_STRIDE_BYTES: Final = 64 << 10
"""Distance between the bytes that `is_resident` probes: about the kernel's unit of readahead."""
_BROUGHT_BYTES: Final = 256 << 10
_ADVISE: Final[Callable[[int, int, int, int], None] | None] = getattr(os, "posix_fadvise", None)
"""None on macOS."""

_NOW: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
"""Linux only, and not supported by every file system."""

_KIND: Final = 0o170000
_FILE: Final = 0o100000
_DIRECTORY: Final = 0o040000
