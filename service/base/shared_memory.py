"""Memory that survives a process, but not a reboot: files in tmpfs.

One process at a time owns a block. The next owner finds its content, however the last one ended. Linux only;
in a container it lives as long as the container's ``/dev/shm``.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
from collections.abc import MutableSequence
from pathlib import Path
from typing import Final, Protocol

_FOLDER: Final = Path("/dev/shm")
_WORD_BYTES: Final = 8


class SharedBlock(Protocol):
    """Block of signed 64-bit words. A word is written whole or not at all."""

    @property
    def words(self) -> MutableSequence[int]:
        """All words; invalid after `grow`."""

    def grow(self, count: int) -> None:
        """Resize to `count` words, new ones 0. `OSError` without memory; the block is then unchanged."""

    def remove(self) -> None:
        """Remove the block for good. `close` must still be called."""

    def close(self) -> None:
        """Release the block to other processes."""


class SharedMemory(Protocol):
    def open(self, name: str) -> SharedBlock | None:
        """Return the block of that name, empty if it is new; None if another process owns it, or the system
        has no such memory."""


class SystemSharedMemory:
    """Shared memory in ``/dev/shm``, in files that only this user can open."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._folder = folder

    def open(self, name: str) -> SharedBlock | None:
        path = self._folder / name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(fd)
            # Another process may have removed the file between open and flock.
            is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
            if not is_ours or not os.path.samestat(found, os.lstat(path)):
                raise PermissionError(path)
            return _File(path, fd, found.st_size)
        except (OSError, ValueError):
            os.close(fd)
            return None


class _File:
    """A locked file, mapped unless it is empty."""

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self._path = path
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._words = memoryview(bytearray()).cast("q")
        self._map_words(size // _WORD_BYTES)

    @property
    def words(self) -> MutableSequence[int]:
        return self._words  # type: ignore[return-value]

    def grow(self, count: int) -> None:
        size = count * _WORD_BYTES
        # A write to an unallocated page kills the process (SIGBUS) once the memory is used up.
        os.posix_fallocate(self._fd, 0, size)
        self._map_words(count)

    def _map_words(self, count: int) -> None:
        self._unmap()
        if count:
            self._map = mmap.mmap(self._fd, count * _WORD_BYTES)
            self._words = memoryview(self._map).cast("q")

    def _unmap(self) -> None:
        self._words.release()
        self._words = memoryview(bytearray()).cast("q")
        if self._map is not None:
            self._map.close()
            self._map = None

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        self._unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
