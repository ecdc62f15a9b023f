"""A disk that fails on demand: a wrapper over the real one, for scenarios of one call that goes wrong.

>>> # disk = FaultDisk(); disk.fail("fsync", ENOSPC); disk.fail("rename", EIO, after=3, path=".log")
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from service.base.disk import Disk, DiskError, Entry, Open, Space, SystemDisk, disk_error
from service.base.types import Buffer

T = TypeVar("T")

CALLS = (
    "open", "close", "pread", "pwrite", "fsync", "truncate", "size", "stat", "space", "list",
    "rename", "unlink", "mkdir", "rmdir", "fsync_dir", "lock",
)  # fmt: skip


@dataclass(slots=True)
class Fault:
    """One rule. `seen`: matching calls so far; `hits`: those that failed."""

    call: str
    errno: int
    after: int
    times: int | None
    path: str
    torn: float | None
    only: Callable[[Path], bool] | None
    seen: int = 0
    hits: int = 0

    def strikes(self, call: str, path: Path) -> bool:
        if self.call not in (call, "*") or self.path not in str(path):
            return False
        if self.only is not None and not self.only(path):
            return False
        self.seen += 1
        if self.seen <= self.after or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True


class FaultDisk:
    """A `Disk` over another one. ``calls``: how often each method was called, failed ones included.

    Without `flushes` an fsync that does not fail does nothing: no machine ends in a test.
    """

    def __init__(self, disk: Disk | None = None, *, flushes: bool = False) -> None:
        self.disk = disk or SystemDisk()
        self._flushes = flushes
        self.calls: Counter[str] = Counter()
        self.bytes_read = 0
        self.faults: list[Fault] = []
        self.log: list[tuple[str, Path]] = []
        """every call and what it was about, in order"""
        self._paths: dict[int, Path] = {}

    def fail(
        self,
        call: str,
        code: int = errno.EIO,
        *,
        after: int = 0,
        times: int | None = None,
        path: str = "",
        torn: float | None = None,
        only: Callable[[Path], bool] | None = None,
    ) -> Fault:
        """Have `call` ("*": any) fail with `code` from the one after the next `after` matching ones on.

        `times`: how often, None for ever. `path`: what the path must contain; `only`: what else it must be.
        `torn`: which share of a `pwrite` is written before it fails.
        """
        fault = Fault(call, code, after, times, path, torn, only)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """No more faults."""
        self.faults.clear()

    def _strike(self, call: str, path: Path) -> Fault | None:
        self.calls[call] += 1
        self.log.append((call, path))
        return next((fault for fault in self.faults if fault.strikes(call, path)), None)

    def _do(self, call: str, path: Path, work: Callable[[], T]) -> T:
        fault = self._strike(call, path)
        if fault is not None:
            raise _error(call, path, fault)
        return work()

    def _path(self, fd: int) -> Path:
        return self._paths.get(fd, Path(f"descriptor {fd}"))

    def open(self, path: Path, how: Open = Open.READ) -> int:
        fd = self._do("open", path, lambda: self.disk.open(path, how))
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        path = self._path(fd)
        fault = self._strike("close", path)
        self._paths.pop(fd, None)
        self.disk.close(fd)  # it is gone even where this raises
        if fault is not None:
            raise _error("close", path, fault)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        data = self._do("pread", self._path(fd), lambda: self.disk.pread(fd, size, position))
        self.bytes_read += len(data)
        return data

    def pread_nowait(self, fd: int, size: int, position: int) -> Buffer | None:
        data = self._do("pread", self._path(fd), lambda: self.disk.pread_nowait(fd, size, position))
        self.bytes_read += len(data or b"")
        return data

    def fill_nowait(self, fd: int, space: memoryview, position: int) -> bool:
        is_read = self._do("pread", self._path(fd), lambda: self.disk.fill_nowait(fd, space, position))
        self.bytes_read += len(space) if is_read else 0
        return is_read

    def is_resident(self, fd: int, size: int, position: int) -> bool:
        return self._do("pread", self._path(fd), lambda: self.disk.is_resident(fd, size, position))

    def prefetch(self, fd: int, size: int, position: int) -> None:
        self._do("pread", self._path(fd), lambda: self.disk.prefetch(fd, size, position))

    def sendfile(self, fd: int, position: int, size: int, socket_fd: int) -> int:
        path = self._path(fd)
        return self._do("sendfile", path, lambda: self.disk.sendfile(fd, position, size, socket_fd))

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        path = self._path(fd)
        fault = self._strike("pwrite", path)
        if fault is None:
            self.disk.pwrite(fd, data, position)
            return
        if fault.torn is not None:
            self.disk.pwrite(fd, memoryview(data)[: int(len(data) * fault.torn)], position)
        raise _error("pwrite", path, fault)

    def fsync(self, fd: int) -> None:
        self._do("fsync", self._path(fd), lambda: self.disk.fsync(fd) if self._flushes else None)

    def fdatasync(self, fd: int) -> None:
        """A rule for `fsync` is one for this, too."""
        self.fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self._do("truncate", self._path(fd), lambda: self.disk.truncate(fd, size))

    def size(self, fd: int) -> int:
        return self._do("size", self._path(fd), lambda: self.disk.size(fd))

    def stat(self, path: Path) -> Entry:
        return self._do("stat", path, lambda: self.disk.stat(path))

    def device(self, path: Path) -> int:
        return self._do("device", path, lambda: self.disk.device(path))

    def space(self, path: Path) -> Space:
        return self._do("space", path, lambda: self.disk.space(path))

    def list(self, path: Path) -> list[Entry]:
        return self._do("list", path, lambda: self.disk.list(path))

    def rename(self, source: Path, target: Path) -> None:
        self._do("rename", source, lambda: self.disk.rename(source, target))

    def unlink(self, path: Path) -> None:
        self._do("unlink", path, lambda: self.disk.unlink(path))

    def mkdir(self, path: Path) -> None:
        self._do("mkdir", path, lambda: self.disk.mkdir(path))

    def rmdir(self, path: Path) -> None:
        self._do("rmdir", path, lambda: self.disk.rmdir(path))

    def fsync_dir(self, path: Path) -> None:
        self._do("fsync_dir", path, lambda: self.disk.fsync_dir(path) if self._flushes else None)

    def lock(self, path: Path) -> int:
        fd = self._do("lock", path, lambda: self.disk.lock(path))
        self._paths[fd] = path
        return fd


def _error(call: str, path: Path, fault: Fault) -> DiskError:
    return disk_error(call, path, OSError(fault.errno, "planned"))


class OneFsyncFails(FaultDisk):
    """The fsync of this number fails (0: none), and no other."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self._number = number
        self.asked: list[str] = []
        """of each fsync: the file or directory, from the log directory on"""

    def _strike(self, call: str, path: Path) -> Fault | None:
        fault = super()._strike(call, path)
        if call not in ("fsync", "fsync_dir"):
            return fault
        self.asked.append(f"{path.parent.name}/{path.name}")
        if len(self.asked) != self._number:
            return fault
        return Fault(call, errno.EIO, 0, 1, "", None, None)
