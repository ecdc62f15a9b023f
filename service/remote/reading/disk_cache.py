"""The second level of the chunk cache: files in a directory of this machine, under a budget of their own.

What was downloaded is written there, one file for each chunk, and read back instead of downloaded when
memory has it no longer. Nothing rests on it: a file appears whole by its rename, what is read is proved by
the block table as what comes from the bucket is, and every start begins with an empty directory. So nothing
is ever flushed.

Its bytes are the first to go where the file system fills up: before each write, and when `trim` is called,
files go until what has to be left is left. A write for which there is no room all the same costs half of what
is kept, and a pause. A disk that fails costs the cache and nobody's read: it is off from then on, which is
told once, and its files go as far as they can.

Ownership: called on the threads of `Flights`; one lock guards the index, and is not held while files are read
or written.
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
"""This part of a file system that is the cache's alone is left free."""
_OURS: Final = re.compile(r"[0-9a-f]{16}\.chunk(\.tmp)?")


class Kept(Protocol):
    """A chunk as the cache knows it: the keys of its blocks, and how long each of them is."""

    @property
    def keys(self) -> Sequence[Hashable]: ...

    @property
    def lengths(self) -> Sequence[int]: ...

    def prove(self, data: Buffer) -> Any:
        """The chunk of these bytes; `CorruptionError` where they are not what they must be."""


class _File(NamedTuple):
    name: str
    keys: Sequence[Hashable]
    size: int


class _Place(NamedTuple):
    file: _File
    position: int
    length: int


class DiskCache:
    """Chunks in files of `folder`, at most `most_bytes` of them, the least recently used go first."""

    def __init__(
        self,
        world: World,
        folder: Path,
        most_bytes: int,
        *,
        beside: Sequence[Path] = (),
        keeps_free: Callable[[int], int] = lambda total: 0,
    ) -> None:
        """Nothing is touched before the first use. Where one of the directories `beside` shares the file
        system, `keeps_free` of its total bytes are left there; else `_LEAST_FREE`."""
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
        self._places: dict[Hashable, _Place] = {}
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._written = 0
        self.size = 0

    def has(self, key: Hashable) -> bool:
        """Whether the block with this key is here, as far as the index knows."""
        with self._lock:
            return key in self._places

    def load(self, chunk: Kept) -> Any | None:
        """The chunk, proved; None where it is not here, or not all of it, or not any more."""
        with self._lock:
            places = [self._places.get(key) for key in chunk.keys]
            found = [place for place in places if place is not None]
            if len(found) < len(places):
                return None
            for name in {place.file.name for place in found} & self._files.keys():
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
                "%s: what was kept of it on disk is damaged, and is fetched again: %s", self._folder, e
            )
        self._forget(place.file for place in found)
        return None

    def save(self, chunk: Kept, data: Buffer) -> None:
        """Keep a chunk that was downloaded and proved."""
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
        """Whether one of those `beside` is on the cache's file system; False before the first use."""
        return directory in self._shared

    def trim(self) -> int:
        """Let files go until enough is left of the file system; how many bytes that were."""
        try:
            return 0 if self._is_off or self._lock_fd is None else self._make_room(0)[0]
        except DiskError as e:
            self._switch_off(e)
            return 0

    def close(self) -> None:
        """Give the directory up; what is in it goes when somebody opens it again."""
        with self._lock:
            self._is_off = True
            fd, self._lock_fd = self._lock_fd, None
        if fd is not None:
            try:
                self._disk.close(fd)
            except DiskError as e:
                _log.warning("%s", e)

    def _is_open(self) -> bool:
        """Open the directory, once: it is ours alone, and empty."""
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

    def _read(self, places: Sequence[_Place]) -> Buffer | None:
        """The bytes of `places` in order; None where a file is gone, or shorter than it was."""
        parts = []
        for place in _joined(places):
            try:
                fd = self._disk.open(self._folder / place.file.name)
            except MissingFile:
                return None
            try:
                parts.append(self._disk.pread(fd, place.length, place.position))
            finally:
                self._disk.close(fd)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _write(self, chunk: Kept, data: Buffer) -> None:
        with self._lock:
            self._written += 1
            file = _File(f"{self._written:016x}.chunk", tuple(chunk.keys), len(data))
        path = self._folder / file.name
        temporary = path.with_name(file.name + ".tmp")
        try:
            fd = self._disk.open(temporary, Open.ANEW)
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
                self._places[key] = _Place(file, position, length)
                position += length
            gone = []
            while self.size > self._most_bytes:
                gone.append(self._take_out(next(iter(self._files.values()))))
        for old in gone:
            self._remove(old.name)

    def _make_room(self, wanted: int) -> tuple[int, bool]:
        """Let the oldest files go until `wanted` bytes can be written and enough is left: bytes that went,
        and whether that is so now."""
        total, usable = self._disk.space(self._folder)
        keeps = self._keeps_free(total) if self._shared else int(total * _LEAST_FREE)
        missing = keeps + wanted - usable
        gone: list[_File] = []
        with self._lock:
            while self._files and sum(file.size for file in gone) < missing:
                gone.append(self._take_out(next(iter(self._files.values()))))
        for file in gone:
            self._remove(file.name)
        freed = sum(file.size for file in gone)
        return freed, freed >= missing

    def _no_room(self, error: DiskError) -> None:
        """The file system, or a quota, has no room for a file: half of what is kept goes."""
        self._full_until_ms = self._clock.monotonic_ms() + _FULL_PAUSE_MS
        with self._lock:
            least = self.size // 2
            gone: list[_File] = []
            while self._files and self.size > least:
                gone.append(self._take_out(next(iter(self._files.values()))))
        _log.log(
            logging.WARNING if gone else logging.INFO,
            "the cache of cold reads gives back %d of its bytes, nothing is added for %d s: %s",
            sum(file.size for file in gone), _FULL_PAUSE_MS // 1000, error,
        )  # fmt: skip
        self._remove_if_possible([file.name for file in gone], error)

    def _remove_if_possible(self, names: Iterable[str], error: DiskError) -> None:
        """After an `error`, which another one would only hide."""
        for name in names:
            try:
                self._remove(name)
            except DiskError as e:
                error.add_note(f"{name} stays until the next start: {e}")
                return

    def _forget(self, files: Iterable[_File]) -> None:
        """Files that are damaged or gone."""
        with self._lock:
            known = {file.name: file for file in files if file.name in self._files}
            gone = [self._take_out(file) for file in known.values()]
        try:
            for file in gone:
                self._remove(file.name)
        except DiskError as e:
            self._switch_off(e)

    def _take_out(self, file: _File) -> _File:
        """Out of the index; with the lock."""
        del self._files[file.name]
        self.size -= file.size
        for key in file.keys:
            place = self._places.get(key)
            if place is not None and place.file is file:
                del self._places[key]
        return file

    def _remove(self, name: str) -> None:
        try:
            self._disk.unlink(self._folder / name)
        except MissingFile:
            return  # somebody has tidied up

    def _switch_off(self, error: DiskError) -> None:
        with self._lock:
            if self._is_off:
                return
            self._is_off = True
            is_ours, names = self._lock_fd is not None, list(self._files)
            self._places.clear()
            self._files.clear()
            self.size = 0
        if is_ours:
            self._remove_if_possible(names, error)
        _log.error("the cache of cold reads in %s is off until the next start: %s", self._folder, error)


def _joined(places: Sequence[_Place]) -> list[_Place]:
    """Neighbours in one file as one."""
    joined: list[_Place] = []
    for place in places:
        last = joined[-1] if joined else None
        if last is not None and last.file is place.file and last.position + last.length == place.position:
            joined[-1] = last._replace(length=last.length + place.length)
        else:
            joined.append(place)
    return joined
