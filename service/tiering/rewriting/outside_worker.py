"""Worker outside of the brokers: it reads and writes the bucket, and asks the leader to publish.

Used by `firn rewrite`, and by the tasks of `firn pipeline erase`, which make objects alone. Blocking.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import FirnError
from service.base.types import TopicIdPartition
from service.base.world import World
from service.remote.format.keys import HeadKey
from service.remote.format.manifest import ManifestPage, PageRef, SegmentEntry
from service.remote.format.rows import encode_entries
from service.remote.format.segment_object import SegmentIdentity
from service.remote.format.stamp import Stamp
from service.remote.reading.object_reader import open_page, open_published
from service.remote.stores.store import ObjectStore
from service.tiering.copier import CallProgress
from service.tiering.rewriting.chain_units import units_from
from service.tiering.rewriting.merge_plan import MIN_RUN, MergeLimits, find_run
from service.tiering.rewriting.rules import ChainRun, Rule
from service.tiering.rewriting.run_object import MadeObject, RunMaker

log = logging.getLogger(__name__)

SIGN_OF_LIFE_MS: Final = 60_000
"""Time between two signs of life while an object is made."""


class BegunRange(Protocol):
    """Answer to a begin, as `client.range_rewrites.BegunRewrite`."""

    @property
    def leader_epoch(self) -> int: ...
    @property
    def version(self) -> int: ...


class RangeSteps(Protocol):
    """The leader of one partition, as `client.range_rewrites.RangeLeader`."""

    def begin(self, rewrite_id: UUID, kind: int, base_offset: int, last_offset: int, /) -> BegunRange: ...
    def alive(self, rewrite_id: UUID, kind: int, base_offset: int, last_offset: int, /) -> None: ...
    def commit(
        self,
        rewrite_id: UUID,
        kind: int,
        base_offset: int,
        last_offset: int,
        old_keys: Sequence[str],
        entries: bytes,
        /,
    ) -> int: ...
    def end(self, rewrite_id: UUID, kind: int, base_offset: int, last_offset: int, /) -> None: ...


class PlannedMerges(NamedTuple):
    """Runs of one chain that could be merged, and how many objects it has."""

    runs: tuple[ChainRun, ...]
    segments: int


class OutsideWorker:
    """One process that rewrites runs of the cluster `cluster_id`."""

    def __init__(
        self, store: ObjectStore, cluster_id: str, world: World, stamps: Callable[[], Stamp | None]
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._world = world
        self._stamps = stamps

    def plan_merges(self, tip: TopicIdPartition, limits: MergeLimits) -> PlannedMerges:
        """Return the runs of a partition that can be merged now, by its HEAD."""
        chain = open_published(self._store, HeadKey(tip.topic_id, tip.partition))
        if chain is None:
            return PlannedMerges((), 0)
        manifest = chain.manifest

        def load(ref: PageRef) -> ManifestPage:
            return open_page(self._store, ref, manifest)

        units = units_from(manifest, load, manifest.start_offset, MIN_RUN)
        runs = (
            ChainRun(tip, run)
            for unit in units
            for run in self._runs_of(unit.entries, limits, manifest.start_offset)
        )
        return PlannedMerges(tuple(runs), manifest.segments)

    def _runs_of(
        self, entries: Sequence[SegmentEntry], limits: MergeLimits, start: int
    ) -> Iterator[tuple[SegmentEntry, ...]]:
        now_ms, begin = self._world.clock.now_ms(), start
        while run := find_run(entries, limits, now_ms, self._uploaded_at_ms, begin).run:
            yield run
            begin = run[-1].last_offset + 1

    def _uploaded_at_ms(self, entry: SegmentEntry) -> int:
        return self._store.head(entry.key).last_modified_ms

    def rewrite(self, leader: RangeSteps, run: ChainRun, rule: Rule) -> MadeObject:
        """Make one object of the run, and have it published.

        Raises `RequestError` where the leader refuses: the chain is another by now, or another rewrite is
        under way; `CorruptionError`, and what the store raises. The intent is given up then.
        """
        rewrite_id = self._world.new_uuid()
        place = rewrite_id, int(rule.kind), run.base_offset, run.last_offset
        begun = leader.begin(*place)
        signs = _SignsOfLife(self._world.clock, lambda: leader.alive(*place))
        try:
            made = self.make(run, rule, rewrite_id, begun.leader_epoch, signs)
            leader.commit(*place, run.keys, encode_entries([made.entry]))
        except FirnError:
            try:
                leader.end(*place)
            except (FirnError, OSError) as e:
                log.info("%s: the leader gives rewrite %s up by itself: %s", run.tip, rewrite_id, e)
            raise
        return made

    def make(
        self,
        run: ChainRun,
        rule: Rule,
        rewrite_id: UUID,
        leader_epoch: int,
        progress: CallProgress,
    ) -> MadeObject:
        """Make one object of the run under a new name, for an intent of this epoch; nobody is asked.

        Raises `CorruptionError`, and what the store and `progress` raise.
        """
        tip = run.tip
        identity = SegmentIdentity(
            self._cluster_id, tip.topic_id, tip.topic, tip.partition, run.base_offset, run.last_offset,
            leader_epoch, self._world.new_uuid(),
        )  # fmt: skip
        return RunMaker(self._store, run, rule, progress).make(identity, rewrite_id, self._stamps())


class _SignsOfLife(CallProgress):
    """Progress of making an object that shows its leader now and then that the worker lives."""

    __slots__ = ("_clock", "_heard_ms", "_show")

    def __init__(self, clock: Clock, show: Callable[[], None]) -> None:
        super().__init__()
        self._clock = clock
        self._show = show
        self._heard_ms = clock.monotonic_ms()

    def advance(self, size: int) -> None:
        super().advance(size)
        if self._clock.monotonic_ms() - self._heard_ms >= SIGN_OF_LIFE_MS:
            self._show()
            self._heard_ms = self._clock.monotonic_ms()
