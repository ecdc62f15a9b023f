"""Value types of downloads: the resource, its download, and the memory that a response holds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from service.remote.reading.chunk_cache import Slot
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


class DownloadStats(NamedTuple):
    """Counters of `ReadMetrics`, and what is held now, in bytes.

    `sending_bytes` is what responses hold; `store_problem` is why the breaker is open, None while it is
    closed; `asleep` are keys of objects found in an archive class.
    """

    hits: int
    misses: int
    disk_hits: int
    read_ahead: int
    downloaded_bytes: int
    requests: int
    retries: int
    hedges: int
    hedges_won: int
    refused: int
    failures: int
    cached_bytes: int
    in_flight_bytes: int
    sending_bytes: int
    metadata_bytes: int
    in_flight: int
    busy_threads: int
    store_problem: str | None
    asleep: tuple[str, ...]


class HoldAccount(Protocol):
    """Account of the memory that responses hold."""

    def release(self, slots: Iterable[Slot], copied: int) -> None:
        """Free what a response held."""

    def release_later(self, slots: Sequence[Slot], copied: int) -> None:
        """Record what a response held, to be freed later; safe at any point of any thread."""


class ResponseHold:
    """Memory that a response holds until it is sent; `release` frees it, at the latest when it is
    garbage-collected.

    `left` is how many more bytes of the cold tier the same response may have.
    """

    __slots__ = ("_copied", "_keeper", "_slots", "left")

    def __init__(self, keeper: HoldAccount, slots: Sequence[Slot], copied: int, left: int) -> None:
        self.left = left
        self._keeper: HoldAccount | None = keeper
        self._slots = slots
        self._copied = copied

    def release(self) -> None:
        """Free the memory: the response was sent, or is not made. From any thread; a second call does
        nothing."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.release(self._slots, self._copied)

    def __del__(self) -> None:
        # May run at any point, even while this thread holds the account's lock.
        if self._keeper is not None:
            self._keeper.release_later(self._slots, self._copied)
