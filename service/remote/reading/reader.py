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
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, InvariantError, RequestError
from service.base.rate import Rate, RateLimit
from service.base.types import Buffer, TimestampedOffset, TopicIdPartition
from service.base.world import World
from service.remote.catalog import CatalogEntry
from service.remote.format.block_table import Block, BlockTable
from service.remote.format.keys import ManifestKey, parse_key
from service.remote.format.manifest import (
    Load,
    Manifest,
    Page,
    PageRef,
    SegmentEntry,
    live_segments,
)
from service.remote.reading.chunk import Chunk, ChunkRange
from service.remote.reading.chunk_cache import Slot
from service.remote.reading.disk_cache import DiskCache
from service.remote.reading.download import Flight, FlightStats, Hold, Resource
from service.remote.reading.download_manager import Flights
from service.remote.reading.read_ahead import ReadAhead, Stream
from service.remote.reading.recent_writes import Written
from service.remote.reading.resources import (
    ChunkResource,
    Guessed,
    GuessResource,
    ManifestResource,
    OpenSegment,
    PageResource,
    SectionResource,
    SegmentResource,
    guess_key,
)
from service.remote.reading.time_search import search_log
from service.remote.stores.errors import ReaderClosed
from service.remote.stores.store import ObjectStore

T = TypeVar("T")

DEFAULT_CHUNK_BYTES: Final = 4 << 20
DEFAULT_CACHE_BYTES: Final = 128 << 20
_METADATA_SHARE: Final = 8
_WRITTEN_SHARE: Final = 32
_MAX_WINDOW_CHUNKS: Final = 8


class RemoteRead(NamedTuple):
    """Whole batches from the one that holds the offset asked for; at least one. Empty where the remote log
    holds nothing at or after it any more (its last records were compacted away).

    `next_offset` is where the next read goes on. `hold` is released when the bytes are out; None where there
    are none.
    """

    data: tuple[Buffer, ...]
    next_offset: int
    hold: Hold | None = None


class ArchiveEnd(NamedTuple):
    """State at the end of the remote log: (epoch, first offset) of its leader epochs, oldest first, and its
    producers as Kafka's producer snapshot, empty where none was kept. `entry`: what a catalog entry says that
    names this manifest. `last_block`: the last one of its last segment, None where there is no segment.
    """

    epochs: tuple[tuple[int, int], ...]
    producer_snapshot: bytes
    entry: CatalogEntry
    last_block: Block | None = None


class ReaderStats(NamedTuple):
    """What the reader does and holds; see `download.FlightStats`."""

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

    def __init__(self, flights: Flights, fetch: Callable[[Resource], Any], written: Written) -> None:
        self._flights = flights
        self._fetch = fetch
        self._written = written
        self.pins: dict[Hashable, Any] = {}

    def need(self, resource: Resource) -> Any:
        pinned = self.pins.get(resource.key)
        if pinned is not None:
            return pinned
        found = self._fetch(resource)
        if found is None or isinstance(found, Flight):
            raise _Missing(resource.key, found)
        return found

    def chunk(self, segment: OpenSegment, block: int, range_bytes: int) -> Slot:
        found = self.peek_chunk(segment, block)
        if found is not None:
            return found
        guessed = self._guessed(segment, block)
        slot: Slot = self.need(ChunkResource(segment, block, range_bytes, guessed=guessed))
        return slot

    def guess(self, entry: SegmentEntry, offset: int, range_bytes: int) -> None:
        """Have what is probably read of a segment come beside its footer, if there is room for it."""
        resource = GuessResource.of(entry, offset, range_bytes)
        if resource is not None:
            self._flights.ahead(resource)

    def _guessed(self, segment: OpenSegment, block: int) -> Guessed | None:
        """What somebody has guessed of the segment; `_Missing` while it is on its way and holds the block."""
        key = guess_key(segment.entry.key)
        found = self.pins.get(key) or self._flights.found(key)
        if not isinstance(found, Flight):
            return None if found is None else found.chunk
        guess = found.resource
        if isinstance(guess, GuessResource) and guess.holds(segment.footer.blocks[block]):
            raise _Missing(key, found)
        return None

    def peek_chunk(self, segment: OpenSegment, block: int) -> Slot | None:
        key = (segment.entry.key, block)
        return self.pins.get(key) or self._flights.chunk(key)

    def manifest(self, key: str) -> Manifest:
        manifest: Manifest = self.need(ManifestResource(key, self._written.get))
        return manifest

    def load(self, manifest: Manifest) -> Load:
        def page(ref: PageRef) -> Page:
            found: Page = self.need(PageResource(ref, manifest))
            return found

        return page


class RemoteReader:
    """Single-flight, cached, read-ahead reads over one object store client of its own.

    `cache_bytes` bounds chunks, cached, on their way here and on their way to clients, and decoded manifests
    and footers, together. `threads` is the number of downloads at a time; they start when they are first
    needed. `second_store` is another client of the same bucket, which is asked where `store` takes long;
    `disk_cache` keeps chunks that memory has no room for.
    """

    def __init__(
        self,
        store: ObjectStore,
        world: World,
        *,
        second_store: ObjectStore | None = None,
        disk_cache: DiskCache | None = None,
        threads: int = 4,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        attempts: int = 4,
        limit: Callable[[], RateLimit] = RateLimit,
    ) -> None:
        """`limit`: how much may be downloaded, asked whenever it counts."""
        self._rate = Rate(limit)
        self._counted_bytes = 0
        chunk_budget = cache_bytes - cache_bytes // _METADATA_SHARE
        self.chunk_bytes = chunk_bytes
        self._clock = world.clock
        self._flights = Flights(
            store,
            world,
            second_store=second_store,
            disk_cache=disk_cache,
            threads=threads,
            chunk_budget_bytes=chunk_budget,
            metadata_budget_bytes=cache_bytes // _METADATA_SHARE - cache_bytes // _WRITTEN_SHARE,
            attempts=attempts,
        )
        self._plan = ReadAhead(
            chunk_bytes=chunk_bytes,
            max_window_bytes=_MAX_WINDOW_CHUNKS * chunk_bytes,
            budget_bytes=chunk_budget,
        )
        self._plan_lock = world.threads.lock()
        self._written = Written(world, cache_bytes // _WRITTEN_SHARE)
        self._guesses = disk_cache is None  # which may have it

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
            range_bytes = self._plan.range_bytes()
            forgotten, self._plan.forgotten = self._plan.forgotten, []
        if forgotten:
            self._flights.forget(forgotten)
        read = _Read(tip, manifest_key, offset, max_bytes, stream, range_bytes)
        future: Future[RemoteRead] = _running()
        self._advance(self._at(), lambda at: self._try_read(at, read), future)
        return future

    def wrote(self, key: str, data: Buffer) -> None:
        """This process has written an object: the manifest of a commit is not to be fetched again for it."""
        if isinstance(parse_key(key), ManifestKey):
            self._written.put(key, data)

    def share(self) -> int:
        """Bytes that one more response may have of the cold tier now; 0 where clients take none of theirs, or
        too much was downloaded lately. For the loop."""
        now_ms, downloaded = self._clock.monotonic_ms(), self._flights.metrics.downloaded_bytes
        self._rate.spend(downloaded - self._counted_bytes, now_ms)
        self._counted_bytes = downloaded
        return 0 if self._rate.wait_ms(now_ms) else self._flights.share()

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
            entry = CatalogEntry(
                manifest.version,
                manifest_key,
                manifest.leader_epoch,
                manifest.start_offset,
                manifest.end_offset,
                manifest.segments,
                manifest.size_bytes,
            )
            epochs: list[tuple[int, int]] = []
            last: SegmentEntry | None = None
            for last in live_segments(manifest, at.load(manifest)):
                epochs += [one for one in last.leader_epochs if not epochs or one[0] > epochs[-1][0]]
            if last is None:
                return ArchiveEnd((), b"", entry)
            segment = self._segment(at, last)
            snapshot: bytes = at.need(SectionResource(segment, "producer_snapshot"))
            return ArchiveEnd(tuple(epochs), snapshot, entry, segment.footer.blocks[-1])

        return self._start(compute)

    def stats(self) -> ReaderStats:
        with self._plan_lock:
            streams = self._plan.active
        return ReaderStats(self._flights.stats(), streams)

    def close(self, timeout_s: float = 10.0) -> None:
        """Fail what is under way with `ReaderClosed` and join the threads; see `Flights.close`."""
        self._flights.close(timeout_s)

    # Computations and their waiting.

    def _at(self) -> _At:
        return _At(self._flights, self._flights.get, self._written)

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
            # It must not know the flight, which knows it: what refers to itself waits for the collector.
            is_guess = isinstance(flight.resource, GuessResource)
            flight.future.add_done_callback(partial(self._landed, at, compute, future, key, is_guess))
        except Exception as e:
            future.set_exception(e)
        else:
            future.set_result(result)

    def _landed(
        self,
        at: _At,
        compute: Callable[[_At], T],
        future: Future[T],
        key: Hashable,
        is_guess: bool,
        done: Future[Any],
    ) -> None:
        """What a computation waited for is there, or will not be."""
        error = done.exception()
        if error is not None and not is_guess:
            future.set_exception(error)
            return
        if error is None:
            at.pins[key] = done.result()
        self._advance(at, compute, future)

    def _manifest(self, at: _At, tip: TopicIdPartition, key: str) -> Manifest:
        manifest = at.manifest(key)
        if (manifest.topic_id, manifest.partition) != (tip.topic_id, tip.partition):
            raise CorruptionError(f"{key}: not a manifest of {tip} ({tip.topic_id})")
        return manifest

    def _segment(self, at: _At, entry: SegmentEntry) -> OpenSegment:
        segment: OpenSegment = at.need(SegmentResource(entry))
        return segment

    def _try_read(self, at: _At, read: _Read) -> RemoteRead:
        offset = read.offset
        entry = read.stream.entry
        if entry is None or read.stream.manifest_key != read.manifest_key or not entry.holds(offset):
            manifest = self._manifest(at, read.tip, read.manifest_key)
            entry = manifest.find(offset, at.load(manifest))
            if entry is None:
                raise RequestError(
                    ErrorCode.offset_out_of_range,
                    f"offset {offset} of {read.tip} is not in the remote log, which holds "
                    f"[{manifest.start_offset}, {manifest.end_offset})",
                )
        while entry is not None:
            # Where a stream goes on it has read ahead, and who joins a flight comes for what others guessed.
            is_new = self._guesses and read.stream.entry is None and not self._flights.found(entry.key)
            try:
                segment = self._segment(at, entry)
            except _Missing:
                if is_new:
                    at.guess(entry, offset, read.range_bytes)
                raise
            block = segment.footer.blocks.index_of(offset)
            if block < len(segment.footer.blocks):
                read.stream.manifest_key, read.stream.entry = read.manifest_key, entry
                return self._read_chunks(at, read, segment, block)
            offset = entry.last_offset + 1  # compaction left nothing at the segment's end
            manifest = self._manifest(at, read.tip, read.manifest_key)
            entry = manifest.find(offset, at.load(manifest))
        return RemoteRead((), offset)

    def _read_chunks(self, at: _At, read: _Read, segment: OpenSegment, block: int) -> RemoteRead:
        try:
            slot = at.chunk(segment, block, read.range_bytes)
        except _Missing as missing:
            # It is on its way, and what comes after it is to travel beside it.
            if missing.key == (segment.entry.key, block):
                self._plan_ahead(read, segment, block)
            raise
        self._plan_ahead(read, segment, slot.chunk.range.first_block)
        offset = max(read.offset, segment.footer.blocks[block].first_offset)
        found = slot.chunk.read(offset, read.max_bytes, at_least_one=True)
        if found is None:
            raise InvariantError(f"chunk up to {slot.chunk.last_offset} was chosen for offset {offset}")
        pieces, left = [(slot, found.data)], read.max_bytes - len(found.data)
        while found.at_end and left > 0:
            following = self._following(at, read, segment, slot.chunk.range.last_block)
            if following is None:
                break
            segment, block, slot = following
            next_found = slot.chunk.read(segment.footer.blocks[block].first_offset, left, at_least_one=False)
            if next_found is None:
                break
            found = next_found
            pieces.append((slot, found.data))
            left -= len(found.data)
        parts, hold = self._flights.hand_out(pieces, read.stream, at_end=found.at_end)
        with self._plan_lock:
            is_known = self._plan.ended(read.stream, found.next_offset)
        if not is_known:
            self._flights.forget((read.stream,))  # nobody else would say that its chunk is wanted no longer
        return RemoteRead(parts, found.next_offset, hold)

    def _following(
        self, at: _At, read: _Read, segment: OpenSegment, block: int
    ) -> tuple[OpenSegment, int, Slot] | None:
        """The chunk with the next block of the log, in this segment or the next, when it is in memory."""
        if block == len(segment.footer.blocks):
            following = self._next_in_memory(at, read, segment)
            if following is None or not following.footer.blocks:
                return None
            segment, block = following, 0
        slot = at.peek_chunk(segment, block)
        return None if slot is None else (segment, block, slot)

    def _next_in_memory(self, at: _At, read: _Read, segment: OpenSegment) -> OpenSegment | None:
        quiet = _At(self._flights, self._flights.peek, self._written)
        quiet.pins = at.pins
        try:
            manifest = self._manifest(quiet, read.tip, read.manifest_key)
            entry = manifest.find(segment.entry.last_offset + 1, quiet.load(manifest))
            return None if entry is None else self._segment(quiet, entry)
        except _Missing:
            return None

    # Read-ahead.

    def _plan_ahead(self, read: _Read, segment: OpenSegment, block: int) -> None:
        """Start what the read will need beyond the chunk of `block`, and what its stream will need after it.

        Once for each chunk that a stream comes to, and again where there was not room for all of it.
        """
        if read.planned:
            return
        read.planned = True
        with self._plan_lock:
            window = self._plan.window(read.stream)
            beyond = min(read.max_bytes, self.chunk_bytes * _MAX_WINDOW_CHUNKS) - self.chunk_bytes
            wanted = max(window, beyond)
            mark = (segment.entry.key, block, wanted)
            if wanted <= 0 or read.stream.walking or read.stream.walked == mark:
                return
            read.stream.walking = True
        walk = _Walk(read, segment, block, wanted)
        at = _At(self._flights, self._flights.ahead, self._written)
        ended: Future[None] = Future()
        self._advance(at, lambda at: self._walk(at, walk), ended)

        def rest(_: Future[None]) -> None:
            # A failed walk is no error of anybody's: the read that needs those bytes will meet it itself.
            with self._plan_lock:
                read.stream.walking = False
                read.stream.walked = mark if walk.is_done else None

        ended.add_done_callback(rest)

    def _walk(self, at: _At, walk: _Walk) -> None:
        """Start downloads chunk by chunk, across segments, until the window is full or the budget is."""
        while walk.left > 0:
            if walk.block == len(walk.segment.footer.blocks):
                manifest = self._manifest(at, walk.read.tip, walk.read.manifest_key)
                entry = manifest.find(walk.segment.entry.last_offset + 1, at.load(manifest))
                if entry is None:
                    break
                walk.segment, walk.block = self._segment(at, entry), 0
                continue
            found = self._flights.ahead(ChunkResource(walk.segment, walk.block, walk.read.range_bytes))
            if found is None:
                return
            chunk: ChunkRange
            if isinstance(found, Flight):
                assert isinstance(found.resource, ChunkResource)
                chunk = found.resource.range
            else:
                chunk = found.chunk.range
            # The first is the one that the read itself asks for.
            if not walk.is_first:
                walk.left -= chunk.length
            walk.is_first = False
            walk.block = chunk.last_block
        walk.is_done = True

    # Search by time.

    def _try_search(
        self, at: _At, manifest: Manifest, timestamp: int, from_offset: int
    ) -> TimestampedOffset | None:
        def blocks_of(entry: SegmentEntry) -> BlockTable:
            return self._segment(at, entry).footer.blocks

        def chunk_of(entry: SegmentEntry, blocks: BlockTable, block: int) -> Chunk:
            chunk: Chunk = at.chunk(self._segment(at, entry), block, self.chunk_bytes).chunk
            return chunk

        return search_log(manifest, at.load(manifest), blocks_of, chunk_of, timestamp, from_offset)


def _running() -> Future[Any]:
    """A future that cannot be cancelled: what it waits for is detached from whoever asked."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class _Read:
    """One request. `planned` once its read-ahead has been started."""

    __slots__ = ("manifest_key", "max_bytes", "offset", "planned", "range_bytes", "stream", "tip")

    def __init__(
        self,
        tip: TopicIdPartition,
        manifest_key: str,
        offset: int,
        max_bytes: int,
        stream: Stream,
        range_bytes: int,
    ) -> None:
        self.tip = tip
        self.manifest_key = manifest_key
        self.offset = offset
        self.max_bytes = max_bytes
        self.stream = stream
        self.range_bytes = range_bytes
        self.planned = False


class _Walk:
    """A walk along the log that starts downloads: the next chunk begins with `block` of `segment`."""

    __slots__ = ("block", "is_done", "is_first", "left", "read", "segment")

    def __init__(self, read: _Read, segment: OpenSegment, block: int, left: int) -> None:
        self.read = read
        self.segment = segment
        self.block = block
        self.left = left
        self.is_done = False
        self.is_first = True
