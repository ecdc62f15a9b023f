"""Reads of the cold tier: from an offset to batches in the bucket.

A read is a computation over resources in memory: manifest, pages, footer, chunks (`computation`).

Ownership: `RemoteReader` may be called from any thread, the event loop included: it only reads caches and
never blocks. Futures are resolved on the pool's threads, or before the call returns when everything was in
memory, and cannot be cancelled.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, InvariantError, RequestError
from service.base.rate import Rate, RateLimit
from service.base.types import NO_OFFSET, Buffer, TimestampedOffset, TopicIdPartition
from service.base.world import World
from service.remote.catalog import CatalogEntry
from service.remote.format.block_table import BlockTable, LogBlock
from service.remote.format.keys import ManifestKey, parse_key
from service.remote.format.manifest import (
    Manifest,
    SegmentEntry,
    live_segments,
)
from service.remote.format.segment_object import (
    EPOCH_HISTORY,
    MAX_HISTORY_BYTES,
    OpenSegment,
    decode_epoch_history,
)
from service.remote.reading.aborted import AbortedIndex, AbortedRows, AbortedSearch, Indexes, TooManyRows
from service.remote.reading.chunk import Chunk, ChunkRange
from service.remote.reading.chunk_cache import Slot
from service.remote.reading.computation import Computations, Missing, Resources, TooLong, running
from service.remote.reading.disk_cache import DiskCache
from service.remote.reading.download import Download, DownloadStats
from service.remote.reading.download_manager import DownloadManager, ResponseHold
from service.remote.reading.read_ahead import Stream, StreamReadAhead
from service.remote.reading.recent_writes import RecentWrites
from service.remote.reading.resources import (
    AbortedResource,
    ChunkResource,
    SectionResource,
    SegmentResource,
)
from service.remote.reading.time_search import newest_record, search_log
from service.remote.stores.errors import naming
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
    block of its last segment, None where there is no segment; `open_from` is as in `manifest.SegmentEntry`.
    """

    epochs: tuple[tuple[int, int], ...]
    producer_snapshot: bytes
    entry: CatalogEntry
    last_block: LogBlock | None = None
    open_from: int = NO_OFFSET


class ReaderStats(NamedTuple):
    """Activity and memory of the reader; see `download.DownloadStats`."""

    downloads: DownloadStats
    streams: int


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
        self._computations = Computations(self._downloads, self._written)
        self._guesses = disk_cache is None  # a disk cache may have the chunk

    def read(
        self,
        tip: TopicIdPartition,
        manifest_key: str,
        offset: int,
        max_bytes: int,
        end_offset: int = sys.maxsize,
    ) -> Future[RemoteRead]:
        """Return whole batches from the one that holds `offset`: at least one, otherwise up to `max_bytes`.

        They end before `end_offset`, so there may be none: a replica that lags behind the archive shows
        less than that holds.

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
        read = _Read(tip, manifest_key, offset, max_bytes, end_offset, stream, range_bytes)
        return self._computations.start(lambda resources: self._try_read(resources, read))

    def aborted(
        self, tip: TopicIdPartition, manifest_key: str, fetch_offset: int, bound: int
    ) -> Future[AbortedRows]:
        """Return the aborted transactions that a read of ``[fetch_offset, bound)`` needs to hide them.

        The future is already done when everything was in memory, unless many rows had to be looked at. Fails
        as `read` does, but not where the remote log holds nothing of the range: then there are no rows.
        """
        search = AbortedSearch(fetch_offset, bound)
        if bound <= fetch_offset:
            nothing: Future[AbortedRows] = running()
            nothing.set_result(AbortedRows([], is_complete=True))
            return nothing

        def compute(resources: Resources) -> AbortedRows:
            manifest = self._manifest(resources, tip, manifest_key)
            try:
                return search.go_on(manifest, resources.load(manifest), self._indexes(resources))
            except TooManyRows:
                search.most_rows = None
                raise TooLong from None

        return self._computations.start(compute)

    def _indexes(self, resources: Resources) -> Indexes:
        def rows(segment: OpenSegment) -> AbortedIndex:
            index: AbortedIndex = resources.need_once(AbortedResource(segment))
            return index

        def snapshot(segment: OpenSegment) -> bytes:
            data: bytes = resources.need(SectionResource(segment, "producer_snapshot"))
            return data

        return Indexes(partial(self._segment, resources), rows, snapshot)

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
        return self._computations.start_on_pool(
            lambda resources: self._try_search(
                resources, self._manifest(resources, tip, manifest_key), timestamp, from_offset
            )
        )

    def max_timestamp_offset(
        self, tip: TopicIdPartition, manifest_key: str
    ) -> Future[TimestampedOffset | None]:
        """Return the first record with the largest timestamp in the remote log; None if no record has one."""

        def compute(resources: Resources) -> TimestampedOffset | None:
            manifest = self._manifest(resources, tip, manifest_key)
            newest = manifest.max_timestamp(resources.load(manifest))
            return newest_record(
                lambda timestamp: self._try_search(resources, manifest, timestamp, 0), newest
            )

        return self._computations.start_on_pool(compute)

    def archive_end(self, tip: TopicIdPartition, manifest_key: str) -> Future[ArchiveEnd]:
        """Return the state that a log needs to continue at the end of the remote log. Fails as `read`
        does."""

        def compute(resources: Resources) -> ArchiveEnd:
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
            last = next(live_segments(manifest, resources.load(manifest), manifest.end_offset - 1), None)
            if last is None:
                return ArchiveEnd((), b"", entry)
            segment = self._segment(resources, last)
            snapshot: bytes = resources.need(SectionResource(segment, "producer_snapshot"))
            footer, epochs = segment.footer, _epochs_of(resources, manifest, segment)
            return ArchiveEnd(epochs, snapshot, entry, footer.blocks[-1], footer.open_from)

        return self._computations.start(compute)

    def rewritten_end(self, tip: TopicIdPartition, manifest_key: str, offset: int) -> Future[int]:
        """Return the offset behind the last object that a rewrite has made, from the one that holds `offset`
        on; -1 without one. Fails as `read` does."""

        def compute(resources: Resources) -> int:
            manifest = self._manifest(resources, tip, manifest_key)
            segments = live_segments(manifest, resources.load(manifest), offset)
            return max((one.last_offset + 1 for one in segments if one.generation), default=NO_OFFSET)

        return self._computations.start(compute)

    def stats(self) -> ReaderStats:
        with self._plan_lock:
            streams = self._plan.active
        return ReaderStats(self._downloads.stats(), streams)

    def close(self, timeout_s: float = 10.0) -> None:
        """Fail what is under way with `ReaderClosed` and join the threads; see `DownloadManager.close`."""
        self._downloads.close(timeout_s)

    # Reads.

    def _manifest(self, resources: Resources, tip: TopicIdPartition, key: str) -> Manifest:
        manifest = resources.manifest(key)
        if (manifest.topic_id, manifest.partition) != (tip.topic_id, tip.partition):
            raise CorruptionError(f"{key}: not a manifest of {tip} ({tip.topic_id})")
        return manifest

    def _segment(self, resources: Resources, entry: SegmentEntry) -> OpenSegment:
        segment: OpenSegment = resources.need(SegmentResource(entry))
        return segment

    def _try_read(self, resources: Resources, read: _Read) -> RemoteRead:
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
            except Missing:
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

    def _read_chunks(self, resources: Resources, read: _Read, segment: OpenSegment, block: int) -> RemoteRead:
        try:
            slot = resources.chunk(segment, block, read.range_bytes)
        except Missing as missing:
            # The chunk is downloading; download the chunks after it beside it.
            if missing.key == (segment.entry.key, block):
                self._plan_ahead(read, segment, block)
            raise
        self._plan_ahead(read, segment, slot.chunk.range.first_block)
        offset = max(read.offset, segment.footer.blocks[block].first_offset)
        found = slot.chunk.read(offset, read.max_bytes, at_least_one=True, end_offset=read.end_offset)
        if found is None and slot.chunk.last_offset >= read.end_offset:
            return RemoteRead((), read.offset)
        if found is None:
            raise InvariantError(f"chunk up to {slot.chunk.last_offset} was chosen for offset {offset}")
        pieces, left = [(slot, found.data)], read.max_bytes - len(found.data)
        while found.at_end and left > 0:
            following = self._following(resources, read, segment, slot.chunk.range.last_block)
            if following is None:
                break
            segment, block, slot = following
            first = segment.footer.blocks[block].first_offset
            next_found = slot.chunk.read(first, left, at_least_one=False, end_offset=read.end_offset)
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
        self, resources: Resources, read: _Read, segment: OpenSegment, block: int
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

    def _next_in_memory(self, resources: Resources, read: _Read, segment: OpenSegment) -> OpenSegment | None:
        quiet = self._computations.resources(self._downloads.peek)
        quiet.pins = resources.pins
        try:
            manifest = self._manifest(quiet, read.tip, read.manifest_key)
            entry = manifest.find(segment.entry.last_offset + 1, quiet.load(manifest))
            return None if entry is None else self._segment(quiet, entry)
        except Missing:
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
        resources = self._computations.resources(self._downloads.prefetch)
        ended: Future[None] = Future()
        self._computations.advance(resources, lambda resources: self._walk(resources, walk), ended)

        def rest(_: Future[None]) -> None:
            # A failed walk is not reported: the read that needs those bytes will meet the error itself.
            with self._plan_lock:
                read.stream.walking = False
                read.stream.walked = mark if walk.is_done else None

        ended.add_done_callback(rest)

    def _walk(self, resources: Resources, walk: _Walk) -> None:
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
        self, resources: Resources, manifest: Manifest, timestamp: int, from_offset: int
    ) -> TimestampedOffset | None:
        def blocks_of(entry: SegmentEntry) -> BlockTable:
            return self._segment(resources, entry).footer.blocks

        def chunk_of(entry: SegmentEntry, blocks: BlockTable, block: int) -> Chunk:
            chunk: Chunk = resources.chunk(self._segment(resources, entry), block, self.chunk_bytes).chunk
            return chunk

        return search_log(manifest, resources.load(manifest), blocks_of, chunk_of, timestamp, from_offset)


class _Read:
    """One read request. `planned` is set once its read-ahead was started."""

    __slots__ = (
        "end_offset", "manifest_key", "max_bytes", "offset", "planned", "range_bytes", "stream", "tip",
    )  # fmt: skip

    def __init__(
        self,
        tip: TopicIdPartition,
        manifest_key: str,
        offset: int,
        max_bytes: int,
        end_offset: int,
        stream: Stream,
        range_bytes: int,
    ) -> None:
        self.tip = tip
        self.manifest_key = manifest_key
        self.offset = offset
        self.max_bytes = max_bytes
        self.end_offset = end_offset
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


def _epochs_of(resources: Resources, manifest: Manifest, newest: OpenSegment) -> tuple[tuple[int, int], ...]:
    """Return the leader epochs of a chain, from the one that has its first record on.

    The newest segment tells them where its writer knew them all, otherwise every page is read.
    """
    footer, start = newest.footer, manifest.start_offset
    section = footer.sections.get(EPOCH_HISTORY)
    if section is not None:
        with naming(newest.entry.key):
            if section.length > MAX_HISTORY_BYTES:
                raise CorruptionError(f"an epoch history of {section.length} bytes")
            history = decode_epoch_history(resources.need(SectionResource(newest, EPOCH_HISTORY)), footer)
        if history[0][1] <= start:
            first = bisect_right(history, start, key=itemgetter(1)) - 1
            return history[first:]
    epochs: list[tuple[int, int]] = []
    for entry in live_segments(manifest, resources.load(manifest)):
        epochs += [one for one in entry.leader_epochs if not epochs or one[0] > epochs[-1][0]]
    return tuple(epochs)
