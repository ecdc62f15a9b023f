"""A store for `firn fsck` and `firn sweep` in which a refused object counts as an unreadable one.

An object in a sleeping storage class, locked, or encrypted with a disabled key is reported by its name, and
everything else is checked. It is for readers only: for a repair a refusal is no proof of damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.remote.stores.errors import StoreRefused, raise_of_the_store
from service.remote.stores.store import ObjectInfo, ObjectStore, Tagged

_T = TypeVar("_T")


class ReadableStore:
    """An `ObjectStore` over another one, whose reads raise `CorruptionError` where one object is refused.

    Listings and writes are those of the other one.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, key: str, *, max_size: int) -> bytes:
        return _read(key, lambda: self._store.get(key, max_size=max_size))

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        return _read(key, lambda: self._store.get_range(key, start, length))

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        return _read(key, lambda: self._store.get_suffix(key, length))

    def head(self, key: str) -> ObjectInfo:
        return _read(key, lambda: self._store.head(key))

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        return _read(key, lambda: self._store.get_tagged(key, max_size=max_size))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def put(self, key: str, data: Buffer) -> None:
        self._store.put(key, data)

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        self._store.put_stream(key, parts, size)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        return self._store.put_if_absent(key, data)

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        self._store.put_if_match(key, data, tag)

    def delete(self, keys: Sequence[str]) -> None:
        self._store.delete(keys)


def _read(key: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except StoreRefused as e:
        raise_of_the_store(e)
        raise CorruptionError(f"{key}: {e}") from e
