"""The disk of one process (`service.base.disk.Disk`) on a `Platter`: descriptors, locks, faults, and time."""

from __future__ import annotations

from collections.abc import Callable
from errno import EACCES, EAGAIN, EBADF, EIO, EMFILE, ENOSPC, ENOTSOCK
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

from service.base.disk import DiskError, Entry, LockHeld, Open, Space, disk_error
from service.base.types import Buffer
from simulator.power_loss import Directory, File, Platter
from simulator.process import Life, Process
from simulator.threads import SimThreads
from simulator.trace import Trace

_CALL_S: Final = 0.0004
_FSYNC_S: Final = 0.008


_TOTAL: Final = 1 << 38
HALF: Final = 0.5
_FAR_EVERY: Final = 5
"""One read in so many finds that the page cache has given up what it wants."""


class DiskFaults(Protocol):
    """Chooses the calls that fail. Called once for each call, in their order."""

    def fail(self, call: str, path: Path) -> int | None:
        """Return the errno with which this call fails, None if it does not."""

    def slow_s(self, call: str, path: Path) -> float:
        """Return the seconds that this call takes beyond the usual."""

    def part(self, size: int) -> int:
        """Return how many bytes of a failed write were written."""

    def drops_dirty(self) -> bool:
        """Return whether the fsync that fails now drops the dirty data."""

    def left(self) -> float:
        """Return the share of the disk that statvfs reports as free."""


class NoFaults:
    """A disk that never fails."""

    def fail(self, call: str, path: Path) -> int | None:
        return None

    def slow_s(self, call: str, path: Path) -> float:
        return 0.0

    def part(self, size: int) -> int:
        return 0

    def drops_dirty(self) -> bool:
        return False

    def left(self) -> float:
        return HALF


class SimDisk:
    """A process's disk. Calls on the loop take no time; those on threads take some, and others come
    between."""

    def __init__(
        self,
        platter: Platter,
        process: Process,
        threads: SimThreads,
        faults: DiskFaults,
        trace: Trace,
        now_ms: Callable[[], int],
        *,
        most_descriptors: int = 1 << 30,
    ) -> None:
        self.platter = platter
        self._process = process
        self._threads = threads
        self._faults = faults
        self._trace = trace
        self._now_ms = now_ms
        self._most_descriptors = most_descriptors
        self._open: dict[int, tuple[Path, File]] = {}
        self._held: dict[int, Path] = {}
        self._next_fd = 100_000  # nothing of the system's: a hidden real call fails with EBADF
        self.calls = 0
        process.at_death.append(self._died)

    @property
    def descriptors(self) -> int:
        return len(self._open)

    # Files

    def open(self, path: Path, how: Open = Open.READ) -> int:
        with self._call("open", "opening", path):
            if len(self._open) >= self._most_descriptors:
                raise OSError(EMFILE, "")
            if how in (Open.CREATE, Open.TRUNCATE):
                file = self.platter.create(path)
                if how is Open.TRUNCATE and file.data:
                    file.truncate(0)
            else:
                file = self.platter.file(path)
            return self._descriptor(path, file)

    def close(self, fd: int) -> None:
        if self._process.life is Life.DEAD:
            return  # of what the collector finds
        path, _ = self._file(fd, "closing")
        del self._open[fd]
        held = self._held.pop(fd, None)
        if held is not None:
            self.platter.locks.pop(held, None)
        with self._call("close", "closing", path):
            pass

    def pread(self, fd: int, size: int, position: int) -> bytes:
        path, file = self._file(fd, "reading")
        with self._call("pread", "reading", path):
            return bytes(file.data[position : position + size])

    def pread_nowait(self, fd: int, size: int, position: int) -> bytes | None:
        data = self.pread(fd, size, position)
        is_resident = self.calls % _FAR_EVERY != 0
        return data if len(data) == size and is_resident else None

    def fill_nowait(self, fd: int, space: memoryview, position: int) -> bool:
        data = self.pread_nowait(fd, len(space), position)
        if data is not None:
            space[:] = data
        return data is not None

    def is_resident(self, fd: int, size: int, position: int) -> bool:
        return self.pread_nowait(fd, size, position) is not None

    def prefetch(self, fd: int, size: int, position: int) -> None:
        self.pread(fd, size, position)

    def sendfile(self, fd: int, position: int, size: int, socket_fd: int) -> int:
        """Raise ENOTSOCK: the simulator has no socket descriptors."""
        path, _ = self._file(fd, "sending")
        raise DiskError("sending", path, ENOTSOCK)

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        path, file = self._file(fd, "writing")
        content = bytes(data)
        try:
            with self._call("pwrite", "writing", path):
                file.write(position, content)
                file.modified_ms = self._now_ms()
        except Exception:
            part = self._faults.part(len(content))
            if part:
                file.write(position, content[:part])
            raise

    def fsync(self, fd: int) -> None:
        path, file = self._file(fd, "flushing")
        self._take(self._faults.slow_s("fsync", path))
        before = len(file.pending)  # what is written while it flushes is not flushed
        self._threads.spend_up_to(_FSYNC_S)
        try:
            with self._call("fsync", "flushing", path):
                later = file.pending[before:]
                del file.pending[before:]
                file.fsync()
                file.pending.extend(later)
        except Exception:
            if self._faults.drops_dirty():
                file.drop_dirty()
            raise

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        path, file = self._file(fd, "truncating")
        with self._call("truncate", "truncating", path):
            file.truncate(size)
            file.modified_ms = self._now_ms()

    def size(self, fd: int) -> int:
        path, file = self._file(fd, "inspecting")
        with self._call("size", "inspecting", path):
            return len(file.data)

    # Names

    def stat(self, path: Path) -> Entry:
        with self._call("stat", "inspecting", path):
            return _entry(path.name, self.platter.find(path))

    def space(self, path: Path) -> Space:
        with self._call("stat", "inspecting", path):
            self.platter.find(path)
            return Space(_TOTAL, int(_TOTAL * self._faults.left()))

    def device(self, path: Path) -> int:
        with self._call("stat", "inspecting", path):
            self.platter.find(path)
            return 1

    def list(self, path: Path) -> list[Entry]:
        with self._call("list", "listing", path):
            names = self.platter.directory(path).names
            return [_entry(name, names[name]) for name in sorted(names)]

    def rename(self, source: Path, target: Path) -> None:
        with self._call("rename", "renaming", source):
            self.platter.rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._call("unlink", "removing", path):
            self.platter.unlink(path)

    def mkdir(self, path: Path) -> None:
        with self._call("mkdir", "making", path):
            self.platter.mkdir(path)

    def rmdir(self, path: Path) -> None:
        with self._call("rmdir", "removing", path):
            self.platter.rmdir(path)

    def fsync_dir(self, path: Path) -> None:
        self._threads.spend_up_to(_FSYNC_S)
        with self._call("fsync_dir", "flushing", path):
            self.platter.directory(path).fsync()

    def lock(self, path: Path) -> int:
        with self._call("lock", "locking", path):
            if path in self.platter.locks:
                raise LockHeld("locking", path, EAGAIN)
            fd = self._descriptor(path, self.platter.create(path))
            self.platter.locks[path] = self._process
            self._held[fd] = path
            return fd

    # All calls

    def _descriptor(self, path: Path, file: File) -> int:
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = path, file
        return fd

    def _file(self, fd: int, doing: str) -> tuple[Path, File]:
        try:
            return self._open[fd]
        except KeyError:
            raise disk_error(doing, f"descriptor {fd}", OSError(EBADF, "")) from None

    def _call(self, call: str, doing: str, path: Path) -> _Errors:
        """Begin a call; the context that is returned makes errors of it those of a disk."""
        self._threads.spend_up_to(_CALL_S)
        self.calls += 1
        self._trace.note(self._process.name, f"{call} {path}")
        if self._process.life is Life.DEAD:
            raise disk_error(doing, path, OSError(EBADF, ""))
        errno = self._faults.fail(call, path)
        if errno is not None:
            raise disk_error(doing, path, OSError(errno, ""))
        return _Errors(doing, path)

    def _take(self, seconds: float) -> None:
        if seconds > 0:
            self._threads.spend(seconds)

    def _died(self) -> None:
        """Release the locks of the dead process, as the system does."""
        for path in self._held.values():
            self.platter.locks.pop(path, None)


class _Errors:
    """Context in which an `OSError` becomes a `DiskError` of what was done, and to which path."""

    __slots__ = ("_doing", "_path")

    def __init__(self, doing: str, path: Path) -> None:
        self._doing, self._path = doing, path

    def __enter__(self) -> None:
        """Do nothing: the call has begun."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise disk_error(self._doing, self._path, error) from error


def _entry(name: str, node: File | Directory) -> Entry:
    is_file = isinstance(node, File)
    size = len(node.data) if isinstance(node, File) else 0
    return Entry(name, is_file, not is_file, size, node.modified_ms)


ERRNOS: Final = {
    "open": (EMFILE, ENOSPC, ENOTSOCK, EIO),
    "close": (EIO,),
    "pread": (EIO,),
    "pwrite": (EIO, ENOSPC),
    "fsync": (EIO, ENOSPC),
    "truncate": (EIO, ENOSPC),
    "size": (EIO,),
    "stat": (EIO, EACCES),
    "list": (EIO, EMFILE),
    "rename": (EIO, ENOSPC),
    "unlink": (EIO, EACCES),
    "mkdir": (EIO, ENOSPC),
    "rmdir": (EIO,),
    "fsync_dir": (EIO,),
    "lock": (EIO, EMFILE),
}
