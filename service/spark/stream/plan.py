"""What a stream reads next, and the tasks of one micro-batch: the driver's part of a stream.

A micro-batch is a range of offsets per partition that Spark writes to its checkpoint before anything of it is
read. The plan of it is made from manifests that reach that far and covers that range and nothing else, so a
batch that is repeated after a crash has the same rows.
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
from service.spark.plan.archive import Archive
from service.spark.plan.ranges import bound_offsets, check_named, plan_ranges, within
from service.spark.plan.splits import Split
from service.spark.stream import losses
from service.spark.stream.bucket_polling import Look, Looks, Snapshots
from service.spark.stream.bytes import bytes_between, take_bytes
from service.spark.stream.offsets import Backlog, Offsets, Position, Spot, Taken, by_count, rotated, share_out
from service.spark.stream.options import StreamOptions
from service.spark.stream.progress import encode_report
from service.spark.tail.plan import TailSplit, plan_tail

log = logging.getLogger(__name__)

_MAX_SAID: Final = 10_000


class StreamPlan:
    """What a running stream keeps that is not in the checkpoint; after a restart none of it is missed.

    Owned by the thread that Spark calls the stream on.
    """

    def __init__(
        self, options: StreamOptions, open_archive: Callable[[], Archive], clock: Clock | None = None
    ) -> None:
        """`open_archive` gives the archive, with its tail where brokers are given.

        What those it gives remember, each for the next, saves the stream from reading anything twice.
        """
        self._options = options
        self._archive = open_archive
        self._clock = SystemClock() if clock is None else clock
        self._looks = Looks(options.read.choice, options.refresh_interval_ms, self._clock)
        self._target: dict[Spot, int] | None = None
        self._held: dict[Spot, int] = {}
        self._after: Spot | None = None
        self._reached = Position({})
        self._last_batch_ms: int | None = None
        self._said: set[str] = set()

    def initial(self) -> Position:
        """Where a new stream starts, by ``startingOffsets`` and its like.

        Spark does not write it down: should the first batch be repeated, this is asked again. Where a
        partition starts at its end, the answer would then be a later one, so it takes nothing in that batch.
        """
        options = self._options.read
        with self._archive() as archive:
            look = self._looks.latest(archive)
            for error in look.missing.values():
                raise error
            spots, snapshots = list(look.snapshots), list(look.snapshots.values())
            check_named(options.starting, spots, "startingOffsets")
            begins = bound_offsets(archive, snapshots, options.starting, options, is_start=True)
        starts = dict(zip(spots, begins, strict=True))
        self._held = {
            spot: begin for spot, begin in starts.items() if begin == look.snapshots[spot].end_offset
        }
        self._reached = Position(starts, look.cluster_id, look.topics)
        return self._reached

    def fix_target(self) -> None:
        """From now on nothing is new: what is there at this moment is all there will be."""
        with self._archive() as archive:
            look = self._looks.fresh(archive)
        self._target = {spot: snapshot.end_offset for spot, snapshot in look.snapshots.items()}

    def latest(self, start: Position | None, *, limited: bool = True) -> Position:
        """Where the next batch ends that begins at `start`, which is None where Spark does not tell.

        That is `start` itself when there is nothing, or not enough, to read. Raises `DataLossError` when
        records after `start` are gone, or in another topic, before a batch of them is written down.
        """
        with self._archive() as archive:
            look = self._looks.latest(archive)
            self._reached = (
                self._unlimited(look) if start is None else self._next(archive, look, start, limited=limited)
            )
        return self._reached

    def report(self) -> dict[str, Any] | None:
        """How far partitions go, limits or not, and how many bytes of the log lie before that; or None."""
        look = self._looks.newest
        if look is None or not look.snapshots:
            return None
        ends = {spot: snapshot.end_offset for spot, snapshot in look.snapshots.items()}
        behind = {
            spot: bytes_between(look.snapshots[spot].manifest, None, begin, end)
            for spot, end in ends.items()
            if (begin := max(self._reached.offsets.get(spot, 0), look.snapshots[spot].start_offset)) < end
        }
        return encode_report(ends, behind)

    def plan(self, start: Position, end: Position) -> list[Split | TailSplit]:
        """Tasks that read exactly ``[start, end)`` of each partition; see `_new_begins` for new ones."""
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
            look = self._looks.reaching(archive, ends, end.topics)
            there = self._begins(Position(ends, end.cluster_id, end.topics), _position(look))
            self._tell_gone(end, {spot: wanted[spot][0] for spot in there if spot not in look.snapshots})
            new = self._new_begins(start, look.snapshots)
            ranges = [
                within(
                    look.snapshots[spot],
                    new.get(spot, wanted[spot][0]),
                    wanted[spot][1],
                    fail_on_data_loss=options.fail_on_data_loss,
                )
                for spot in sorted(there.keys() & look.snapshots.keys())
            ]
            ranges = [one for one in ranges if one.begin_offset < one.end_offset]
            splits = plan_ranges(archive, ranges, options, parallelism=parallelism_of(options))
            return [*splits, *plan_tail(ranges, options, archive.loader)]

    def _next(self, archive: Archive, look: Look, start: Position, *, limited: bool) -> Position:
        """The end of a batch that begins at `start`."""
        begins = self._begins(start, _position(look))
        absent = {
            spot: offset
            for spot, offset in begins.items()
            if losses.is_absent(look.snapshots.get(spot), offset)
        }
        self._tell_missing(look, start)
        self._tell_gone(start, absent)
        snapshots = {spot: one for spot, one in look.snapshots.items() if spot not in absent}
        begins = {**self._new_begins(start, snapshots), **begins}
        for loss in losses.lost_offsets(begins, snapshots):
            self._lost(loss)
        ends, backlogs = self._ahead(begins, snapshots)
        if limited and self._waits_for_more(backlogs):
            return start
        self._held = {}
        if limited:
            backlogs = rotated(backlogs, self._after)
            served = self._limited(archive, snapshots, backlogs)
            self._after = next(reversed(served), None)
            for backlog in backlogs:
                ends[backlog.spot] = served.get(backlog.spot, begins.get(backlog.spot, 0))
        return _with_absent(ends, look, absent, start)

    def _unlimited(self, look: Look) -> Position:
        """All there is, where Spark does not say where the batch begins: `plan` will see what is lost."""
        self._tell_missing(look, Position({}))
        ends = {spot: snapshot.end_offset for spot, snapshot in look.snapshots.items()}
        absent = {
            spot: offset
            for spot, offset in self._reached.offsets.items()
            if losses.is_absent(look.snapshots.get(spot), offset)
            and look.topics.get(spot[0]) in (None, self._reached.topics.get(spot[0]))
        }
        return _with_absent(ends, look, absent, self._reached)

    def _begins(self, before: Position, now: Position) -> dict[Spot, int]:
        """The offsets `before`, without those of topics that are other ones now: they have not been read."""
        for loss in losses.other_things(before, now):
            self._lost(loss)
        others = losses.other_topics(before.topics, now.topics)
        return {spot: offset for spot, offset in before.offsets.items() if spot[0] not in others}

    def _new_begins(self, start: Position, snapshots: Snapshots) -> dict[Spot, int]:
        """Where topics begin that the stream has not known: what retention took before is not lost to it.

        A new partition of a topic that it knows begins at 0, wherever its log does.
        """
        known = {topic for topic, _ in start.offsets}
        return {
            spot: snapshot.start_offset
            for spot, snapshot in snapshots.items()
            if spot[0] not in known and (self._target is None or spot in self._target)
        }

    def _tell_missing(self, look: Look, start: Position) -> None:
        """What is asked for and not there, unless the stream has read it: that is told with its offsets."""
        known = {topic for topic, _ in start.offsets}
        for asked, error in look.missing.items():
            if asked not in known and self._options.fail_on_missing:
                raise error
            if asked not in known:
                self._say(str(error))

    def _tell_gone(self, start: Position, offsets: Offsets) -> None:
        """Where a topic may be missing, that is no loss: it goes on where it was when it comes back."""
        if not offsets:
            return
        loss = losses.gone(start, offsets)
        if self._options.fail_on_missing:
            self._lost(loss)
        else:
            self._say(loss.what)

    def _lost(self, loss: losses.Loss) -> None:
        if self._options.read.fail_on_data_loss:
            raise DataLossError(str(loss))
        self._say(str(loss))

    def _say(self, message: str) -> None:
        """Once, though it is found out with every trigger."""
        if len(self._said) >= _MAX_SAID:
            self._said.clear()
        if message not in self._said:
            self._said.add(message)
            log.warning("%s", message)

    def _waits_for_more(self, backlogs: Sequence[Backlog]) -> bool:
        """Whether ``minOffsetsPerTrigger`` puts the batch off (Spark's `KafkaMicroBatchStream.delayBatch`).

        The first batch of a run does not wait, nor does one that AvailableNow reads: nothing will come.
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

    def _ahead(self, start: Offsets, snapshots: Snapshots) -> tuple[dict[Spot, int], list[Backlog]]:
        """Where each partition could end now, and what that is to read."""
        ends: dict[Spot, int] = {}
        backlogs: list[Backlog] = []
        for spot, snapshot in snapshots.items():
            begin = start.get(spot, 0)
            end = snapshot.end_offset
            if self._target is not None:
                if spot not in self._target and spot not in start:
                    continue
                # A log that ran back is followed there, a target that is behind already is not.
                end = min(end, max(begin, self._target.get(spot, begin)))
            if self._held.get(spot) == begin:
                end = begin
            ends[spot] = end
            if end > max(begin, snapshot.start_offset):
                backlogs.append(Backlog(spot, max(begin, snapshot.start_offset), end))
        return ends, backlogs

    def _limited(
        self, archive: Archive, snapshots: Snapshots, backlogs: Sequence[Backlog]
    ) -> dict[Spot, int]:
        """Where those of the backlogs end that are served in this batch, in their order."""
        max_offsets, max_bytes = self._options.max_offsets, self._options.max_bytes
        if max_offsets is not None:
            ends = by_count(backlogs, max_offsets)
            backlogs = [b._replace(end_offset=ends[b.spot]) for b in backlogs if b.spot in ends]
        if max_bytes is not None:
            return _by_bytes(archive, snapshots, backlogs, max_bytes)
        return {backlog.spot: backlog.end_offset for backlog in backlogs}


def _by_bytes(
    archive: Archive, snapshots: Snapshots, backlogs: Sequence[Backlog], limit: int
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


def _position(look: Look) -> Position:
    return Position({}, look.cluster_id, look.topics)


def _with_absent(ends: Offsets, look: Look, absent: Offsets, start: Position) -> Position:
    """`ends`, and where the stream was in partitions that may come back: they go on from there."""
    kept = {asked: start.topics[asked] for asked, _ in absent if asked in start.topics}
    return Position({**absent, **ends}, look.cluster_id, {**kept, **look.topics})
