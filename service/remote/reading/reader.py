"""Reads of the cold tier: from an offset to batches in the bucket.

A read is a computation over resources in memory (manifest, pages, footer, chunks). When one is missing, the
read joins the download that brings it and starts over once it is complete. So no thread ever waits for
another, and a request that its client cancelled costs only the download, which continues into the cache.

Ownership: `RemoteReader` may be called from any thread, the event loop included: it only reads caches and
never blocks. Futures are resolved on the pool's threads, or before the call returns when everything was in
memory, and cannot be cancelled.
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
from service.remote.format.block_table import BlockTable, LogBlock
from service.remote.format.keys import ManifestKey, parse_key
from service.remote.format.manifest import (
    Load,
    Manifest,
    ManifestPage,
    PageRef,
    SegmentEntry,
    live_segments,
)
from service.remote.reading.chunk import Chunk, ChunkRange
from service.remote.reading.chunk_cache import Slot
from service.remote.reading.disk_cache import DiskCache
from service.remote.reading.download import Download, DownloadStats, RemoteResource
from service.remote.reading.download_manager import DownloadManager, ResponseHold
from service.remote.reading.read_ahead import Stream, StreamReadAhead
from service.remote.reading.recent_writes import RecentWrites
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
    """Whole batches from the one that holds the requested offset; at least one.

    Empty where the remote log has no records at or after it any more (compaction removed the last ones).
    `next_offset` is where the next read continues. Release `hold` when the bytes are sent; None where there
    are none.
    """

    data: tuple[Buffer, ...]
    next_offset: int
    hold: ResponseHold | None = None


class ArchiveEnd(NamedTuple):
    """State at the end of the remote log.

    `epochs` are (epoch, first offset) of its leader epochs, oldest first; `producer_snapshot` is Kafka's,
    empty where none was kept; `entry` is the catalog entry that names this manifest; `last_block` is the last
    block of its last segment, None where there is no segment.
    """

    epochs: tuple[tuple[int, int], ...]
    producer_snapshot: bytes
    entry: CatalogEntry
    last_block: LogBlock | None = None


class ReaderStats(NamedTuple):
    """Activity and memory of the reader; see `download.DownloadStats`."""

    downloads: DownloadStats
    streams: int


class _Missing(Exception):
    """A resource is not in memory; `download` brings it, None if nothing does."""

    def __init__(self, key: Hashable, download: Download | None) -> None:
        super().__init__(key)
        self.key = key
        self.download = download


class _Resources:
    """Resources of one computation: those in memory, or a `_Missing` that says what to wait for.

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
        """Prefetch the probable position of `offset` in a segment beside its footer, if there is room."""
        resource = GuessResource.for_offset(entry, offset, range_bytes)
        if resource is not None:
            self._downloads.prefetch(resource)

    def _guessed(self, segment: OpenSegment, block: int) -> Guessed | None:
        """Return the prefetched guess of the segment; raise `_Missing` while it is in flight and holds the
        block."""
        key = guess_key(segment.entry.key)
        found = self.pins.get(key) or self._downloads.lookup(key)
        if not isinstance(found, Download):
            return None if found is None else found.chunk
        guess = found.resource
        if isinstance(guess, GuessResource) and guess.holds(segment.footer.blocks[block]):
            raise _Missing(key, found)
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


class RemoteReader:
    """Single-flight, cached, read-ahead reads over one object store client of its own.

    `cache_bytes` bounds chunks (cached, downloading, and being sent) plus decoded manifests and footers.
    `threads` is the number of concurrent downloads; threads start when they are first needed. `second_store`
    is another client of the same bucket, used where `store` takes long; `disk_cache` keeps chunks that memory
    has no room for.
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
        """`limit` returns the rate limit of downloads, and is called whenever it applies."""
        self._rate = Rate(limit)
        self._counted_bytes = 0
        chunk_budget = cache_bytes - cache_bytes // _METADATA_SHARE
        self.chunk_bytes = chunk_bytes
        self._clock = world.clock
        self._downloads = DownloadManager(
            store,
            world,
            second_store=second_store,
            disk_cache=disk_cache,
            threads=threads,
            chunk_budget_bytes=chunk_budget,
            metadata_budget_bytes=cache_bytes // _METADATA_SHARE - cache_bytes // _WRITTEN_SHARE,
            attempts=attempts,
        )
        self._plan = StreamReadAhead(
            chunk_bytes=chunk_bytes,
            max_window_bytes=_MAX_WINDOW_CHUNKS * chunk_bytes,
            budget_bytes=chunk_budget,
        )
        self._plan_lock = world.threads.lock()
        self._written = RecentWrites(world, cache_bytes // _WRITTEN_SHARE)
        self._guesses = disk_cache is None  # a disk cache may have the chunk

    def read(
        self, tip: TopicIdPartition, manifest_key: str, offset: int, max_bytes: int
    ) -> Future[RemoteRead]:
        """Return whole batches from the one that holds `offset`: at least one, otherwise up to `max_bytes`.

        The future is already done when everything was in memory. It fails with `RequestError`
        OFFSET_OUT_OF_RANGE when the manifest does not hold `offset`, `ObjectNotFound`, `CorruptionError`
        (with object key and offsets), `StoreUnavailable` after all retries, `StoreRefused`, `ReaderClosed`.
        """
        with self._plan_lock:
            stream = self._plan.begin((tip.topic_id, tip.partition), offset, self._clock.monotonic_ms())
            range_bytes = self._plan.range_bytes()
            forgotten, self._plan.forgotten = self._plan.forgotten, []
        if forgotten:
            self._downloads.forget_streams(forgotten)
        read = _Read(tip, manifest_key, offset, max_bytes, stream, range_bytes)
        future: Future[RemoteRead] = _running()
        self._advance(self._new_resources(), lambda resources: self._try_read(resources, read), future)
        return future

    def wrote(self, key: str, data: Buffer) -> None:
        """Keep an object that this process has written: the manifest of a commit need not be downloaded."""
        if isinstance(parse_key(key), ManifestKey):
            self._written.put(key, data)

    def share(self) -> int:
        """Return how many bytes of the cold tier one more response may have now. For the loop.

        0 where clients do not take the bytes of theirs, or the rate limit of downloads is reached.
        """
        now_ms, downloaded = self._clock.monotonic_ms(), self._downloads.metrics.downloaded_bytes
        self._rate.spend(downloaded - self._counted_bytes, now_ms)
        self._counted_bytes = downloaded
        return 0 if self._rate.wait_ms(now_ms) else self._downloads.share()

    def offset_for_timestamp(
        self, tip: TopicIdPartition, manifest_key: str, timestamp: int, from_offset: int = 0
    ) -> Future[TimestampedOffset | None]:
        """Return the first record at or after `from_offset` with a timestamp not below `timestamp`, if any.

        Kafka's ListOffsets by time (`RemoteLogManager.findOffsetByTimestamp`). Fails as `read` does.
        """
        return self._search(
            lambda resources: self._try_search(
                resources, self._manifest(resources, tip, manifest_key), timestamp, from_offset
            )
        )

    def max_timestamp_offset(
        self, tip: TopicIdPartition, manifest_key: str
    ) -> Future[TimestampedOffset | None]:
        """Return the first record with the largest timestamp in the remote log; None if no record has one."""

        def compute(resources: _Resources) -> TimestampedOffset | None:
            manifest = self._manifest(resources, tip, manifest_key)
            newest = manifest.max_timestamp(resources.load(manifest))
            return self._try_search(resources, manifest, newest, 0) if newest >= 0 else None

        return self._search(compute)

    def archive_end(self, tip: TopicIdPartition, manifest_key: str) -> Future[ArchiveEnd]:
        """Return the state that a log needs to continue at the end of the remote log. Fails as `read`
        does."""

        def compute(resources: _Resources) -> ArchiveEnd:
            manifest = self._manifest(resources, tip, manifest_key)
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
            for last in live_segments(manifest, resources.load(manifest)):
                epochs += [one for one in last.leader_epochs if not epochs or one[0] > epochs[-1][0]]
            if last is None:
                return ArchiveEnd((), b"", entry)
            segment = self._segment(resources, last)
            snapshot: bytes = resources.need(SectionResource(segment, "producer_snapshot"))
            return ArchiveEnd(tuple(epochs), snapshot, entry, segment.footer.blocks[-1])

        return self._start(compute)

    def stats(self) -> ReaderStats:
        with self._plan_lock:
            streams = self._plan.active
        return ReaderStats(self._downloads.stats(), streams)

    def close(self, timeout_s: float = 10.0) -> None:
        """Fail what is under way with `ReaderClosed` and join the threads; see `DownloadManager.close`."""
        self._downloads.close(timeout_s)

    # Computations.

    def _new_resources(self) -> _Resources:
        return _Resources(self._downloads, self._downloads.get, self._written)

    def _start(self, compute: Callable[[_Resources], T]) -> Future[T]:
        future: Future[T] = _running()
        self._advance(self._new_resources(), compute, future)
        return future

    def _search(self, compute: Callable[[_Resources], T]) -> Future[T]:
        """Start `compute` on the pool: searches look inside batches."""
        future: Future[T] = _running()
        resources = self._new_resources()
        try:
            self._downloads.call_soon(lambda: self._advance(resources, compute, future))
        except ReaderClosed as e:
            future.set_exception(e)
        return future

    def _advance(self, resources: _Resources, compute: Callable[[_Resources], T], future: Future[T]) -> None:
        """Compute with what is in memory; continue when the next download completes."""
        try:
            result = compute(resources)
        except _Missing as missing:
            download, key = missing.download, missing.key
            if download is None:
                future.set_exception(ReaderClosed("the reader is closed"))
                return
            # The callback must not refer to the download: a cycle would wait for the garbage collector.
            is_guess = isinstance(download.resource, GuessResource)
            download.future.add_done_callback(
                partial(self._resume, resources, compute, future, key, is_guess)
            )
        except Exception as e:
            future.set_exception(e)
        else:
            future.set_result(result)

    def _resume(
        self,
        resources: _Resources,
        compute: Callable[[_Resources], T],
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
        self._advance(resources, compute, future)

    def _manifest(self, resources: _Resources, tip: TopicIdPartition, key: str) -> Manifest:
        manifest = resources.manifest(key)
        if (manifest.topic_id, manifest.partition) != (tip.topic_id, tip.partition):
            raise CorruptionError(f"{key}: not a manifest of {tip} ({tip.topic_id})")
        return manifest

    def _segment(self, resources: _Resources, entry: SegmentEntry) -> OpenSegment:
        segment: OpenSegment = resources.need(SegmentResource(entry))
        return segment

    def _try_read(self, resources: _Resources, read: _Read) -> RemoteRead:
        offset = read.offset
        entry = read.stream.entry
        if entry is None or read.stream.manifest_key != read.manifest_key or not entry.holds(offset):
            manifest = self._manifest(resources, read.tip, read.manifest_key)
            entry = manifest.find(offset, resources.load(manifest))
            if entry is None:
                raise RequestError(
                    ErrorCode.offset_out_of_range,
                    f"offset {offset} of {read.tip} is not in the remote log, which holds "
                    f"[{manifest.start_offset}, {manifest.end_offset})",
                )
        while entry is not None:
            # A stream that continues has read ahead; where the footer is downloading, its starter has
            # guessed.
            is_new = self._guesses and read.stream.entry is None and not self._downloads.lookup(entry.key)
            try:
                segment = self._segment(resources, entry)
            except _Missing:
                if is_new:
                    resources.guess(entry, offset, read.range_bytes)
                raise
            block = segment.footer.blocks.index_of(offset)
            if block < len(segment.footer.blocks):
                read.stream.manifest_key, read.stream.entry = read.manifest_key, entry
                return self._read_chunks(resources, read, segment, block)
            offset = entry.last_offset + 1  # compaction removed the records at the segment's end
            manifest = self._manifest(resources, read.tip, read.manifest_key)
            entry = manifest.find(offset, resources.load(manifest))
        return RemoteRead((), offset)

    def _read_chunks(
        self, resources: _Resources, read: _Read, segment: OpenSegment, block: int
    ) -> RemoteRead:
        try:
            slot = resources.chunk(segment, block, read.range_bytes)
        except _Missing as missing:
            # The chunk is downloading; download the chunks after it beside it.
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
            following = self._following(resources, read, segment, slot.chunk.range.last_block)
            if following is None:
                break
            segment, block, slot = following
            next_found = slot.chunk.read(segment.footer.blocks[block].first_offset, left, at_least_one=False)
            if next_found is None:
                break
            found = next_found
            pieces.append((slot, found.data))
            left -= len(found.data)
        parts, hold = self._downloads.hand_out(pieces, read.stream, at_end=found.at_end)
        with self._plan_lock:
            is_known = self._plan.ended(read.stream, found.next_offset)
        if not is_known:
            self._downloads.forget_streams((read.stream,))  # nothing else drops its claim on the chunk
        return RemoteRead(parts, found.next_offset, hold)

    def _following(
        self, resources: _Resources, read: _Read, segment: OpenSegment, block: int
    ) -> tuple[OpenSegment, int, Slot] | None:
        """Return the chunk with the next block of the log, in this segment or the next, when it is in
        memory."""
        if block == len(segment.footer.blocks):
            following = self._next_in_memory(resources, read, segment)
            if following is None or not following.footer.blocks:
                return None
            segment, block = following, 0
        slot = resources.peek_chunk(segment, block)
        return None if slot is None else (segment, block, slot)

    def _next_in_memory(self, resources: _Resources, read: _Read, segment: OpenSegment) -> OpenSegment | None:
        quiet = _Resources(self._downloads, self._downloads.peek, self._written)
        quiet.pins = resources.pins
        try:
            manifest = self._manifest(quiet, read.tip, read.manifest_key)
            entry = manifest.find(segment.entry.last_offset + 1, quiet.load(manifest))
            return None if entry is None else self._segment(quiet, entry)
        except _Missing:
            return None

    # Read-ahead.

    def _plan_ahead(self, read: _Read, segment: OpenSegment, block: int) -> None:
        """Start downloads of what the read needs beyond the chunk of `block`, and of its stream's read-ahead.

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
        resources = _Resources(self._downloads, self._downloads.prefetch, self._written)
        ended: Future[None] = Future()
        self._advance(resources, lambda resources: self._walk(resources, walk), ended)

        def rest(_: Future[None]) -> None:
            # A failed walk is not reported: the read that needs those bytes will meet the error itself.
            with self._plan_lock:
                read.stream.walking = False
                read.stream.walked = mark if walk.is_done else None

        ended.add_done_callback(rest)

    def _walk(self, resources: _Resources, walk: _Walk) -> None:
        """Start downloads chunk by chunk, across segments, until the window or the budget is full."""
        while walk.left > 0:
            if walk.block == len(walk.segment.footer.blocks):
                manifest = self._manifest(resources, walk.read.tip, walk.read.manifest_key)
                entry = manifest.find(walk.segment.entry.last_offset + 1, resources.load(manifest))
                if entry is None:
                    break
                walk.segment, walk.block = self._segment(resources, entry), 0
                continue
            found = self._downloads.prefetch(ChunkResource(walk.segment, walk.block, walk.read.range_bytes))
            if found is None:
                return
            chunk: ChunkRange
            if isinstance(found, Download):
                assert isinstance(found.resource, ChunkResource)
                chunk = found.resource.range
            else:
                chunk = found.chunk.range
            # The first chunk is the one that the read itself needs.
            if not walk.is_first:
                walk.left -= chunk.length
            walk.is_first = False
            walk.block = chunk.last_block
        walk.is_done = True

    # Search by time.

    def _try_search(
        self, resources: _Resources, manifest: Manifest, timestamp: int, from_offset: int
    ) -> TimestampedOffset | None:
        def blocks_of(entry: SegmentEntry) -> BlockTable:
            return self._segment(resources, entry).footer.blocks

        def chunk_of(entry: SegmentEntry, blocks: BlockTable, block: int) -> Chunk:
            chunk: Chunk = resources.chunk(self._segment(resources, entry), block, self.chunk_bytes).chunk
            return chunk

        return search_log(manifest, resources.load(manifest), blocks_of, chunk_of, timestamp, from_offset)


def _running() -> Future[Any]:
    """Return a future that cannot be cancelled: the work behind it is shared."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class _Read:
    """One read request. `planned` is set once its read-ahead was started."""

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
