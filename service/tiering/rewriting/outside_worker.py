"""Worker outside of the brokers: it reads and writes the bucket, and asks the leader to publish.

Used by `firn rewrite`. Blocking; one run at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

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
from service.tiering.rewriting.merge_plan import MergeLimits, find_run
from service.tiering.rewriting.rules import ChainRun, Rule
from service.tiering.rewriting.run_object import MadeObject, RunMaker

_SIGN_OF_LIFE_MS: Final = 60_000
"""Time between two signs of life while an object is made."""


class RangeSteps(Protocol):
    """The leader of one partition, as `client.range_rewrites.RangeLeader`."""

    def begin(self, rewrite_id: UUID, kind: int, base_offset: int, last_offset: int, /) -> int: ...
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

        units = units_from(manifest, load, manifest.start_offset)
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
        epoch = leader.begin(*place)
        clock, heard_ms = self._world.clock, self._world.clock.monotonic_ms()

        def show_life(size: int) -> None:
            nonlocal heard_ms
            if clock.monotonic_ms() - heard_ms >= _SIGN_OF_LIFE_MS:
                leader.begin(*place)
                heard_ms = clock.monotonic_ms()

        tip = run.tip
        identity = SegmentIdentity(
            self._cluster_id, tip.topic_id, tip.topic, tip.partition, run.base_offset, run.last_offset,
            epoch, self._world.new_uuid(),
        )  # fmt: skip
        try:
            maker = RunMaker(self._store, run, rule, CallProgress(), spend=show_life)
            made = maker.make(identity, rewrite_id, self._stamps())
            leader.commit(*place, run.keys, encode_entries([made.entry]))
        except FirnError:
            leader.end(*place)
            raise
        return made
