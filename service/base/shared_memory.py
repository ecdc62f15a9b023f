"""Memory that outlives a process and not the machine's run: tmpfs, where the system has one.

A block belongs to one process at a time. What was written to it is there for the next one, however this one
ended. Linux only; in a container it lives as long as the container's ``/dev/shm`` does.
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


class Block(Protocol):
    """Signed 64-bit words. A word is written whole or not at all."""

    @property
    def words(self) -> MutableSequence[int]:
        """All of them; ask again after `grow`."""

    def grow(self, count: int) -> None:
        """Have `count` words, the new ones 0. `OSError` where there is no memory; then it is as before."""

    def remove(self) -> None:
        """Forget it for good. `close` is left to be called."""

    def close(self) -> None:
        """Let another process have it."""


class SharedMemory(Protocol):
    def open(self, name: str) -> Block | None:
        """The block of that name, empty where there was none; None where another process has it, or there is
        no such memory."""


class SystemSharedMemory:
    """Files in ``/dev/shm``, of this user alone."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._folder = folder

    def open(self, name: str) -> Block | None:
        path = self._folder / name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(fd)
            # Another process may have removed it since it was opened here.
            is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
            if not is_ours or not os.path.samestat(found, os.lstat(path)):
                raise PermissionError(path)
            return _File(path, fd, found.st_size)
        except (OSError, ValueError):
            os.close(fd)
            return None


class _File:
    """A locked file, mapped while it has a size."""

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
        # What is not allocated would end the process when it is written to, once the memory is used up.
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
