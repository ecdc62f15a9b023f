"""Sources of a dump's bytes: a local file or one object of a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from service.base.errors import ConfigError, CorruptionError, StorageError
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore


class Source(Protocol):
    """Bytes with a name. `folder` is the name of their directory."""

    name: str
    folder: str
    size: int

    def read(self, max_size: int) -> bytes:
        """Return everything; `CorruptionError` when that is more than `max_size` bytes."""

    def read_suffix(self, length: int) -> bytes:
        """Return the last `length` bytes, or everything where there is less."""

    def local_path(self) -> Path:
        """Return the file itself, for formats that are walked. `ConfigError` for an object of a store."""


class FileSource:
    """A local file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = path.name
        self.folder = path.absolute().parent.name
        if path.is_dir():
            raise ConfigError(f"{path} is a directory; name one of its files")
        self.size = path.stat().st_size

    def read(self, max_size: int) -> bytes:
        if self.size > max_size:
            raise CorruptionError(f"{self._path}: {self.size} bytes, at most {max_size} are read")
        return self._path.read_bytes()

    def read_suffix(self, length: int) -> bytes:
        with open(self._path, "rb") as file:
            file.seek(max(self.size - length, 0))
            return file.read(length)

    def local_path(self) -> Path:
        return self._path


class ObjectSource:
    """One object of a store."""

    def __init__(self, store: ObjectStore, url: str, key: str) -> None:
        self._store = store
        self._url = url
        self._key = key
        self.name = os.path.basename(key)
        self.folder = os.path.basename(os.path.dirname(url))
        self.size = store.head(key).size

    def read(self, max_size: int) -> bytes:
        return self._store.get(self._key, max_size=max_size)

    def read_suffix(self, length: int) -> bytes:
        return self._store.get_suffix(self._key, length)[0]

    def local_path(self) -> Path:
        raise ConfigError(f"{self._url}: this format is dumped from a local file only; download it first")


def open_source(target: str, *, endpoint: str | None = None, region: str | None = None) -> Source:
    """Open the file or object that `target` names: a path, or an `s3://`, `gs://`, `az://` or `file://` URL.

    Raises `ConfigError` for an invalid target, `StorageError` or `OSError` where it cannot be read.
    """
    if "://" not in target:
        return FileSource(Path(target))
    parts = urlsplit(target)
    if parts.scheme == "file":
        return FileSource(Path(unquote(parts.path)))
    prefix, _, key = target.rstrip("/").rpartition("/")
    if not parts.path.strip("/"):
        raise ConfigError(f"{target} names a bucket; name one of its objects")
    from service.base.world import system_world
    from service.remote.stores.obstore_store import open_store

    try:
        return ObjectSource(
            open_store(prefix, world=system_world(), endpoint=endpoint, region=region), target, key
        )
    except ObjectNotFound as e:
        raise StorageError(f"{target}: no such object") from e
