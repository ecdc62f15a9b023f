"""Object store in a dictionary: the second implementation under the contract suite, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from service.base.clock import Clock
from service.base.errors import CorruptionError
from service.base.threads import Threads
from service.base.types import Buffer
from service.remote.stores.errors import ObjectNotFound, ObjectTruncated, PreconditionFailed
from service.remote.stores.store import ObjectInfo, Tagged

_BEGAN_MS: Final = 1_700_000_000_000


class MemoryStore:
    """Keeps whole objects; every call is atomic. Thread-safe.

    `clock` is the store's own, which may differ from those of its clients; without one each write advances
    the time by a millisecond. No call blocks while the lock is held.
    """

    def __init__(self, threads: Threads, clock: Clock | None = None) -> None:
        self._clock = clock
        self._lock = threads.lock()
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
        return self.get_tagged(key, max_size=max_size).data

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        if length < 1:
            raise ValueError(f"{key}: a range of {length} bytes")
        data = self._found(key)[0]
        if start + length > len(data):
            raise ObjectTruncated(f"{key}: ends at {len(data)}, bytes {start} to {start + length} asked for")
        return data[start : start + length]

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        data = self._found(key)[0]
        return data[-length:], len(data)

    def head(self, key: str) -> ObjectInfo:
        return self._found(key)[1]

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

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        data, info = self._found(key)
        if len(data) > max_size:
            raise CorruptionError(f"{key}: {len(data)} bytes, at most {max_size} expected")
        return Tagged(data, info.etag)

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        with self._lock:
            found = self._objects.get(key)
            if found is None or found[1].etag != tag:
                raise PreconditionFailed(f"{key}: not the object of tag {tag}")
            self._store(key, bytes(data))

    def _store(self, key: str, data: bytes) -> None:
        self._writes += 1
        now_ms = self._clock.now_ms() if self._clock is not None else _BEGAN_MS + self._writes
        self._objects[key] = (data, ObjectInfo(key, len(data), now_ms, str(self._writes)))

    def _found(self, key: str) -> tuple[bytes, ObjectInfo]:
        with self._lock:
            if key not in self._objects:
                raise ObjectNotFound(key)
            return self._objects[key]
