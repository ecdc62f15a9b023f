"""Clones (invariant T22): the source is only read, all is copied, a clone that was cut off goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from service.base.errors import ConfigError, CorruptionError
from service.base.threads import SystemThreads
from service.base.types import Buffer
from service.inspect.clone import CloneOrder, clone
from service.inspect.fsck import fsck
from service.inspect.object_copies import through_here
from service.inspect.restore_plan import RestorePlan
from service.inspect.restore_source import CutChoice, RestoreSource, read_source
from service.inspect.take_over import Restored, TakeOverOrder, take_over
from service.metadata.image import RestoredTail
from service.metadata.records import ConfigRecord, MetadataRecord
from service.records.batch import iter_headers
from service.remote.format.cut_codec import decode_cut, encode_cuts
from service.remote.format.keys import HeadKey, head_key
from service.remote.format.manifest_codec import decode_head, encode_cluster, encode_head
from service.remote.format.stamp import Stamp
from service.remote.reading.object_reader import open_cluster_file, open_published, open_topics
from service.remote.reading.tails import find_tail, open_cuts
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.read_only_store import ReadOnlyStore
from service.remote.stores.store import ObjectStore
from service.replicas.cut_tails import open_cut_tails, tail_runs
from service.tiering.archive_attempt import catalog_entry
from service.tiering.head_check import HeadVerdict, check_head
from tests.support.world import make_world
from tests.unit.inspect.archives import partition_records
from tests.unit.inspect.cuts import EVENTS, OFFSETS, TIERED, Cutting, damage, internal_log, log_bytes, stored
from tests.unit.tiering.world import CLUSTER, WRITER, Crash, Fault, FaultyStore, World, no_faults

HEIR = "clone-of-the-tests-001"


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A cut within the newest segment of a partition, and one that retention took since."""
    world = World(tmp_path / "disk", partitions=2)
    world.topic_configs = {"events": TIERED}
    world.fill(3)
    world.run()
    world.run()
    for one in world.replicas:
        one.append(3, world.clock.now_ms())
    first = world.replicas[0]
    ends = {one: one.log.log_end_offset for one in world.replicas}
    Cutting(world, internal=internal_log()).cut(ends, waits=[first])
    world.fill(1, first)
    world.run()
    first.log.deletion.advance_log_start(world.live(first)[1].base_offset)
    world.run()
    return world


@pytest.fixture
def target() -> MemoryStore:
    return MemoryStore(SystemThreads())


def run(
    world: World,
    target: ObjectStore,
    pool: Executor,
    *,
    wanted: Callable[[str], bool] | None = None,
    new_id: str = HEIR,
    seed: int = 9,
    source: ObjectStore | None = None,
    said: list[str] | None = None,
    check: Callable[[RestoreSource, RestorePlan], None] = lambda source, plan: None,
) -> Restored:
    source = ReadOnlyStore(source or world.bucket)
    with through_here(source, target, SystemThreads(), (said if said is not None else []).append) as copy:
        return clone(
            source,
            target,
            copy,
            CloneOrder(CutChoice(), new_id, gap=1_000, wanted=wanted),
            make_world(world.clock, seed=seed),
            pool,
            (said if said is not None else []).append,
            check,
        )


def test_nothing_changes_at_the_source(world: World, target: MemoryStore, pool: Executor) -> None:
    before = stored(world.bucket)
    run(world, target, pool)
    assert stored(world.bucket) == before


def test_the_clone_has_what_the_cut_names(world: World, target: MemoryStore, pool: Executor) -> None:
    restored = run(world, target, pool)
    file = open_cluster_file(target)
    assert (file.cluster_id, [one.cluster_id for one in file.ancestors]) == (HEIR, [CLUSTER])
    for place, entry in restored.entries.items():
        chain = open_published(target, HeadKey(*place))
        assert chain is not None
        assert catalog_entry(chain) == entry
    found = partition_records(target, (EVENTS, 0))
    assert found is not None
    assert found[0] == 0  # what retention took since is back
    overlap = restored.plan.partitions[EVENTS, 0].segment_key
    assert overlap in stored(target)
    assert fsck(target).errors == []


def test_a_clone_can_be_restored_as_any_cluster(world: World, target: MemoryStore, pool: Executor) -> None:
    before = run(world, target, pool).plan
    _, after = read_source(target, CutChoice(), pool, gap=1_000)
    assert {place: one[2:6] for place, one in after.partitions.items()} == {
        place: one[2:6] for place, one in before.partitions.items()
    }


def test_a_clone_of_a_restored_cluster_knows_whose_objects_it_has(
    world: World, target: MemoryStore, pool: Executor
) -> None:
    """The heir has no cut of its own yet: segments, tails and the cut are its source's."""
    taken = take_over(
        world.bucket,
        TakeOverOrder(CutChoice(), "first-heir-of-tests-01", gap=1_000, quiet_ms=0),
        make_world(world.clock, seed=9),
        pool,
        lambda words: None,
        lambda source, plan: None,
    )
    file = open_cluster_file(world.bucket)
    begun = file._replace(stamp=Stamp(world.clock.now_ms(), WRITER))  # one of its nodes has started
    world.bucket.put("cluster.json", encode_cluster(begun))
    restored = run(world, target, pool)
    found = [one.cluster_id for one in open_cluster_file(target).ancestors]
    assert found == [taken.cluster_id, CLUSTER]
    assert [one.cluster_id for one in open_topics(target).ancestors] == found
    limits = dict.fromkeys(restored.plan.partitions, (0, 1 << 40))
    tails = open_cut_tails(target, restored.plan.ref.key, limits, pool)
    assert tails.sections.places()
    assert not tails.unreadable
    assert fsck(target).errors == []
    _, again = read_source(target, CutChoice(), pool, gap=1_000)
    assert not again.passed_over


def test_a_source_that_archives_more_meanwhile_is_planned_again(
    tmp_path: Path, target: MemoryStore, pool: Executor
) -> None:
    """What the cut has in a tail is in a segment, too, once the plan is made."""
    world = World(tmp_path / "disk", partitions=2)
    world.topic_configs = {"events": TIERED}
    world.fill(2)
    world.run()
    world.run()
    first = world.replicas[0]
    archived = world.live(first)[-1].last_offset + 1
    world.fill(1, first)
    first.append(3, world.clock.now_ms())
    end = first.log.log_end_offset
    Cutting(world, internal=internal_log()).cut({one: one.log.log_end_offset for one in world.replicas})
    said: list[str] = []

    def archive_more(source: RestoreSource, plan: RestorePlan) -> None:
        assert plan.partitions[EVENTS, 0].chain_end == archived
        world.run()

    restored = run(world, target, pool, said=said, check=archive_more)
    planned = restored.plan.partitions[EVENTS, 0]
    assert "more of 1 partitions" in said[-1]
    assert archived < planned.chain_end < planned.loaded_end == planned.end == end
    assert restored.entries[EVENTS, 0].end_offset == planned.chain_end
    assert fsck(target).errors == []


def test_the_price_is_said_before(world: World, target: MemoryStore, pool: Executor) -> None:
    said: list[str] = []
    run(world, target, pool, said=said)
    assert "7 requests, 0.00 US$" in said[0]


def test_a_clone_may_have_some_of_the_topics(world: World, target: MemoryStore, pool: Executor) -> None:
    restored = run(world, target, pool, wanted=lambda name: name != "events")
    assert [topic.name for topic in restored.plan.topics] == ["__consumer_offsets"]
    assert [row.name for row in open_topics(target).topics] == ["__consumer_offsets"]
    assert not [key for key in stored(target) if key.startswith("data/")]
    _, again = read_source(target, CutChoice(), pool, gap=1_000)
    assert [topic.name for topic in again.topics] == ["__consumer_offsets"]
    assert again.passed_over == ()


def test_a_clone_has_not_a_byte_of_topics_that_were_not_asked_for(
    world: World, target: MemoryStore, pool: Executor
) -> None:
    first, second = world.replicas
    records: list[MetadataRecord] = [
        ConfigRecord(resource_type=2, resource_name="events", name="retention.ms", value="5")
    ]
    cutting = Cutting(world, records, internal=internal_log(), number=1)
    cutting.cut({one: one.log.log_end_offset for one in (first, second)})
    plan = run(world, target, pool, wanted=lambda name: name != "events").plan
    tails = open_cut_tails(target, plan.ref.key, dict.fromkeys(plan.partitions, (0, 1 << 40)), pool)
    one = plan.partitions[OFFSETS, 0]
    tail = RestoredTail(one.chain_end, one.loaded_end, one.go_on, one.cut_key, one.segment_key)
    loaded = tail_runs(target, tails, (OFFSETS, 0), tail, -1)
    assert b"".join(bytes(one.data) for one in loaded) == internal_log()
    keys = [info.key for info in target.list("")]
    assert (kept := [key for key in keys if key.startswith("tail/")]) == [
        "tail/00000000000000000002-00-0000000001-00000000-0000-0000-0000-000000000002.tail"
    ]
    [metadata] = [key for key in keys if key.startswith("metadata/")]
    assert b"events" not in target.get(metadata, max_size=1 << 20)
    whole = b"".join(target.get(key, max_size=1 << 30) for key in keys)
    assert target.get(kept[0], max_size=1 << 30).startswith(internal_log())
    for replica in (first, second):
        log = log_bytes(replica)
        *_, last = iter_headers(log)
        data = log[last.position : last.end]
        assert data in world.bucket.get(kept[0], max_size=1 << 30)
        assert data not in whole
    cut = decode_cut(target.get(plan.ref.key, max_size=1 << 20))
    assert ([*cut.topics], len(cut.tails)) == ([OFFSETS], 1)
    assert fsck(target).errors == []


def test_tails_without_any_of_the_topics_stay_where_they_are(
    world: World, target: MemoryStore, pool: Executor
) -> None:
    said: list[str] = []
    run(world, target, pool, wanted=lambda name: name == "nothing", said=said)
    assert "copying some 0 objects" in said[0]
    assert not [key for key in stored(target) if key.startswith("tail/")]


def test_a_damaged_section_is_not_copied(world: World, target: MemoryStore, pool: Executor) -> None:
    [tail] = [info.key for info in world.bucket.list("") if info.key.startswith("tail/")]
    footer = find_tail(world.bucket, tail).footer
    damage(world, tail, next(one.position for one in footer.sections if one.topic_id == OFFSETS) + 70)
    with pytest.raises(CorruptionError, match=r"tail/.* is damaged"):
        run(world, target, pool, wanted=lambda name: name != "events")
    assert not [key for key in stored(target) if key.startswith("tail/")]


@pytest.mark.parametrize("key", ["cluster.json", "anything"])
def test_a_prefix_that_is_anybodys_is_refused(
    world: World, target: MemoryStore, pool: Executor, key: str
) -> None:
    data = world.bucket.get("cluster.json", max_size=1 << 16)
    target.put(key, data)
    with pytest.raises(ConfigError, match="--to"):
        run(world, target, pool)
    assert [*stored(target)] == [key]


def test_objects_that_the_source_has_let_go_of_are_named(
    world: World, target: MemoryStore, pool: Executor
) -> None:
    gone = world.live(world.replicas[1])[0].key
    world.bucket.delete([gone])
    with pytest.raises(ConfigError, match=gone):
        run(world, target, pool)


def test_cut_off_at_any_write_the_same_command_goes_on(
    world: World, target: MemoryStore, pool: Executor
) -> None:
    limit = 0
    while True:
        inner = MemoryStore(SystemThreads())
        store = FaultyStore(inner)
        written: list[str] = []

        def decide(operation: str, key: str, written: list[str] = written, limit: int = limit) -> Fault:
            if not operation.startswith("put"):
                return Fault.PASS
            written.append(key)
            return Fault.CRASH_BEFORE if len(written) > limit else Fault.PASS

        store.decide = decide
        try:
            run(world, store, pool)
        except Crash:
            store.decide = no_faults
            run(world, store, pool, new_id=HEIR if limit == 0 else "another-id-of-tests-01")
        else:
            break
        assert open_cluster_file(inner).cluster_id == HEIR
        assert fsck(inner).errors == []
        assert partition_records(inner, (EVENTS, 0)) is not None
        limit += 1
    assert limit > 10


def test_another_run_leaves_the_file_of_the_first_as_good_as_its_own(
    world: World, target: MemoryStore, pool: Executor
) -> None:
    first = run(world, target, pool)
    before = {key: tag for key, tag in stored(target).items() if key.startswith("data/")}
    second = run(world, target, pool, new_id="another-clone-of-tests", seed=10)
    assert second.entries == first.entries
    assert {key: tag for key, tag in stored(target).items() if key.startswith("data/")} == before
    for place, entry in first.entries.items():
        chain = open_published(target, HeadKey(*place))
        assert chain is not None
        assert check_head(entry, chain.head) is HeadVerdict.EQUAL


@pytest.mark.parametrize("key", [head_key(EVENTS, 0), "CUT", "topics.json"])
def test_nothing_of_a_clone_that_has_started_is_undone_by_another_run(
    world: World, pool: Executor, key: str
) -> None:
    inner = MemoryStore(SystemThreads())
    run(world, inner, pool)
    target = FaultyStore(inner)
    written: dict[str, str] = {}

    def start(operation: str, about: str) -> Fault:
        if about == key and not written:
            file = open_cluster_file(inner)._replace(stamp=Stamp(7, WRITER))
            inner.put("cluster.json", encode_cluster(file))
            head = decode_head(inner.get(head_key(EVENTS, 0), max_size=1 << 16))
            inner.put(head_key(EVENTS, 0), encode_head(head._replace(stamp=Stamp(7, WRITER))))
            cuts = open_cuts(inner)
            inner.put("CUT", encode_cuts(cuts._replace(stamp=Stamp(7, WRITER))))
            written.update(stored(inner))
        return Fault.PASS

    target.decide = start
    with pytest.raises(ConfigError, match="has started"):
        run(world, target, pool)
    assert {one: tag for one, tag in stored(inner).items() if one in written} == written


def test_a_chain_whose_head_is_damaged_is_cloned_behind_its_other_versions(
    world: World, target: MemoryStore, pool: Executor
) -> None:
    """The copy of the metadata names a version, and the clone's is not below it."""
    damage(world, head_key(EVENTS, 1))
    restored = run(world, target, pool)
    known = restored.source.image.remote[EVENTS, 1].version
    assert restored.entries[EVENTS, 1].version == known + 1
    assert fsck(target).errors == []


def test_a_clone_of_some_topics_is_not_turned_into_one_of_others(
    world: World, target: MemoryStore, pool: Executor
) -> None:
    """The cut of the second would name no tail of the first's topics, whose heir could not load them."""
    run(world, target, pool, wanted=lambda name: name == "events")
    before = stored(target)
    for wanted in (lambda name: name != "events", None):
        with pytest.raises(ConfigError, match="--topics"):
            run(world, target, pool, wanted=wanted)
    assert stored(target) == before
    run(world, target, pool, wanted=lambda name: name.startswith("e"))


class Flipping(FaultyStore):
    """A bucket of which the answer to the read of this number has a changed bit; `lasts`: each later answer
    with the same bytes, too."""

    def __init__(self, inner: ObjectStore, number: int, *, lasts: bool = False) -> None:
        super().__init__(inner)
        self.changed = ""
        self._left, self._lasts = number, lasts

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        data = bytearray(super().get_range(key, start, length))
        self._left -= 1
        if self._left == 0 or (self._lasts and key == self.changed):
            self.changed = key
            data[len(data) // 2] ^= 1
        return bytes(data)


def test_bytes_that_change_on_their_way_are_read_again(world: World, pool: Executor) -> None:
    for number in count(1):
        source, target = Flipping(world.bucket, number), MemoryStore(SystemThreads())
        said: list[str] = []
        try:
            run(world, target, pool, source=source, said=said)
        except ConfigError as e:
            assert "passed over" in str(e)  # noqa: PT017  # before anything is written
            continue
        if not source.changed:
            break
        assert fsck(target).errors == [], source.changed
        assert not [one for one in said if "as it is" in one]
    assert number > 8


def test_damage_at_the_source_is_copied_as_it_is_and_said(
    world: World, target: MemoryStore, pool: Executor
) -> None:
    key = world.live(world.replicas[1])[0].key
    damage(world, key, 40)
    said: list[str] = []
    run(world, target, pool, said=said)
    assert [one for one in said if one.startswith(f"copied as it is: {key}: the ")]
    assert target.get(key, max_size=1 << 20) == world.bucket.get(key, max_size=1 << 20)
    assert [one.where for one in fsck(target).errors] == [key]
