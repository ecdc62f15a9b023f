"""Planning of a stream on the driver: the next offsets, and the tasks of one micro-batch.

A micro-batch is a range of offsets per partition that Spark writes to its checkpoint before any of it is
read. Its plan is made from manifests that reach that far and covers that range and nothing else, so a batch
that is repeated after a crash has the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from service.base.clock import Clock, SystemClock
from service.remote.format.block_table import BlockTable
from service.remote.format.manifest import ManifestPage, PageRef, SegmentEntry
from service.spark.errors import DataLossError
from service.spark.parallelism import parallelism_of
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.ranges import bound_offsets, check_named, plan_ranges, within
from service.spark.plan.splits import Split
from service.spark.stream import losses
from service.spark.stream.bucket_polling import BucketPoller, BucketView, Snapshots
from service.spark.stream.bytes import bytes_between, take_bytes
from service.spark.stream.offsets import (
    Backlog,
    Offsets,
    Spot,
    StreamPosition,
    Taken,
    by_count,
    rotated,
    share_out,
)
from service.spark.stream.options import StreamOptions
from service.spark.stream.progress import encode_report
from service.spark.tail.cut_splits import CutSplit, plan_behind
from service.spark.tail.plan import TailSplit

log = logging.getLogger(__name__)

_MAX_WARNED: Final = 10_000


class StreamPlan:
    """State of a running stream that is not in the checkpoint; a restart does not need it.

    Owned by the thread on which Spark calls the stream.
    """

    def __init__(
        self, options: StreamOptions, open_archive: Callable[[], ArchiveReader], clock: Clock | None = None
    ) -> None:
        """`open_archive` returns the archive, with its tail where brokers are given.

        The archives that it returns share a cache, so that the stream reads no object twice.
        """
        self._options = options
        self._archive = open_archive
        self._clock = SystemClock() if clock is None else clock
        self._poller = BucketPoller(options.read.choice, options.refresh_interval_ms, self._clock)
        self._target: dict[Spot, int] | None = None
        self._held: dict[Spot, int] = {}
        self._after: Spot | None = None
        self._reached = StreamPosition({})
        self._last_batch_ms: int | None = None
        self._warned: set[str] = set()

    def initial(self) -> StreamPosition:
        """Return where a new stream starts, by ``startingOffsets`` and its like.

        Spark does not write it down: it calls this again to repeat the first batch. For a partition that
        starts at its end the answer would be later then, so the first batch reads nothing of it.
        """
        options = self._options.read
        with self._archive() as archive:
            view = self._poller.latest(archive)
            for error in view.missing.values():
                raise error
            spots, snapshots = list(view.snapshots), list(view.snapshots.values())
            check_named(options.starting, spots, "startingOffsets")
            begins = bound_offsets(archive, snapshots, options.starting, options, is_start=True)
        starts = dict(zip(spots, begins, strict=True))
        self._held = {
            spot: begin for spot, begin in starts.items() if begin == view.snapshots[spot].end_offset
        }
        self._reached = StreamPosition(starts, view.cluster_id, view.topics)
        return self._reached

    def fix_target(self) -> None:
        """Fix the current ends as the stream's end: it does not read what comes later."""
        with self._archive() as archive:
            view = self._poller.poll(archive)
        self._target = {spot: snapshot.end_offset for spot, snapshot in view.snapshots.items()}

    def latest(self, start: StreamPosition | None, *, limited: bool = True) -> StreamPosition:
        """Return the end of the next batch, which begins at `start`; None: Spark reports none.

        It is `start` itself when there is nothing, or not enough, to read. Raises `DataLossError` when
        records after `start` are gone, or in another topic, before a batch of them is written down.
        """
        with self._archive() as archive:
            view = self._poller.latest(archive)
            self._reached = (
                self._unlimited(view) if start is None else self._next(archive, view, start, limited=limited)
            )
        return self._reached

    def report(self) -> dict[str, Any] | None:
        """Return the partitions' ends, regardless of limits, and the log's bytes before them; or None."""
        view = self._poller.newest
        if view is None or not view.snapshots:
            return None
        ends = {spot: snapshot.end_offset for spot, snapshot in view.snapshots.items()}
        behind = {
            spot: bytes_between(view.snapshots[spot].manifest, None, begin, end)
            for spot, end in ends.items()
            if (begin := max(self._reached.offsets.get(spot, 0), view.snapshots[spot].start_offset)) < end
        }
        return encode_report(ends, behind)

    def plan(self, start: StreamPosition, end: StreamPosition) -> list[Split | TailSplit | CutSplit]:
        """Return tasks that read exactly ``[start, end)`` of each partition; `_new_begins` of new ones."""
        options = self._options.read
        self._reached = end
        begins = self._begins(start, end)
        wanted = {
            spot: (begin, last) for spot, last in end.offsets.items() if (begin := begins.get(spot, 0)) < last
        }
        if not wanted:
            return []
        with self._archive() as archive:
            ends = {spot: last for spot, (_, last) in wanted.items()}
            view = self._poller.reaching(archive, ends, end.topics)
            there = self._begins(StreamPosition(ends, end.cluster_id, end.topics), _position(view))
            self._report_absent(end, {spot: wanted[spot][0] for spot in there if spot not in view.snapshots})
            new = self._new_begins(start, view.snapshots)
            ranges = [
                within(
                    view.snapshots[spot],
                    new.get(spot, wanted[spot][0]),
                    wanted[spot][1],
                    fail_on_data_loss=options.fail_on_data_loss,
                )
                for spot in sorted(there.keys() & view.snapshots.keys())
            ]
            ranges = [one for one in ranges if one.begin_offset < one.end_offset]
            splits = plan_ranges(archive, ranges, options, parallelism=parallelism_of(options))
            return [*splits, *plan_behind(archive, ranges, options)]

    def _next(
        self, archive: ArchiveReader, view: BucketView, start: StreamPosition, *, limited: bool
    ) -> StreamPosition:
        """Return the end of a batch that begins at `start`."""
        begins = self._begins(start, _position(view))
        absent = {
            spot: offset
            for spot, offset in begins.items()
            if losses.is_absent(view.snapshots.get(spot), offset)
        }
        self._report_missing(view, start)
        self._report_absent(start, absent)
        snapshots = {spot: one for spot, one in view.snapshots.items() if spot not in absent}
        begins = {**self._new_begins(start, snapshots), **begins}
        is_restored = start.cluster_id in self._ancestors(start, _position(view))
        for loss in losses.lost_offsets(begins, snapshots, is_restored=is_restored):
            self._lost(loss)
        ends, backlogs = self._backlogs(begins, snapshots)
        if limited and self._waits_for_more(backlogs):
            return start
        self._held = {}
        if limited:
            backlogs = rotated(backlogs, self._after)
            served = self._limited(archive, snapshots, backlogs)
            self._after = next(reversed(served), None)
            for backlog in backlogs:
                ends[backlog.spot] = served.get(backlog.spot, begins.get(backlog.spot, 0))
        return _with_absent(ends, view, absent, start)

    def _unlimited(self, view: BucketView) -> StreamPosition:
        """Return the ends of all logs, where Spark reports no start; `plan` then finds what is lost."""
        self._report_missing(view, StreamPosition({}))
        ends = {spot: snapshot.end_offset for spot, snapshot in view.snapshots.items()}
        absent = {
            spot: offset
            for spot, offset in self._reached.offsets.items()
            if losses.is_absent(view.snapshots.get(spot), offset)
            and view.topics.get(spot[0]) in (None, self._reached.topics.get(spot[0]))
        }
        return _with_absent(ends, view, absent, self._reached)

    def _begins(self, before: StreamPosition, now: StreamPosition) -> dict[Spot, int]:
        """Return the offsets `before`, except of replaced topics: the new topics have not been read."""
        for loss in losses.replacements(before, now, self._ancestors(before, now)):
            self._lost(loss)
        others = losses.other_topics(before.topics, now.topics)
        return {spot: offset for spot, offset in before.offsets.items() if spot[0] not in others}

    def _ancestors(self, before: StreamPosition, now: StreamPosition) -> frozenset[str]:
        """Return the clusters that the archive's was restored from; read only where it is another one."""
        if not losses.is_another_cluster(before, now):
            return frozenset()
        with self._archive() as archive:
            return archive.ancestors()

    def _new_begins(self, start: StreamPosition, snapshots: Snapshots) -> dict[Spot, int]:
        """Return where topics begin that the stream has not read before: at the start of their logs.

        Records that retention took before are no loss to the stream. A new partition of a known topic begins
        at 0, wherever its log starts.
        """
        known = {topic for topic, _ in start.offsets}
        return {
            spot: snapshot.start_offset
            for spot, snapshot in snapshots.items()
            if spot[0] not in known and (self._target is None or spot in self._target)
        }

    def _report_missing(self, view: BucketView, start: StreamPosition) -> None:
        """Raise or log that chosen topics are missing; `_report_absent` reports those in `start`."""
        known = {topic for topic, _ in start.offsets}
        for asked, error in view.missing.items():
            if asked not in known and self._options.fail_on_missing:
                raise error
            if asked not in known:
                self._warn_once(str(error))

    def _report_absent(self, start: StreamPosition, offsets: Offsets) -> None:
        """Report read partitions as lost, or log them where a topic may be missing.

        Such a topic continues where it was when it comes back.
        """
        if not offsets:
            return
        loss = losses.absence(start, offsets)
        if self._options.fail_on_missing:
            self._lost(loss)
        else:
            self._warn_once(loss.what)

    def _lost(self, loss: losses.Loss) -> None:
        if self._options.read.fail_on_data_loss:
            raise DataLossError(str(loss))
        self._warn_once(str(loss))

    def _warn_once(self, message: str) -> None:
        """Log a warning once, though every trigger finds its reason again."""
        if len(self._warned) >= _MAX_WARNED:
            self._warned.clear()
        if message not in self._warned:
            self._warned.add(message)
            log.warning("%s", message)

    def _waits_for_more(self, backlogs: Sequence[Backlog]) -> bool:
        """Return whether ``minOffsetsPerTrigger`` delays the batch (`KafkaMicroBatchStream.delayBatch`).

        The first batch of a run does not wait, nor does one of AvailableNow, for which no more will come.
        """
        least = self._options.min_offsets
        if least is None or self._target is not None:
            return False
        now_ms, last_ms = self._clock.monotonic_ms(), self._last_batch_ms
        is_due = last_ms is None or now_ms - last_ms >= self._options.max_trigger_delay_ms
        if not is_due and sum(backlog.size for backlog in backlogs) < least:
            return True
        self._last_batch_ms = now_ms
        return False

    def _backlogs(self, start: Offsets, snapshots: Snapshots) -> tuple[dict[Spot, int], list[Backlog]]:
        """Return where each partition could end now, and the offsets to read until there."""
        ends: dict[Spot, int] = {}
        backlogs: list[Backlog] = []
        for spot, snapshot in snapshots.items():
            begin = start.get(spot, 0)
            end = snapshot.end_offset
            if self._target is not None:
                if spot not in self._target and spot not in start:
                    continue
                # The batch follows a log that was truncated, but not to a target that it has passed.
                end = min(end, max(begin, self._target.get(spot, begin)))
            if self._held.get(spot) == begin:
                end = begin
            ends[spot] = end
            if end > max(begin, snapshot.start_offset):
                backlogs.append(Backlog(spot, max(begin, snapshot.start_offset), end))
        return ends, backlogs

    def _limited(
        self, archive: ArchiveReader, snapshots: Snapshots, backlogs: Sequence[Backlog]
    ) -> dict[Spot, int]:
        """Return the ends of the backlogs that this batch serves, in their order."""
        max_offsets, max_bytes = self._options.max_offsets, self._options.max_bytes
        if max_offsets is not None:
            ends = by_count(backlogs, max_offsets)
            backlogs = [b._replace(end_offset=ends[b.spot]) for b in backlogs if b.spot in ends]
        if max_bytes is not None:
            return _by_bytes(archive, snapshots, backlogs, max_bytes)
        return {backlog.spot: backlog.end_offset for backlog in backlogs}


def _by_bytes(
    archive: ArchiveReader, snapshots: Snapshots, backlogs: Sequence[Backlog], limit: int
) -> dict[Spot, int]:
    manifests = {backlog.spot: snapshots[backlog.spot].manifest for backlog in backlogs}
    loads = {
        spot: _no_pages if manifest is None else archive.loader(manifest)
        for spot, manifest in manifests.items()
    }

    def take(backlog: Backlog, budget: int) -> Taken:
        spot = backlog.spot
        return take_bytes(manifests[spot], loads[spot], blocks_of, backlog, budget)

    def blocks_of(entry: SegmentEntry) -> BlockTable:
        return archive.footer(entry).blocks

    sizes = [bytes_between(manifests[b.spot], loads[b.spot], b.begin_offset, b.end_offset) for b in backlogs]
    if sum(sizes) <= limit:
        return {backlog.spot: backlog.end_offset for backlog in backlogs}
    return share_out(backlogs, sizes, limit, take)


def _no_pages(ref: PageRef) -> ManifestPage:
    raise AssertionError(f"{ref.key} of no manifest")


def _position(view: BucketView) -> StreamPosition:
    return StreamPosition({}, view.cluster_id, view.topics)


def _with_absent(ends: Offsets, view: BucketView, absent: Offsets, start: StreamPosition) -> StreamPosition:
    """Return `ends` with the offsets of absent partitions, which continue there if they come back."""
    kept = {asked: start.topics[asked] for asked, _ in absent if asked in start.topics}
    return StreamPosition({**absent, **ends}, view.cluster_id, {**kept, **view.topics})
