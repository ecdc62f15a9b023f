"""Plan which neighbouring objects of a chain become one. [P]

A run has at least `MIN_RUN` neighbours, each smaller than `small_bytes`, all uploaded at least `min_age_ms`
ago, and together at most `object_bytes`. The largest of them has at most half of the run's bytes: so each
time that a record is written again its object becomes at least twice as large, and a record is written a few
times in all, however small the segments are. Only entries of the manifest, or of one page, make a run.

The age is that of the upload, by the store: records that are written late, as by a replay or from a mirror,
may be of any age while their segments still arrive. A chain's segments are uploaded in its order, and what
was merged before was old enough then: so the store is asked for few of them.

An object goes when its newest record is beyond retention. So the timestamps of a run differ by at most
`span_ms`, a part of retention: merged or not, no record stays much longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from service.base.types import NO_TIMESTAMP
from service.remote.format.manifest import SegmentEntry
from service.remote.format.segment_object import MAX_LOG_LENGTH
from service.tiering.rewriting.rules import fits_one_object

MIN_RUN: Final = 8
_PARTS_OF_RETENTION: Final = 8
"""An object spans at most such a part of retention, in time and in bytes."""
_LOOKS_PER_AGE: Final = 8
NO_SPAN: Final = -1
"""`span_ms` where records are kept for ever."""

UploadedAt = Callable[[SegmentEntry], int]
"""Returns when the object was uploaded (ms, wall clock); may raise."""


class MergeLimits(NamedTuple):
    """``firn.merge.small.bytes``, ``firn.merge.min.age.ms``, ``firn.rewrite.object.bytes``; `span_ms`: most
    time between the records of an object, `NO_SPAN` for any."""

    small_bytes: int = 16 << 20
    min_age_ms: int = 86_400_000
    object_bytes: int = 128 << 20
    span_ms: int = NO_SPAN

    def within(self, retention_ms: int, retention_bytes: int) -> MergeLimits:
        """Return the limits for a topic with this retention; negative for none."""
        limits = self
        if retention_ms >= 0:
            limits = limits._replace(span_ms=retention_ms // _PARTS_OF_RETENTION)
        if retention_bytes >= 0:
            most = min(self.object_bytes, retention_bytes // _PARTS_OF_RETENTION)
            limits = limits._replace(object_bytes=most)
        return limits

    def due_ms(self, ripe_ms: int) -> int:
        """Return when to look again at a chain that may have a run from `ripe_ms` on: a while later, so that
        what ripens one by one is merged with more of its neighbours at once."""
        return ripe_ms + self.min_age_ms // _LOOKS_PER_AGE


class FoundRun(NamedTuple):
    """The first run among some entries, oldest first; without one, the time (wall clock, ms) from which there
    may be one, None where other entries are needed for that."""

    run: tuple[SegmentEntry, ...] = ()
    ripe_ms: int | None = None


def find_run(
    entries: Sequence[SegmentEntry],
    limits: MergeLimits,
    now_ms: int,
    uploaded_at_ms: UploadedAt,
    from_offset: int = 0,
) -> FoundRun:
    """Find the first run of `entries`, neighbours of one page or manifest, that begins at `from_offset` or
    behind it.

    An entry of another owner is in no run, nor is one that begins below `from_offset`. Raises what
    `uploaded_at_ms` raises.
    """
    search = _Search(limits, now_ms, uploaded_at_ms)
    ripe: list[int] = []
    for small in _small_neighbours(entries, limits, from_offset):
        found = search.among(small)
        if found.run:
            return found
        if found.ripe_ms is not None:
            ripe.append(found.ripe_ms)
    return FoundRun((), min(ripe, default=None))


def _small_neighbours(
    entries: Sequence[SegmentEntry], limits: MergeLimits, from_offset: int
) -> Iterator[list[SegmentEntry]]:
    """Yield longest lists of neighbours that may be in runs, each with enough of them for one."""
    found: list[SegmentEntry] = []
    for entry in entries:
        is_large = entry.size >= limits.small_bytes
        if not (is_large or entry.owner is not None or entry.base_offset < from_offset):
            found.append(entry)
            continue
        if len(found) >= MIN_RUN:
            yield found
        found = []
    if len(found) >= MIN_RUN:
        yield found


class _Search:
    """Search of lists of small neighbours."""

    def __init__(self, limits: MergeLimits, now_ms: int, uploaded_at_ms: UploadedAt) -> None:
        self._limits = limits
        self._now_ms = now_ms
        self._uploaded_at_ms = uploaded_at_ms

    def among(self, small: list[SegmentEntry]) -> FoundRun:
        """Find the first run of those that are old enough."""
        # What has a young record was uploaded later still: of these nothing is asked.
        old = next((at for at, entry in enumerate(small) if self._has_young_record(entry)), len(small))
        run = self._first(small[:old])
        if run and not self._is_old(run[-1]):
            old = self._first_young(small, small.index(run[-1]))
            run = self._first(small[:old])
        if run or old == len(small):
            return FoundRun(run)
        return FoundRun((), self._old_at_ms(small[max(old, MIN_RUN - 1)]))

    def _first_young(self, small: list[SegmentEntry], young: int) -> int:
        """Return the number of the first one that is young, up to `young`, which is: uploads follow each
        other."""
        low = 0
        while low < young:
            middle = (low + young) // 2
            if self._is_old(small[middle]):
                low = middle + 1
            else:
                young = middle
        return low

    def _has_young_record(self, entry: SegmentEntry) -> bool:
        begin_ms = self._now_ms - self._limits.min_age_ms
        return not entry.generation and begin_ms < entry.max_timestamp <= self._now_ms

    def _is_old(self, entry: SegmentEntry) -> bool:
        return self._old_at_ms(entry) <= self._now_ms

    def _old_at_ms(self, entry: SegmentEntry) -> int:
        """Return from when on the entry is old enough, or the earliest time for that."""
        if entry.generation or not self._limits.min_age_ms:
            return 0
        if self._has_young_record(entry):
            return entry.max_timestamp + self._limits.min_age_ms
        return self._uploaded_at_ms(entry) + self._limits.min_age_ms

    def _first(self, old: Sequence[SegmentEntry]) -> tuple[SegmentEntry, ...]:
        """Return the first run of these, of any age; empty without one."""
        part: list[SegmentEntry] = []
        for entry in old:
            if part and not self._fits(part, entry):
                if run := _balanced(part):
                    return run
                part = []
            part.append(entry)
        return _balanced(part)

    def _fits(self, run: list[SegmentEntry], entry: SegmentEntry) -> bool:
        return (
            fits_one_object(run, entry, MAX_LOG_LENGTH)
            and sum(one.size for one in run) + entry.size <= self._limits.object_bytes
            and (self._limits.span_ms < 0 or _span_ms([*run, entry]) <= self._limits.span_ms)
        )


def _span_ms(run: Sequence[SegmentEntry]) -> int:
    """Return the time between the oldest and the newest record of a run, as far as its entries know them."""
    newest = max(entry.max_timestamp for entry in run)
    if newest == NO_TIMESTAMP:
        return 0
    times = (entry.max_timestamp if entry.min_timestamp < 0 else entry.min_timestamp for entry in run)
    return newest - min((time for time in times if time >= 0), default=newest)


def _balanced(run: list[SegmentEntry]) -> tuple[SegmentEntry, ...]:
    """Return the first part of `run` whose largest entry has at most half of its bytes, empty without one."""
    waiting = [run]
    while waiting:
        part = waiting.pop()
        if len(part) < MIN_RUN:
            continue
        total = sum(entry.size for entry in part)
        at = max(range(len(part)), key=lambda number: part[number].size)
        if part[at].size * 2 <= total:
            return tuple(part)
        waiting += [part[at + 1 :], part[:at]]
    return ()
