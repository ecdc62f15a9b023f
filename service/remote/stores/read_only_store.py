"""Store that can only be read, so that neither console nor restore can write to what they read (T22). [P]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from service.base.errors import InvariantError
from service.base.types import Buffer
from service.remote.stores.store import ObjectInfo, ObjectStore, Tagged


class ReadOnlyStore:
    """Read-only `ObjectStore` over another one. A write is a bug."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, key: str, *, max_size: int) -> bytes:
        return self._store.get(key, max_size=max_size)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        return self._store.get_range(key, start, length)

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        return self._store.get_suffix(key, length)

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        return self._store.get_tagged(key, max_size=max_size)

    def head(self, key: str) -> ObjectInfo:
        return self._store.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def put(self, key: str, data: Buffer) -> NoReturn:
        raise InvariantError(f"a bucket that is only read: writing {key}")

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> NoReturn:
        raise InvariantError(f"a bucket that is only read: writing {key}")

    def put_if_absent(self, key: str, data: Buffer) -> NoReturn:
        raise InvariantError(f"a bucket that is only read: writing {key}")

    def put_if_match(self, key: str, data: Buffer, tag: str) -> NoReturn:
        raise InvariantError(f"a bucket that is only read: writing {key}")

    def delete(self, keys: Sequence[str]) -> NoReturn:
        raise InvariantError(f"a bucket that is only read: deleting {keys}")
