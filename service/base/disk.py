"""The disk as a parameter: files and directories behind one port, and one error for whatever fails on them.

A node has one `SystemDisk`; the simulator brings a model of a disk that loses, tears, fails and fills up.
Everything below `node/node.py` reaches files through this port alone, so a call that fails is a `DiskError`
wherever it is caught. Safe from any thread.
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
"""There is no room: more of it may come."""


class DiskError(StorageError):
    """A file or directory could not be read, written, made, renamed or removed.

    ``errno`` is POSIX's, ``path`` what it was about.
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


def words_of(error: OSError) -> str:
    """What the system says of it, without the words that somebody put around that."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error.strerror)


def disk_error(doing: str, path: Path | str, error: OSError) -> DiskError:
    """`error` as the port raises it."""
    errno = error.errno or EIO
    kind = MissingFile if errno in (ENOENT, ENOTDIR) else DiskError
    return kind(doing, path, errno)


class Open(Enum):
    """How a file is opened."""

    READ = os.O_RDONLY
    """it must exist"""
    WRITE = os.O_RDWR
    """for reading and writing; it must exist"""
    CREATE = os.O_RDWR | os.O_CREAT
    """for reading and writing; made where it is missing"""
    ANEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    """for reading and writing, empty"""


class Space(NamedTuple):
    """Bytes of a file system: all of them, and those that this process may still fill."""

    total: int
    usable: int


class Entry(NamedTuple):
    """What a directory says of one of its names. Symbolic links are neither file nor directory."""

    name: str
    is_file: bool
    is_dir: bool
    size: int
    modified_ms: int


class Disk(Protocol):
    """Files by descriptors, directories by paths. Every method raises `DiskError`, and nothing else.

    But for `sendfile`, which raises what the socket says, too.
    """

    def open(self, path: Path, how: Open = Open.READ) -> int:
        """A descriptor. `MissingFile` where there is no file and `how` does not make one."""

    def close(self, fd: int) -> None:
        """Give the descriptor back; it is gone even where this raises."""

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Bytes from `position` on; fewer than `size` at the end of the file only."""

    def pread_now(self, fd: int, size: int, position: int) -> Buffer | None:
        """`size` bytes from `position` on; None where the device would have to be waited for, or the file
        ends. Where the system cannot tell, as `pread`."""

    def is_near(self, fd: int, size: int, position: int) -> bool:
        """Whether these bytes can be read without waiting for the device, as far as the system can tell."""

    def bring(self, fd: int, size: int, position: int) -> None:
        """Read these bytes into the page cache, as far as the file goes. From then on whoever reads from `fd`
        reads from the device what was asked for, and no more: what comes behind is brought as well."""

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        """Write all of `data`; where this raises any part of it may have been written."""

    def sendfile(self, fd: int, position: int, size: int, socket_fd: int) -> int:
        """Put at most `size` bytes from `position` on into a socket: how many, 0 at the end of the file only.

        `BlockingIOError` where the socket takes none now, `ConnectionError` or `TimeoutError` where the peer
        is gone.
        """

    def fsync(self, fd: int) -> None:
        """Return once the file is on the device. After an error nobody knows what is."""

    def fdatasync(self, fd: int) -> None:
        """As `fsync`, but for times and owners: content and size are on the device."""

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file, or fill it up with zeros, to `size` bytes."""

    def size(self, fd: int) -> int:
        """Bytes of the file."""

    def stat(self, path: Path) -> Entry:
        """What is at `path`, links not followed. `MissingFile` where nothing is."""

    def space(self, path: Path) -> Space:
        """How large the file system is that `path` lies in, and what is left of it."""

    def device(self, path: Path) -> int:
        """The file system that `path` lies in: two paths of one have the same."""

    def list(self, path: Path) -> list[Entry]:
        """What the directory holds, in the order of the names."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename, whatever bears the new name already. Durable after `fsync_dir`, as all names are."""

    def unlink(self, path: Path) -> None:
        """Remove a file. `MissingFile` where there is none."""

    def mkdir(self, path: Path) -> None:
        """Make one directory; it must not exist, its parent must."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""

    def fsync_dir(self, path: Path) -> None:
        """Make the directory's names durable: what was made, renamed or removed in it. `NotOpened` where it
        could not be asked for."""

    def lock(self, path: Path) -> int:
        """Make the file where it is missing and lock it for this process; `LockHeld` where another has it.

        The descriptor holds the lock: closing it gives the lock up.
        """


class SystemDisk:
    """The disk of this machine."""

    _locked: ClassVar[set[Path]] = set()
    """Locks are the process's, whichever object took them."""

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

    def pread_now(self, fd: int, size: int, position: int) -> Buffer | None:
        if _NOW is not None:
            data = bytearray(size)
            try:
                return data if os.preadv(fd, (data,), position, _NOW) == size else None
            except BlockingIOError:
                return None
            except OSError as e:
                if e.errno != EOPNOTSUPP:
                    raise self._error("reading", fd, e) from e
        found = self.pread(fd, size, position)
        return found if len(found) == size else None

    def is_near(self, fd: int, size: int, position: int) -> bool:
        is_near = is_cached(fd, size, position)
        if is_near is None:
            at = (*range(position, position + size, _STRIDE_BYTES), position + size - 1)
            is_near = all(self.pread_now(fd, 1, one) for one in at)
        return is_near

    def bring(self, fd: int, size: int, position: int) -> None:
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
        """One call gives at most 2 GiB, and less where a signal comes."""
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
        with self._saying("looking at", fd):
            return os.fstat(fd).st_size

    def stat(self, path: Path) -> Entry:
        with _saying("looking at", path):
            return _entry(path.name, os.lstat(path))

    def space(self, path: Path) -> Space:
        with _saying("looking at", path):
            found = os.statvfs(path)
        return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def device(self, path: Path) -> int:
        with _saying("looking at", path):
            return os.stat(path).st_dev

    def list(self, path: Path) -> list[Entry]:
        with _saying("listing", path), os.scandir(path) as entries:
            found = []
            for entry in entries:
                try:
                    found.append(_entry(entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue  # removed since
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
        if real in self._locked:  # the system's locks are a process's: it would give us ours again
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
"""macOS has none."""

_STRIDE_BYTES: Final = 64 << 10
"""The system mostly brings pages, and gives them up, in about such pieces."""
_BROUGHT_BYTES: Final = 256 << 10
_ADVISE: Final[Callable[[int, int, int, int], None] | None] = getattr(os, "posix_fadvise", None)
"""macOS has none."""

_NOW: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
"""Linux alone has it, and not on each file system."""

_KIND: Final = 0o170000
_FILE: Final = 0o100000
_DIRECTORY: Final = 0o040000
