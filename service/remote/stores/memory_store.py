"""An object store in a dictionary: the second implementation under the contract suite, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.remote.stores.errors import ObjectNotFound, ObjectTruncated
from service.remote.stores.store import ObjectInfo


class MemoryStore:
    """Keeps whole objects; every call is atomic. Owned by nobody: any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._writes = 0

    def put(self, key: str, data: Buffer) -> None:
        with self._lock:
            self._store(key, bytes(data))

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        data = b"".join(parts)
        if len(data) != size:
            raise CorruptionError(f"{key}: {len(data)} bytes given, {size} announced")
        self.put(key, data)

    def get(self, key: str, *, max_size: int) -> bytes:
        data = self._data(key)
        if len(data) > max_size:
            raise CorruptionError(f"{key}: {len(data)} bytes, at most {max_size} expected")
        return data

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        data = self._data(key)
        if start + length > len(data):
            raise ObjectTruncated(f"{key}: ends at {len(data)}, bytes {start} to {start + length} asked for")
        return data[start : start + length]

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        data = self._data(key)
        return data[-length:], len(data)

    def head(self, key: str) -> ObjectInfo:
        with self._lock:
            if key not in self._objects:
                raise ObjectNotFound(key)
            return self._objects[key][1]

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = f"{prefix}/" if prefix else ""
        with self._lock:
            found = [info for key, (_, info) in self._objects.items() if key.startswith(folder)]
        return iter(sorted(found, key=lambda info: info.key.encode()))

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        with self._lock:
            if key in self._objects:
                return False
            self._store(key, bytes(data))
            return True

    def _store(self, key: str, data: bytes) -> None:
        self._writes += 1
        info = ObjectInfo(key, len(data), time.time_ns() // 1_000_000, str(self._writes))
        self._objects[key] = (data, info)

    def _data(self, key: str) -> bytes:
        with self._lock:
            if key not in self._objects:
                raise ObjectNotFound(key)
            return self._objects[key][0]
