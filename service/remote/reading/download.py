"""What is downloaded, a download of it, and what a response keeps in memory meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from service.remote.reading.chunk_cache import Slot
from service.remote.stores.store import ObjectStore

Taken = Callable[[Hashable], bool]


class Resource(Protocol):
    """Something immutable in the bucket. Equal keys mean equal bytes."""

    @property
    def key(self) -> Hashable: ...

    @property
    def keys(self) -> Sequence[Hashable]:
        """All that one download of it brings, `key` among them."""

    @property
    def object_key(self) -> str:
        """The object that it is of."""

    @property
    def reserve(self) -> int:
        """Bytes of the chunk account it takes; 0 for a small resource, which the metadata cache holds."""

    def cut(self, taken: Taken) -> Resource:
        """What is to be downloaded for it, where keys for which `taken` is true come without it."""

    def load(self, store: ObjectStore) -> tuple[Any, int]:
        """Fetch, verify and decode it: the value and what it costs in bytes. Runs on a pool thread."""


@dataclass(slots=True, eq=False)
class Flight:
    """One download under way or waiting for room. `urgent` ones go before read-ahead.

    `begun_ms` is when its present try began, None between tries; `tries` how many are under way, of which one
    may be the second of two; `error` is what its own tries ended with while that one went on.
    """

    resource: Resource
    urgent: bool
    begun_ms: int | None = None
    is_hedged: bool = False
    tries: int = 0
    is_over: bool = False
    is_overtaken: bool = False
    error: BaseException | None = None
    future: Future[Any] = field(default_factory=Future)


class FlightStats(NamedTuple):
    """What `ReadMetrics` counted so far, and what is held now, in bytes.

    `sending_bytes` is what responses hold; `store_problem` why the store is left alone, None while it is not;
    `asleep` the keys of objects that lie in an archive class, as far as anybody asked for them.
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


class Keeper(Protocol):
    """Who keeps account of what responses hold."""

    def let_go(self, slots: Iterable[Slot], copied: int) -> None:
        """What a response held is free."""

    def forget_hold(self, slots: Sequence[Slot], copied: int) -> None:
        """The same, in the middle of anything: it is only noted down."""


class Hold:
    """Memory that a response keeps until it is out; `release` says so, at the latest when it is forgotten.

    `left` is how many bytes more of the cold tier the same response may have.
    """

    __slots__ = ("_copied", "_keeper", "_slots", "left")

    def __init__(self, keeper: Keeper, slots: Sequence[Slot], copied: int, left: int) -> None:
        self.left = left
        self._keeper: Keeper | None = keeper
        self._slots = slots
        self._copied = copied

    def release(self) -> None:
        """The response is out, or is not made. From any thread; again does nothing."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.let_go(self._slots, self._copied)

    def __del__(self) -> None:
        # May run in the middle of anything, also of what holds the keeper's lock.
        if self._keeper is not None:
            self._keeper.forget_hold(self._slots, self._copied)
