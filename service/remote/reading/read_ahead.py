"""Read-ahead: how far to read ahead for each sequential reader. [P]

A *stream* is a reader that reads one partition in order, identified by the offset where it will continue.
Ranges shrink as streams become more, so that each has room for its current chunk. The window of a stream
starts at nothing, becomes one chunk with the first read that continues where the last one ended, and doubles
with each further one. All windows together stay within half the byte budget: the more readers are active, the
smaller is each one's share.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from service.base.types import NO_OFFSET
from service.remote.format.manifest import SegmentEntry
from service.remote.reading.chunk_cache import Slot

Partition = tuple[UUID, int]

IDLE_MS: Final = 10_000
MAX_STREAMS: Final = 4096
_LEAST_RANGES: Final = 4
"""A range is no smaller than this part of a chunk, about a block: less than a block cannot be verified."""


@dataclass(slots=True, eq=False)
class Stream:
    """One sequential reader: where its last read began (`at`), where it will continue (`next`)."""

    partition: Partition
    at: int
    next: int = NO_OFFSET
    window_bytes: int = 0
    last_used_ms: int = 0
    walking: bool = False
    """A walk that starts downloads for it is under way; at most one is."""
    walked: Hashable | None = None
    """Where the last complete walk began."""
    manifest_key: str = ""
    entry: SegmentEntry | None = None
    """The segment of its last read, as in `manifest_key`."""
    slot: Slot | None = None
    """The chunk that it has not read to the end yet; `DownloadManager` sets it."""


class StreamReadAhead:
    """All streams of one reader. Not thread-safe: the reader's lock guards it.

    >>> plan = StreamReadAhead(chunk_bytes=4, max_window_bytes=32, budget_bytes=64)
    >>> first = plan.begin((UUID(int=1), 0), 100, now_ms=0)
    >>> plan.ended(first, 110)
    True
    >>> plan.window(plan.begin((UUID(int=1), 0), 110, now_ms=1))
    4
    """

    def __init__(self, *, chunk_bytes: int, max_window_bytes: int, budget_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._max_window_bytes = max_window_bytes
        self._budget_bytes = budget_bytes
        self._by_offset: dict[tuple[Partition, int], Stream] = {}
        self._streams: OrderedDict[int, Stream] = OrderedDict()
        self.forgotten: list[Stream] = []
        """Streams that were evicted; the caller that handles them empties it."""

    @property
    def active(self) -> int:
        """Streams used within the last ten seconds."""
        return len(self._streams)

    def begin(self, partition: Partition, offset: int, now_ms: int) -> Stream:
        """Return the stream that reads at `offset`: one expected there, one that repeats its read, or a new
        one."""
        self._forget_idle(now_ms)
        stream = self._by_offset.get((partition, offset))
        if stream is None:
            stream = Stream(partition, offset)
            self._by_offset[(partition, offset)] = stream
        elif offset == stream.next:
            self._unlink(stream, stream.at)
            stream.at, stream.next = offset, NO_OFFSET
            stream.window_bytes = min(max(2 * stream.window_bytes, self._chunk_bytes), self._max_window_bytes)
        stream.last_used_ms = now_ms
        self._streams[id(stream)] = stream
        self._streams.move_to_end(id(stream))
        return stream

    def ended(self, stream: Stream, next_offset: int) -> bool:
        """Record that a read ended before `next_offset`. The client may repeat the read if it did not get the
        response.

        Return False where the read took so long that its stream was evicted meanwhile.
        """
        if id(stream) not in self._streams:
            return False
        if next_offset == stream.at:
            return True
        if stream.next != next_offset:
            self._unlink(stream, stream.next)
        stream.next = next_offset
        self._by_offset[(stream.partition, next_offset)] = stream
        return True

    def range_bytes(self) -> int:
        """Return how many bytes to download at a time: fewer, the more streams there are.

        A stream has its current chunk, what is being sent to its client, and what is in flight from the
        store.
        """
        share = self._budget_bytes // (4 * max(self.active, 1))
        return max(min(self._chunk_bytes, share), self._chunk_bytes // _LEAST_RANGES, 1)

    def window(self, stream: Stream) -> int:
        """Return how many bytes, in whole chunks, to have in flight beyond what the stream's read needs."""
        share = self._budget_bytes // 2 // max(self.active, 1)
        size = self.range_bytes()
        return min(stream.window_bytes, share) // size * size

    def _forget_idle(self, now_ms: int) -> None:
        while self._streams:
            oldest = next(iter(self._streams.values()))
            if now_ms - oldest.last_used_ms < IDLE_MS and len(self._streams) < MAX_STREAMS:
                return
            del self._streams[id(oldest)]
            self._unlink(oldest, oldest.at)
            self._unlink(oldest, oldest.next)
            if oldest.slot is not None:
                self.forgotten.append(oldest)

    def _unlink(self, stream: Stream, offset: int) -> None:
        if self._by_offset.get((stream.partition, offset)) is stream:
            del self._by_offset[(stream.partition, offset)]
