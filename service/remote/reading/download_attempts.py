"""Attempts of a download: from the disk cache, then the store, with retries and hedged attempts.

A download is attempted a few times, and only here: the store's client repeats nothing. Each attempt has a
deadline of the store's client, so no thread is lost to a dead connection. An attempt that takes much longer
than usual is hedged by another client, over other connections, because the first ones may be dead; the first
to finish wins, and the other's result is dropped. While the breaker of the store is open, attempts fail at
once with its reason.

Ownership: called on the threads of cold reads, with the lock held where a name ends in `_locked`; it is never
held while a store is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from service.base.backoff import doubled
from service.base.errors import CorruptionError
from service.base.threads import Condition
from service.base.world import World
from service.remote.metrics import ReadMetrics
from service.remote.reading.chunk_cache import ChunkCache
from service.remote.reading.disk_cache import DiskCache
from service.remote.reading.download import Download
from service.remote.reading.hedge import Hedge
from service.remote.reading.resources import ChunkResource
from service.remote.reading.store_state import StoreState
from service.remote.stores.errors import StoreUnavailable
from service.remote.stores.store import ObjectStore

_log = logging.getLogger(__name__)

_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0

Complete = Callable[[Download, Any, BaseException | None, int], bool]
"""Completes a download with a value and its cost, or an error; False where it is complete, or another attempt
may still succeed"""


class DownloadAttempts:
    """Runs attempts, and watches for those to hedge; without a second client none is hedged.

    `lock` guards its state, `chunks`, `state`, `metrics` and the downloads.
    """

    def __init__(
        self,
        world: World,
        lock: Condition,
        chunks: ChunkCache,
        state: StoreState,
        metrics: ReadMetrics,
        complete: Complete,
        *,
        store: ObjectStore,
        second_store: ObjectStore | None,
        disk_cache: DiskCache | None,
        attempts: int,
    ) -> None:
        self._clock = world.clock
        self._random = world.random
        self._lock = lock
        self._chunks = chunks
        self._state = state
        self._metrics = metrics
        self._complete = complete
        self._store = store
        self._second_store = second_store
        self._disk_cache = disk_cache
        self._attempts = attempts
        self._hedges = (Hedge(), Hedge())  # of small resources, of chunks
        self._begun_ms: dict[Download, int] = {}  # attempts that run and are not hedged
        self.is_hedging = second_store is not None
        self.check_ms: int | None = None
        """when an idle thread checks for slow attempts; None while none does"""
        self._pause = world.threads.condition()  # where retries wait, woken by `close`
        self._is_closed = False

    def run(self, download: Download) -> None:
        """Run a download with all attempts that the first client may take."""
        disk_cache, resource = self._disk_cache, download.resource
        at_hand = kept = None
        try:
            if isinstance(resource, ChunkResource):
                kept = None if disk_cache is None else disk_cache.load(resource)
                at_hand = kept or resource.guessed()
            value, cost = self._load(download) if at_hand is None else (at_hand, 0)
        except BaseException as e:
            # Any error belongs to the waiters of the download; the thread lives on.
            self._failed(download, e)
            return
        if kept is not None:
            with self._lock:
                self._metrics.disk_hits += 1
        self._complete(download, value, None, cost)
        if disk_cache is not None and kept is None and isinstance(resource, ChunkResource):
            disk_cache.save(resource, value.data)

    def run_hedged(self, download: Download) -> bool:
        """Make one attempt by the second client; return True when it won."""
        assert self._second_store is not None
        try:
            value, cost = self._attempt(download, self._second_store)
        except BaseException as e:
            self._failed(download, e)
            return False
        has_won = self._complete(download, value, None, cost)
        with self._lock:
            self._metrics.hedges_won += has_won
        return has_won

    def close(self) -> None:
        """End the pauses between attempts; no further attempt follows."""
        with self._pause:
            self._is_closed = True
            self._pause.notify_all()

    def _failed(self, download: Download, error: BaseException) -> None:
        """Record that the attempts of one client failed; the download fails unless the other's still run."""
        with self._lock:
            download.tries -= 1
            download.error = download.error or error
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
            with self._lock:
                self._metrics.retries += 1

    def _back_off(self, download: Download, failures: int) -> bool:
        """Wait before the next attempt; return False when there is to be none."""
        with self._lock:
            if self._state.problem is not None:
                return False
            backoff_s = doubled(failures, _FIRST_BACKOFF_S, _MAX_BACKOFF_S)
            backoff_s *= self._random.uniform(0.5, 1.0)
        with self._pause:
            return not self._pause.wait_for(lambda: self._is_closed or download.is_over, backoff_s)

    def _attempt(self, download: Download, store: ObjectStore) -> tuple[Any, int]:
        """Call the store once, if the breaker allows it, and record the result in the breaker."""
        resource = download.resource
        is_first = store is self._store
        with self._lock:
            began_ms = self._clock.monotonic_ms()
            self._state.begin(resource.object_key, began_ms)
            self._metrics.requests += 1
            if is_first and self.is_hedging and not download.is_hedged:
                self._begun_ms[download] = began_ms
                if self.check_ms is None or self.check_ms > began_ms + self._hedge(download).delay_ms:
                    self._lock.notify()  # an idle thread, if there is one, checks in time
        error: BaseException | None = None
        try:
            return resource.load(store)
        except BaseException as e:
            error = e
            raise
        finally:
            with self._lock:
                if is_first:
                    self._begun_ms.pop(download, None)
                self._state.ended(resource.object_key, error, began_ms)
                if error is None:
                    self._hedge(download).record(self._clock.monotonic_ms() - began_ms)

    def hedge_due_ms_locked(self) -> int | None:
        """Return when the next running attempt is slow enough to be hedged; None for none."""
        due = (begun_ms + self._hedge(one).delay_ms for one, begun_ms in self._begun_ms.items())
        return min(due, default=None)

    def take_slow_locked(self, now_ms: int) -> Download | None:
        """Return a download to hedge now, its room and budget already taken; None for none."""
        if self._state.problem is not None:
            return None
        for download, begun_ms in self._begun_ms.items():
            hedge, size = self._hedge(download), download.resource.reserve
            if begun_ms + hedge.delay_ms > now_ms or (size and not self._chunks.has_room(size)):
                continue
            if hedge.spend():
                del self._begun_ms[download]
                self._chunks.reserve(size)
                self._metrics.hedges += 1
                return download
        return None

    def _hedge(self, download: Download) -> Hedge:
        return self._hedges[1 if download.resource.reserve else 0]
