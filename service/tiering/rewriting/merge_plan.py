"""Plan which neighbouring objects of a chain become one. [P]

A run has at least `MIN_RUN` neighbours, each smaller than `small_bytes`, all older than `min_age_ms`, and
together at most `object_bytes`. The largest of them has at most half of the run's bytes: so each time that a
record is written again its object becomes at least twice as large, and a record is written a few times in
all, however small the segments are. Only entries of the manifest, or of one page, make a run.

The age is that of the newest record, as for retention. An object without timestamps, or with one in the
future, has the age of its upload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from service.remote.format.manifest import SegmentEntry
from service.remote.format.run_check import MAX_OFFSET_SPAN, MAX_RUN_SEGMENTS
from service.remote.format.segment_object import MAX_LOG_LENGTH

MIN_RUN: Final = 8

UploadedAt = Callable[[SegmentEntry], int]
"""Returns when the object was uploaded (ms, wall clock); may raise."""


class MergeLimits(NamedTuple):
    """``firn.merge.small.bytes``, ``firn.merge.min.age.ms``, ``firn.rewrite.object.bytes``."""

    small_bytes: int = 16 << 20
    min_age_ms: int = 86_400_000
    object_bytes: int = 128 << 20


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
    for entry in entries:
        if run := search.add(entry, from_offset):
            return FoundRun(run)
    run = search.finish()
    return FoundRun(run) if run else FoundRun((), search.ripe_ms)


class _Search:
    """Search of one list. `ripe_ms`: when eight young neighbours, if there are any, are all old enough."""

    def __init__(self, limits: MergeLimits, now_ms: int, uploaded_at_ms: UploadedAt) -> None:
        self.ripe_ms: int | None = None
        self._limits = limits
        self._now_ms = now_ms
        self._uploaded_at_ms = uploaded_at_ms
        self._open: list[SegmentEntry] = []
        self._small: list[int] = []
        """when each of the small neighbours up to here is old enough"""

    def add(self, entry: SegmentEntry, from_offset: int) -> tuple[SegmentEntry, ...]:
        """Add the next entry; return the run that it ends, if there is one."""
        if (
            entry.size >= self._limits.small_bytes
            or entry.owner is not None
            or entry.base_offset < from_offset
        ):
            self._small.clear()
            return self._close()
        old_at_ms = self._ages_from_ms(entry) + self._limits.min_age_ms
        self._note_ripe(old_at_ms)
        if old_at_ms > self._now_ms:
            return self._close()
        if self._open and not self._fits(entry):
            run = self._close()
            self._open.append(entry)
            return run
        self._open.append(entry)
        return ()

    def finish(self) -> tuple[SegmentEntry, ...]:
        """Return the run that the last entry ends."""
        return self._close()

    def _ages_from_ms(self, entry: SegmentEntry) -> int:
        if 0 <= entry.max_timestamp <= self._now_ms:
            return entry.max_timestamp
        return self._uploaded_at_ms(entry)

    def _note_ripe(self, old_at_ms: int) -> None:
        self._small.append(old_at_ms)
        if len(self._small) < MIN_RUN:
            return
        del self._small[:-MIN_RUN]
        ripe_ms = max(self._small)
        if ripe_ms > self._now_ms and (self.ripe_ms is None or ripe_ms < self.ripe_ms):
            self.ripe_ms = ripe_ms

    def _fits(self, entry: SegmentEntry) -> bool:
        run = self._open
        return (
            len(run) < MAX_RUN_SEGMENTS
            and sum(one.size for one in run) + entry.size <= self._limits.object_bytes
            and sum(one.log_length for one in run) + entry.log_length <= MAX_LOG_LENGTH
            and entry.last_offset - run[0].base_offset <= MAX_OFFSET_SPAN
        )

    def _close(self) -> tuple[SegmentEntry, ...]:
        run, self._open = self._open, []
        return _balanced(run)


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
