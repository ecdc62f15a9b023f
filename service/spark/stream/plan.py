"""What a stream reads next, and the tasks of one micro-batch: the driver's part of a stream.

A micro-batch is a range of offsets per partition that Spark writes to its checkpoint before anything of it is
read. The plan of it is made from the manifests that are current then and covers that range and nothing else,
so a batch that is repeated after a crash has the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from service.base.errors import ConfigError
from service.remote.block_table import BlockTable
from service.remote.manifest import Page, PageRef, SegmentEntry
from service.spark.errors import DataLossError
from service.spark.options import Assign, Choice, Subscribe
from service.spark.parallelism import parallelism_of
from service.spark.plan.archive import Archive, ChosenPartition, PartitionSnapshot
from service.spark.plan.ranges import bound_offsets, check_named, plan_ranges, within
from service.spark.plan.splits import Split
from service.spark.stream.bytes import bytes_between, take_bytes
from service.spark.stream.offsets import Backlog, Offsets, Spot, Taken, by_count, rotated, share_out
from service.spark.stream.options import StreamOptions
from service.spark.tail.plan import TailSplit, plan_tail

log = logging.getLogger(__name__)

Snapshots = dict[Spot, PartitionSnapshot]


class StreamPlan:
    """What a running stream keeps that is not in the checkpoint; after a restart none of it is missed."""

    def __init__(self, options: StreamOptions, open_archive: Callable[[], Archive]) -> None:
        """`open_archive` gives the archive as it is at that moment, with its tail where brokers are given.

        What those it gives remember, each for the next, saves the stream from reading anything twice.
        """
        self._options = options
        self._archive = open_archive
        self._target: dict[Spot, int] | None = None
        self._held: dict[Spot, int] = {}
        self._after: Spot | None = None
        self._ids: dict[str, UUID] = {}
        self._names: dict[str, str] = {}
        self._told: set[str] = set()
        self.newest: dict[Spot, int] = {}
        """Where partitions ended when last looked at, limits or not."""

    def initial(self) -> dict[Spot, int]:
        """Where a new stream starts, by ``startingOffsets`` and its like.

        Spark does not write it down: should the first batch be repeated, this is asked again. Where a
        partition starts at its end, the answer would then be a later one, so it takes nothing in that batch.
        """
        options = self._options.read
        with self._archive() as archive:
            chosen = archive.choose(options.choice)
            check_named(options.starting, [_spot(one) for one in chosen], "startingOffsets")
            snapshots = archive.snapshots(chosen)
            begins = bound_offsets(archive, snapshots, options.starting, options, is_start=True)
        pairs = [(_spot(s.chosen), begin, s.end_offset) for s, begin in zip(snapshots, begins, strict=True)]
        self._held = {spot: begin for spot, begin, end in pairs if begin == end}
        return {spot: begin for spot, begin, _ in pairs}

    def fix_target(self) -> None:
        """From now on nothing is new: what is there at this moment is all there will be."""
        with self._archive() as archive:
            self._target = {spot: s.end_offset for spot, s in self._snapshots(archive).items()}

    def latest(self, start: Offsets | None, *, limited: bool = True) -> dict[Spot, int]:
        """Where the next batch ends that begins at `start`, which is None where Spark does not tell.

        Raises `DataLossError` when records after `start` are gone, before a batch of them is written down.
        """
        with self._archive() as archive:
            snapshots = self._snapshots(archive)
            self.newest = {spot: snapshot.end_offset for spot, snapshot in snapshots.items()}
            if start is None:
                return self.newest
            self._check(start, snapshots)
            ends, backlogs = self._ahead(start, snapshots)
            # Who is not there now goes on where it was when it comes back, and is not read again.
            ends = {**start, **ends}
            self._held = {}
            if limited:
                backlogs = rotated(backlogs, self._after)
                served = self._limited(archive, snapshots, backlogs)
                self._after = next(reversed(served), None)
                for backlog in backlogs:
                    ends[backlog.spot] = served.get(backlog.spot, start.get(backlog.spot, 0))
        return ends

    def plan(self, start: Offsets, end: Offsets) -> list[Split | TailSplit]:
        """Tasks that read exactly ``[start, end)`` of each partition; a new one begins at offset 0."""
        options = self._options.read
        wanted = {spot: (start.get(spot, 0), last) for spot, last in end.items() if start.get(spot, 0) < last}
        if not wanted:
            return []
        with self._archive() as archive:
            snapshots = self._snapshots(archive, only=set(wanted))
            self._check({spot: begin for spot, (begin, _) in wanted.items()}, snapshots, heads=False)
            ranges = [
                within(snapshots[spot], begin, wanted[spot][1], fail_on_data_loss=options.fail_on_data_loss)
                for spot, begin in sorted(_begins(start, snapshots).items())
            ]
            ranges = [one for one in ranges if one.begin_offset < one.end_offset]
            splits = plan_ranges(archive, ranges, options, parallelism=parallelism_of(options))
            return [*splits, *plan_tail(ranges, options, archive.loader)]

    def _snapshots(self, archive: Archive, only: set[Spot] | None = None) -> Snapshots:
        chosen = self._chosen(archive)
        for one in chosen:
            self._names[one.asked] = one.topic
            known = self._ids.setdefault(one.asked, one.topic_id)
            if known != one.topic_id:
                self._ids[one.asked] = one.topic_id
                self._lost(f"topic {one.topic} is another one now, with id {one.topic_id} instead of {known}")
        if only is None:
            archive.forget_others(chosen)
        found = archive.snapshots(one for one in chosen if only is None or _spot(one) in only)
        return {_spot(snapshot.chosen): snapshot for snapshot in found}

    def _chosen(self, archive: Archive) -> list[ChosenPartition]:
        """What is subscribed to; a topic that is not there is left out where that is allowed."""
        archive.topics()
        found: list[ChosenPartition] = []
        for part in _parts(self._options.read.choice):
            try:
                found += archive.choose(part)
            except ConfigError as e:
                self._missed(str(e), *(self._names.get(asked, "") for asked in _asked(part)))
        return found

    def _missed(self, message: str, name: str = "") -> None:
        """A topic is not there, which `message` says; `name` is that of one that was there before."""
        if name:
            message = f"topic {name} is not in the archive any more, it was deleted: {message}"
        if self._options.fail_on_missing:
            raise DataLossError(message) if name else ConfigError(message)
        self._warn_once(message)

    def _warn_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            log.warning("%s", message)

    def _check(self, start: Offsets, snapshots: Snapshots, *, heads: bool = True) -> None:
        """`DataLossError` when what comes after `start` is not all there, or a warning."""
        for (topic, partition), offset in start.items():
            snapshot = snapshots.get((topic, partition))
            if snapshot is None:
                message = f"{topic}-{partition} is no longer there, the stream has read it up to {offset}"
                if self._options.fail_on_missing:
                    self._lost(message)
                self._warn_once(message)
            elif heads and offset > snapshot.end_offset:
                self._lost(
                    f"{topic}-{partition} ends at {snapshot.end_offset}, the stream has read up to {offset}"
                )
        for spot, offset in _begins(start, snapshots).items() if heads else ():
            snapshot = snapshots[spot]
            if offset < snapshot.start_offset and offset < snapshot.end_offset:
                self._lost(
                    f"{spot[0]}-{spot[1]}: offsets {offset} to {snapshot.start_offset - 1} are gone, "
                    f"retention has overtaken the stream: the log starts at {snapshot.start_offset}"
                )

    def _lost(self, message: str) -> None:
        if self._options.read.fail_on_data_loss:
            raise DataLossError(f"{message} (failOnDataLoss=false reads on with what there is)")
        log.warning("%s", message)

    def _ahead(self, start: Offsets, snapshots: Snapshots) -> tuple[dict[Spot, int], list[Backlog]]:
        """Where each partition could end now, and what that is to read."""
        ends: dict[Spot, int] = {}
        backlogs: list[Backlog] = []
        for spot, begin in _begins(start, snapshots).items():
            snapshot = snapshots[spot]
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


def _no_pages(ref: PageRef) -> Page:
    raise AssertionError(f"{ref.key} of no manifest")


def _spot(chosen: ChosenPartition) -> Spot:
    return chosen.asked, chosen.partition


def _begins(start: Offsets, snapshots: Snapshots) -> dict[Spot, int]:
    """Where each is read on. A new partition begins at 0, those of a topic that is new where they begin now:
    what was gone before the stream knew the topic is not lost to it.
    """
    known = {topic for topic, _ in start}
    new = {spot: 0 if spot[0] in known else snapshot.start_offset for spot, snapshot in snapshots.items()}
    return {spot: start.get(spot, begin) for spot, begin in new.items()}


def _asked(choice: Choice) -> tuple[str, ...]:
    """What the user called the topic of a part; of a pattern nothing."""
    if isinstance(choice, Subscribe):
        return choice.topics
    return tuple(choice.partitions) if isinstance(choice, Assign) else ()


def _parts(choice: Choice) -> list[Choice]:
    """The same choice, topic by topic."""
    if isinstance(choice, Subscribe):
        return [Subscribe((topic,)) for topic in choice.topics]
    if isinstance(choice, Assign):
        return [Assign({topic: partitions}) for topic, partitions in choice.partitions.items()]
    return [choice]
