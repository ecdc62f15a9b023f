"""A store that is as slow, as broken and as talkative as a test wants: a real store behind a real wrapper."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from service.base.types import Buffer
from service.remote.stores.store import ObjectInfo, ObjectStore, Tagged


class SlowStore:
    """Counts reads; holds them back while `closed`; lets `interfere` fail or change them."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.reads: Counter[tuple[str, int, int]] = Counter()
        self.gate = threading.Event()
        self.gate.set()
        self.interfere: Callable[[str, bytes], bytes] = lambda key, data: data
        self.peak_bytes = 0
        self._held_bytes = 0
        self._lock = threading.Lock()

    def arrived(self, key_end: str = "") -> int:
        """Reads begun so far of keys that end so."""
        with self._lock:
            return sum(count for (key, _, _), count in self.reads.items() if key.endswith(key_end))

    def ranges(self, key: str) -> list[tuple[int, int]]:
        with self._lock:
            return sorted((start, length) for (name, start, length) in self.reads if name == key)

    def _read(self, key: str, start: int, length: int, read: Callable[[], Buffer]) -> bytes:
        with self._lock:
            self.reads[(key, start, length)] += 1
            self._held_bytes += length
            self.peak_bytes = max(self.peak_bytes, self._held_bytes)
        try:
            if not self.gate.wait(30):
                raise AssertionError("the gate was never opened")
            return self.interfere(key, bytes(read()))
        finally:
            with self._lock:
                self._held_bytes -= length

    def get(self, key: str, *, max_size: int) -> bytes:
        return self._read(key, 0, 0, lambda: self.inner.get(key, max_size=max_size))

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        return self._read(key, start, length, lambda: self.inner.get_range(key, start, length))

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        return self.inner.get_suffix(key, length)

    def put(self, key: str, data: Buffer) -> None:
        self.inner.put(key, data)

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        self.inner.put_stream(key, parts, size)

    def head(self, key: str) -> ObjectInfo:
        return self.inner.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self.inner.delete(keys)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        return self.inner.put_if_absent(key, data)

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        return self.inner.get_tagged(key, max_size=max_size)

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        self.inner.put_if_match(key, data, tag)
