"""Reads of the cold tier: the one way from an offset to batches in the bucket.

A read is a computation over resources at hand (manifest, pages, footer, chunks). When one is missing it joins
the flight that brings it and starts over once it has landed, so no thread ever waits for another, and a
request that its client gave up costs nothing but the download, which goes on into the cache.

Ownership: `RemoteReader` may be called from any thread, the event loop included: it only looks at caches and
never blocks. Futures are resolved on the pool's threads, or before the call returns when all was at hand, and
cannot be cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, InvariantError, RequestError
from service.base.types import TimestampedOffset, TopicIdPartition
from service.base.world import World
from service.remote.format.block_table import BlockTable
from service.remote.format.manifest import (
    Load,
    Manifest,
    Page,
    PageRef,
    SegmentEntry,
    live_segments,
)
from service.remote.metrics import ReadMetrics
from service.remote.reading.chunk import Chunk, chunk_of_block
from service.remote.reading.flights import Flight, Flights, FlightStats, Resource
from service.remote.reading.read_ahead import ReadAhead, Stream
from service.remote.reading.resources import (
    ChunkResource,
    ManifestResource,
    OpenSegment,
    PageResource,
    SectionResource,
    SegmentResource,
)
from service.remote.reading.time_search import search_log
from service.remote.stores.errors import ReaderClosed
from service.remote.stores.store import ObjectStore

T = TypeVar("T")

DEFAULT_CHUNK_BYTES: Final = 4 << 20
DEFAULT_CACHE_BYTES: Final = 128 << 20
_METADATA_SHARE: Final = 8
_MAX_WINDOW_CHUNKS: Final = 8


class RemoteRead(NamedTuple):
    """Whole batches from the one that holds the offset asked for; at least one. Empty where the remote log
    holds nothing at or after it any more (its last records were compacted away).

    `next_offset` is where the next read goes on.
    """

    data: tuple[memoryview, ...]
    next_offset: int


class ArchiveEnd(NamedTuple):
    """State at the end of the remote log: (epoch, first offset) of its leader epochs, oldest first, and its
    producers as Kafka's producer snapshot, empty where none was kept.
    """

    epochs: tuple[tuple[int, int], ...]
    producer_snapshot: bytes


class ReaderStats(NamedTuple):
    """What the reader does and holds; see `flights.FlightStats`."""

    flights: FlightStats
    streams: int


class _Missing(Exception):
    """Something is not at hand; `flight` brings it, None if nothing does."""

    def __init__(self, key: Hashable, flight: Flight | None) -> None:
        super().__init__(key)
        self.key = key
        self.flight = flight


class _At:
    """What one computation needs: resources at hand, or a `_Missing` that says what to wait for.

    What it waited for is pinned until it ends, so it moves on even when the cache is too small to hold it.
    """

    def __init__(self, flights: Flights, fetch: Callable[[Resource], Any]) -> None:
        self._flights = flights
        self._fetch = fetch
        self.pins: dict[Hashable, Any] = {}

    def need(self, resource: Resource) -> Any:
        pinned = self.pins.get(resource.key)
        if pinned is not None:
            return pinned
        found = self._fetch(resource)
        if found is None or isinstance(found, Flight):
            raise _Missing(resource.key, found)
        return found

    def peek(self, resource: Resource) -> Any | None:
        return self.pins.get(resource.key) or self._flights.peek(resource)

    def manifest(self, key: str) -> Manifest:
        manifest: Manifest = self.need(ManifestResource(key))
        return manifest

    def load(self, manifest: Manifest) -> Load:
        def page(ref: PageRef) -> Page:
            found: Page = self.need(PageResource(ref, manifest))
            return found

        return page


class RemoteReader:
    """Single-flight, cached, read-ahead reads over one object store client of its own.

    `cache_bytes` bounds chunks, cached and on their way, and decoded manifests and footers, together.
    `threads` is the number of downloads at a time; they start when they are first needed.
    """

    def __init__(
        self,
        store: ObjectStore,
        world: World,
        *,
        threads: int = 4,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        attempts: int = 4,
    ) -> None:
        chunk_budget = cache_bytes - cache_bytes // _METADATA_SHARE
        self.chunk_bytes = chunk_bytes
        self._clock = world.clock
        self._flights = Flights(
            store,
            world,
            threads=threads,
            chunk_budget_bytes=chunk_budget,
            metadata_budget_bytes=cache_bytes // _METADATA_SHARE,
            attempts=attempts,
        )
        self._plan = ReadAhead(
            chunk_bytes=chunk_bytes,
            max_window_bytes=_MAX_WINDOW_CHUNKS * chunk_bytes,
            budget_bytes=chunk_budget,
        )
        self._plan_lock = world.threads.lock()

    def read(
        self, tip: TopicIdPartition, manifest_key: str, offset: int, max_bytes: int
    ) -> Future[RemoteRead]:
        """Whole batches from the one that holds `offset`: at least one, otherwise up to `max_bytes`.

        The future is already done when everything was in memory. It fails with `RequestError`
        OFFSET_OUT_OF_RANGE when the manifest does not hold `offset`, `ObjectNotFound`, `CorruptionError`
        (with object key and offsets), `StoreUnavailable` after all retries, `StoreRefused`, `ReaderClosed`.
        """
        with self._plan_lock:
            stream = self._plan.begin((tip.topic_id, tip.partition), offset, self._clock.monotonic_ms())
        read = _Read(manifest_key, offset, max_bytes, stream)
        future: Future[RemoteRead] = _running()
        self._advance(self._at(), lambda at: self._try_read(at, read, tip), future)
        return future

    def offset_for_timestamp(
        self, tip: TopicIdPartition, manifest_key: str, timestamp: int, from_offset: int = 0
    ) -> Future[TimestampedOffset | None]:
        """The first record at or after `from_offset` with a timestamp not below `timestamp`, if any.

        Kafka's ListOffsets by time (`RemoteLogManager.findOffsetByTimestamp`). Fails as `read` does.
        """
        return self._search(
            lambda at: self._try_search(at, self._manifest(at, tip, manifest_key), timestamp, from_offset)
        )

    def max_timestamp_offset(
        self, tip: TopicIdPartition, manifest_key: str
    ) -> Future[TimestampedOffset | None]:
        """The first record with the largest timestamp in the remote log; None if no record has one."""

        def compute(at: _At) -> TimestampedOffset | None:
            manifest = self._manifest(at, tip, manifest_key)
            newest = manifest.max_timestamp(at.load(manifest))
            return self._try_search(at, manifest, newest, 0) if newest >= 0 else None

        return self._search(compute)

    def archive_end(self, tip: TopicIdPartition, manifest_key: str) -> Future[ArchiveEnd]:
        """What a log must know that goes on where the remote log ends. Fails as `read` does."""

        def compute(at: _At) -> ArchiveEnd:
            manifest = self._manifest(at, tip, manifest_key)
            epochs: list[tuple[int, int]] = []
            last: SegmentEntry | None = None
            for last in live_segments(manifest, at.load(manifest)):
                epochs += [one for one in last.leader_epochs if not epochs or one[0] > epochs[-1][0]]
            if last is None:
                return ArchiveEnd((), b"")
            snapshot: bytes = at.need(SectionResource(self._segment(at, last), "producer_snapshot"))
            return ArchiveEnd(tuple(epochs), snapshot)

        return self._start(compute)

    @property
    def metrics(self) -> ReadMetrics:
        """What was counted since the start."""
        return self._flights.metrics

    def stats(self) -> ReaderStats:
        with self._plan_lock:
            streams = self._plan.active
        return ReaderStats(self._flights.stats(), streams)

    def close(self, timeout_s: float = 10.0) -> None:
        """Fail what is under way with `ReaderClosed` and join the threads; see `Flights.close`."""
        self._flights.close(timeout_s)

    # Computations and their waiting.

    def _at(self) -> _At:
        return _At(self._flights, self._flights.get)

    def _start(self, compute: Callable[[_At], T]) -> Future[T]:
        future: Future[T] = _running()
        self._advance(self._at(), compute, future)
        return future

    def _search(self, compute: Callable[[_At], T]) -> Future[T]:
        """As `_start`, but all of it on the pool: searches look inside batches."""
        future: Future[T] = _running()
        at = self._at()
        try:
            self._flights.call_soon(lambda: self._advance(at, compute, future))
        except ReaderClosed as e:
            future.set_exception(e)
        return future

    def _advance(self, at: _At, compute: Callable[[_At], T], future: Future[T]) -> None:
        """Compute as far as what is at hand allows; go on when the next flight lands."""
        try:
            result = compute(at)
        except _Missing as missing:
            flight, key = missing.flight, missing.key
            if flight is None:
                future.set_exception(ReaderClosed("the reader is closed"))
                return

            def landed(done: Future[Any]) -> None:
                error = done.exception()
                if error is not None:
                    future.set_exception(error)
                    return
                at.pins[key] = done.result()
                self._advance(at, compute, future)

            flight.future.add_done_callback(landed)
        except Exception as e:
            future.set_exception(e)
        else:
            future.set_result(result)

    def _manifest(self, at: _At, tip: TopicIdPartition, key: str) -> Manifest:
        manifest = at.manifest(key)
        if (manifest.topic_id, manifest.partition) != (tip.topic_id, tip.partition):
            raise CorruptionError(f"{key}: not a manifest of {tip} ({tip.topic_id})")
        return manifest

    def _segment(self, at: _At, entry: SegmentEntry) -> OpenSegment:
        segment: OpenSegment = at.need(SegmentResource(entry, self.chunk_bytes))
        return segment

    def _try_read(self, at: _At, read: _Read, tip: TopicIdPartition) -> RemoteRead:
        manifest = self._manifest(at, tip, read.manifest_key)
        offset = read.offset
        entry = manifest.find(offset, at.load(manifest))
        if entry is None:
            raise RequestError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} of {tip} is not in the remote log, which holds "
                f"[{manifest.start_offset}, {manifest.end_offset})",
            )
        while entry is not None:
            segment = self._segment(at, entry)
            block = segment.footer.blocks.index_of(offset)
            if block < len(segment.footer.blocks):
                number = chunk_of_block(segment.chunks, block)
                return self._read_chunks(at, read, manifest, segment, number)
            offset = entry.last_offset + 1  # compaction left nothing at the segment's end
            entry = manifest.find(offset, at.load(manifest))
        return RemoteRead((), offset)

    def _read_chunks(
        self, at: _At, read: _Read, manifest: Manifest, segment: OpenSegment, number: int
    ) -> RemoteRead:
        resource = ChunkResource(segment, number)
        try:
            chunk: Chunk = at.need(resource)
        finally:
            # Also when the chunk is still on its way: what comes after it travels beside it.
            self._plan_ahead(read, manifest, segment, number)
        offset = max(read.offset, segment.footer.blocks[segment.chunks[number].first_block].first_offset)
        found = chunk.read(offset, read.max_bytes, at_least_one=True)
        if found is None:
            raise InvariantError(f"chunk up to {chunk.last_offset} was chosen for offset {offset}")
        views, left = [found.data], read.max_bytes - len(found.data)
        while found is not None and found.at_end and left > 0:
            following = self._following(at, manifest, segment, number)
            if following is None:
                break
            segment, number, chunk = following
            first = segment.footer.blocks[segment.chunks[number].first_block].first_offset
            next_found = chunk.read(first, left, at_least_one=False)
            if next_found is None:
                break
            found = next_found
            views.append(found.data)
            left -= len(found.data)
        with self._plan_lock:
            self._plan.ended(read.stream, found.next_offset)
        return RemoteRead(tuple(views), found.next_offset)

    def _following(
        self, at: _At, manifest: Manifest, segment: OpenSegment, number: int
    ) -> tuple[OpenSegment, int, Chunk] | None:
        """The next chunk of the log, in this segment or the next, when it is in memory already."""
        number += 1
        if number == len(segment.chunks):
            following = self._next_in_memory(at, manifest, segment)
            if following is None:
                return None
            segment, number = following, 0
        chunk: Chunk | None = at.peek(ChunkResource(segment, number))
        return None if chunk is None else (segment, number, chunk)

    def _next_in_memory(self, at: _At, manifest: Manifest, segment: OpenSegment) -> OpenSegment | None:
        quiet = _At(self._flights, self._flights.peek)
        quiet.pins = at.pins
        try:
            entry = manifest.find(segment.entry.last_offset + 1, quiet.load(manifest))
            return None if entry is None else self._segment(quiet, entry)
        except _Missing:
            return None

    # Read-ahead.

    def _plan_ahead(self, read: _Read, manifest: Manifest, segment: OpenSegment, number: int) -> None:
        """Start what the read will need beyond its first chunk, and what its stream will need after it."""
        if read.planned:
            return
        read.planned = True
        with self._plan_lock:
            window = self._plan.window(read.stream)
            beyond = min(read.max_bytes, self.chunk_bytes * _MAX_WINDOW_CHUNKS) - self.chunk_bytes
            wanted = max(window, beyond)
            if wanted <= 0 or read.stream.walking:
                return
            read.stream.walking = True
        walk = _Walk(manifest, segment, number + 1, wanted, read.stream)
        at = _At(self._flights, self._flights.ahead)
        ended: Future[None] = Future()
        self._advance(at, lambda at: self._walk(at, walk), ended)

        def rest(_: Future[None]) -> None:
            # A failed walk is no error of anybody's: the read that needs those bytes will meet it itself.
            with self._plan_lock:
                walk.stream.walking = False

        ended.add_done_callback(rest)

    def _walk(self, at: _At, walk: _Walk) -> None:
        """Start downloads chunk by chunk, across segments, until the window is full or the budget is."""
        while walk.left > 0:
            if walk.number == len(walk.segment.chunks):
                entry = walk.manifest.find(walk.segment.entry.last_offset + 1, at.load(walk.manifest))
                if entry is None:
                    return
                walk.segment, walk.number = self._segment(at, entry), 0
            resource = ChunkResource(walk.segment, walk.number)
            if self._flights.ahead(resource) is None:
                return
            walk.left -= resource.reserve
            walk.number += 1

    # Search by time.

    def _try_search(
        self, at: _At, manifest: Manifest, timestamp: int, from_offset: int
    ) -> TimestampedOffset | None:
        def blocks_of(entry: SegmentEntry) -> BlockTable:
            return self._segment(at, entry).footer.blocks

        def chunk_of(entry: SegmentEntry, blocks: BlockTable, block: int) -> Chunk:
            segment = self._segment(at, entry)
            chunk: Chunk = at.need(ChunkResource(segment, chunk_of_block(segment.chunks, block)))
            return chunk

        return search_log(manifest, at.load(manifest), blocks_of, chunk_of, timestamp, from_offset)


def _running() -> Future[Any]:
    """A future that cannot be cancelled: what it waits for is detached from whoever asked."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class _Read:
    """One request. `planned` once its read-ahead has been started."""

    __slots__ = ("manifest_key", "max_bytes", "offset", "planned", "stream")

    def __init__(self, manifest_key: str, offset: int, max_bytes: int, stream: Stream) -> None:
        self.manifest_key = manifest_key
        self.offset = offset
        self.max_bytes = max_bytes
        self.stream = stream
        self.planned = False


class _Walk:
    """A walk along the log that starts downloads: the next chunk is `number` of `segment`."""

    __slots__ = ("left", "manifest", "number", "segment", "stream")

    def __init__(
        self, manifest: Manifest, segment: OpenSegment, number: int, left: int, stream: Stream
    ) -> None:
        self.manifest = manifest
        self.segment = segment
        self.number = number
        self.left = left
        self.stream = stream
