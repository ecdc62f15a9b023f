"""How far to read ahead of whom. [P]

A *stream* is a reader that goes through one partition in order, known by the offset where it will go on.
Ranges shrink as streams become more: so that each has room for the chunk that it is in.
The window of a stream starts at nothing, becomes one chunk with the first read that goes on where the last
one ended, and doubles with each further one. All windows together stay within half the byte budget: the more
readers are active, the smaller is each one's share.
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
"""A range is no smaller than this part of a chunk, about a block: less than one cannot be verified."""


@dataclass(slots=True, eq=False)
class Stream:
    """One sequential reader: where its last read began (`at`), where it will go on (`next`)."""

    partition: Partition
    at: int
    next: int = NO_OFFSET
    window_bytes: int = 0
    last_used_ms: int = 0
    walking: bool = False
    """A walk that starts downloads for it is under way; at most one is."""
    walked: Hashable | None = None
    """What the last walk that was not cut short began with."""
    manifest_key: str = ""
    entry: SegmentEntry | None = None
    """The segment that it was in last, as this manifest has it."""
    slot: Slot | None = None
    """The chunk that it has not read to the end yet; `Flights` keeps it."""


class ReadAhead:
    """All streams of one reader. Not thread-safe: the reader's lock guards it.

    >>> plan = ReadAhead(chunk_bytes=4, max_window_bytes=32, budget_bytes=64)
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
        """Streams that came to nothing; whoever reads this empties it."""

    @property
    def active(self) -> int:
        """Streams used within the last ten seconds."""
        return len(self._streams)

    def begin(self, partition: Partition, offset: int, now_ms: int) -> Stream:
        """The stream that reads at `offset`: one expected there, one that asks again, or a new one."""
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
        """A read ended before `next_offset`. It may not have reached the client, who then asks again.

        False where it took so long that its stream was forgotten meanwhile.
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
        """How much is to be downloaded at a time: less, the more streams there are.

        A stream has its current chunk, what is on its way to its client, and what is on its way here.
        """
        share = self._budget_bytes // (4 * max(self.active, 1))
        return max(min(self._chunk_bytes, share), self._chunk_bytes // _LEAST_RANGES, 1)

    def window(self, stream: Stream) -> int:
        """Bytes, in whole chunks, to have on their way beyond what the stream's read asked for."""
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
