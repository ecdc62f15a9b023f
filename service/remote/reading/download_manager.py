"""Download manager: one download at a time per resource, on threads of its own, within one byte account.

A *resource* is any immutable part of the bucket that a read needs (manifest, page, footer, chunk). A read
gets it from the cache or joins the one *download* that fetches it; the download belongs to no request and
continues when no request waits for it any more. Chunks share one account (`ChunkCache`), whether cached, in
flight, read ahead or being sent; the small resources have a smaller cache of their own.

A download is attempted a few times, and only here: the store's client repeats nothing. An attempt that takes
much longer than usual is hedged by another client, over other connections, because the first ones may be
dead; the first to finish wins, and the other's result is dropped. First attempts use at most `threads`
threads; hedged attempts, and first attempts that were overtaken, half as many. Each attempt has a deadline of
the store's client, so no thread is lost to a dead connection. While the breaker of the store is open,
downloads fail at once with its reason. An object that the store refuses is not fetched again at once
(`Refusals`).

Ownership: `DownloadManager` may be called from any thread; one lock guards its state and is never held while
a store is called, a future is resolved or anything is decoded. Callbacks of downloads run on the pool's
threads.
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
from service.base.lru_cache import LruCache
from service.base.types import Buffer
from service.base.world import World
from service.remote.metrics import ReadMetrics
from service.remote.reading.chunk_cache import ChunkCache, Slot
from service.remote.reading.disk_cache import DiskCache
from service.remote.reading.download import Download, DownloadStats, RemoteResource, ResponseHold
from service.remote.reading.hedge import Hedge
from service.remote.reading.read_ahead import Stream
from service.remote.reading.resources import ChunkResource, GuessResource, guess_key
from service.remote.reading.store_state import StoreState
from service.remote.stores.errors import ReaderClosed, StoreUnavailable
from service.remote.stores.store import ObjectStore

_log = logging.getLogger(__name__)

_NO_SECOND_TRY_MS: Final = 1000
"""Pause before hedging is tried again when there was no room for it."""
_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0


class DownloadManager:
    """Cache, byte account, single-flight downloads, hedged attempts and the `remote-read` threads.

    `second_store` is another client of the same bucket, for hedged attempts; without it there are none.
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
        self._attempts = attempts
        self._random = world.random
        self._clock = world.clock
        self._pool: Executor = world.threads.pool("remote-read", self._most_threads)
        self._work = world.threads.condition()  # its lock guards all state below
        self._pause = world.threads.condition()  # where retries wait, woken by `close`
        self._is_closed = False
        self._serving = 0
        self._idle = 0
        self._busy = 0  # threads with first attempts and other work
        self._hedging = 0  # threads with hedged attempts
        self._overtaken = 0  # threads with overtaken first attempts
        self._hedge_check_ms: int | None = None  # when an idle thread checks for slow attempts
        self._urgent: deque[Callable[[], None] | Download] = deque()
        self._prefetches: deque[Download] = deque()
        self._waiting_for_room: deque[Download] = deque()  # urgent chunks
        self._downloads: dict[Hashable, Download] = {}
        self._active: dict[Download, None] = {}
        self._chunks = ChunkCache(chunk_budget_bytes)
        self._metadata: LruCache[Hashable, Any] = LruCache(metadata_budget_bytes)
        self._hedges = (Hedge(), Hedge())  # of small resources, of chunks
        self._state = StoreState(world)
        self._unreleased: deque[tuple[Sequence[Slot], int]] = deque()
        self.metrics = ReadMetrics()

    def get(self, resource: RemoteResource) -> Any | Download:
        """Return the value when it is cached, else the download that brings it; starts one if there is none.

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
            download = self._downloads.get(resource.key)
            if download is not None:
                self._promote(download)
                return download
            is_kept = self._disk_cache is not None and self._disk_cache.has(resource.key)
            why = None if is_kept else self._state.refusal_of(resource.object_key)
            if why is None:
                return self._start(resource, urgent=True)
            self.metrics.refused += 1
            refused = Download(resource, urgent=True)
            refused.future.set_exception(why)  # the caller gets it from the future
            return refused

    def chunk(self, key: Hashable) -> Slot | None:
        """Return the chunk with this block where it is in memory; starts nothing."""
        with self._work:
            slot = self._chunks.get(key)
            self.metrics.hits += slot is not None
            return slot

    def peek(self, resource: RemoteResource) -> Any | None:
        """Return the value when it is cached; starts nothing."""
        with self._work:
            return self._cached(resource)

    def prefetch(self, resource: RemoteResource) -> Any | Download | None:
        """Return the value or its download as `get` does, started at low priority.

        None where there is no room for it now, the reader is closed, or the store does not serve it.
        """
        with self._work:
            found = self._cached(resource) or self._downloads.get(resource.key)
            if found is not None:
                return found
            if (
                self._is_closed
                or self._waiting_for_room
                or self._state.refusal_of(resource.object_key) is not None
                or not self._chunks.has_room(resource.reserve)
            ):
                return None
            self.metrics.read_ahead += not isinstance(resource, GuessResource)
            return self._start(resource, urgent=False)

    def call_soon(self, work: Callable[[], None]) -> None:
        """Run `work` on a pool thread, before any read-ahead. Raises `ReaderClosed`."""
        with self._work:
            if self._is_closed:
                raise ReaderClosed("the reader is closed")
            self._urgent.append(work)
            self._wake()

    def lookup(self, key: Hashable) -> Slot | Download | None:
        """Return the chunk in memory, or its download, which becomes urgent; starts nothing."""
        with self._work:
            if (download := self._downloads.get(key)) is not None:
                self._promote(download)
            return self._chunks.get(key) or download

    # Responses and streams.

    def share(self) -> int:
        """Return how many bytes one more response may have now; 0 where responses hold all that they may."""
        with self._work:
            self._release_forgotten()
            return self._chunks.share()

    def hand_out(
        self, pieces: Sequence[tuple[Slot, memoryview]], stream: Stream, *, at_end: bool
    ) -> tuple[tuple[Buffer, ...], ResponseHold]:
        """Return the buffers of a response for `pieces`, one for each chunk, and the hold on their memory.

        The stream has read all chunks but the last to their end, and that one, too, when `at_end`.
        """
        slots: list[Slot] = []
        copied = 0
        small = []
        with self._work:
            chunks = self._chunks
            left = max(chunks.share() - sum(len(view) for _, view in pieces), 0)
            for slot, view in pieces:
                small.append(chunks.should_copy(slot, len(view)))
                if small[-1]:
                    copied += len(view)
                else:
                    slots.append(slot)
                    chunks.hold(slot)
            before, last = stream.slot, pieces[-1][0]
            for slot, _ in pieces if at_end else pieces[:-1]:
                chunks.mark_consumed(slot)
            stream.slot = None if at_end else last
            chunks.move(before, stream.slot, consumed=before in [slot for slot, _ in pieces])
            if copied:
                chunks.copy(copied)
        parts = tuple(
            bytes(view) if is_small else view for (_, view), is_small in zip(pieces, small, strict=True)
        )
        return parts, ResponseHold(self, slots, copied, left)

    def release(self, slots: Iterable[Slot], copied: int) -> None:
        """Free what a response held; see `ResponseHold`."""
        with self._work:
            self._chunks.release(slots, copied)
            self._release_forgotten()
            self._start_waiting()

    def release_later(self, slots: Sequence[Slot], copied: int) -> None:
        self._unreleased.append((slots, copied))

    def forget_streams(self, streams: Iterable[Stream]) -> None:
        """Drop the claims of abandoned streams on their chunks."""
        with self._work:
            for stream in streams:
                self._chunks.move(stream.slot, None, consumed=False)
                stream.slot = None

    def stats(self) -> DownloadStats:
        with self._work:
            self._release_forgotten()
            return DownloadStats(
                **asdict(self.metrics),
                cached_bytes=self._chunks.cached_bytes,
                in_flight_bytes=self._chunks.in_flight_bytes,
                sending_bytes=self._chunks.sending_bytes,
                metadata_bytes=self._metadata.size,
                in_flight=len(set(self._downloads.values())),
                busy_threads=self._serving - self._idle,
                store_problem=self._state.problem,
                asleep=self._state.asleep,
            )

    def close(self, timeout_s: float) -> None:
        """Cancel what has not started, let running downloads end, and wait for the threads.

        A download cannot be interrupted; what still runs after `timeout_s` is abandoned. Every future is
        resolved in any case, with `ReaderClosed` where there is no other result.
        """
        with self._work:
            self._is_closed = True
            queued = [*self._urgent, *self._prefetches, *self._waiting_for_room]
            self._urgent.clear()
            self._prefetches.clear()
            self._waiting_for_room.clear()
            self._work.notify_all()
        with self._pause:
            self._pause.notify_all()
        for item in queued:
            if isinstance(item, Download):
                self._complete(item, None, ReaderClosed("the reader is closed"), 0)
            else:
                item()  # fails with `ReaderClosed`, as the reader is closed
        with self._work:
            have_ended = self._work.wait_for(lambda: not self._serving, timeout_s)
            stranded = set(self._downloads.values())
            self._chunks.clear()
            self._metadata.clear()
        for download in stranded:
            self._complete(download, None, ReaderClosed("the reader is closed"), 0)
        self._pool.shutdown(wait=have_ended)
        if self._disk_cache is not None:
            self._disk_cache.close()

    # Methods below are called with the lock held, unless they say otherwise.

    def _cached(self, resource: RemoteResource) -> Any | None:
        return (self._chunks if resource.reserve else self._metadata).get(resource.key)

    def _is_taken(self, key: Hashable) -> bool:
        return key in self._chunks or key in self._downloads

    def _start(self, resource: RemoteResource, *, urgent: bool) -> Download:
        resource = resource.cut(self._is_taken)
        download = Download(resource, urgent)
        self._downloads.update(dict.fromkeys(resource.keys, download))
        if not resource.reserve or (not self._waiting_for_room and self._chunks.has_room(resource.reserve)):
            self._enqueue(download)
        else:
            self._waiting_for_room.append(download)
        return download

    def _enqueue(self, download: Download) -> None:
        size = download.resource.reserve
        if size:
            self._chunks.reserve(size)
        if download.urgent:
            self._urgent.append(download)
        else:
            self._prefetches.append(download)
        self._wake()

    def _start_waiting(self) -> None:
        while self._waiting_for_room and self._chunks.has_room(self._waiting_for_room[0].resource.reserve):
            self._enqueue(self._waiting_for_room.popleft())

    def _release_forgotten(self) -> None:
        if self._unreleased:
            while self._unreleased:
                self._chunks.release(*self._unreleased.popleft())
            self._start_waiting()

    def _promote(self, download: Download) -> None:
        if not download.urgent:
            download.urgent = True
            if download in self._prefetches:
                self._prefetches.remove(download)
                self._urgent.append(download)

    def _wake(self) -> None:
        """Ensure that there is a thread for everything queued, and one that watches the others."""
        queued = len(self._urgent) + len(self._prefetches)
        wanted = min(self._busy + queued, self._threads)
        if self._second_store is not None:
            wanted += self._hedging + self._overtaken + 1
        while self._serving < min(wanted, self._most_threads):
            self._serving += 1
            self._pool.submit(self._serve)
        self._work.notify()

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next work of a thread and return it; None when the thread is to end."""
        while True:
            self._release_forgotten()
            may_ask_first = self._busy < self._threads and (
                not self._overtaken or self._busy + self._overtaken < self._most_threads - 1
            )
            if may_ask_first and (self._urgent or self._prefetches):
                self._busy += 1
                work = self._urgent.popleft() if self._urgent else self._prefetches.popleft()
                return (
                    partial(self._download, work) if isinstance(work, Download) else partial(self._run, work)
                )
            if not may_ask_first and self._overtaken and self._urgent:
                # The last thread that is not in a dead call uses the other client at once.
                first = self._urgent.popleft()
                if not isinstance(first, Download):
                    self._busy += 1
                    return partial(self._run, first)
                first.is_hedged = True
                first.tries += 1
                self._hedging += 1
                return partial(self._hedged_attempt, first)
            if self._is_closed:
                return None
            if self._hedge_check_ms is not None or not self._active:
                self._wait_idle(None)  # another thread watches, or there is nothing to watch
                continue
            now, due = self._clock.monotonic_ms(), self._hedge_due_ms()
            if due is not None and due <= now:
                if (late := self._next_hedge(now)) is not None:
                    self._hedging += 1
                    return partial(self._hedged_attempt, late)
                due = now + _NO_SECOND_TRY_MS
            self._hedge_check_ms = due
            self._wait_idle(None if due is None else (due - now) / 1000)
            self._hedge_check_ms = None

    def _wait_idle(self, timeout_s: float | None) -> None:
        self._idle += 1
        self._work.wait(timeout_s)
        self._idle -= 1

    def _serve(self) -> None:
        """Run works until `close`, as one job of the pool. Called without the lock."""
        while True:
            with self._work:
                if (work := self._next()) is None:
                    self._serving -= 1
                    self._work.notify_all()
                    return
            try:
                work()
            except Exception:
                # A bug. Its waiters got the error, or there are none; the thread must live on, as it is
                # counted.
                _log.exception("bug in a thread of cold reads, the thread continues")
            del work  # keep nothing alive while the thread waits

    def _run(self, work: Callable[[], None]) -> None:
        """Run `work`. Called without the lock, as are the attempts."""
        try:
            work()
        finally:
            with self._work:
                self._busy -= 1

    # Attempts. Called without the lock, unless they say otherwise.

    def _download(self, download: Download) -> None:
        """Run a download with all attempts that it may take."""
        with self._work:
            download.tries += 1
            self._active[download] = None
        disk_cache, resource = self._disk_cache, download.resource
        at_hand = kept = None
        try:
            if isinstance(resource, ChunkResource):
                kept = None if disk_cache is None else disk_cache.load(resource)
                at_hand = kept or resource.guessed()
            value, cost = self._load(download) if at_hand is None else (at_hand, 0)
        except BaseException as e:
            # Any error belongs to the waiters of the download; the thread lives on.
            self._attempt_failed(download, e)
        else:
            self._complete(download, value, None, cost)
            if disk_cache is not None and kept is None and isinstance(resource, ChunkResource):
                disk_cache.save(resource, value.data)
        finally:
            with self._work:
                if download.is_overtaken:
                    self._overtaken -= 1
                else:
                    self._busy -= 1
                self._active.pop(download, None)
                self.metrics.disk_hits += kept is not None

    def _hedged_attempt(self, download: Download) -> None:
        assert self._second_store is not None
        try:
            value, cost = self._attempt(download, self._second_store)
        except BaseException as e:
            self._attempt_failed(download, e)
        else:
            if self._complete(download, value, None, cost):
                self._overtake(download)
        finally:
            with self._work:
                self._hedging -= 1

    def _overtake(self, download: Download) -> None:
        """Give the thread of the first attempt up as overtaken: until it ends, another thread takes its
        place."""
        with self._work:
            self.metrics.hedges_won += 1
            if download in self._active:
                download.is_overtaken = True
                self._busy -= 1
                self._overtaken += 1
                self._wake()

    def _attempt_failed(self, download: Download, error: BaseException) -> None:
        """Record that one attempt failed; the download fails unless the other attempt still runs."""
        with self._work:
            download.tries -= 1
            download.error = download.error or error
            if download.tries or download.is_over:
                self._chunks.unreserve(download.resource.reserve)
                self._start_waiting()
                return
        self._complete(download, None, download.error, 0)

    def _load(self, download: Download) -> tuple[Any, int]:
        """Load the resource, with retries. Damage is retried once: it may have happened on the way."""
        failures = 0
        was_damaged = False
        while True:
            try:
                return self._attempt(download, self._store)
            except CorruptionError as e:
                if was_damaged:
                    raise
                was_damaged = True
                _log.warning("downloaded bytes are damaged, downloading them once more: %s", e)
            except StoreUnavailable:
                failures += 1
                if failures >= self._attempts or not self._back_off(download, failures):
                    raise
            with self._work:
                self.metrics.retries += 1

    def _back_off(self, download: Download, failures: int) -> bool:
        """Wait before the next attempt; return False when there is to be none."""
        with self._work:
            if self._state.problem is not None:
                return False
            backoff_s = min(_FIRST_BACKOFF_S * 2 ** (failures - 1), _MAX_BACKOFF_S)
            backoff_s *= self._random.uniform(0.5, 1.0)
        with self._pause:
            return not self._pause.wait_for(lambda: self._is_closed or download.is_over, backoff_s)

    def _attempt(self, download: Download, store: ObjectStore) -> tuple[Any, int]:
        """Call the store once, if the breaker allows it, and record the result in the breaker."""
        resource = download.resource
        is_first = store is self._store
        with self._work:
            began_ms = self._clock.monotonic_ms()
            self._state.begin(resource.object_key, began_ms)
            self.metrics.requests += 1
            if is_first:
                download.begun_ms = began_ms
                self._wake_for_hedge(began_ms + self._hedge(download).delay_ms)
        error: BaseException | None = None
        try:
            return resource.load(store)
        except BaseException as e:
            error = e
            raise
        finally:
            with self._work:
                if is_first:
                    download.begun_ms = None
                self._state.ended(resource.object_key, error, began_ms)
                if error is None:
                    self._hedge(download).record(self._clock.monotonic_ms() - began_ms)

    # Hedged attempts. Called with the lock held.

    def _hedge(self, download: Download) -> Hedge:
        return self._hedges[1 if download.resource.reserve else 0]

    def _wake_for_hedge(self, due_ms: int) -> None:
        """Wake an idle thread, if there is one, so that it checks for slow attempts at `due_ms`."""
        if self._second_store is not None and self._idle and (self._hedge_check_ms or due_ms + 1) > due_ms:
            self._work.notify()

    def _hedge_due_ms(self) -> int | None:
        """Return when the next running attempt is slow enough to be hedged; None for none."""
        if self._second_store is None:
            return None
        due = [
            download.begun_ms + self._hedge(download).delay_ms
            for download in self._active
            if download.begun_ms is not None and not download.is_hedged
        ]
        return min(due, default=None)

    def _next_hedge(self, now_ms: int) -> Download | None:
        """Return a download to hedge now, its room and budget already taken; None for none."""
        for download in self._active:
            if download.begun_ms is None or download.is_hedged:
                continue
            hedge, size = self._hedge(download), download.resource.reserve
            if download.begun_ms + hedge.delay_ms > now_ms or self._state.problem is not None:
                continue
            if (size and not self._chunks.has_room(size)) or not hedge.spend():
                continue
            download.is_hedged = True
            download.tries += 1
            self._chunks.reserve(size)
            self.metrics.hedges += 1
            return download
        return None

    # The end. Called without the lock.

    def _complete(self, download: Download, value: Any, error: BaseException | None, cost: int) -> bool:
        """Complete a download, start what waited for its room, then resolve its future.

        Return False where another attempt, or `close`, had completed it.
        """
        resource = download.resource
        with self._work:
            self._chunks.unreserve(resource.reserve)
            if download.is_over:
                self._start_waiting()
                return False
            download.is_over = True
            for key in resource.keys:
                if self._downloads.get(key) is download:
                    del self._downloads[key]
            if error is not None:
                self.metrics.failures += 1
            elif resource.reserve:
                value = Slot(value, tuple(resource.keys), resource.reserve)
                self.metrics.downloaded_bytes += cost
                self._chunks.drop(guess_key(resource.object_key))  # the useful part is verified now
                if not self._is_closed:
                    self._chunks.put(value)
            elif not self._is_closed:
                self._metadata.put(resource.key, value, cost)
            self._release_forgotten()
            self._start_waiting()
        if error is not None:
            download.future.set_exception(error)
        else:
            download.future.set_result(value)
        return True
