"""How a log loses segments: retention and start offsets at the front, truncation at the end, and a restart.

The front goes in three steps, so that no failure leaves a hole: the start moves in memory, whoever manages
the logs makes it durable, and only then files go, oldest first (`take_removals`). Until they are gone
a start finds them as they were, or drops them by the durable start.

A restart is announced by a small file before anything goes, and finished by whoever opens the log next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, overload

from kio.schema.errors import ErrorCode

from service.base.disk import MissingFile
from service.base.errors import CorruptionError, RequestError
from service.base.files import fsync_dir, fsync_file
from service.base.types import NO_TIMESTAMP
from service.hot import names, retention
from service.hot.cleaning.interrupted import marked, rename
from service.hot.durability import Durability
from service.hot.producer_snapshot import read_snapshot
from service.hot.producers import ProducerEntry, ProducerStates
from service.hot.reading import LogReader
from service.hot.recovery import (
    announce_restart,
    end_offset_of,
    end_restart,
    replay_producers,
    settings_of,
)
from service.hot.segment import Segment
from service.hot.state import LogState

_log = logging.getLogger(__name__)


class _Removal(NamedTuple):
    """Files to unlink, in this order, once it is `due_ms`."""

    due_ms: int
    paths: list[Path]


class _Facts(Sequence[retention.SegmentFacts]):
    """What retention asks of each segment, oldest first, the active one last; found out when it asks."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    def __len__(self) -> int:
        return len(self._state.segments)

    @overload
    def __getitem__(self, slot: int) -> retention.SegmentFacts: ...
    @overload
    def __getitem__(self, slot: slice) -> Sequence[retention.SegmentFacts]: ...
    def __getitem__(self, slot: int | slice) -> retention.SegmentFacts | Sequence[retention.SegmentFacts]:
        if isinstance(slot, slice):
            return [self[one] for one in range(*slot.indices(len(self)))]
        segments = self._state.segments
        segment, bases = segments.all[slot], segments.bases
        if slot + 1 < len(bases):
            return retention.SegmentFacts(bases[slot + 1], segment.size, segment.largest_timestamp)
        # An empty log is never cut, and the time of its last segment would be that of a file.
        timestamp = segment.largest_timestamp if segment.size else NO_TIMESTAMP
        return retention.SegmentFacts(self._state.end_offset, segment.size, timestamp)


class Trimming:
    """Takes segments out of one log. Owned by the loop.

    ``on_start_moved``: called when a start has moved, so that it is made durable soon. ``on_removals``:
    called with the time at which `take_removals` gives something.
    """

    def __init__(
        self,
        state: LogState,
        durability: Durability,
        reader: LogReader,
        on_start_moved: Callable[[], None],
        on_removals: Callable[[int], None],
    ) -> None:
        self._on_start_moved = on_start_moved
        self._on_removals = on_removals
        self._state = state
        self._durability = durability
        self._reader = reader
        self._facts = _Facts(state)
        self._removals: deque[_Removal] = deque()
        self._overdue_since_ms: int | None = None
        """since when something is beyond total retention and was not copied; monotonic"""

    def apply_retention(
        self,
        roll: Callable[[], object],
        now_ms: int,
        remote_end_offset: int | None,
        high_watermark: int | None,
        is_tiered: bool,
        is_archive_empty: bool,
    ) -> int:
        """As `LocalLog.apply_local_retention`; `roll` seals the active segment."""
        state = self._state
        bounds = retention.RetentionBounds(
            state.local_start,
            state.end_offset if high_watermark is None else high_watermark,
            remote_end_offset or 0,
            state.segments.size,
            is_archive_empty,
        )
        limits = retention.limits_of(state.config, is_tiered=is_tiered)
        decision = retention.decide(self._facts, limits, bounds, now_ms)
        if limits.remote:
            decision = self._or_overdue(decision, limits, bounds, now_ms)
        if decision.roll:
            roll()
        count = min(decision.segments, len(state.segments) - 1)
        if count:
            copied = limits.remote and state.segments.bases[count] <= bounds.remote_end_offset
            self._remove_oldest(count, "retention by " + ", ".join(decision.reasons), copied)
        return count

    def _or_overdue(
        self,
        decision: retention.RetentionDecision,
        limits: retention.RetentionLimits,
        bounds: retention.RetentionBounds,
        now_ms: int,
    ) -> retention.RetentionDecision:
        """`decision`, or what goes besides because the bucket does not take it for `OVERDUE_MS`."""
        config, monotonic_ms = self._state.config, self._state.world.clock.monotonic_ms()
        total = limits._replace(total=(config.retention_ms, config.retention_bytes))
        overdue = retention.decide(self._facts, total, bounds, now_ms)
        if overdue.segments <= decision.segments:
            self._overdue_since_ms = None
        elif self._overdue_since_ms is None:
            self._overdue_since_ms = monotonic_ms
        elif monotonic_ms - self._overdue_since_ms >= retention.OVERDUE_MS:
            _log.warning("%s: what is beyond total retention goes before it was copied", self._state.tip)
            return overdue
        return decision

    def delete_segments(self, last_offset: int, reason: str, *, at_once: bool = False) -> int:
        """As `LocalLog.delete_segments`; who reads them holds them open."""
        count = self._state.segments.whole_below(last_offset + 1)
        if count:
            config = self._state.config
            copied = config.remote_storage_enable and not config.remote_log_copy_disable
            self._remove_oldest(count, reason, copied)
            if at_once:
                self._hurry_removals()
        return count

    def _hurry_removals(self) -> None:
        """What waits for its removal does so no longer, older files first."""
        now_ms = self._state.world.clock.now_ms()
        hurried = [one._replace(due_ms=min(one.due_ms, now_ms)) for one in self._removals]
        self._removals = deque(hurried)
        if hurried:
            self._on_removals(now_ms)

    def advance_local_start(self, offset: int) -> int:
        """As `LocalLog.advance_local_start`."""
        self._check_end(offset)
        self._state.local_start = max(self._state.local_start, offset)
        return self.delete_segments(offset - 1, "the local log starts later")

    def advance_log_start(self, offset: int) -> int:
        """As `LocalLog.advance_log_start`."""
        self._check_end(offset)
        if offset <= self._state.start:
            return 0
        self._move_start(offset)
        return self.advance_local_start(max(offset, self._state.local_start))

    def move_log_start(self, offset: int) -> None:
        """As `LocalLog.move_log_start`."""
        self._check_end(offset)
        if offset > self._state.start:
            self._move_start(offset)
            self._state.local_start = max(self._state.local_start, offset)

    def delete_below_start(self) -> int:
        """As `LocalLog.delete_below_start`."""
        state = self._state
        count = min(state.segments.whole_below(state.start), retention.MOST_AT_ONCE)
        if count:
            self._remove_oldest(count, "they lie below the log's start", copied=True)
        return count

    def _check_end(self, offset: int) -> None:
        if offset > self._state.end_offset:
            raise RequestError(
                ErrorCode.offset_out_of_range, f"{offset} is beyond the end of {self._state.tip}"
            )

    def _move_start(self, offset: int) -> None:
        state = self._state
        state.start = offset
        state.epochs.truncate_start(offset)
        self._on_start_moved()

    def _remove_oldest(self, count: int, reason: str, copied: bool) -> None:
        """`copied`: the bucket has them, so the log as a whole begins where it did."""
        state = self._state
        start = state.segments.bases[count]
        state.local_start = max(state.local_start, start)
        if not copied and start > state.start:
            self._move_start(start)
        if state.swap is None:  # else the next time: they are behind the start already
            self.take_out(0, count, reason)

    def take_out(self, begin: int, end: int, reason: str) -> None:
        """Segments leave the log; their files go after ``file.delete.delay.ms``."""
        state, bases = self._state, self._state.segments.bases
        due_ms = state.world.clock.now_ms() + state.config.file_delete_delay_ms
        ends = [*bases[begin + 1 : end + 1], state.end_offset]
        gone = state.segments.take_out(begin, end, reason)
        snapshots = state.snapshots.forget(one.base_offset for one in gone)
        for segment, segment_end in zip(gone, ends, strict=False):
            if segment_end > state.recovery_point:
                # It may be there again after a crash: then whole, as far as the recovery point says so.
                self._durability.note(segment.log.path)
            snapshot = snapshots.get(segment.base_offset)
            paths = segment.drop()
            self._removals.append(_Removal(due_ms, [snapshot, *paths] if snapshot is not None else paths))
        self._reader.forget()
        if gone:
            self._on_removals(due_ms)

    def replaced(self, old: Sequence[Segment]) -> None:
        """These segments' files are called ``.deleted`` now, and go after ``file.delete.delay.ms``."""
        state = self._state
        due_ms = state.world.clock.now_ms() + state.config.file_delete_delay_ms
        paths = list(state.snapshots.forget(one.base_offset for one in old[1:]).values())
        for segment in old:
            paths += segment.drop(names.DELETED)
        self._removals.append(_Removal(due_ms, paths))
        self._on_removals(due_ms)

    def take_removals(self, now_ms: int) -> list[Path]:
        """As `LocalLog.take_removals`."""
        due: list[Path] = []
        while self._removals and self._removals[0].due_ms <= now_ms:
            due += self._removals.popleft().paths
        return due

    def put_back_removals(self, paths: list[Path], due_ms: int) -> None:
        """As `LocalLog.put_back_removals`."""
        if paths:
            self._removals.appendleft(_Removal(due_ms, paths))

    # The end, and all of it

    def end_after(self, offset: int) -> int:
        """As `LocalLog.end_after`."""
        state, segments = self._state, self._state.segments
        if offset >= state.end_offset or offset < segments.bases[0]:
            return min(offset, state.end_offset)
        segment = segments.all[segments.slot_of(offset)]
        place = segment.find(offset)
        end = offset if place is None else min(place.base_offset, offset)
        return segment.base_offset if end <= state.gaps_below else end

    def producers_at(self, end: int) -> ProducerStates:
        """As `LocalLog.producers_at`."""
        state = self._state
        with state.lock:
            segments, files = state.segments.all[:], state.snapshots.files()
        now_ms = state.world.clock.now_ms()
        producers = ProducerStates(state.producers.expiration_ms)
        producers.clear(segments[0].base_offset)
        for offset, path in reversed([one for one in files if one[0] <= end]):
            try:
                producers.load(read_snapshot(state.disk, path), offset, now_ms)
                break
            except (CorruptionError, MissingFile) as e:
                _log.warning("passing over producer snapshot %s: %s", path, e)
        replay_producers(producers, segments, None, end, now_ms)
        return producers

    def truncate_to(self, offset: int, producers: ProducerStates | None = None) -> int:
        """As `LocalLog.truncate_to`."""
        state, segments = self._state, self._state.segments
        if offset >= state.end_offset:
            # An epoch that begins at the end had no record; who follows another leader may have to forget it.
            if state.epochs.truncate_end(state.end_offset):
                self._durability.note(state.epochs.path)
            return state.end_offset
        if offset < segments.bases[0]:
            return self.restart_at(offset, None, (), ())
        state.snapshots.write_late()
        slot = segments.slot_of(offset)
        segment = segments.all[slot]
        place = segment.find(offset)
        end = offset if place is None else min(place.base_offset, offset)
        start = state.start
        with state.lock:
            state.truncations += 1
            aside: list[Path] = []
            for gone in reversed(segments.take_out(slot + 1, len(segments), f"truncation to {offset}")):
                # Newest first, each for good: what a crash leaves is a log that simply ends earlier.
                aside += self._set_aside(gone)
                fsync_dir(state.disk, state.dir)
            before = segment.size
            segment.truncate(segment.size if place is None else place.position, end)
            if end <= state.gaps_below:
                end = end_offset_of(segment)  # as the next opening finds it
            segments.size -= before - segment.size
            segments.active = segment
            segment.open_for_append()
            state.reached(end)
            state.start = min(state.start, end)
            state.local_start = min(state.local_start, end)
            # The next flush takes this segment, too: its size is not durable yet, and what a loss of power
            # brought back would lie beyond the beginning of the next segment.
            state.recovery_point = min(state.recovery_point, max(segment.base_offset, state.local_start))
            state.cleaned_offset = min(state.cleaned_offset, end)
            state.gaps_below = min(state.gaps_below, end)
        self._reader.forget()
        self._remove(aside)
        if state.start < start:
            self._on_start_moved()  # what is written below it from now on is not to be passed over by a start
        if state.epochs.truncate_end(end):
            self._durability.note(state.epochs.path)
        state.snapshots.remove_above(end)
        now_ms = state.world.clock.now_ms()
        if producers is not None and producers.end_offset == end:
            state.producers.load(producers, end, now_ms)
        elif not len(state.producers):
            state.producers.clear(end)
        else:
            state.snapshots.restore(state.producers, end, segments.bases[0], now_ms)
            replay_producers(state.producers, segments.all, state.snapshots, end, now_ms)
        return end

    def restart_at(
        self,
        offset: int,
        log_start_offset: int | None,
        epochs: Sequence[tuple[int, int]],
        producers: Sequence[tuple[int, ProducerEntry]],
    ) -> int:
        """As `LocalLog.restart_at`. Where it fails half-way the next opening finishes it."""
        state = self._state
        start = offset if log_start_offset is None else log_start_offset
        state.snapshots.write_late()
        state.epochs.replace([one for one in epochs if one[1] < offset])
        state.producers.load(producers, offset, state.world.clock.now_ms())
        state.snapshots.rewrite(state.producers)
        for path in (state.epochs.path, state.snapshots.path(offset)):
            if path is not None:
                self._sync(path)
        announce_restart(state.disk, state.dir, offset, start)
        with state.lock:
            state.truncations += 1
            # They wait under names that the new log may need.
            aside = [self._renamed(path) for removal in self._removals for path in removal.paths]
            self._removals.clear()
            for gone in state.segments.take_out(0, len(state.segments), f"restart at {offset}"):
                aside += self._set_aside(gone)
            state.snapshots.remove_but(offset)
            settings = settings_of(state.config)
            active = Segment.create(state.dir, offset, settings, state.files, state.world.clock.now_ms())
            state.segments.add(active)
            state.start = start
            state.recovery_point = offset
            state.reached(offset)
            state.local_start = max(start, offset)
            state.cleaned_offset = min(state.cleaned_offset, start)
            state.gaps_below = 0
        end_restart(state.disk, state.dir)
        self._reader.forget()
        self._remove(aside)
        self._on_start_moved()
        return offset

    def _set_aside(self, segment: Segment) -> list[Path]:
        """Its files are no part of the log any more: they are renamed here, as to unlink them takes long."""
        for suffix in reversed(names.SEGMENT_SUFFIXES):  # the log last
            self._renamed(segment.log.path.with_suffix(suffix))
        return segment.drop(names.DELETED)

    def _renamed(self, path: Path) -> Path:
        """What the file is called from now on, if it is there."""
        if path.suffix == names.DELETED:
            return path
        target = marked(path, names.DELETED)
        rename(self._state.disk, path, target, must_be=False)
        return target

    def _remove(self, aside: list[Path]) -> None:
        """Have files unlinked that were set aside. Opening the log does, too."""
        if aside:
            now_ms = self._state.world.clock.now_ms()
            self._removals.append(_Removal(now_ms, aside))
            self._on_removals(now_ms)

    def _sync(self, path: Path) -> None:
        fd = self._state.disk.open(path)
        try:
            fsync_file(self._state.disk, fd)
        finally:
            self._state.disk.close(fd)
