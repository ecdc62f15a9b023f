"""A node that copies, cuts, expires and sweeps, each call of whose store can be where it stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from service.base.types import TopicIdPartition
from service.inspect.restore_heads import named_objects
from service.inspect.restore_source import CutChoice
from service.inspect.take_over import Restored, TakeOverOrder, take_over
from service.metadata.batches import encode_batch
from service.metadata.controller.catalog_control import remote_log_record
from service.metadata.delta import MetadataDelta
from service.metadata.frames import newest
from service.metadata.image import MetadataImage
from service.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from service.metadata.snapshot_codec import encode_image
from service.remote.catalog import CatalogEntry
from service.remote.format.keys import CUT_NAME, HeadKey, head_key, parse_key
from service.remote.reading.object_reader import open_cluster_file, open_published
from service.remote.reading.tails import open_cuts, open_named_cut
from service.remote.stores.store import ObjectStore
from service.tiering.cuts.ports import MetadataTail
from service.tiering.cuts.round import CutStep, Led
from service.tiering.cuts.saving import Standing, TakenEnd
from service.tiering.cuts.saving_plan import Saved
from service.tiering.metadata_copy import MetadataSnapshot
from service.tiering.prefix_fence import Displaced, NotNamed
from service.wire.cuts import CutEnd, CutEnds, CutTail, TakeCutRequest, TakeCutResponse
from tests.support.world import make_world
from tests.unit.inspect.cuts import EVENTS, TIERED, Place, stored
from tests.unit.tiering.cut_world import CutWorld, FakeBroker, FakeCluster
from tests.unit.tiering.world import CLUSTER, GRACE_MS, Fault, Replica

HEIR = "heir-of-the-tests-0001"
GAP = 1_000_000
FIRST = 10
"""offset of the metadata's first record"""


class SavingBroker(FakeBroker):
    """Broker that saves its logs as a node does."""

    world: FrozenWorld

    async def answer(self, request: TakeCutRequest) -> TakeCutResponse:
        step = CutStep(request.step)
        end = self.world.cluster.metadata_end
        if step is CutStep.TAKE:
            self.taken = {
                (one.tip.topic_id, one.tip.partition): TakenEnd(one, one.leader_epoch, one.high_watermark)
                for one in self.world.replicas
            }
            return TakeCutResponse(error_code=ErrorCode.none, image_offset=end, ends=self._rows({}))
        if step is not CutStep.SAVE:
            return TakeCutResponse(error_code=ErrorCode.none, image_offset=end)
        assert request.attempt_id is not None
        saved = await self.world.manager.tails.save(
            request.attempt_id, request.newest_id, request.cut, self.taken
        )
        tails = tuple(CutTail(**one._asdict()) for one in saved.tails)
        return TakeCutResponse(error_code=ErrorCode.none, ends=self._rows(dict(saved.standings)), tails=tails)

    def _rows(self, standings: dict[Place, Standing]) -> tuple[CutEnds, ...]:
        unsaved = Standing(Saved(0, 0, -1), waits=False, is_tailed=True)
        starts = {
            (one.tip.topic_id, one.tip.partition): one.log.log_start_offset for one in self.world.replicas
        }
        rows = []
        for place, taken in sorted(self.taken.items()):
            standing = standings.get(place, unsaved)
            entry = self.world.catalog.entries.get(place)
            rows.append(
                CutEnd(
                    partition=place[1],
                    leader_epoch=taken.leader_epoch,
                    start=starts[place],
                    end=taken.end,
                    stable=taken.end,
                    saved=standing.saved.low,
                    saved_high=min(standing.saved.high, standing.saved.low),
                    last_epoch=standing.saved.last_epoch,
                    version=entry.version if entry is not None else 0,
                    waits=False,
                    is_tailed=True,
                )
            )
        return (CutEnds(topic_id=EVENTS, partitions=tuple(rows)),)


class SavingCluster(FakeCluster):
    """The broker alone, and its metadata."""

    world: FrozenWorld

    def __init__(self, world: FrozenWorld) -> None:
        super().__init__(world)
        self.fakes = {1: SavingBroker(world, 1)}
        self.alive = {1}

    def partitions(self) -> Iterator[Led]:
        for one in self.world.replicas:
            yield Led(one.tip.topic_id, one.tip.partition, 1, one.leader_epoch)

    async def metadata_tail(self, start: int, end: int, most_bytes: int, /) -> MetadataTail:
        records = self.world.records[start - FIRST : end - FIRST]
        batch = encode_batch(map(newest, records), base_offset=start, epoch=2, timestamp_ms=9)
        return MetadataTail(bytes(batch), len(records), 2, -1, has_news=True)


class FrozenWorld(CutWorld):
    """Two partitions of a tiered topic. `take_over` is what happens while the process stands still."""

    def __init__(self, tmp: Path) -> None:
        self.records: list[MetadataRecord] = []
        super().__init__(tmp, brokers=(1,))
        self.cluster = SavingCluster(self)
        self.options = {"cuts": self.cluster, "metadata": self._copied}
        self.topic_configs = {"events": TIERED}
        for number in (0, 1):
            self.add(TopicIdPartition(EVENTS, "events", number))
        self._noted: dict[Place, CatalogEntry] = {}
        self.records = [
            FeatureLevelRecord(name="metadata.version", feature_level=30),
            TopicRecord(name="events", topic_id=EVENTS),
            *(
                PartitionRecord(
                    partition_id=one.tip.partition, topic_id=EVENTS, replicas=(1,), isr=(1,), leader=1,
                    leader_epoch=0, partition_epoch=0, directories=(None,),
                )
                for one in self.replicas
            ),
            *(
                ConfigRecord(resource_type=2, resource_name="events", name=key, value=value)
                for key, value in TIERED.items()
            ),
        ]  # fmt: skip
        self.note_metadata()
        self.manager = self._boot()

    def note_metadata(self) -> None:
        """Have the metadata log say what the catalog has."""
        for place, entry in sorted(self.catalog.entries.items()):
            if self._noted.get(place) != entry:
                self._noted[place] = entry
                self.records.append(remote_log_record(*place, entry))
        self.cluster.metadata_end = FIRST + len(self.records)

    def _copied(self) -> MetadataSnapshot:
        self.note_metadata()
        records, end = tuple(self.records), self.cluster.metadata_end
        image = MetadataDelta(MetadataImage()).replay_all(records).build(end - 1, 2, self.clock.now_ms())
        return MetadataSnapshot(end, 2, lambda: [b"".join(map(bytes, encode_image(image, 7)))])

    def cut(self) -> None:
        """Take a cut, ten seconds later."""
        self.note_metadata()
        self.round()

    # -- acts

    def acts(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield what the node does in its life, each act with what it is."""
        first, second = self.replicas
        yield "begin", self._begin
        yield "first cut", self.cut
        yield "records", lambda: self.fill(2)
        yield "offload", self.run
        yield "records", lambda: first.append(3, self.clock.now_ms())
        yield "cut", self.cut
        yield "expire", lambda: self._expire(first)
        yield "copy of the metadata", self._copy_metadata
        yield "records", lambda: second.append(3, self.clock.now_ms())
        yield "cut", self.cut
        yield "erase", self._erase
        yield "records", self._leave_orphans
        yield "cuts of an hour", self._many_cuts
        yield "sweep", self._sweep
        yield "another keeper", self._restart
        yield "offload", self._offload_more

    def _begin(self) -> None:
        self.fill(3)
        self.begin()
        for one in self.replicas:
            one.append(3, self.clock.now_ms())

    def _expire(self, replica: Replica) -> None:
        replica.log.deletion.advance_log_start(self.live(replica)[1].base_offset)
        self.run()

    def _copy_metadata(self) -> None:
        self.manager.maintenance.topics_changed()
        self.clock.advance(60_000)
        self.run()

    def _erase(self) -> None:
        self.clock.advance(GRACE_MS)
        self.run()

    def _leave_orphans(self) -> None:
        for one in self.replicas:
            key = self.live(one)[-1].key
            self.bucket.put(key[:-10] + "aaaaaa.seg", b"orphan")

    def _many_cuts(self) -> None:
        for _ in range(3):
            self.clock.advance(GRACE_MS)
            self.replicas[0].append(1, self.clock.now_ms())
            self.cut()
        self.fill(1)
        self.run()
        self.cut()

    def _sweep(self) -> None:
        with suppress(Displaced, NotNamed):
            self.sweep()

    def _restart(self) -> None:
        """Go on as another process of the same cluster, which has to find out what the bucket has."""
        if self.manager.metrics.displaced is not None:
            return  # it would refuse to start
        self.fill(1)
        self.reboot()
        self.run()
        self.run()
        self.cut()

    def _offload_more(self) -> None:
        self.fill(1)
        self.run()
        self.run()

    # -- take-over

    def take_over(self) -> Restored:
        """Restore what the bucket has as another cluster."""
        order = TakeOverOrder(CutChoice(), HEIR, gap=GAP, quiet_ms=0, is_forced=True)
        with ThreadPoolExecutor(4) as pool:
            return take_over(
                self.bucket, order, make_world(self.clock, seed=9), pool, lambda words: None, lambda *_: None
            )


class Call(NamedTuple):
    """One call of the store: of which act, the operation, and the kind of its key."""

    act: str
    operation: str
    kind: str


def kind_of(key: str) -> str:
    """Return what lies under a key."""
    parsed = parse_key(key)
    return key.partition("/")[0] if parsed is None else type(parsed).__name__ + getattr(parsed, "name", "")


def calls_of(folder: Path) -> list[Call]:
    """Return all calls of a life in which nobody takes over, from behind the first cut on."""
    world, found = FrozenWorld(folder), list[Call]()
    acts = [""]

    def decide(operation: str, key: str) -> Fault:
        if world.numbers():
            found.append(Call(acts[-1], operation, kind_of(key)))
        return Fault.PASS

    world.store.decide = decide
    for act, do in world.acts():
        acts.append(act)
        do()
    return found


def frozen_at(folder: Path, number: int) -> tuple[FrozenWorld, dict[str, str], set[str]]:
    """Play a life in which the process stands still before the call of this number, and goes on once an heir
    has the prefix.

    Returns the tags of all objects right after the take-over, and the keys of those that the heir names.
    """
    world = FrozenWorld(folder)
    seen = 0
    before: dict[str, str] = {}
    named: set[str] = set()

    def decide(operation: str, key: str) -> Fault:
        nonlocal seen
        if not before and world.numbers():
            if seen == number:
                world.take_over()
                before.update(stored(world.bucket))
                named.update(named_by_the_heir(world.bucket))
            seen += 1
        return Fault.PASS

    world.store.decide = decide
    for _, do in world.acts():
        do()
    assert before, f"there is no call {number}"
    return world, before, named


def named_by_the_heir(store: ObjectStore) -> set[str]:
    """Return the keys of all that the heir's documents name."""
    cluster = open_cluster_file(store)
    assert cluster.cluster_id == HEIR
    assert [one.cluster_id for one in cluster.ancestors] == [CLUSTER]
    found = {"cluster.json", "topics.json", CUT_NAME}
    if cluster.metadata is not None:
        found.add(cluster.metadata.key)
    for ref in open_cuts(store).kept:
        cut = open_named_cut(store, ref)
        found |= {ref.key, cut.metadata.key, *(one.key for one in cut.tails)}
    for info in list(store.list("data")):
        if isinstance(key := parse_key(info.key), HeadKey):
            chain = open_published(store, key)
            assert chain is not None
            found |= {head_key(*key), chain.key}
            found |= {one.key for one in named_objects(store, chain.manifest)}
    return found
