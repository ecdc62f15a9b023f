"""Deletion of segments at the front of a log: retention, DeleteRecords, and the local start of a tiered log.

A deletion takes three steps, so that no failure leaves a hole (invariant L4): the start moves in memory, a
checkpoint makes it durable, and only then the files are unlinked, oldest first (`deletion_queue`). A start in
between finds the files as they were, or drops them by the durable start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import overload

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError
from service.base.types import NO_TIMESTAMP
from service.hot import retention
from service.hot.cleaning.swap import Swapping
from service.hot.deletion_queue import DeletionQueue
from service.hot.state import LogState

_log = logging.getLogger(__name__)


class _Facts(Sequence[retention.SegmentFacts]):
    """Facts about each segment for `retention`, oldest first, the active one last; computed on access."""

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
        # An empty log is never truncated, and its only timestamp would be the file's.
        timestamp = segment.largest_timestamp if segment.size else NO_TIMESTAMP
        return retention.SegmentFacts(self._state.end_offset, segment.size, timestamp)


class SegmentDeletion:
    """Deletes the oldest segments of one log. Owned by the loop.

    Every method raises `LogOffline` if the replica is offline. ``roll`` seals the active segment;
    ``on_start_moved`` is called when the log's start has moved, so that a checkpoint makes it durable soon.
    """

    __slots__ = (
        "_facts", "_on_start_moved", "_overdue_since_ms", "_queue", "_roll", "_swapping", "state",
    )  # fmt: skip

    def __init__(
        self,
        state: LogState,
        queue: DeletionQueue,
        swapping: Swapping,
        roll: Callable[[], object],
        on_start_moved: Callable[[], None],
    ) -> None:
        self.state = state
        self._queue = queue
        self._swapping = swapping
        self._roll = roll
        self._on_start_moved = on_start_moved
        self._facts = _Facts(state)
        self._overdue_since_ms: int | None = None
        """since when a segment beyond total retention has waited to be copied; monotonic"""

    def apply_retention(
        self,
        now_ms: int,
        remote_end_offset: int | None = None,
        high_watermark: int | None = None,
        *,
        is_tiered: bool = False,
        is_archive_empty: bool = False,
    ) -> int:
        """Delete the segments that retention permits, up to `retention.MOST_AT_ONCE`; returns how many.

        `remote_end_offset`: the bucket holds all offsets below it (None: nothing). `is_tiered`: part of the
        log is committed in the bucket, so a segment is deleted only once it is there. `is_archive_empty`: the
        bucket holds no live segment of the log.
        """
        self.state.check()
        try:
            return self._apply_retention(
                now_ms, remote_end_offset, high_watermark, is_tiered, is_archive_empty
            )
        except CorruptionError as e:
            raise self.state.corrupt(e) from e

    def _apply_retention(
        self,
        now_ms: int,
        remote_end_offset: int | None,
        high_watermark: int | None,
        is_tiered: bool,
        is_archive_empty: bool,
    ) -> int:
        state = self.state
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
            self._roll()
        count = min(decision.segments, len(state.segments) - 1)
        if count:
            copied = limits.remote and state.segments.bases[count] <= bounds.remote_end_offset
            by = ", ".join(decision.reasons)
            words = f"local retention by {by}; the archive has them" if copied else f"retention by {by}"
            self._delete_oldest(count, words, copied)
        return count

    def _or_overdue(
        self,
        decision: retention.RetentionDecision,
        limits: retention.RetentionLimits,
        bounds: retention.RetentionBounds,
        now_ms: int,
    ) -> retention.RetentionDecision:
        """Return `decision`, or the larger one by total retention if copies have been overdue for
        `OVERDUE_MS`."""
        config, monotonic_ms = self.state.config, self.state.world.clock.monotonic_ms()
        total = limits._replace(total=(config.retention_ms, config.retention_bytes))
        overdue = retention.decide(self._facts, total, bounds, now_ms)
        if overdue.segments <= decision.segments:
            self._overdue_since_ms = None
        elif self._overdue_since_ms is None:
            self._overdue_since_ms = monotonic_ms
        elif monotonic_ms - self._overdue_since_ms >= retention.OVERDUE_MS:
            _log.warning("%s: deleting segments beyond total retention that were not copied", self.state.tip)
            return overdue
        return decision

    def delete_segments(self, last_offset: int, reason: str, *, at_once: bool = False) -> int:
        """Delete the oldest sealed segments with nothing above `last_offset`; returns how many.

        `at_once`: their files, and all that wait already, need not wait for ``file.delete.delay.ms``.
        """
        self.state.check()
        count = self.state.segments.whole_below(last_offset + 1)
        if count:
            config = self.state.config
            copied = config.remote_storage_enable and not config.remote_log_copy_disable
            self._delete_oldest(count, reason, copied)
            if at_once:
                self._queue.expedite(self.state.world.clock.now_ms())
        return count

    def advance_local_start(self, offset: int) -> int:
        """Begin the local log at `offset` at the earliest, and delete the segments wholly below.

        Returns how many were deleted. `RequestError` OFFSET_OUT_OF_RANGE beyond the log's end.
        """
        self.state.check()
        self._check_end(offset)
        self.state.local_start = max(self.state.local_start, offset)
        return self.delete_segments(offset - 1, "the local log starts later")

    def advance_log_start(self, offset: int) -> int:
        """Begin the log as a whole at `offset` at the earliest (DeleteRecords, retention, Raft snapshots).

        Returns how many local segments were deleted. `RequestError` OFFSET_OUT_OF_RANGE beyond the log's end.
        """
        self.state.check()
        self._check_end(offset)
        if offset <= self.state.start:
            return 0
        self._move_start(offset)
        return self.advance_local_start(max(offset, self.state.local_start))

    def move_log_start(self, offset: int) -> None:
        """Move the start as `advance_log_start` does, but leave the segments to `delete_below_start`."""
        self.state.check()
        self._check_end(offset)
        if offset > self.state.start:
            self._move_start(offset)
            self.state.local_start = max(self.state.local_start, offset)

    def delete_below_start(self) -> int:
        """Delete sealed segments wholly below the log's start, up to `retention.MOST_AT_ONCE`; returns how
        many."""
        state = self.state
        state.check()
        count = min(state.segments.whole_below(state.start), retention.MOST_AT_ONCE)
        if count:
            self._delete_oldest(count, "they lie below the log's start", copied=True)
        return count

    def _check_end(self, offset: int) -> None:
        if offset > self.state.end_offset:
            raise RequestError(
                ErrorCode.offset_out_of_range, f"{offset} is beyond the end of {self.state.tip}"
            )

    def _move_start(self, offset: int) -> None:
        state = self.state
        state.start = offset
        state.epochs.truncate_start(offset)
        self._on_start_moved()

    def _delete_oldest(self, count: int, reason: str, copied: bool) -> None:
        """`copied`: the bucket has the segments, so the log as a whole begins where it did."""
        state = self.state
        start = state.segments.bases[count]
        state.local_start = max(state.local_start, start)
        if not copied and start > state.start:
            self._move_start(start)
        if self._swapping.current is None:  # else the next call deletes them: they are below the start now
            self._queue.remove_segments(0, count, reason)
