"""Computations over resources in memory, which start over once a missing one was downloaded.

When a resource is not in memory, the computation joins the download that brings it and is called again once
it is complete. So no thread ever waits for another, and a request that its client cancelled costs only the
download, which continues into the cache.

Ownership: any thread may start one. Futures are resolved on the pool's threads, or before the call returns
when everything was in memory, and cannot be cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from service.remote.format.manifest import Load, Manifest, ManifestPage, PageRef, SegmentEntry
from service.remote.format.segment_object import OpenSegment
from service.remote.reading.chunk_cache import Slot
from service.remote.reading.download import Download, RemoteResource
from service.remote.reading.download_manager import DownloadManager
from service.remote.reading.recent_writes import RecentWrites
from service.remote.reading.resources import (
    ChunkResource,
    Guessed,
    GuessResource,
    ManifestResource,
    PageResource,
    guess_key,
)
from service.remote.stores.errors import ReaderClosed

T = TypeVar("T")
Compute = Callable[["Resources"], T]


class TooLong(Exception):
    """Raised by a computation that is to go on where it holds nobody up, on a thread of the pool."""


class Missing(Exception):
    """A resource is not in memory; `download` brings it, None if nothing does."""

    def __init__(self, key: Hashable, download: Download | None) -> None:
        super().__init__(key)
        self.key = key
        self.download = download


class Resources:
    """Resources of one computation: those in memory, or a `Missing` that says what to wait for.

    Resources that it waited for are pinned until it ends, so it progresses even when the cache is too small
    for them.
    """

    def __init__(
        self, downloads: DownloadManager, fetch: Callable[[RemoteResource], Any], written: RecentWrites
    ) -> None:
        self._downloads = downloads
        self._fetch = fetch
        self._written = written
        self.pins: dict[Hashable, Any] = {}

    def need(self, resource: RemoteResource) -> Any:
        pinned = self.pins.get(resource.key)
        if pinned is not None:
            return pinned
        found = self._fetch(resource)
        if found is None or isinstance(found, Download):
            raise Missing(resource.key, found)
        return found

    def need_once(self, resource: RemoteResource) -> Any:
        """Return a resource that may be large, without a claim on it from here on."""
        found = self.need(resource)
        self.pins.pop(resource.key, None)
        return found.chunk if isinstance(found, Slot) else found

    def chunk(self, segment: OpenSegment, block: int, range_bytes: int) -> Slot:
        found = self.peek_chunk(segment, block)
        if found is not None:
            return found
        guessed = self._guessed(segment, block)
        slot: Slot = self.need(ChunkResource(segment, block, range_bytes, guessed=guessed))
        return slot

    def guess(self, entry: SegmentEntry, offset: int, range_bytes: int) -> None:
        """Prefetch the probable position of `offset` in a segment beside its footer, if there is room."""
        resource = GuessResource.for_offset(entry, offset, range_bytes)
        if resource is not None:
            self._downloads.prefetch(resource)

    def _guessed(self, segment: OpenSegment, block: int) -> Guessed | None:
        """Return the prefetched guess of the segment; raise `Missing` while it is in flight and holds the
        block."""
        key = guess_key(segment.entry.key)
        found = self.pins.get(key) or self._downloads.lookup(key)
        if not isinstance(found, Download):
            return None if found is None else found.chunk
        guess = found.resource
        if isinstance(guess, GuessResource) and guess.holds(segment.footer.blocks[block]):
            raise Missing(key, found)
        return None

    def peek_chunk(self, segment: OpenSegment, block: int) -> Slot | None:
        key = (segment.entry.key, block)
        return self.pins.get(key) or self._downloads.chunk(key)

    def manifest(self, key: str) -> Manifest:
        manifest: Manifest = self.need(ManifestResource(key, self._written.get))
        return manifest

    def load(self, manifest: Manifest) -> Load:
        def page(ref: PageRef) -> ManifestPage:
            found: ManifestPage = self.need(PageResource(ref, manifest))
            return found

        return page


class Computations:
    """Starts computations over the resources of one reader."""

    def __init__(self, downloads: DownloadManager, written: RecentWrites) -> None:
        self._downloads = downloads
        self._written = written

    def resources(self, fetch: Callable[[RemoteResource], Any] | None = None) -> Resources:
        """Return the resources of one computation; `fetch` is called for those that are not pinned."""
        return Resources(self._downloads, self._downloads.get if fetch is None else fetch, self._written)

    def start(self, compute: Compute[T]) -> Future[T]:
        """Compute now, as far as everything is in memory."""
        future: Future[T] = running()
        self.advance(self.resources(), compute, future)
        return future

    def start_on_pool(self, compute: Compute[T]) -> Future[T]:
        """Compute on a thread of the pool: searches look inside batches."""
        future: Future[T] = running()
        self._leave_to_pool(self.resources(), compute, future)
        return future

    def _leave_to_pool(self, resources: Resources, compute: Compute[T], future: Future[T]) -> None:
        try:
            self._downloads.call_soon(lambda: self.advance(resources, compute, future))
        except ReaderClosed as e:
            future.set_exception(e)

    def advance(self, resources: Resources, compute: Compute[T], future: Future[T]) -> None:
        """Compute with what is in memory; continue when the next download completes."""
        try:
            result = compute(resources)
        except Missing as missing:
            download, key = missing.download, missing.key
            if download is None:
                future.set_exception(ReaderClosed("the reader is closed"))
                return
            # The callback must not refer to the download: a cycle would wait for the garbage collector.
            is_guess = isinstance(download.resource, GuessResource)
            download.future.add_done_callback(
                partial(self._resume, resources, compute, future, key, is_guess)
            )
        except TooLong:
            self._leave_to_pool(resources, compute, future)
        except Exception as e:
            future.set_exception(e)
        else:
            future.set_result(result)

    def _resume(
        self,
        resources: Resources,
        compute: Compute[T],
        future: Future[T],
        key: Hashable,
        is_guess: bool,
        done: Future[Any],
    ) -> None:
        """Continue a computation after the download that it waited for completed or failed."""
        error = done.exception()
        if error is not None and not is_guess:
            future.set_exception(error)
            return
        if error is None:
            resources.pins[key] = done.result()
        self.advance(resources, compute, future)


def running() -> Future[Any]:
    """Return a future that cannot be cancelled: the work behind it is shared."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
