"""Folder as an object store: created unless it must exist, durable when a put returns, listed in order.

obstore writes and reads the files; the rest is here. Conditional writes are compared and written under one
lock file, which all processes that open the folder share (so the file system must support POSIX locks). The
lock file is not an object and never listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore
from obstore import exceptions

from service.base.disk import DiskError, LockHeld
from service.base.errors import ConfigError
from service.base.types import Buffer
from service.base.world import World
from service.remote.stores.errors import ObjectNotFound, PreconditionFailed, StoreUnavailable
from service.remote.stores.obstore_store import ObstoreStore, StoreOptions, short, tag_of
from service.remote.stores.store import ObjectInfo

if TYPE_CHECKING:
    from obstore.store import LocalStore

LOCK_NAME: Final = ".firn-lock"
_LOCK_WAIT_MS: Final = 10_000
_LOCK_POLL_S: Final = 0.01
_RUN: Final = 1000
"""Objects that are sorted at a time: 0.2 ms."""


class FolderStore(ObstoreStore):
    """`ObjectStore` over the folder `root`. Thread-safe."""

    def __init__(self, root: Path, options: StoreOptions, world: World, *, must_exist: bool = False) -> None:
        """Raises `ConfigError` for what is no folder, or `must_exist` and does not."""
        from obstore.store import LocalStore

        if must_exist and not _is_folder(root, world):
            raise ConfigError(f"there is no folder {root}")
        try:
            client: LocalStore = LocalStore(root, mkdir=not must_exist)
        except (exceptions.BaseError, OSError, ValueError) as e:
            raise ConfigError(f"{root}: {short(e)}") from e
        super().__init__(lambda _: client, options, root.as_uri(), world)
        self.root = root
        self._swaps = world.threads.lock()

    def put(self, key: str, data: Buffer) -> None:
        super().put(key, data)
        self._sync(key)

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        super().put_stream(key, parts, size)
        if size > self._options.part_bytes:
            self._sync(key)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        created = super().put_if_absent(key, data)
        if created:
            self._sync(key)
        return created

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        with self._locked(key):
            try:
                with self._sending(key) as client:
                    found = tag_of(obstore.head(client, key))
            except ObjectNotFound as e:
                raise PreconditionFailed(f"{key}: no longer exists") from e
            if found != tag:
                raise PreconditionFailed(f"{key}: has changed since")
            self.put(key, data)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        # Sorted in runs, as sorting holds the GIL; as text, which the garbage collector does not traverse.
        runs: list[Iterator[str]] = []
        listed = (_line(info) for info in super().list(prefix) if info.key != LOCK_NAME)
        while run := sorted(islice(listed, _RUN)):
            runs.append(iter(run))
        del run
        yield from map(_info_in, merge(*runs))

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Hold the lock of all writers that replace objects here."""
        with self._swaps:
            fd = self._lock(key)
            try:
                yield
            finally:
                self._world.disk.close(fd)

    def _lock(self, key: str) -> int:
        until_ms = self._world.clock.monotonic_ms() + _LOCK_WAIT_MS
        while True:
            try:
                return self._world.disk.lock(self.root / LOCK_NAME)
            except LockHeld as e:
                if self._world.clock.monotonic_ms() >= until_ms:
                    raise StoreUnavailable(f"{key}: another process holds the lock for too long: {e}") from e
            except DiskError as e:
                raise StoreUnavailable(f"{key}: {e}") from e
            self._world.threads.sleep(_LOCK_POLL_S)

    def _sync(self, key: str) -> None:
        """Make the file and the names on its path durable: local segments are deleted trusting that."""
        disk, path = self._world.disk, self.root / key
        try:
            fd = disk.open(path)
            try:
                disk.fsync(fd)
            finally:
                disk.close(fd)
            for folder in path.parents:
                disk.fsync_dir(folder)
                if folder == self.root:
                    break
        except DiskError as e:
            raise StoreUnavailable(f"{key}: {e}") from e


def _is_folder(path: Path, world: World) -> bool:
    try:
        world.disk.list(path)
    except DiskError:
        return False
    return True


def _line(info: ObjectInfo) -> str:
    """Return text that sorts by key: file names contain no NUL, and UTF-8 sorts like its characters."""
    return f"{info.key}\0{info.size}\0{info.last_modified_ms}\0{info.etag}"


def _info_in(line: str) -> ObjectInfo:
    key, size, last_modified_ms, etag = line.split("\0")
    return ObjectInfo(key, int(size), int(last_modified_ms), etag)
