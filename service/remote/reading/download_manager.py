"""Download manager: one download at a time per resource, within one byte account.

A *resource* is any immutable part of the bucket that a read needs (manifest, page, footer, chunk). A read
gets it from the cache or joins the one *download* that fetches it; the download belongs to no request and
continues when no request waits for it any more. Chunks share one account (`ChunkCache`), whether cached, in
flight, read ahead or being sent; the small resources have a smaller cache of their own.

Downloads run on threads of their own (`DownloadThreads`), in a few attempts each (`DownloadAttempts`). An
object that the store refuses is not fetched again at once (`Refusals`).

Ownership: `DownloadManager` may be called from any thread; one lock guards its state and that of its parts,
and is never held while a store is called, a future is resolved or anything is decoded. Callbacks of downloads
run on the pool's threads. Methods whose name ends in `_locked` are called with the lock held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from service.base.lru_cache import LruCache
from service.base.types import Buffer
from service.base.world import World
from service.remote.metrics import ReadMetrics
from service.remote.reading.chunk_cache import ChunkCache, Slot
from service.remote.reading.disk_cache import DiskCache
from service.remote.reading.download import Download, DownloadStats, RemoteResource
from service.remote.reading.download_attempts import DownloadAttempts
from service.remote.reading.download_threads import DownloadThreads
from service.remote.reading.read_ahead import Stream
from service.remote.reading.resources import GuessResource, guess_key
from service.remote.reading.store_state import StoreState
from service.remote.stores.errors import ReaderClosed
from service.remote.stores.store import ObjectStore


class DownloadManager:
    """Caches, byte account and single-flight downloads.

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
        self.metrics = ReadMetrics()
        self._disk_cache = disk_cache
        self._lock = lock = world.threads.condition()
        self._waiting_for_room: deque[Download] = deque()  # urgent chunks
        self._downloads: dict[Hashable, Download] = {}
        self._chunks = ChunkCache(chunk_budget_bytes)
        self._metadata: LruCache[Hashable, Any] = LruCache(metadata_budget_bytes)
        self._unreleased: deque[tuple[Sequence[Slot], int]] = deque()
        self._state = StoreState(world)
        self._attempts = DownloadAttempts(
            world, lock, self._chunks, self._state, self.metrics, self._complete,
            store=store, second_store=second_store, disk_cache=disk_cache, attempts=attempts,
        )  # fmt: skip
        self._threads = DownloadThreads(world, lock, threads, self._attempts, self._release_forgotten_locked)

    def get(self, resource: RemoteResource) -> Any | Download:
        """Return the value when it is cached, else the download that brings it; starts one if there is none.

        Raises `ReaderClosed`.
        """
        with self._lock:
            value = self._cached_locked(resource)
            if value is not None:
                self.metrics.hits += 1
                return value
            if self._threads.is_closed:
                raise ReaderClosed("the reader is closed")
            self.metrics.misses += 1
            download = self._downloads.get(resource.key)
            if download is not None:
                self._threads.promote_locked(download)
                return download
            is_kept = self._disk_cache is not None and self._disk_cache.has(resource.key)
            why = None if is_kept else self._state.refusal_of(resource.object_key)
            if why is None:
                return self._start_locked(resource, urgent=True)
            self.metrics.refused += 1
            refused = Download(resource, urgent=True)
            refused.future.set_exception(why)  # the caller gets it from the future
            return refused

    def chunk(self, key: Hashable) -> Slot | None:
        """Return the chunk with this block where it is in memory; starts nothing."""
        with self._lock:
            slot = self._chunks.get(key)
            self.metrics.hits += slot is not None
            return slot

    def peek(self, resource: RemoteResource) -> Any | None:
        """Return the value when it is cached; starts nothing."""
        with self._lock:
            return self._cached_locked(resource)

    def prefetch(self, resource: RemoteResource) -> Any | Download | None:
        """Return the value or its download as `get` does, started at low priority.

        None where there is no room for it now, the reader is closed, or the store does not serve it.
        """
        with self._lock:
            found = self._cached_locked(resource) or self._downloads.get(resource.key)
            if found is not None:
                return found
            if (
                self._threads.is_closed
                or self._waiting_for_room
                or self._state.refusal_of(resource.object_key) is not None
                or not self._chunks.has_room(resource.reserve)
            ):
                return None
            self.metrics.read_ahead += not isinstance(resource, GuessResource)
            return self._start_locked(resource, urgent=False)

    def call_soon(self, work: Callable[[], None]) -> None:
        """Run `work` on a pool thread, before any read-ahead. Raises `ReaderClosed`."""
        with self._lock:
            if self._threads.is_closed:
                raise ReaderClosed("the reader is closed")
            self._threads.add_locked(work)

    def lookup(self, key: Hashable) -> Slot | Download | None:
        """Return the chunk in memory, or its download, which becomes urgent; starts nothing."""
        with self._lock:
            if (download := self._downloads.get(key)) is not None:
                self._threads.promote_locked(download)
            return self._chunks.get(key) or download

    # Responses and streams.

    def share(self) -> int:
        """Return how many bytes one more response may have now; 0 where responses hold all that they may."""
        with self._lock:
            self._release_forgotten_locked()
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
        with self._lock:
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
        with self._lock:
            self._chunks.release(slots, copied)
            self._release_forgotten_locked()
            self._start_waiting_locked()

    def release_later(self, slots: Sequence[Slot], copied: int) -> None:
        """Record what a response held, to be freed later; safe at any point of any thread."""
        self._unreleased.append((slots, copied))

    def forget_streams(self, streams: Iterable[Stream]) -> None:
        """Drop the claims of abandoned streams on their chunks."""
        with self._lock:
            for stream in streams:
                self._chunks.move(stream.slot, None, consumed=False)
                stream.slot = None

    def stats(self) -> DownloadStats:
        with self._lock:
            self._release_forgotten_locked()
            return DownloadStats(
                **asdict(self.metrics),
                cached_bytes=self._chunks.cached_bytes,
                in_flight_bytes=self._chunks.in_flight_bytes,
                sending_bytes=self._chunks.sending_bytes,
                metadata_bytes=self._metadata.size,
                in_flight=len(set(self._downloads.values())),
                busy_threads=self._threads.busy,
                store_problem=self._state.problem,
                asleep=self._state.asleep,
            )

    def close(self, timeout_s: float) -> None:
        """Cancel what has not started, let running downloads end, and wait for the threads.

        A download cannot be interrupted; what still runs after `timeout_s` is abandoned. Every future is
        resolved in any case, with `ReaderClosed` where there is no other result.
        """
        with self._lock:
            queued = [*self._threads.stop_locked(), *self._waiting_for_room]
            self._waiting_for_room.clear()
        self._attempts.close()
        for item in queued:
            if isinstance(item, Download):
                self._complete(item, None, ReaderClosed("the reader is closed"), 0)
            else:
                item()  # fails with `ReaderClosed`, as the reader is closed
        self._threads.join(timeout_s)
        with self._lock:
            stranded = set(self._downloads.values())
            for download in stranded:
                download.tries = 0  # none is waited for
            self._chunks.clear()
            self._metadata.clear()
        for download in stranded:
            self._complete(download, None, ReaderClosed("the reader is closed"), 0)
        if self._disk_cache is not None:
            self._disk_cache.close()

    def _cached_locked(self, resource: RemoteResource) -> Any | None:
        return (self._chunks if resource.reserve else self._metadata).get(resource.key)

    def _is_taken_locked(self, key: Hashable) -> bool:
        return key in self._chunks or key in self._downloads

    def _start_locked(self, resource: RemoteResource, *, urgent: bool) -> Download:
        resource = resource.cut(self._is_taken_locked)
        download = Download(resource, urgent)
        self._downloads.update(dict.fromkeys(resource.keys, download))
        if not resource.reserve or (not self._waiting_for_room and self._chunks.has_room(resource.reserve)):
            self._enqueue_locked(download)
        else:
            self._waiting_for_room.append(download)
        return download

    def _enqueue_locked(self, download: Download) -> None:
        size = download.resource.reserve
        if size:
            self._chunks.reserve(size)
        self._threads.add_locked(download)

    def _start_waiting_locked(self) -> None:
        while self._waiting_for_room and self._chunks.has_room(self._waiting_for_room[0].resource.reserve):
            self._enqueue_locked(self._waiting_for_room.popleft())

    def _release_forgotten_locked(self) -> None:
        if self._unreleased:
            while self._unreleased:
                self._chunks.release(*self._unreleased.popleft())
            self._start_waiting_locked()

    def _complete(self, download: Download, value: Any, error: BaseException | None, cost: int) -> bool:
        """Complete a download, start what waited for its room, then resolve its future.

        Return False where another attempt, or `close`, had completed it, and after an error while another
        attempt runs.
        """
        resource = download.resource
        with self._lock:
            self._chunks.unreserve(resource.reserve)
            if download.is_over or (error is not None and download.tries > 0):
                self._start_waiting_locked()
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
                if not self._threads.is_closed:
                    self._chunks.put(value)
            elif not self._threads.is_closed:
                self._metadata.put(resource.key, value, cost)
            self._release_forgotten_locked()
            self._start_waiting_locked()
        if error is not None:
            download.future.set_exception(error)
        else:
            download.future.set_result(value)
        return True


class ResponseHold:
    """Memory that a response holds until it is sent; `release` frees it, at the latest when it is
    garbage-collected.

    `left` is how many more bytes of the cold tier the same response may have.
    """

    __slots__ = ("_copied", "_keeper", "_slots", "left")

    def __init__(self, keeper: DownloadManager, slots: Sequence[Slot], copied: int, left: int) -> None:
        self.left = left
        self._keeper: DownloadManager | None = keeper
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
