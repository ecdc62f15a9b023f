"""Object store that counts its calls: by kind, with time, bytes and errors.

A call counts once however often the client beneath repeats it. A page of a listing counts as a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

from service.base.clock import Clock
from service.base.errors import CorruptionError, StorageError
from service.base.types import Buffer
from service.remote.metrics import CallMetrics, StoreMetrics
from service.remote.stores.breaker import is_failure
from service.remote.stores.errors import StoreRefused
from service.remote.stores.store import ObjectInfo, ObjectStore, Tagged

_T = TypeVar("_T")
LIST_PAGE: Final = 1000


class NodeStore(ObjectStore, Protocol):
    """An `ObjectStore` as a node needs it."""

    def verifies_uploads(self) -> bool:
        """Return whether the store itself refuses damaged uploads."""


class CountedStore:
    """`NodeStore` over another one. As thread-safe as that one."""

    def __init__(self, store: NodeStore, metrics: StoreMetrics, clock: Clock) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock

    def verifies_uploads(self) -> bool:
        return self._store.verifies_uploads()

    def put(self, key: str, data: Buffer) -> None:
        self._call("put", lambda: self._store.put(key, data), sent=len(data))

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        self._call("put_stream", lambda: self._store.put_stream(key, parts, size), sent=size)

    def get(self, key: str, *, max_size: int) -> bytes:
        return self._call("get", lambda: self._store.get(key, max_size=max_size), received=len)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        return self._call("get_range", lambda: self._store.get_range(key, start, length), received=len)

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        return self._call(
            "get_suffix", lambda: self._store.get_suffix(key, length), received=lambda found: len(found[0])
        )

    def head(self, key: str) -> ObjectInfo:
        return self._call("head", lambda: self._store.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        listing: Iterator[ObjectInfo] | None = None

        def next_page() -> Sequence[ObjectInfo]:
            nonlocal listing
            if listing is None:
                listing = iter(self._store.list(prefix))
            return list(islice(listing, LIST_PAGE))

        size = LIST_PAGE
        while size == LIST_PAGE:
            page = self._call("list", next_page)
            yield from page
            size = len(page)

    def delete(self, keys: Sequence[str]) -> None:
        self._call("delete", lambda: self._store.delete(keys))

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        return self._call("put_if_absent", lambda: self._store.put_if_absent(key, data), sent=len(data))

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        return self._call(
            "get_tagged",
            lambda: self._store.get_tagged(key, max_size=max_size),
            received=lambda found: len(found.data),
        )

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        self._call("put_if_match", lambda: self._store.put_if_match(key, data, tag), sent=len(data))

    def _call(
        self, kind: str, call: Callable[[], _T], *, sent: int = 0, received: Callable[[_T], int] | None = None
    ) -> _T:
        counted = self._metrics.calls[kind]
        began_ms = self._clock.monotonic_ms()
        try:
            result = call()
        except (StorageError, CorruptionError) as e:
            self._failed(counted, began_ms, e)
            raise
        self._ended(counted, began_ms)
        counted.sent_bytes += sent
        if received is not None:
            counted.received_bytes += received(result)
        return result

    def _ended(self, counted: CallMetrics, began_ms: int, problem: str | None = None) -> None:
        now_ms, metrics = self._clock.monotonic_ms(), self._metrics
        counted.time.observe((now_ms - began_ms) / 1000)
        metrics.called_ms = now_ms
        if problem is None:
            metrics.since_ms = None
        elif metrics.since_ms is None:
            metrics.since_ms = self._clock.now_ms()
        metrics.problem = problem

    def _failed(self, counted: CallMetrics, began_ms: int, error: StorageError | CorruptionError) -> None:
        kind = type(error).__name__
        counted.errors[kind] = counted.errors.get(kind, 0) + 1
        is_problem = is_failure(error) or isinstance(error, StoreRefused)
        self._ended(counted, began_ms, str(error) if is_problem else None)
