"""Plan of a compaction: the dirty part of a log, and the segments that are merged. [P]

Offsets are exclusive at their ends; sizes are bytes, times ms. A log has a clean part, which begins at its
start, and a dirty one behind it:

    start ... first dirty ... first uncleanable ... end

Uncleanable are the active segment; segments beyond the last stable offset, or that are not durable; and all
from the first segment on that has a record younger than ``min.compaction.lag.ms``. A log is compacted when
more than ``min.cleanable.dirty.ratio`` of its bytes are dirty, or when a dirty record is older than
``max.compaction.lag.ms``. Late logs are first, then the dirtiest.

Source: Kafka `LogCleanerManager.cleanableOffsets` and `grabFilthiestCompactedLog`,
`Cleaner.groupSegmentsBySize`. Kafka also compacts segments that are not durable, and the dirtiest
log first, late or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from service.config.settings import LogConfig
from service.records.segment_indexes import MAX_RELATIVE_OFFSET

MAX_POSITION: Final = 2**31 - 1
"""Largest segment: an index entry has four bytes for a position."""


class CompactionSegment(Protocol):
    """A segment as compaction sees it. The timestamps may read files: they are used only if they matter."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def index_bytes(self) -> int: ...

    @property
    def time_index_bytes(self) -> int: ...

    @property
    def largest_timestamp(self) -> int: ...

    @property
    def first_timestamp(self) -> int:
        """The greatest of the first batch, -1 for none."""


class LogFacts(NamedTuple):
    """One log. ``cleaned_offset``: end of the compacted part. ``stable_offset``: the lower one of the last
    stable offset and the recovery point. ``segments``: oldest first, the last is the active one."""

    start: int
    end: int
    cleaned_offset: int
    stable_offset: int
    segments: Sequence[CompactionSegment]


class DirtyLog(NamedTuple):
    """A log to compact. ``late_ms``: by how much its oldest dirty record exceeds the maximum lag."""

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    late_ms: int

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    @property
    def urgency(self) -> tuple[bool, float]:
        """Sort key; the greatest is compacted first."""
        return self.late_ms > 0, self.ratio


class SegmentGroup(NamedTuple):
    """Segments ``[first, last]`` of the log, by number, that are merged; they end at ``end_offset``."""

    first: int
    last: int
    end_offset: int


def dirty_log(log: LogFacts, config: LogConfig, now_ms: int) -> DirtyLog | None:
    """Describe the dirty part of the log; None if the log need not be compacted yet."""
    segments = log.segments
    first_dirty = log.cleaned_offset if log.start <= log.cleaned_offset <= log.end else log.start
    bases = [segment.base_offset for segment in segments]
    uncleanable = len(segments) - 1
    while uncleanable and bases[uncleanable] > log.stable_offset:
        uncleanable -= 1
    dirty = max((n for n, base in enumerate(bases) if base <= first_dirty), default=0)
    if config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - config.min_compaction_lag_ms
        for number in range(dirty, uncleanable):
            if segments[number].largest_timestamp > youngest_ms:
                uncleanable = number
                break
    end = bases[uncleanable]
    dirty_bytes = sum(segment.size for segment in segments[dirty:uncleanable]) if end > first_dirty else 0
    if not dirty_bytes:
        return None
    clean_bytes = sum(segment.size for segment in segments[:dirty])
    late_ms = _late_ms(segments[dirty:uncleanable], config, now_ms)
    found = DirtyLog(first_dirty, end, clean_bytes, dirty_bytes, late_ms)
    return found if late_ms > 0 or found.ratio > config.min_cleanable_dirty_ratio else None


def _late_ms(dirty: Sequence[CompactionSegment], config: LogConfig, now_ms: int) -> int:
    oldest_ms = now_ms - config.max_compaction_lag_ms
    if oldest_ms <= 0:
        return 0
    times = (segment.first_timestamp for segment in dirty if segment.size)
    oldest = min((time for time in times if time > 0), default=oldest_ms)
    return max(oldest_ms - oldest, 0)


def segment_groups(
    segments: Sequence[CompactionSegment], end_offset: int, segment_bytes: int, index_bytes: int
) -> list[SegmentGroup]:
    """Group the segments below `end_offset`, in order, as many together as one segment may hold.

    `segments`: all of the log; the active one is behind `end_offset`.
    """
    found: list[SegmentGroup] = []
    most_bytes = min(segment_bytes, MAX_POSITION)
    sizes = [0, 0, 0]
    for number, segment in enumerate(segments[:-1]):
        if segment.base_offset >= end_offset:
            break
        following = segments[number + 1].base_offset
        added = [
            before + more
            for before, more in zip(
                sizes, (segment.size, segment.index_bytes, segment.time_index_bytes), strict=True
            )
        ]
        fits = added[0] <= most_bytes and added[1] <= index_bytes and added[2] <= index_bytes
        if found and fits and following - 1 - segments[found[-1].first].base_offset <= MAX_RELATIVE_OFFSET:
            found[-1] = found[-1]._replace(last=number, end_offset=following)
            sizes = added
        else:
            found.append(SegmentGroup(number, number, following))
            sizes = [segment.size, segment.index_bytes, segment.time_index_bytes]
    return found
