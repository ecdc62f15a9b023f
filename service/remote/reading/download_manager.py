"""Downloads: one at a time per thing, on threads of their own, within one byte account.

A *resource* is anything immutable that a read needs from the bucket (manifest, page, footer, chunk). Whoever
needs one gets it from the cache or joins the one *flight* that fetches it; the flight belongs to no request
and goes on when nobody waits any more. Chunks share one account (`ChunkCache`), whether cached, on their way,
read ahead or being sent; the small resources have a smaller cache of their own.

A flight is tried a few times, and this is the only place that counts: the store's client repeats nothing. A
try that takes much longer than tries usually do is made a second time by another client, over connections
that are none of those that may have died; who comes first wins, and the other's answer is nobody's. First
tries keep `threads` threads busy at most, second ones, and first ones that were overtaken, half as many.
Each try has a deadline of the store's client, so no thread is lost to a connection that died. A store that
does not serve is left alone for a while by a breaker: flights fail at once then, with its reason. An object
that it refuses is not asked for again at once (`Refusals`).

Ownership: `Flights` may be called from any thread; one lock guards its state and is never held while a store
is called, a future is resolved or anything is decoded. Callbacks of flights run on the pool's threads.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.base.world import World
from service.remote.metrics import ReadMetrics
from service.remote.reading.chunk_cache import ChunkCache, Slot
from service.remote.reading.disk_cache import DiskCache
from service.remote.reading.download import Flight, FlightStats, Hold, Resource
from service.remote.reading.hedge import Hedge
from service.remote.reading.lru import LruCache
from service.remote.reading.read_ahead import Stream
from service.remote.reading.resources import ChunkResource, GuessResource, guess_key
from service.remote.reading.store_state import StoreState
from service.remote.stores.errors import ReaderClosed, StoreUnavailable
from service.remote.stores.store import ObjectStore

_log = logging.getLogger(__name__)

_NO_SECOND_TRY_MS: Final = 1000
"""When second tries are looked for again that there was no room for."""
_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0


class Flights:
    """Cache, account, single flight, second tries and the `remote-read` threads.

    `second_store` is another client of the same bucket, for second tries; without one there are none.
    """

    def __init__(
        self,
        store: ObjectStore,
        world: World,
        *,
        second_store: ObjectStore | None,
        disk_cache: DiskCache | None,
        threads: int,
        chunk_budget_bytes: int,
        metadata_budget_bytes: int,
        attempts: int,
    ) -> None:
        self._store = store
        self._second_store = second_store
        self._disk_cache = disk_cache
        self._threads = threads
        self._most_threads = threads + (max(threads // 2, 2) if second_store is not None else 0)
        self._metadata_budget = metadata_budget_bytes
        self._attempts = attempts
        self._random = world.random
        self._clock = world.clock
        self._pool: Executor = world.threads.pool("remote-read", self._most_threads)
        self._work = world.threads.condition()  # its lock guards all of the state below
        self._pause = world.threads.condition()  # where retries wait, woken by `close`
        self._is_closed = False
        self._serving = 0
        self._idle = 0
        self._busy = 0  # with first tries, and other work
        self._seconds = 0  # with second tries
        self._overtaken = 0  # with first tries whose second one came first, until they end, too
        self._look_ms: int | None = None  # when somebody idle looks for tries that take long
        self._urgent: deque[Callable[[], None] | Flight] = deque()
        self._ahead: deque[Flight] = deque()
        self._waiting: deque[Flight] = deque()  # urgent chunks for which the account has no room yet
        self._flights: dict[Hashable, Flight] = {}
        self._flying: dict[Flight, None] = {}
        self._chunks = ChunkCache(chunk_budget_bytes)
        self._metadata = LruCache()
        self._hedges = (Hedge(), Hedge())  # of small resources, of chunks
        self._state = StoreState(world)
        self._forgotten: deque[tuple[Sequence[Slot], int]] = deque()
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
            if flight is not None:
                self._promote(flight)
                return flight
            is_kept = self._disk_cache is not None and self._disk_cache.has(resource.key)
            why = None if is_kept else self._state.why_not(resource.object_key)
            if why is None:
                return self._launch(resource, urgent=True)
            self.metrics.refused += 1
            refused = Flight(resource, urgent=True)
            refused.future.set_exception(why)  # of which nobody knows yet
            return refused

    def chunk(self, key: Hashable) -> Slot | None:
        """The chunk with this block where it is in memory; starts nothing."""
        with self._work:
            slot = self._chunks.get(key)
            self.metrics.hits += slot is not None
            return slot

    def peek(self, resource: Resource) -> Any | None:
        """The value when it is cached; starts nothing."""
        with self._work:
            return self._cached(resource)

    def ahead(self, resource: Resource) -> Any | Flight | None:
        """As `get`, at low priority; None where there is no room for it now, or nobody to ask."""
        with self._work:
            found = self._cached(resource) or self._flights.get(resource.key)
            if found is not None:
                return found
            if (
                self._is_closed
                or self._waiting
                or self._state.why_not(resource.object_key) is not None
                or not self._chunks.has_room(resource.reserve)
            ):
                return None
            self.metrics.read_ahead += not isinstance(resource, GuessResource)
            return self._launch(resource, urgent=False)

    def call_soon(self, work: Callable[[], None]) -> None:
        """Run `work` on a pool thread, before any read-ahead. Raises `ReaderClosed`."""
        with self._work:
            if self._is_closed:
                raise ReaderClosed("the reader is closed")
            self._urgent.append(work)
            self._wake()

    def found(self, key: Hashable) -> Slot | Flight | None:
        """The chunk in memory, or the flight that brings it, in a hurry now; starts nothing."""
        with self._work:
            if (flight := self._flights.get(key)) is not None:
                self._promote(flight)
            return self._chunks.get(key) or flight

    # Responses and streams.

    def share(self) -> int:
        """Bytes that one more response may have now; 0 where responses hold all that they may."""
        with self._work:
            self._let_forgotten_go()
            return self._chunks.share()

    def hand_out(
        self, pieces: Sequence[tuple[Slot, memoryview]], stream: Stream, *, at_end: bool
    ) -> tuple[tuple[Buffer, ...], Hold]:
        """The pieces as a response may have them, chunk by chunk, and what it holds by them.

        The stream has read all chunks but the last to their end, and that one, too, when `at_end`.
        """
        slots: list[Slot] = []
        copied = 0
        small = []
        with self._work:
            chunks = self._chunks
            left = max(chunks.share() - sum(len(view) for _, view in pieces), 0)
            for slot, view in pieces:
                small.append(chunks.is_to_be_copied(slot, len(view)))
                if small[-1]:
                    copied += len(view)
                else:
                    slots.append(slot)
                    chunks.hold(slot)
            before, last = stream.slot, pieces[-1][0]
            for slot, _ in pieces if at_end else pieces[:-1]:
                chunks.consumed(slot)
            stream.slot = None if at_end else last
            chunks.move(before, stream.slot, consumed=before in [slot for slot, _ in pieces])
            if copied:
                chunks.copy(copied)
        parts = tuple(
            bytes(view) if is_small else view for (_, view), is_small in zip(pieces, small, strict=True)
        )
        return parts, Hold(self, slots, copied, left)

    def let_go(self, slots: Iterable[Slot], copied: int) -> None:
        """What a response held is free; see `Hold`."""
        with self._work:
            self._chunks.let_go(slots, copied)
            self._let_forgotten_go()
            self._start_waiting()

    def forget_hold(self, slots: Sequence[Slot], copied: int) -> None:
        self._forgotten.append((slots, copied))

    def forget(self, streams: Iterable[Stream]) -> None:
        """Streams that nobody reads any more want their chunks no longer."""
        with self._work:
            for stream in streams:
                self._chunks.move(stream.slot, None, consumed=False)
                stream.slot = None

    def stats(self) -> FlightStats:
        with self._work:
            self._let_forgotten_go()
            return FlightStats(
                **asdict(self.metrics),
                cached_bytes=self._chunks.cached_bytes,
                in_flight_bytes=self._chunks.in_flight_bytes,
                sending_bytes=self._chunks.sending_bytes,
                metadata_bytes=self._metadata.size,
                in_flight=len(set(self._flights.values())),
                busy_threads=self._serving - self._idle,
                store_problem=self._state.problem,
                asleep=self._state.asleep,
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
            stranded = set(self._flights.values())
            self._chunks.clear()
            self._metadata.shrink(0)
        for flight in stranded:
            self._land(flight, None, ReaderClosed("the reader is closed"), 0)
        self._pool.shutdown(wait=have_ended)
        if self._disk_cache is not None:
            self._disk_cache.close()

    # Below, callers hold the lock unless it says otherwise.

    def _cached(self, resource: Resource) -> Any | None:
        return (self._chunks if resource.reserve else self._metadata).get(resource.key)

    def _is_taken(self, key: Hashable) -> bool:
        return key in self._chunks or key in self._flights

    def _launch(self, resource: Resource, *, urgent: bool) -> Flight:
        resource = resource.cut(self._is_taken)
        flight = Flight(resource, urgent)
        self._flights.update(dict.fromkeys(resource.keys, flight))
        if not resource.reserve or (not self._waiting and self._chunks.has_room(resource.reserve)):
            self._enqueue(flight)
        else:
            self._waiting.append(flight)
        return flight

    def _enqueue(self, flight: Flight) -> None:
        size = flight.resource.reserve
        if size:
            self._chunks.reserve(size)
        if flight.urgent:
            self._urgent.append(flight)
        else:
            self._ahead.append(flight)
        self._wake()

    def _start_waiting(self) -> None:
        while self._waiting and self._chunks.has_room(self._waiting[0].resource.reserve):
            self._enqueue(self._waiting.popleft())

    def _let_forgotten_go(self) -> None:
        if self._forgotten:
            while self._forgotten:
                self._chunks.let_go(*self._forgotten.popleft())
            self._start_waiting()

    def _promote(self, flight: Flight) -> None:
        if not flight.urgent:
            flight.urgent = True
            if flight in self._ahead:
                self._ahead.remove(flight)
                self._urgent.append(flight)

    def _wake(self) -> None:
        """See to it that there is a thread for what is queued, and one that watches the others."""
        queued = len(self._urgent) + len(self._ahead)
        wanted = min(self._busy + queued, self._threads)
        if self._second_store is not None:
            wanted += self._seconds + self._overtaken + 1
        while self._serving < min(wanted, self._most_threads):
            self._serving += 1
            self._pool.submit(self._serve)
        self._work.notify()

    def _next(self) -> Callable[[], None] | None:
        """Waits for what a thread is to do next; None when it is to end."""
        while True:
            self._let_forgotten_go()
            may_ask_first = self._busy < self._threads and (
                not self._overtaken or self._busy + self._overtaken < self._most_threads - 1
            )
            if may_ask_first and (self._urgent or self._ahead):
                self._busy += 1
                work = self._urgent.popleft() if self._urgent else self._ahead.popleft()
                return partial(self._fly, work) if isinstance(work, Flight) else partial(self._run, work)
            if not may_ask_first and self._overtaken and self._urgent:
                # The last thread that is not in a dead call asks the other client at once.
                first = self._urgent.popleft()
                if not isinstance(first, Flight):
                    self._busy += 1
                    return partial(self._run, first)
                first.is_hedged = True
                first.tries += 1
                self._seconds += 1
                return partial(self._fly_second, first)
            if self._is_closed:
                return None
            if self._look_ms is not None or not self._flying:
                self._rest(None)  # somebody else watches, or there is nothing to be watched
                continue
            now, due = self._clock.monotonic_ms(), self._due_ms()
            if due is not None and due <= now:
                if (late := self._late(now)) is not None:
                    self._seconds += 1
                    return partial(self._fly_second, late)
                due = now + _NO_SECOND_TRY_MS
            self._look_ms = due
            self._rest(None if due is None else (due - now) / 1000)
            self._look_ms = None

    def _rest(self, timeout_s: float | None) -> None:
        self._idle += 1
        self._work.wait(timeout_s)
        self._idle -= 1

    def _serve(self) -> None:
        """A thread's life: one job of the pool that lasts until `close`. Called without the lock."""
        while True:
            with self._work:
                if (work := self._next()) is None:
                    self._serving -= 1
                    self._work.notify_all()
                    return
            try:
                work()
            except Exception:
                # A bug. Who waited was told, or is not waited for; the thread is still counted on.
                _log.exception("a bug in a thread of cold reads, which goes on")
            del work  # nothing is kept alive while the thread waits

    def _run(self, work: Callable[[], None]) -> None:
        """Without the lock, as are the tries."""
        try:
            work()
        finally:
            with self._work:
                self._busy -= 1

    # Tries. Without the lock, unless it says otherwise.

    def _fly(self, flight: Flight) -> None:
        """Download, with all tries that it may take."""
        with self._work:
            flight.tries += 1
            self._flying[flight] = None
        disk_cache, resource = self._disk_cache, flight.resource
        at_hand = kept = None
        try:
            if isinstance(resource, ChunkResource):
                kept = None if disk_cache is None else disk_cache.load(resource)
                at_hand = kept or resource.guessed()
            value, cost = self._load(flight) if at_hand is None else (at_hand, 0)
        except BaseException as e:
            # Whatever it is, it belongs to whoever waits for the flight; the thread lives on.
            self._failed(flight, e)
        else:
            self._land(flight, value, None, cost)
            if disk_cache is not None and kept is None and isinstance(resource, ChunkResource):
                disk_cache.save(resource, value.data)
        finally:
            with self._work:
                if flight.is_overtaken:
                    self._overtaken -= 1
                else:
                    self._busy -= 1
                self._flying.pop(flight, None)
                self.metrics.disk_hits += kept is not None

    def _fly_second(self, flight: Flight) -> None:
        assert self._second_store is not None
        try:
            value, cost = self._try(flight, self._second_store)
        except BaseException as e:
            self._failed(flight, e)
        else:
            if self._land(flight, value, None, cost):
                self._overtake(flight)
        finally:
            with self._work:
                self._seconds -= 1

    def _overtake(self, flight: Flight) -> None:
        """The first try is nobody's now: until it ends another thread takes the place of its own."""
        with self._work:
            self.metrics.hedges_won += 1
            if flight in self._flying:
                flight.is_overtaken = True
                self._busy -= 1
                self._overtaken += 1
                self._wake()

    def _failed(self, flight: Flight, error: BaseException) -> None:
        """One try has ended without bringing it; the other, if there is one, may yet."""
        with self._work:
            flight.tries -= 1
            flight.error = flight.error or error
            if flight.tries or flight.is_over:
                self._chunks.unreserve(flight.resource.reserve)
                self._start_waiting()
                return
        self._land(flight, None, flight.error, 0)

    def _load(self, flight: Flight) -> tuple[Any, int]:
        """What lies in the bucket damaged comes again damaged; what was damaged on the way does not."""
        failures = 0
        was_damaged = False
        while True:
            try:
                return self._try(flight, self._store)
            except CorruptionError as e:
                if was_damaged:
                    raise
                was_damaged = True
                _log.warning("asking for it a second time: %s", e)
            except StoreUnavailable:
                failures += 1
                if failures >= self._attempts or not self._back_off(flight, failures):
                    raise
            with self._work:
                self.metrics.retries += 1

    def _back_off(self, flight: Flight, failures: int) -> bool:
        """Wait before the next try; False when there is to be none."""
        with self._work:
            if self._state.problem is not None:
                return False
            backoff_s = min(_FIRST_BACKOFF_S * 2 ** (failures - 1), _MAX_BACKOFF_S)
            backoff_s *= self._random.uniform(0.5, 1.0)
        with self._pause:
            return not self._pause.wait_for(lambda: self._is_closed or flight.is_over, backoff_s)

    def _try(self, flight: Flight, store: ObjectStore) -> tuple[Any, int]:
        """Ask once, if the breaker lets us, and tell it what came of it."""
        resource = flight.resource
        is_first = store is self._store
        with self._work:
            began_ms = self._clock.monotonic_ms()
            self._state.begin(resource.object_key, began_ms)
            self.metrics.requests += 1
            if is_first:
                flight.begun_ms = began_ms
                self._watch(began_ms + self._hedge(flight).delay_ms)
        error: BaseException | None = None
        try:
            return resource.load(store)
        except BaseException as e:
            error = e
            raise
        finally:
            with self._work:
                if is_first:
                    flight.begun_ms = None
                self._state.ended(resource.object_key, error, began_ms)
                if error is None:
                    self._hedge(flight).took(self._clock.monotonic_ms() - began_ms)

    # Second tries. With the lock.

    def _hedge(self, flight: Flight) -> Hedge:
        return self._hedges[1 if flight.resource.reserve else 0]

    def _watch(self, due_ms: int) -> None:
        """Somebody idle, if there is anybody, is to look for tries that take long when it is `due_ms`."""
        if self._second_store is not None and self._idle and (self._look_ms or due_ms + 1) > due_ms:
            self._work.notify()

    def _due_ms(self) -> int | None:
        """When the next try has taken so long that it is to be made a second time."""
        if self._second_store is None:
            return None
        due = [
            flight.begun_ms + self._hedge(flight).delay_ms
            for flight in self._flying
            if flight.begun_ms is not None and not flight.is_hedged
        ]
        return min(due, default=None)

    def _late(self, now_ms: int) -> Flight | None:
        """A flight to be tried a second time now: what it takes is counted already."""
        for flight in self._flying:
            if flight.begun_ms is None or flight.is_hedged:
                continue
            hedge, size = self._hedge(flight), flight.resource.reserve
            if flight.begun_ms + hedge.delay_ms > now_ms or self._state.problem is not None:
                continue
            if (size and not self._chunks.has_room(size)) or not hedge.spend():
                continue
            flight.is_hedged = True
            flight.tries += 1
            self._chunks.reserve(size)
            self.metrics.hedges += 1
            return flight
        return None

    # The end. Without the lock.

    def _land(self, flight: Flight, value: Any, error: BaseException | None, cost: int) -> bool:
        """End a flight, start what waited for its room, then tell who waits for it. False where another try,
        or `close`, had ended it.
        """
        resource = flight.resource
        with self._work:
            self._chunks.unreserve(resource.reserve)
            if flight.is_over:
                self._start_waiting()
                return False
            flight.is_over = True
            for key in resource.keys:
                if self._flights.get(key) is flight:
                    del self._flights[key]
            if error is not None:
                self.metrics.failures += 1
            elif resource.reserve:
                value = Slot(value, tuple(resource.keys), resource.reserve)
                self.metrics.downloaded_bytes += cost
                self._chunks.drop(guess_key(resource.object_key))  # what was of use is proven now
                if not self._is_closed:
                    self._chunks.put(value)
            elif not self._is_closed:
                self._metadata.put(resource.key, value, cost)
                self._metadata.shrink(self._metadata_budget)
            self._let_forgotten_go()
            self._start_waiting()
        if error is not None:
            flight.future.set_exception(error)
        else:
            flight.future.set_result(value)
        return True
