"""Which log is cleaned next, from where to where, and which of its segments become one. [P]

Offsets are exclusive at their ends; sizes are bytes, times ms. A log has a clean part, which begins at its
start, and a dirty one behind it:

    start ... first dirty ... first uncleanable ... end

What may not be cleaned yet: the active segment; what lies beyond the last stable offset, or is not on the
device; and from the first segment on that has a record younger than ``min.compaction.lag.ms``. A log's
turn comes when more than ``min.cleanable.dirty.ratio`` of its bytes are dirty, or when a dirty record is
older than ``max.compaction.lag.ms``. Those that are late are first, then the dirtiest.

Source: Kafka `LogCleanerManager.cleanableOffsets` and `grabFilthiestCompactedLog`,
`Cleaner.groupSegmentsBySize`. Kafka cleans what is not on the device, too, and takes the dirtiest first,
late or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from service.config.settings import LogConfig
from service.records.segment_indexes import MAX_RELATIVE_OFFSET

MAX_POSITION: Final = 2**31 - 1
"""A segment is no larger: its index has four bytes for a position."""


class SegmentFacts(Protocol):
    """What is asked of a segment. The timestamps look at files: they are asked for only where they count."""

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
    """One log. ``cleaned_offset``: up to there it was cleaned. ``stable_offset``: neither beyond the last
    stable offset nor beyond what is on the device. ``segments``: oldest first, the last is the active one."""

    start: int
    end: int
    cleaned_offset: int
    stable_offset: int
    segments: Sequence[SegmentFacts]


class DirtyLog(NamedTuple):
    """How dirty a log is. ``late_ms``: by how much its oldest dirty record is older than it may be."""

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
        """Greatest first."""
        return self.late_ms > 0, self.ratio


class SegmentGroup(NamedTuple):
    """Segments ``[first, last]`` of the log, by number, that become one; they end at ``end_offset``."""

    first: int
    last: int
    end_offset: int


def dirty_log(log: LogFacts, config: LogConfig, now_ms: int) -> DirtyLog | None:
    """How dirty the log is, None where its turn has not come."""
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


def _late_ms(dirty: Sequence[SegmentFacts], config: LogConfig, now_ms: int) -> int:
    oldest_ms = now_ms - config.max_compaction_lag_ms
    if oldest_ms <= 0:
        return 0
    times = (segment.first_timestamp for segment in dirty if segment.size)
    oldest = min((time for time in times if time > 0), default=oldest_ms)
    return max(oldest_ms - oldest, 0)


def segment_groups(
    segments: Sequence[SegmentFacts], end_offset: int, segment_bytes: int, index_bytes: int
) -> list[SegmentGroup]:
    """Segments below `end_offset`, in order, as many together as one segment may hold.

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
