"""Downloads: one at a time per thing, on threads of their own, within one byte budget.

A *resource* is anything immutable that a read needs from the bucket (manifest, page, footer, chunk). Whoever
needs one gets it from the cache or joins the one *flight* that fetches it; the flight belongs to no request
and goes on when nobody waits any more. Chunks share one budget, whether cached, on their way or read ahead;
the small resources have a smaller cache of their own.

Ownership: `Flights` may be called from any thread; one lock guards its state and is never held while a store
is called, a future is resolved or anything is decoded. Callbacks of flights run on the pool's threads.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from service.base.errors import CorruptionError
from service.base.world import World
from service.remote.metrics import ReadMetrics
from service.remote.stores.errors import ReaderClosed, StoreUnavailable
from service.remote.stores.store import ObjectStore

_log = logging.getLogger(__name__)

_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0


class Resource(Protocol):
    """Something immutable in the bucket. Equal keys mean equal bytes."""

    @property
    def key(self) -> Hashable: ...

    @property
    def reserve(self) -> int:
        """Bytes of the chunk budget it takes; 0 for a small resource, which the metadata cache holds."""

    def load(self, store: ObjectStore) -> tuple[Any, int]:
        """Fetch, verify and decode it: the value and what it costs in bytes. Runs on a pool thread."""


@dataclass(slots=True, eq=False)
class Flight:
    """One download under way or waiting for room. `urgent` ones go before read-ahead."""

    resource: Resource
    urgent: bool
    reserved: bool = False
    future: Future[Any] = field(default_factory=Future)


class FlightStats(NamedTuple):
    """What `ReadMetrics` counted so far, and what is held now."""

    hits: int
    misses: int
    read_ahead: int
    downloaded_bytes: int
    retries: int
    failures: int
    cached_bytes: int
    in_flight_bytes: int
    metadata_bytes: int
    in_flight: int
    busy_threads: int


class LruCache:
    """Values by key with their cost in bytes; the least recently used go first. Not thread-safe."""

    def __init__(self) -> None:
        self._items: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self.size = 0

    def get(self, key: Hashable) -> Any | None:
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: Hashable, value: Any, cost: int) -> None:
        self.discard(key)
        self._items[key] = (value, cost)
        self.size += cost

    def discard(self, key: Hashable) -> None:
        if key in self._items:
            self.size -= self._items.pop(key)[1]

    def shrink(self, limit: int) -> None:
        """Let the oldest go until at most `limit` bytes are held."""
        while self.size > limit and self._items:
            _, (_, cost) = self._items.popitem(last=False)
            self.size -= cost


class Flights:
    """Cache, budget, single flight and the `remote-read` threads."""

    def __init__(
        self,
        store: ObjectStore,
        world: World,
        *,
        threads: int,
        chunk_budget_bytes: int,
        metadata_budget_bytes: int,
        attempts: int,
    ) -> None:
        self._store = store
        self._max_threads = threads
        self._chunk_budget = chunk_budget_bytes
        self._metadata_budget = metadata_budget_bytes
        self._attempts = attempts
        self._random = world.random
        self._pool: Executor = world.threads.pool("remote-read", threads)
        self._work = world.threads.condition()  # its lock guards all of the state below
        self._pause = world.threads.condition()  # where retries wait, woken by `close`
        self._is_closed = False
        self._serving = 0
        self._idle = 0
        self._urgent: deque[Callable[[], None] | Flight] = deque()
        self._ahead: deque[Flight] = deque()
        self._waiting: deque[Flight] = deque()  # urgent chunks for which the budget has no room yet
        self._flights: dict[Hashable, Flight] = {}
        self._chunks = LruCache()
        self._metadata = LruCache()
        self._in_flight_bytes = 0
        self.metrics = ReadMetrics()

    def get(self, resource: Resource) -> Any | Flight:
        """The value when it is cached, else the flight that brings it; started if there is none.

        Raises `ReaderClosed`.
        """
        with self._work:
            value = self._cached(resource)
            if value is not None:
                self.metrics.hits += 1
                return value
            if self._is_closed:
                raise ReaderClosed("the reader is closed")
            self.metrics.misses += 1
            flight = self._flights.get(resource.key)
            if flight is None:
                flight = self._launch(resource, urgent=True)
            elif not flight.urgent:
                self._promote(flight)
            return flight

    def peek(self, resource: Resource) -> Any | None:
        """The value when it is cached; starts nothing."""
        with self._work:
            return self._cached(resource)

    def ahead(self, resource: Resource) -> Any | Flight | None:
        """As `get`, at low priority; None when the budget has no room for it now, or the reader is closed."""
        with self._work:
            found = self._cached(resource) or self._flights.get(resource.key)
            if found is not None:
                return found
            if self._is_closed or self._waiting or not self._has_room(resource.reserve):
                return None
            self.metrics.read_ahead += 1
            return self._launch(resource, urgent=False)

    def call_soon(self, work: Callable[[], None]) -> None:
        """Run `work` on a pool thread, before any read-ahead. Raises `ReaderClosed`."""
        with self._work:
            if self._is_closed:
                raise ReaderClosed("the reader is closed")
            self._urgent.append(work)
            self._wake()

    def stats(self) -> FlightStats:
        with self._work:
            return FlightStats(
                **asdict(self.metrics),
                cached_bytes=self._chunks.size,
                in_flight_bytes=self._in_flight_bytes,
                metadata_bytes=self._metadata.size,
                in_flight=len(self._flights),
                busy_threads=self._serving - self._idle,
            )

    def close(self, timeout_s: float) -> None:
        """Give up what has not started, let running downloads end, wait for the threads.

        A download cannot be interrupted; what still runs after `timeout_s` is abandoned. Every future is
        resolved in any case, with `ReaderClosed` where nothing else came of it.
        """
        with self._work:
            self._is_closed = True
            queued = [*self._urgent, *self._ahead, *self._waiting]
            self._urgent.clear()
            self._ahead.clear()
            self._waiting.clear()
            self._work.notify_all()
        with self._pause:
            self._pause.notify_all()
        for item in queued:
            if isinstance(item, Flight):
                self._land(item, None, ReaderClosed("the reader is closed"), 0)
            else:
                item()  # finds the reader closed, and says so to whoever waits
        with self._work:
            have_ended = self._work.wait_for(lambda: not self._serving, timeout_s)
            stranded = list(self._flights.values())
            self._chunks.shrink(0)
            self._metadata.shrink(0)
        for flight in stranded:
            self._land(flight, None, ReaderClosed("the reader is closed"), 0)
        self._pool.shutdown(wait=have_ended)

    # Below, callers hold the lock unless it says otherwise.

    def _cached(self, resource: Resource) -> Any | None:
        return (self._chunks if resource.reserve else self._metadata).get(resource.key)

    def _has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be on their way; one chunk larger than the budget may, alone."""
        return self._in_flight_bytes + size <= self._chunk_budget or self._in_flight_bytes == 0

    def _launch(self, resource: Resource, *, urgent: bool) -> Flight:
        flight = Flight(resource, urgent)
        self._flights[resource.key] = flight
        if not resource.reserve or (self._has_room(resource.reserve) and not self._waiting):
            self._enqueue(flight)
        else:
            self._waiting.append(flight)
        return flight

    def _enqueue(self, flight: Flight) -> None:
        size = flight.resource.reserve
        if size:
            self._in_flight_bytes += size
            flight.reserved = True
            self._chunks.shrink(max(self._chunk_budget - self._in_flight_bytes, 0))
        if flight.urgent:
            self._urgent.append(flight)
        else:
            self._ahead.append(flight)
        self._wake()

    def _promote(self, flight: Flight) -> None:
        flight.urgent = True
        if flight in self._ahead:
            self._ahead.remove(flight)
            self._urgent.append(flight)

    def _wake(self) -> None:
        queued = len(self._urgent) + len(self._ahead)
        if queued > self._idle and self._serving < self._max_threads:
            self._serving += 1
            self._pool.submit(self._serve)
        self._work.notify()

    def _serve(self) -> None:
        """A thread's life: one job of the pool that lasts until `close`. Called without the lock."""
        while True:
            with self._work:
                while not self._urgent and not self._ahead:
                    if self._is_closed:
                        self._serving -= 1
                        self._work.notify_all()
                        return
                    self._idle += 1
                    self._work.wait()
                    self._idle -= 1
                work = self._urgent.popleft() if self._urgent else self._ahead.popleft()
            if isinstance(work, Flight):
                self._fly(work)
            else:
                work()

    def _fly(self, flight: Flight) -> None:
        """Download, on a pool thread, without the lock."""
        try:
            value, cost = self._load(flight.resource)
        except BaseException as e:
            # Whatever it is, it belongs to whoever waits for the flight; the thread lives on.
            self._land(flight, None, e, 0)
        else:
            self._land(flight, value, None, cost)

    def _load(self, resource: Resource) -> tuple[Any, int]:
        """What lies in the bucket damaged comes again damaged; what was damaged on the way does not."""
        try:
            return self._ask(resource)
        except CorruptionError as e:
            _log.warning("asking for it a second time: %s", e)
            with self._work:
                self.metrics.retries += 1
            return self._ask(resource)

    def _ask(self, resource: Resource) -> tuple[Any, int]:
        for attempt in range(1, self._attempts):
            try:
                return resource.load(self._store)
            except StoreUnavailable:
                backoff = min(_FIRST_BACKOFF_S * 2 ** (attempt - 1), _MAX_BACKOFF_S)
                with self._work:
                    self.metrics.retries += 1
                    backoff *= self._random.uniform(0.5, 1.0)
                with self._pause:
                    if self._pause.wait_for(lambda: self._is_closed, backoff):
                        raise
        return resource.load(self._store)

    def _land(self, flight: Flight, value: Any, error: BaseException | None, cost: int) -> None:
        """End a flight, start what waited for its room, then tell who waits for it. Without the lock."""
        resource = flight.resource
        with self._work:
            if self._flights.get(resource.key) is not flight:
                return  # given up by close() while it was under way
            del self._flights[resource.key]
            if flight.reserved:
                self._in_flight_bytes -= resource.reserve
            if error is not None:
                self.metrics.failures += 1
            elif not self._is_closed:
                self.metrics.downloaded_bytes += resource.reserve
                self._keep(resource, value, cost)
            while self._waiting and self._has_room(self._waiting[0].resource.reserve):
                self._enqueue(self._waiting.popleft())
        if error is not None:
            flight.future.set_exception(error)
        else:
            flight.future.set_result(value)

    def _keep(self, resource: Resource, value: Any, cost: int) -> None:
        if resource.reserve:
            self._chunks.put(resource.key, value, resource.reserve)
            self._chunks.shrink(max(self._chunk_budget - self._in_flight_bytes, 0))
        else:
            self._metadata.put(resource.key, value, cost)
            self._metadata.shrink(self._metadata_budget)
