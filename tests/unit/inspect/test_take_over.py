"""Taking a prefix over (invariants T20, T21): refusals, cut off anywhere, late writes of the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.errors import ConfigError, CorruptionError
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.inspect.cuts_repair import CutsRepair, find_cuts_repair
from service.inspect.fsck import fsck
from service.inspect.restore_records import HeirNumbers, Placement, numbers_above
from service.inspect.restore_source import CutChoice, read_source
from service.inspect.take_over import Restored, TakeOverOrder, take_over
from service.metadata.controller.requests import ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.remote.format.cut_codec import decode_cuts
from service.remote.format.keys import CUT_NAME, HeadKey, head_key
from service.remote.format.manifest_codec import decode_cluster, encode_cluster
from service.remote.format.stamp import Stamp
from service.remote.reading.object_reader import (
    open_cluster_file,
    open_footer,
    open_published,
    open_topics,
)
from service.remote.stores import conditional
from service.remote.stores.errors import PreconditionFailed
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.store import ObjectStore
from service.tiering.archive_attempt import catalog_entry
from tests.support.world import make_world
from tests.unit.inspect.archives import partition_records
from tests.unit.inspect.cuts import (
    EVENTS,
    OFFSETS,
    TIERED,
    Cutting,
    between,
    internal_log,
    kept,
    stored,
)
from tests.unit.tiering.world import CLUSTER, WRITER, Crash, Decide, Fault, FaultyStore, World, no_faults

HEIR = "heir-of-the-tests-0001"
GAP = 1_000_000
UNTIERED, LATER = UUID(int=70), UUID(int=71)


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A cut, and then a segment more in each partition, and one that retention took."""
    world = World(tmp_path / "disk", partitions=2)
    world.topic_configs = {"events": TIERED}
    world.fill(3)
    world.run()
    world.run()
    for one in world.replicas:
        one.append(3, world.clock.now_ms())
    Cutting(world, internal=internal_log()).cut({one: one.log.log_end_offset for one in world.replicas})
    first = world.replicas[0]
    world.fill(2, first)
    world.run()
    first.log.deletion.advance_log_start(world.live(first)[1].base_offset)
    world.run()
    return world


def nothing_wrong(*_: object) -> None:
    """Let every plan pass."""


def order(**options: object) -> TakeOverOrder:
    wanted: dict[str, object] = {"gap": GAP, "quiet_ms": 0, **options}
    return TakeOverOrder(CutChoice(), HEIR, **wanted)  # type: ignore[arg-type]


def run(
    world: World, pool: Executor, wanted: TakeOverOrder | None = None, store: ObjectStore | None = None
) -> Restored:
    return take_over(
        store or world.bucket,
        wanted or order(),
        make_world(world.clock, seed=9),
        pool,
        lambda words: None,
        nothing_wrong,
    )


def heads(world: World) -> dict[str, str]:
    return {key: tag for key, tag in stored(world.bucket).items() if key.endswith("/HEAD")}


def image_of(restored: Restored, placement: Placement = Placement((4, 5, 6))) -> MetadataImage:  # noqa: B008
    records = restored.first_records(placement)
    return MetadataDelta(MetadataImage()).replay_all(records).build(1, 1, 1)


def test_the_prefix_is_the_heirs(world: World, pool: Executor) -> None:
    run(world, pool)
    file = open_cluster_file(world.bucket)
    assert file.cluster_id == HEIR
    assert [(one.cluster_id, one.until_cut) for one in file.ancestors] == [(CLUSTER, 1)]
    assert (file.members, file.present, file.renewals) == ((), (), 0)
    cuts = decode_cuts(world.bucket.get(CUT_NAME, max_size=1 << 16))
    assert (cuts.cluster_id, [ref.cut for ref in cuts.kept]) == (HEIR, [1])
    topics = open_topics(world.bucket)
    assert (topics.cluster_id, topics.life) == (HEIR, 1)
    assert [row.name for row in topics.topics] == ["__consumer_offsets", "events"]


def test_every_head_has_another_tag_and_a_late_head_of_the_source_is_refused(
    world: World, pool: Executor
) -> None:
    before = {key: world.bucket.get_tagged(key, max_size=1 << 16) for key in heads(world)}
    assert len(before) == 2
    run(world, pool)
    for key, seen in before.items():
        with pytest.raises(PreconditionFailed):
            world.bucket.put_if_match(key, seen.data, seen.tag)


def test_a_tiered_partition_without_a_head_gets_one(world: World, pool: Executor) -> None:
    fresh = world.add(TopicIdPartition(UNTIERED, "fresh", 0))
    world.topic_configs["fresh"] = TIERED
    cutting = Cutting(world, internal=internal_log(), number=1)
    cutting.cut({one: one.log.log_end_offset for one in world.replicas})
    restored = run(world, pool)
    chain = open_published(world.bucket, HeadKey(UNTIERED, 0))
    assert chain is not None
    assert chain.manifest.children == ()
    assert restored.entries[UNTIERED, 0] == catalog_entry(chain)
    assert conditional.create(world.bucket, head_key(UNTIERED, 0), b"late") is False
    assert (OFFSETS, 0) not in restored.entries
    assert fresh.log.log_end_offset == 0


def test_the_heirs_chain_is_the_cuts_and_its_version_above_all(world: World, pool: Executor) -> None:
    before = {number: open_published(world.bucket, HeadKey(EVENTS, number)) for number in (0, 1)}
    restored = run(world, pool)
    after = {number: open_published(world.bucket, HeadKey(EVENTS, number)) for number in (0, 1)}
    assert before[0]
    assert before[1]
    assert after[0]
    assert after[1]
    assert before[0].manifest.start_offset > 0
    assert after[0].manifest.start_offset == 0
    assert after[0].manifest.version > before[0].manifest.version
    assert after[0].manifest.cluster_id == HEIR
    assert after[0].manifest.end_offset <= restored.plan.partitions[EVENTS, 0].end
    # Nothing follows there, and no later version was ever written.
    assert after[1].key == before[1].key
    for number in (0, 1):
        chain = after[number]
        assert chain is not None
        assert restored.entries[EVENTS, number] == catalog_entry(chain)
    assert restored.missing == ()


def test_records_of_the_chain_are_those_of_before(world: World, pool: Executor) -> None:
    restored = run(world, pool)
    end = restored.plan.partitions[EVENTS, 0].chain_end
    assert partition_records(world.bucket, (EVENTS, 0)) == (
        0, between(log_bytes_and_archive(world), 0, end)
    )  # fmt: skip


def log_bytes_and_archive(world: World) -> bytes:
    """All that was ever produced to the first partition, by the segments that were archived of it."""
    keys = sorted(info.key for info in world.bucket.list(f"data/{EVENTS}/0") if info.key.endswith(".seg"))
    return b"".join(
        bytes(world.bucket.get_range(key, 0, open_footer(world.bucket, key).log_length)) for key in keys
    )


def test_objects_that_chains_name_and_that_are_gone_are_named(world: World, pool: Executor) -> None:
    chain = open_published(world.bucket, HeadKey(EVENTS, 1))
    assert chain is not None
    gone = chain.manifest.entries[0].key
    world.bucket.delete([gone])
    assert run(world, pool).missing == (f"events-1: {gone} is not there",)


def test_a_source_that_lives_is_not_taken_over(world: World, pool: Executor) -> None:
    def wait(seconds: float) -> None:
        data = world.bucket.get("cluster.json", max_size=1 << 16)
        world.bucket.put("cluster.json", data)

    threads = SystemThreads()
    threads.sleep = wait  # type: ignore[method-assign]
    waiting = replace(make_world(world.clock, seed=9), threads=threads)
    with pytest.raises(ConfigError, match="lives"):
        take_over(world.bucket, order(quiet_ms=30_000), waiting, pool, lambda words: None, nothing_wrong)
    assert open_cluster_file(world.bucket).cluster_id == CLUSTER
    forced = order(is_forced=True, quiet_ms=30_000)
    take_over(world.bucket, forced, waiting, pool, lambda words: None, nothing_wrong)
    assert open_cluster_file(world.bucket).cluster_id == HEIR


def test_a_head_that_moves_meanwhile_is_a_sign_of_life_too(world: World, pool: Executor) -> None:
    def wait(seconds: float) -> None:
        key = head_key(EVENTS, 1)
        world.bucket.put(key, world.bucket.get(key, max_size=1 << 16))

    threads = SystemThreads()
    threads.sleep = wait  # type: ignore[method-assign]
    waiting = replace(make_world(world.clock, seed=9), threads=threads)
    with pytest.raises(ConfigError, match="HEAD was written"):
        take_over(world.bucket, order(quiet_ms=30_000), waiting, pool, lambda words: None, nothing_wrong)


def test_a_store_without_conditional_writes_is_not_taken_over(world: World, pool: Executor) -> None:
    class Unconditional(MemoryStore):
        def put_if_match(self, key: str, data: object, tag: str) -> None:
            self.put(key, data)  # type: ignore[arg-type]

    store = Unconditional(SystemThreads(), ManualClock(0))
    for info in world.bucket.list(""):
        store.put(info.key, world.bucket.get(info.key, max_size=1 << 30))
    with pytest.raises(ConfigError, match="conditional writes"):
        run(world, pool, store=store)


def test_the_id_of_the_lost_cluster_is_not_given_to_the_heir(world: World, pool: Executor) -> None:
    with pytest.raises(ConfigError, match="new id"):
        run(world, pool, order(cluster_id=CLUSTER))


def counting(limit: int) -> tuple[Decide, list[str]]:
    """Let `limit` writes pass, and end the process at the next."""
    written: list[str] = []

    def decide(operation: str, key: str) -> Fault:
        if operation in ("put", "put_stream") and not key.startswith("probe/"):
            if len(written) == limit:
                return Fault.CRASH_BEFORE
            written.append(key)
        return Fault.PASS

    return decide, written


def test_cut_off_at_any_write_the_same_command_goes_on(tmp_path: Path) -> None:
    expected: dict[str, object] | None = None
    limit = 0
    while True:
        world = make(tmp_path / f"{limit}")
        store = FaultyStore(world.bucket)
        store.decide, written = counting(limit)
        with ThreadPoolExecutor(1) as pool:
            try:
                restored = run(world, pool, store=store)
            except Crash:
                store.decide = no_faults
                restored = run(world, pool, replace(order(), new_id="another-id-of-tests-01"), store=store)
            else:
                assert limit >= 6, written
                break
        image = image_of(restored)
        facts: dict[str, object] = {
            "id": open_cluster_file(world.bucket).cluster_id,
            "kept": kept(world),
            "tails": dict(image.restored_tails),
            "life": (image.life, open_topics(world.bucket).life),
            "ends": {place: entry.end_offset for place, entry in restored.entries.items()},
        }
        for place, entry in restored.entries.items():
            chain = open_published(world.bucket, HeadKey(*place))
            assert chain is not None
            assert catalog_entry(chain) == entry
        if limit > 0:  # before the claim, nothing is the first run's
            expected = expected or facts
            assert facts == expected
            assert facts["id"] == HEIR
        limit += 1


def make(path: Path) -> World:
    world = World(path, partitions=2)
    world.topic_configs = {"events": TIERED}
    world.fill(2)
    world.run()
    world.run()
    Cutting(world, internal=internal_log()).cut({one: one.log.log_end_offset for one in world.replicas})
    world.fill(1, world.replicas[0])
    world.run()
    return world


def test_a_restore_that_was_cut_off_is_not_turned_into_another(world: World, pool: Executor) -> None:
    cutting = Cutting(world, internal=internal_log(), number=1)
    cutting.cut({one: one.log.log_end_offset for one in world.replicas})
    store = FaultyStore(world.bucket)
    store.decide, _ = counting(2)
    with pytest.raises(Crash):
        run(world, pool, store=store)
    with pytest.raises(ConfigError, match="for cut 2"):
        run(world, pool, replace(order(), choice=CutChoice(number=1)))
    notes = read_source(world.bucket, CutChoice(), pool)[1].notes
    assert [one for one in notes if f"{HEIR}, which is restored from cut 2 and has not started" in one]
    with pytest.raises(ConfigError, match=HEIR):
        run(world, pool, order(cluster_id="yet-another-of-tests-1"))
    assert run(world, pool).cluster_id == HEIR


def test_the_bucket_is_clean_afterwards(world: World, pool: Executor) -> None:
    run(world, pool)
    assert fsck(world.bucket).errors == []


# -- what the heir's log begins with


def test_no_epoch_offset_or_producer_id_is_given_out_again(world: World, pool: Executor) -> None:
    restored = run(world, pool)
    image = image_of(restored)
    assert image.next_producer_id >= 1_000_000_000
    for topic in image.topics_by_id.values():
        for number, partition in topic.partitions.items():
            before = restored.source.image.partition(topic.id, number)
            assert before is not None
            assert partition.leader_epoch >= before.leader_epoch + 1_000
            assert partition.leader == -1
            tail = image.restored_tails[topic.id, number]
            assert tail.go_on == restored.plan.partitions[topic.id, number].end + GAP
            assert tail.cut_key == restored.plan.ref.key
    assert image.life == restored.source.image.life + 1
    assert image.features["firn.catalog.version"] == 3


def test_replicas_are_placed_on_the_heirs_brokers(world: World, pool: Executor) -> None:
    restored = run(world, pool)
    image = image_of(restored, Placement((4, 5)))
    offsets = image.partition(OFFSETS, 0)
    assert offsets is not None
    assert sorted(offsets.replicas) == [4, 5]  # it had three
    assert offsets.isr == offsets.replicas[:1]
    events = image.topics_by_id[EVENTS]
    assert all(len(one.replicas) == 1 for one in events.partitions.values())
    assert image.config(ResourceType.TOPIC, "events") == TIERED
    assert image.brokers == {}


def test_a_number_that_is_used_up_is_refused() -> None:
    with pytest.raises(CorruptionError, match="too few are left"):
        numbers_above(MetadataImage(next_producer_id=(1 << 63) - 10), 0, 0, UUID(int=1))
    found = numbers_above(MetadataImage(next_producer_id=7, life=2), 9, 5, UUID(int=1))
    assert found == HeirNumbers(1_000_000_009, 6, UUID(int=1))


def test_claims_are_known_again(world: World, pool: Executor) -> None:
    run(world, pool)
    file = decode_cluster(world.bucket.get("cluster.json", max_size=1 << 16))
    assert file.stamp is not None
    run(world, pool)  # before any node of the heir has started: the same again
    again = decode_cluster(world.bucket.get("cluster.json", max_size=1 << 16))
    assert again == file


def test_a_restore_after_a_restore_goes_on_further_behind(world: World, pool: Executor) -> None:
    """The first heir is lost before it has written a cut of its own: it may have gone on all the same."""
    first = run(world, pool)
    file = open_cluster_file(world.bucket)
    living = file._replace(stamp=Stamp(world.clock.now_ms(), WRITER))  # one of its nodes has started
    world.bucket.put("cluster.json", encode_cluster(living))
    again = run(world, pool, replace(order(), new_id="second-heir-of-tests-1"))
    assert again.source.source_id == HEIR
    assert [one.cluster_id for one in open_cluster_file(world.bucket).ancestors] == [HEIR, CLUSTER]
    for place, one in again.plan.partitions.items():
        assert one.go_on == first.plan.partitions[place].go_on + GAP
        assert one.loaded_end == first.plan.partitions[place].loaded_end
    before, after = image_of(first), image_of(again)
    assert after.life == before.life + 1
    # Which epochs and producer ids the first heir gave out nothing tells.
    assert after.next_producer_id >= before.next_producer_id + 1_000_000_000
    for topic_id, number in again.plan.partitions:
        epochs = [image.partition(topic_id, number) for image in (before, after)]
        assert epochs[0] is not None
        assert epochs[1] is not None
        assert epochs[1].leader_epoch >= epochs[0].leader_epoch + 1_000


def begun(world: World) -> None:
    """Have a node of the heir start: the restore is over."""
    file = open_cluster_file(world.bucket)
    file = file._replace(stamp=Stamp(world.clock.now_ms(), WRITER))
    world.bucket.put("cluster.json", encode_cluster(file))


def test_a_past_that_was_given_up_does_not_come_back(world: World, pool: Executor) -> None:
    """An earlier cut was chosen, and later `CUT` is damaged: its documents are searched."""
    cutting = Cutting(world, internal=internal_log(), number=1)
    cutting.cuts = list(decode_cuts(world.bucket.get(CUT_NAME, max_size=1 << 16)).kept)
    later = cutting.cut({one: one.log.log_end_offset for one in world.replicas})
    run(world, pool, replace(order(), choice=CutChoice(number=1)))
    begun(world)
    assert later.key in stored(world.bucket)
    world.bucket.put(CUT_NAME, b"{}")
    assert read_source(world.bucket, CutChoice(), pool)[1].ref.cut == 1
    repair = find_cuts_repair(world.bucket)
    assert isinstance(repair, CutsRepair)
    assert [one.cut for one in repair.cuts.kept] == [1]


def test_partitions_that_were_added_after_the_cut_may_be_added_again(tmp_path: Path) -> None:
    world = World(tmp_path / "disk", partitions=1)
    world.topic_configs = {"events": TIERED}
    world.fill(1)
    world.run()
    cutting = Cutting(world)
    cutting.cut({world.replicas[0]: world.replicas[0].log.log_end_offset})
    added = world.add(TopicIdPartition(EVENTS, "events", 1))
    world.fill(1, added)
    world.run()
    assert head_key(EVENTS, 1) in stored(world.bucket)
    cutting.cut({one: one.log.log_end_offset for one in world.replicas})
    with ThreadPoolExecutor(1) as pool:
        plan = read_source(world.bucket, CutChoice(number=1), pool)[1]
        assert "1 partitions were added after the cut and do not come back: events-1" in plan.notes
        run(world, pool, replace(order(), choice=CutChoice(number=1)))
    assert list(heads(world)) == [head_key(EVENTS, 0)]


def test_cuts_that_waited_for_a_segment_which_reaches_beyond_are_not_called_complete(tmp_path: Path) -> None:
    """Two cuts wait for one segment; the second is restored, so the chain does without it."""
    world = World(tmp_path / "disk", partitions=1)
    world.topic_configs = {"events": TIERED}
    world.fill(3)
    world.run()
    first = world.replicas[0]
    cutting = Cutting(world, internal=internal_log())
    for _ in range(2):
        first.append(3, world.clock.now_ms())
        cutting.cut({first: first.log.log_end_offset}, waits=[first])
    world.fill(1, first)
    world.run()
    with ThreadPoolExecutor(1) as pool:
        restored = run(world, pool)
        assert restored.plan.partitions[EVENTS, 0].segment_key
        begun(world)
        assert fsck(world.bucket).errors == []
        cuts = decode_cuts(world.bucket.get(CUT_NAME, max_size=1 << 16))
        assert [(ref.cut, ref.is_complete) for ref in cuts.kept] == [(1, False), (2, False)]
        for number in (1, 2):
            plan = read_source(world.bucket, CutChoice(number=number), pool)[1]
            assert plan.partitions[EVENTS, 0].loaded_end == plan.partitions[EVENTS, 0].end


def test_an_heir_that_is_lost_before_it_has_loaded_leaves_the_segment_that_stands_for_a_tail(
    tmp_path: Path,
) -> None:
    """The tail was let go for a segment that reaches beyond the cut; the heir's chain does without it."""
    world = World(tmp_path / "disk", partitions=1)
    world.topic_configs = {"events": TIERED}
    world.fill(3)
    world.run()
    first = world.replicas[0]
    first.append(3, world.clock.now_ms())
    end = first.log.log_end_offset
    Cutting(world, internal=internal_log()).cut({first: end}, let_go=[first])
    world.fill(1, first)
    world.run()
    with ThreadPoolExecutor(1) as pool:
        restored = run(world, pool).plan.partitions[EVENTS, 0]
        again, plan = read_source(world.bucket, CutChoice(number=1), pool)
        assert restored.segment_key
        assert plan.partitions[EVENTS, 0].segment_key == restored.segment_key
        assert (plan.partitions[EVENTS, 0].loaded_end, again.passed_over) == (end, ())


def test_a_restore_that_goes_on_has_the_chain_that_it_has_written(tmp_path: Path, pool: Executor) -> None:
    """The source was lost between the manifest with another segment and its HEAD: tails have its records."""
    world = World(tmp_path / "disk", partitions=1)
    world.topic_configs = {"events": TIERED}
    world.fill(3)
    world.run()
    first = world.replicas[0]
    first.append(3, world.clock.now_ms())
    Cutting(world, internal=internal_log()).cut({first: first.log.log_end_offset})
    (key,) = heads(world)
    head = world.bucket.get(key, max_size=1 << 16)
    first.log.appender.roll()
    world.run()
    assert world.bucket.get(key, max_size=1 << 16) != head
    world.bucket.put(key, head)
    ends = []
    for _ in range(2):
        restored = run(world, pool)
        entry = image_of(restored).remote[EVENTS, 0]
        ends.append((restored.plan.partitions[EVENTS, 0].chain_end, entry.end_offset))
    assert ends[0] == ends[1]
    assert ends[0][0] == ends[0][1] < first.log.log_end_offset


def test_a_restore_that_goes_on_takes_no_other_time(world: World, pool: Executor) -> None:
    run(world, pool)
    with pytest.raises(ConfigError, match="taken over for cut 1"):
        run(world, pool, replace(order(), choice=CutChoice(at_ms=1)))


def test_a_source_that_writes_at_the_same_moment_is_displaced_if_that_is_forced(
    world: World, pool: Executor
) -> None:
    def check(*_: object) -> None:
        world.bucket.put("cluster.json", world.bucket.get("cluster.json", max_size=1 << 16))

    def attempt(wanted: TakeOverOrder) -> None:
        take_over(world.bucket, wanted, make_world(world.clock, seed=9), pool, lambda words: None, check)

    with pytest.raises(ConfigError, match="lives"):
        attempt(order())
    assert open_cluster_file(world.bucket).cluster_id == CLUSTER
    attempt(order(is_forced=True))
    assert open_cluster_file(world.bucket).cluster_id == HEIR


def calls_of_a_restore(folder: Path, pool: Executor, segments: int) -> Counter[str]:
    """Calls of the store that plan and take over a cluster with so many segments in each partition."""
    world = World(folder, partitions=2)
    world.topic_configs = {"events": TIERED}
    world.fill(segments)
    world.run()
    world.run()
    assert all(len(world.live(one)) == segments for one in world.replicas)
    Cutting(world).cut({one: one.log.log_end_offset for one in world.replicas})
    store, calls = FaultyStore(world.bucket), Counter[str]()
    store.decide = lambda operation, key: calls.update([operation]) or Fault.PASS
    assert run(world, pool, store=store).missing == ()
    return calls


def test_a_restore_makes_as_many_calls_however_long_the_chains_are(tmp_path: Path, pool: Executor) -> None:
    few, many = (calls_of_a_restore(tmp_path / str(count), pool, count) for count in (1, 40))
    assert few == many
    assert few["list"] == 6, (
        "the documents of cuts twice, and of each partition its manifests, and its objects"
    )
