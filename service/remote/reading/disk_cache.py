"""Disk cache: second level of the chunk cache, files in a local directory under a budget of their own.

Downloaded chunks are written there, one file each, and read back instead of downloaded when memory does not
have them any more. Nothing depends on it: a file appears whole by its rename, bytes read are verified by the
block table like those from the bucket, and every start empties the directory. So nothing is ever flushed.

Its bytes are the first to be given up where the file system fills up: before each write, and when `trim` is
called, files are deleted until the required space is free. A write that still does not fit costs half of the
cached bytes, and a pause. A disk that fails costs the cache, but no read: the cache is off from then on,
which is logged once, and its files are deleted as far as possible.

Ownership: called on the threads of `DownloadManager`; one lock guards the index, and is not held while files
are read or written.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from service.base.disk import DiskError, MissingFile, Open
from service.base.errors import CorruptionError
from service.base.files import make_directory
from service.base.types import Buffer
from service.base.world import World

_log = logging.getLogger(__name__)

LOCK_NAME: Final = "firn-cache.lock"
_FULL: Final = (ENOSPC, EDQUOT)
_FULL_PAUSE_MS: Final = 10_000
_LEAST_FREE: Final = 0.01
"""Part of a file system used by the cache alone that is left free."""
_OURS: Final = re.compile(r"[0-9a-f]{16}\.chunk(\.tmp)?")


class CacheableChunk(Protocol):
    """A chunk as the cache sees it: the keys of its blocks, and their lengths."""

    @property
    def keys(self) -> Sequence[Hashable]: ...

    @property
    def lengths(self) -> Sequence[int]: ...

    def prove(self, data: Buffer) -> Any:
        """Return the chunk made from `data`; raise `CorruptionError` where the bytes are wrong."""


class _File(NamedTuple):
    name: str
    keys: Sequence[Hashable]
    size: int


class _BlockLocation(NamedTuple):
    file: _File
    position: int
    length: int


class DiskCache:
    """Chunks in files of `folder`, at most `most_bytes`, least recently used deleted first."""

    def __init__(
        self,
        world: World,
        folder: Path,
        most_bytes: int,
        *,
        beside: Sequence[Path] = (),
        keeps_free: Callable[[int], int] = lambda total: 0,
    ) -> None:
        """Nothing is touched before the first use.

        Where one of the directories `beside` shares the file system, `keeps_free` of its total bytes are left
        free; otherwise `_LEAST_FREE`.
        """
        self._clock = world.clock
        self._beside = beside
        self._keeps_free = keeps_free
        self._shared: frozenset[Path] = frozenset()
        self._full_until_ms = 0
        self._disk = world.disk
        self._folder = folder
        self._most_bytes = most_bytes
        self._lock = world.threads.lock()
        self._opening = world.threads.lock()
        self._lock_fd: int | None = None
        self._is_off = False
        self._locations: dict[Hashable, _BlockLocation] = {}
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._written = 0
        self.size = 0

    def has(self, key: Hashable) -> bool:
        """Return whether the block with this key is here, as far as the index knows."""
        with self._lock:
            return key in self._locations

    def load(self, chunk: CacheableChunk) -> Any | None:
        """Return the chunk, verified; None where it is not here as a whole."""
        with self._lock:
            locations = [self._locations.get(key) for key in chunk.keys]
            found = [location for location in locations if location is not None]
            if len(found) < len(locations):
                return None
            for name in {location.file.name for location in found} & self._files.keys():
                self._files.move_to_end(name)
        try:
            data = self._read(found)
            if data is not None:
                return chunk.prove(data)
        except DiskError as e:
            self._switch_off(e)
            return None
        except CorruptionError as e:
            _log.warning(
                "%s: a cached chunk is damaged, deleting it, it will be downloaded again: %s", self._folder, e
            )
        self._forget(location.file for location in found)
        return None

    def save(self, chunk: CacheableChunk, data: Buffer) -> None:
        """Keep a chunk that was downloaded and verified."""
        if self._is_off or len(data) > self._most_bytes or self._clock.monotonic_ms() < self._full_until_ms:
            return
        try:
            if self._is_open() and self._make_room(len(data))[1]:
                self._write(chunk, data)
        except DiskError as e:
            if e.errno in _FULL:
                self._no_room(e)
            else:
                self._switch_off(e)

    def shares(self, directory: Path) -> bool:
        """Return whether `directory`, one of those `beside`, is on the cache's file system; False before the
        first use."""
        return directory in self._shared

    def trim(self) -> int:
        """Delete files until enough of the file system is free; return how many bytes were deleted."""
        try:
            return 0 if self._is_off or self._lock_fd is None else self._make_room(0)[0]
        except DiskError as e:
            self._switch_off(e)
            return 0

    def drop(self, is_gone: Callable[[Hashable], bool]) -> int:
        """Delete the chunks with a block whose key `is_gone`, and all that an earlier process has left.

        Returns how many of its own files were deleted. Blocks that are being downloaded may be saved behind
        it.
        """
        try:
            self._is_open()
        except DiskError as e:
            self._switch_off(e)
        with self._lock:
            gone = [one for one in self._files.values() if any(map(is_gone, one.keys))]
        self._forget(gone)
        return len(gone)

    def close(self) -> None:
        """Release the directory; the next process that opens it deletes its files."""
        with self._lock:
            self._is_off = True
            fd, self._lock_fd = self._lock_fd, None
        if fd is not None:
            try:
                self._disk.close(fd)
            except DiskError as e:
                _log.warning("%s", e)

    def _is_open(self) -> bool:
        """Lock and empty the directory, once; return whether the cache is usable."""
        with self._opening:
            if self._lock_fd is not None or self._is_off:
                return not self._is_off
            make_directory(self._disk, self._folder)
            fd = self._disk.lock(self._folder / LOCK_NAME)
            device = self._disk.device(self._folder)
            shared = frozenset(one for one in self._beside if self._disk.device(one) == device)
            with self._lock:
                self._lock_fd, self._shared = fd, shared
            for entry in self._disk.list(self._folder):
                if entry.is_file and _OURS.fullmatch(entry.name):
                    self._remove(entry.name)
            return True

    def _read(self, locations: Sequence[_BlockLocation]) -> Buffer | None:
        """Return the bytes of `locations` in order; None where a file is missing, or shorter than it was."""
        parts = []
        for location in _joined(locations):
            try:
                fd = self._disk.open(self._folder / location.file.name)
            except MissingFile:
                return None
            try:
                parts.append(self._disk.pread(fd, location.length, location.position))
            finally:
                self._disk.close(fd)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _write(self, chunk: CacheableChunk, data: Buffer) -> None:
        with self._lock:
            self._written += 1
            file = _File(f"{self._written:016x}.chunk", tuple(chunk.keys), len(data))
        path = self._folder / file.name
        temporary = path.with_name(file.name + ".tmp")
        try:
            fd = self._disk.open(temporary, Open.TRUNCATE)
            try:
                self._disk.pwrite(fd, data, 0)
            finally:
                self._disk.close(fd)
            self._disk.rename(temporary, path)
        except DiskError as e:
            self._remove_if_possible([temporary.name], e)
            raise
        position = 0
        with self._lock:
            self._files[file.name] = file
            self.size += file.size
            for key, length in zip(chunk.keys, chunk.lengths, strict=True):
                self._locations[key] = _BlockLocation(file, position, length)
                position += length
            gone = self._unindex_oldest_locked(self.size - self._most_bytes)
        for old in gone:
            self._remove(old.name)

    def _make_room(self, wanted: int) -> tuple[int, bool]:
        """Delete the oldest files until `wanted` bytes can be written and enough stays free.

        Return the bytes deleted, and whether there is room now.
        """
        total, usable = self._disk.space(self._folder)
        keeps = self._keeps_free(total) if self._shared else int(total * _LEAST_FREE)
        missing = keeps + wanted - usable
        with self._lock:
            gone = self._unindex_oldest_locked(missing)
        for file in gone:
            self._remove(file.name)
        freed = sum(file.size for file in gone)
        return freed, freed >= missing

    def _no_room(self, error: DiskError) -> None:
        """Delete half of the cached bytes: the file system, or a quota, has no room for a file."""
        self._full_until_ms = self._clock.monotonic_ms() + _FULL_PAUSE_MS
        with self._lock:
            gone = self._unindex_oldest_locked(self.size - self.size // 2)
        _log.log(
            logging.WARNING if gone else logging.INFO,
            "the disk cache of cold reads deleted %d of its bytes and adds nothing for %d s: %s",
            sum(file.size for file in gone), _FULL_PAUSE_MS // 1000, error,
        )  # fmt: skip
        self._remove_if_possible([file.name for file in gone], error)

    def _remove_if_possible(self, names: Iterable[str], error: DiskError) -> None:
        """Delete files after `error`; a second error is only noted in it."""
        for name in names:
            try:
                self._remove(name)
            except DiskError as e:
                error.add_note(f"{name} is not deleted until the next start: {e}")
                return

    def _forget(self, files: Iterable[_File]) -> None:
        """Delete files that are damaged or missing."""
        with self._lock:
            known = {file.name: file for file in files if file.name in self._files}
            gone = [self._unindex_locked(file) for file in known.values()]
        try:
            for file in gone:
                self._remove(file.name)
        except DiskError as e:
            self._switch_off(e)

    def _unindex_oldest_locked(self, size: int) -> list[_File]:
        """Remove the least recently used files from the index, until they have `size` bytes or none is
        left."""
        gone: list[_File] = []
        while self._files and size > 0:
            gone.append(self._unindex_locked(next(iter(self._files.values()))))
            size -= gone[-1].size
        return gone

    def _unindex_locked(self, file: _File) -> _File:
        """Remove the file from the index."""
        del self._files[file.name]
        self.size -= file.size
        for key in file.keys:
            location = self._locations.get(key)
            if location is not None and location.file is file:
                del self._locations[key]
        return file

    def _remove(self, name: str) -> None:
        try:
            self._disk.unlink(self._folder / name)
        except MissingFile:
            return  # deleted by hand

    def _switch_off(self, error: DiskError) -> None:
        with self._lock:
            if self._is_off:
                return
            self._is_off = True
            is_ours, names = self._lock_fd is not None, list(self._files)
            self._locations.clear()
            self._files.clear()
            self.size = 0
        if is_ours:
            self._remove_if_possible(names, error)
        _log.error("the disk cache of cold reads in %s is off until the next start: %s", self._folder, error)


def _joined(locations: Sequence[_BlockLocation]) -> list[_BlockLocation]:
    """Join locations that are neighbours in one file."""
    joined: list[_BlockLocation] = []
    for location in locations:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.file is location.file
            and last.position + last.length == location.position
        ):
            joined[-1] = last._replace(length=last.length + location.length)
        else:
            joined.append(location)
    return joined
