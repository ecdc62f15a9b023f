"""Value types of downloads: the resource, its download, and their counters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from service.remote.metrics import ReadMetrics
from service.remote.stores.store import ObjectStore

Taken = Callable[[Hashable], bool]


class RemoteResource(Protocol):
    """An immutable part of the bucket. Equal keys mean equal bytes."""

    @property
    def key(self) -> Hashable: ...

    @property
    def keys(self) -> Sequence[Hashable]:
        """Keys of everything that one download brings, `key` among them."""

    @property
    def object_key(self) -> str:
        """Key of the object to which it belongs."""

    @property
    def reserve(self) -> int:
        """Bytes that it takes of the chunk account; 0 for a small resource, which the metadata cache
        holds."""

    def cut(self, taken: Taken) -> RemoteResource:
        """Return the resource to download, without keys for which `taken` is true."""

    def load(self, store: ObjectStore) -> tuple[Any, int]:
        """Fetch, verify and decode it: return the value and its cost in bytes. Runs on a pool thread."""


@dataclass(slots=True, eq=False)
class Download:
    """One download, running or waiting for room. `urgent` ones go before read-ahead.

    `tries` counts running attempts, of which one may be hedged; `error` is the result of a failed attempt
    while the other one still runs.
    """

    resource: RemoteResource
    urgent: bool
    is_hedged: bool = False
    tries: int = 0
    is_over: bool = False
    error: BaseException | None = None
    future: Future[Any] = field(default_factory=Future)


@dataclass(slots=True, eq=False, kw_only=True)
class DownloadStats(ReadMetrics):
    """Counters of a moment, and what is held then, in bytes.

    `sending_bytes` is what responses hold; `store_problem` is why the breaker is open, None while it is
    closed; `asleep` are keys of objects found in an archive class.
    """

    cached_bytes: int
    in_flight_bytes: int
    sending_bytes: int
    metadata_bytes: int
    in_flight: int
    busy_threads: int
    store_problem: str | None
    asleep: tuple[str, ...]
