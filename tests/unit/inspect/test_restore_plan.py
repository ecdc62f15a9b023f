"""The plan of a lost cluster's restore: ends, tails, chains, what is passed over and given up."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from service.base.errors import ConfigError, CorruptionError
from service.base.times import time_text
from service.base.types import TopicIdPartition
from service.inspect.restore_plan import PartitionPlan, RestorePlan
from service.inspect.restore_source import CutChoice, RestoreSource, read_source
from service.metadata.records import ConfigRecord, RemoveUserScramCredentialRecord
from service.remote.format.cut_codec import Cuts, decode_cut, encode_cut, encode_cuts
from service.remote.format.keys import CUT_NAME, CutKey, cut_key
from service.remote.stores.read_only_store import ReadOnlyStore
from tests.unit.inspect.cuts import (
    EVENTS,
    OFFSETS,
    TIERED,
    Cutting,
    border,
    damage,
    internal_log,
    log_bytes,
    stored,
)
from tests.unit.tiering.world import CLUSTER, GRACE_MS, Replica, World

NEWEST = CutChoice()


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two partitions: three segments in the bucket, and some batches behind them."""
    world = World(tmp_path / "disk", partitions=2)
    world.topic_configs = {"events": TIERED}
    world.fill(3)
    world.run()
    world.run()
    for one in world.replicas:
        one.append(3, world.clock.now_ms())
    return world


def ends(world: World) -> dict[Replica, int]:
    return {one: one.log.log_end_offset for one in world.replicas}


def read(
    world: World,
    pool: Executor,
    choice: CutChoice = NEWEST,
    gap: int = 1_000_000,
) -> tuple[RestoreSource, RestorePlan]:
    return read_source(ReadOnlyStore(world.bucket), choice, pool, gap=gap)


def first(plan: RestorePlan) -> PartitionPlan:
    return plan.partitions[EVENTS, 0]


def test_chain_and_tails_have_all_up_to_the_cuts_end(world: World, pool: Executor) -> None:
    cutting = Cutting(world, internal=internal_log())
    end = world.replicas[0].log.log_end_offset
    cutting.cut(ends(world))
    source, plan = read(world, pool)
    entry = world.entry(world.replicas[0])
    assert entry is not None
    assert 0 < entry.end_offset < end
    one = first(plan)
    assert (one.start, one.chain_end, one.loaded_end, one.end) == (0, entry.end_offset, end, end)
    assert one.go_on == end + 1_000_000
    assert (one.given_up, one.segment_key, one.is_empty) == (0, "", False)
    assert one.tail_bytes == len(log_bytes(world.replicas[0])) - sum(
        entry.log_length for entry in world.live(world.replicas[0])
    )
    offsets = plan.partitions[OFFSETS, 0]
    assert (offsets.chain_end, offsets.loaded_end, offsets.go_on) == (0, 30, 1_000_030)
    assert [topic.name for topic in plan.topics] == ["__consumer_offsets", "events"]
    assert plan.problems == ()
    assert source.source_id == CLUSTER


def test_the_plan_changes_nothing_in_the_bucket(world: World, pool: Executor) -> None:
    Cutting(world, internal=internal_log()).cut(ends(world))
    before = stored(world.bucket)
    read(world, pool)
    assert stored(world.bucket) == before


def test_the_metadata_is_that_at_the_cut(world: World, pool: Executor) -> None:
    record = ConfigRecord(resource_type=2, resource_name="events", name="retention.ms", value="5")
    gone = RemoveUserScramCredentialRecord(name="alice", mechanism=1)  # whom the copy does not have
    Cutting(world, [record, gone]).cut(ends(world))
    source, _ = read(world, pool)
    assert source.image.config(2, "events")["retention.ms"] == "5"
    assert source.image.offset == 1001


def test_metadata_that_no_tail_has_makes_a_cut_useless(world: World, pool: Executor) -> None:
    cutting = Cutting(world)
    cutting.cut(ends(world))
    cutting.records.append(
        ConfigRecord(resource_type=2, resource_name="events", name="retention.ms", value="5")
    )
    newest = cutting.cut(ends(world))
    cut = decode_cut(world.bucket.get(newest.key, max_size=1 << 20))
    damage(world, cut.tails[0].key)
    _, plan = read(world, pool)
    assert plan.ref.cut == 1
    assert len(plan.passed_over) == 1
    assert "cut 2 is passed over" in plan.passed_over[0]
    assert cut.tails[0].key in plan.passed_over[0]


def test_a_damaged_document_of_a_cut_is_passed_over(world: World, pool: Executor) -> None:
    cutting = Cutting(world)
    cutting.cut(ends(world))
    damage(world, cutting.cut(ends(world)).key)
    _, plan = read(world, pool)
    assert plan.ref.cut == 1


def test_the_documents_are_searched_if_cut_itself_is_damaged(world: World, pool: Executor) -> None:
    cutting = Cutting(world)
    cutting.cut(ends(world))
    cutting.cut(ends(world))
    damage(world, CUT_NAME)
    _, plan = read(world, pool)
    assert plan.ref.cut == 2
    assert "CUT cannot be read" in plan.passed_over[0]


def test_without_any_cut_it_says_what_to_do(world: World, pool: Executor) -> None:
    with pytest.raises(ConfigError, match=r"firn\.remote\.recover"):
        read(world, pool)


def test_all_reasons_are_named_if_no_cut_verifies(world: World, pool: Executor) -> None:
    cutting = Cutting(world)
    for _ in range(2):
        damage(world, cutting.cut(ends(world)).key)
    with pytest.raises(ConfigError) as caught:
        read(world, pool)
    assert "cut 2" in str(caught.value)
    assert "cut 1" in str(caught.value)


def test_a_loose_cut_is_taken_only_when_it_is_allowed(world: World, pool: Executor) -> None:
    Cutting(world).cut(ends(world), is_exact=False)
    with pytest.raises(ConfigError, match="--allow-loose"):
        read(world, pool)
    _, plan = read(world, pool, CutChoice(allows_loose=True))
    assert plan.ref.cut == 1
    assert any("loose" in note for note in plan.notes)


def test_cuts_are_chosen_by_number_time_and_metadata(world: World, pool: Executor) -> None:
    cutting = Cutting(world)
    older = cutting.cut(ends(world))
    cutting.records.append(
        ConfigRecord(resource_type=2, resource_name="events", name="retention.ms", value="5")
    )
    newer = cutting.cut(ends(world))
    for choice, expected in (
        (CutChoice(), 2),
        (CutChoice(number=1), 1),
        (CutChoice(at_ms=newer.at_ms - 1), 1),
        (CutChoice(at_ms=newer.at_ms), 2),
        (CutChoice(metadata_offset=1000), 1),
        (CutChoice(metadata_offset=1001), 2),
    ):
        assert read(world, pool, choice)[1].ref.cut == expected
    with pytest.raises(ConfigError, match="kept are 1 to 2"):
        read(world, pool, CutChoice(number=3))
    assert time_text(older.at_ms).endswith("Z")
    with pytest.raises(
        ConfigError, match=r"oldest exact cut that is kept is 1, of 20\d\d-\d\d-\d\dT[\d:.]+Z$"
    ):
        read(world, pool, CutChoice(at_ms=older.at_ms - 1))


def test_a_time_before_all_exact_cuts_names_the_oldest_of_those(world: World, pool: Executor) -> None:
    cutting = Cutting(world)
    loose = cutting.cut(ends(world), is_exact=False)
    cutting.cut(ends(world))
    with pytest.raises(ConfigError, match="oldest exact cut that is kept is 2"):
        read(world, pool, CutChoice(at_ms=loose.at_ms))
    with pytest.raises(ConfigError, match="oldest cut that is kept is 1"):
        read(world, pool, CutChoice(at_ms=loose.at_ms - 1, allows_loose=True))


def test_newer_cuts_that_a_take_over_would_give_up_are_told(world: World, pool: Executor) -> None:
    cutting = Cutting(world)
    for is_complete in (True, True, True, False):
        cutting.cut(ends(world), is_complete=is_complete)
    assert not any("newer cuts" in note for note in read(world, pool)[1].notes)
    notes = read(world, pool, CutChoice(number=1))[1].notes
    assert notes == (
        "2 newer cuts can be restored, too, up to cut 3; a take-over from this one gives them up for good, "
        "a clone (--to) leaves them",
    )


def test_a_cut_that_is_not_complete_is_not_taken(world: World, pool: Executor) -> None:
    cutting = Cutting(world)
    cutting.cut(ends(world))
    cutting.cut(ends(world), is_complete=False)
    assert read(world, pool)[1].ref.cut == 1
    with pytest.raises(ConfigError, match="not complete"):
        read(world, pool, CutChoice(number=2))


def test_a_segment_that_was_waited_for_is_in_the_chain(world: World, pool: Executor) -> None:
    one = world.replicas[0]
    end = one.log.log_end_offset
    Cutting(world).cut(ends(world), waits=[one])
    world.fill(1, one)
    world.run()
    plan = first(read(world, pool)[1])
    entry = world.entry(one)
    assert entry is not None
    assert entry.end_offset > end
    # It reaches beyond the cut: the heir's chain does not have it, the leader loads its first part.
    assert plan.chain_end < end
    assert plan.loaded_end == end
    assert plan.segment_key == world.live(one)[-1].key
    assert plan.given_up == entry.end_offset - end
    assert plan.tails == ()


def test_tails_that_reach_beyond_what_the_leader_had_saved_are_not_the_cuts(
    world: World, pool: Executor
) -> None:
    """They are of the leader before; the one of the cut has other records there, and awaits their segment."""
    cutting, replica = Cutting(world), world.replicas[0]
    cutting.cut(ends(world))
    entry = world.entry(replica)
    assert entry is not None
    cutting.cut(ends(world), says={replica: entry.end_offset})
    _, plan = read(world, pool)
    assert plan.ref.cut == 1
    assert "events-0" in plan.passed_over[0]


def test_a_cut_whose_segment_never_came_is_passed_over(world: World, pool: Executor) -> None:
    cutting = Cutting(world)
    cutting.cut(ends(world))
    cutting.cut(ends(world), waits=[world.replicas[0]])
    _, plan = read(world, pool)
    assert plan.ref.cut == 1
    assert "events-0" in plan.passed_over[0]


def test_segments_that_retention_took_since_the_cut_are_back(world: World, pool: Executor) -> None:
    one = world.replicas[0]
    Cutting(world).cut(ends(world))
    one.log.deletion.advance_log_start(world.live(one)[1].base_offset)
    world.run()
    assert world.live(one)[0].base_offset > 0
    plan = first(read(world, pool)[1])
    assert plan.start == 0
    assert plan.chain.segments == 3
    assert not plan.chain.is_published


def test_segments_that_were_sealed_since_and_end_below_the_cut_belong_to_the_chain(
    world: World, pool: Executor
) -> None:
    one = world.replicas[0]
    at = border(log_bytes(one), one.log.log_end_offset)
    world.fill(2, one)
    end = one.log.log_end_offset
    assert end > at
    Cutting(world).cut({**ends(world), one: end})
    world.run()
    entry = world.entry(one)
    assert entry is not None
    plan = first(read(world, pool)[1])
    assert plan.chain_end == entry.end_offset
    assert plan.chain.is_published
    assert plan.loaded_end == end


def test_segments_that_an_unclean_leader_wrote_since_are_not_the_cuts(world: World, pool: Executor) -> None:
    """They end below the cut's end, with other records than were there at the cut."""
    one = world.replicas[0]
    for _ in range(40):
        one.append(1, world.clock.now_ms())
    end, entry = one.log.log_end_offset, world.entry(one)
    assert entry is not None
    Cutting(world).cut({**ends(world), one: end})
    one.log.truncation.truncate_to(entry.end_offset)
    one.leader_epoch = world.catalog.leader_epochs[EVENTS, 0] = 6
    while world.entry(one) == entry:
        one.append(2, world.clock.now_ms())
        world.run()
    later = world.entry(one)
    assert later is not None
    assert entry.end_offset < later.end_offset < end
    plan = first(read(world, pool)[1])
    assert (plan.chain_end, plan.loaded_end, plan.end) == (entry.end_offset, end, end)
    assert not plan.is_incomplete


def test_a_topic_that_is_not_tailed_has_a_hole_from_its_chains_end(world: World, pool: Executor) -> None:
    one = world.replicas[0]
    Cutting(world).cut(ends(world), tailed=[world.replicas[1]])
    plan = first(read(world, pool)[1])
    entry = world.entry(one)
    assert entry is not None
    end = one.log.log_end_offset
    assert (plan.chain_end, plan.loaded_end, plan.go_on) == (
        entry.end_offset, entry.end_offset, end + 1_000_000
    )  # fmt: skip
    assert plan.given_up == end - entry.end_offset


def test_a_topic_with_neither_tails_nor_an_archive_comes_back_empty_at_its_end(
    tmp_path: Path, pool: Executor
) -> None:
    world = World(tmp_path / "disk")
    world.replicas[0].append(5, world.clock.now_ms())
    Cutting(world).cut(ends(world), saves=False)
    _, plan = read(world, pool)
    one = first(plan)
    assert (one.start, one.chain_end, one.loaded_end, one.go_on) == (5, 5, 5, 1_000_005)
    assert one.is_empty
    assert any("events: 1 of 1 partitions come back empty" in note for note in plan.notes)


def test_settings_that_do_not_come_back_are_named(world: World, pool: Executor) -> None:
    records = [
        ConfigRecord(resource_type=4, resource_name="1", name="log.cleaner.threads", value="2"),
        ConfigRecord(
            resource_type=2,
            resource_name="events",
            name="leader.replication.throttled.replicas",
            value="0:1",
        ),
    ]
    Cutting(world, list(records)).cut(ends(world))
    _, plan = read(world, pool)
    dropped = "\n".join(plan.dropped)
    assert "settings of broker 1: log.cleaner.threads" in dropped
    assert "lists of throttled replicas of 1 topics: events" in dropped
    assert any("passwords of 2 users" in one for one in plan.to_set)


def test_one_archive_that_cannot_be_read_is_a_problem_of_its_partition_alone(
    world: World, pool: Executor
) -> None:
    Cutting(world).cut(ends(world))
    entry = world.entry(world.replicas[0])
    assert entry is not None
    damage(world, entry.manifest_key)
    _, plan = read(world, pool)
    assert len(plan.problems) == 1
    assert plan.problems[0].startswith("events-0: its archive cannot be read")
    assert first(plan).chain_end == entry.end_offset
    assert plan.partitions[EVENTS, 1].chain.problem is None


def test_documents_of_another_cluster_are_refused(world: World, pool: Executor) -> None:
    cutting = Cutting(world)
    ref = cutting.cut(ends(world))
    cut = decode_cut(world.bucket.get(ref.key, max_size=1 << 20))
    world.bucket.put(CUT_NAME, encode_cuts(Cuts("another", (ref,), ())))
    _, plan = read(world, pool)
    assert "another" in plan.passed_over[0]
    assert plan.ref.cut == cut.cut


def test_damage_of_cluster_json_is_no_answer(world: World, pool: Executor) -> None:
    Cutting(world).cut(ends(world))
    damage(world, "cluster.json")
    with pytest.raises(CorruptionError, match="firn repair"):
        read(world, pool)


def test_expired_grace_is_named(world: World, pool: Executor) -> None:
    """The cut's own manifest is gone: HEAD's stands for it, which is said."""
    one = world.replicas[0]
    Cutting(world).cut(ends(world))
    old = world.entry(one)
    assert old is not None
    one.log.deletion.advance_log_start(world.live(one)[1].base_offset)
    world.run()
    world.clock.advance(GRACE_MS)
    world.run()
    assert old.manifest_key not in stored(world.bucket)
    _, plan = read(world, pool)
    assert first(plan).start == world.live(one)[0].base_offset
    assert any("the manifest of the cut cannot be read" in note for note in plan.notes)


def test_the_age_is_that_of_the_cut_against_the_newest_document(world: World, pool: Executor) -> None:
    ref = Cutting(world).cut(ends(world))
    world.clock.advance(7_000)
    world.fill(1, world.replicas[1])
    world.run()
    _, plan = read(world, pool)
    assert plan.age_ms == 7_000
    assert ref.cut == 1


def test_a_log_goes_on_behind_all_that_later_cuts_tell(world: World, pool: Executor) -> None:
    """An older cut, behind which more than a gap was written."""
    cutting = Cutting(world)
    one = world.replicas[0]
    end = one.log.log_end_offset
    cutting.cut(ends(world))
    for _ in range(5):
        one.append(10, world.clock.now_ms())
    cutting.cut(ends(world))
    plan = first(read(world, pool, CutChoice(number=1), gap=1_000)[1])
    assert (plan.end, plan.go_on, plan.given_up) == (end, end + 1_000, 50)
    plan = first(read(world, pool, CutChoice(number=1), gap=60)[1])
    assert (plan.end, plan.go_on) == (end, end + 50 + 60)


def test_the_newest_cut_that_is_named_tells_ends_too(world: World, pool: Executor) -> None:
    """A document with a greater number is of a past that was given up."""
    cutting, before = Cutting(world), ends(world)
    end = before[world.replicas[0]]
    cutting.cut(before)
    for _ in range(5):
        world.replicas[0].append(10, world.clock.now_ms())
    cutting.cut(ends(world))
    cutting.number = 8
    cutting.cut(before)
    world.bucket.put(CUT_NAME, encode_cuts(Cuts(CLUSTER, tuple(cutting.cuts[:2]))))
    plan = first(read(world, pool, CutChoice(number=1), gap=60)[1])
    assert (plan.end, plan.go_on) == (end, end + 50 + 60)


@pytest.mark.parametrize("number", [2, 3])
def test_a_document_of_another_cluster_among_the_cuts_changes_nothing(
    world: World, pool: Executor, number: int
) -> None:
    ref = Cutting(world).cut(ends(world))
    stray = decode_cut(world.bucket.get(ref.key, max_size=1 << 20))._replace(cluster_id="another", cut=2)
    world.bucket.put(cut_key(CutKey(number, UUID(int=5))), encode_cut(stray))
    assert read(world, pool)[1].ref.cut == 1
    damage(world, CUT_NAME)
    _, plan = read(world, pool)
    assert plan.ref.cut == 1
    assert ("another" if number == 2 else "is of cut 2") in " ".join(plan.passed_over)


def test_the_documents_are_searched_if_cut_itself_is_gone(world: World, pool: Executor) -> None:
    Cutting(world).cut(ends(world))
    world.bucket.delete([CUT_NAME])
    _, plan = read(world, pool)
    assert plan.ref.cut == 1
    assert "gone" in plan.passed_over[0]


def test_topics_that_were_made_after_the_cut_are_named(world: World, pool: Executor) -> None:
    Cutting(world).cut(ends(world))
    world.add(TopicIdPartition(UUID(int=55), "younger", 0))
    world.manager.maintenance.topics_changed()
    world.clock.advance(world.settings.topics_debounce_ms)
    world.run()
    _, plan = read(world, pool)
    assert "1 topics were made after the cut and do not come back: younger" in plan.notes


def test_segments_that_a_cut_has_waited_for_come_back_although_retention_has_taken_them_since(
    world: World, pool: Executor
) -> None:
    one, other = world.replicas
    world.fill(3, one)  # none of them is copied yet
    end = one.log.log_end_offset
    Cutting(world).cut(ends(world), waits=[one])
    world.fill(1, one)
    world.run()
    entry = world.entry(one)
    assert entry is not None
    assert entry.end_offset > end
    one.log.deletion.advance_log_start(one.log.log_end_offset)
    world.run()
    entry = world.entry(one)
    assert entry is not None
    assert entry.start_offset > end
    _, plan = read(world, pool)
    found = plan.partitions[EVENTS, 0]
    assert (found.loaded_end, found.is_incomplete) == (end, False)
    assert plan.partitions[EVENTS, 1].loaded_end == ends(world)[other]


# -- partitions without a leader


def test_a_partition_without_a_leader_that_no_cut_has_comes_back_as_far_as_its_archive_goes(
    world: World, pool: Executor
) -> None:
    one, other = world.replicas
    Cutting(world).cut({other: ends(world)[other]}, is_exact=False, leaderless={one: 0})
    _, plan = read(world, pool, CutChoice(allows_loose=True))
    entry = world.entry(one)
    assert entry is not None
    found = plan.partitions[EVENTS, 0]
    assert (found.start, found.chain_end, found.loaded_end) == (0, entry.end_offset, entry.end_offset)
    assert any(
        "1 partitions had no leader at the cut, or one that could not read them; they come" in note
        for note in plan.notes
    )
    assert any(note.endswith("archive goes: events-0") for note in plan.notes)


def test_a_chain_that_has_grown_since_the_cut_before_comes_back_whole(world: World, pool: Executor) -> None:
    one, other = world.replicas
    entry = world.entry(one)
    assert entry is not None
    Cutting(world).cut({other: ends(world)[other]}, is_exact=False, leaderless={one: entry.end_offset // 2})
    _, plan = read(world, pool, CutChoice(allows_loose=True))
    found = plan.partitions[EVENTS, 0]
    assert (found.chain_end, found.loaded_end) == (entry.end_offset, entry.end_offset)
    assert (found.given_up, found.is_incomplete) == (0, False)


def test_a_partition_without_a_leader_of_which_the_bucket_has_nothing_is_named(
    tmp_path: Path, pool: Executor
) -> None:
    world = World(tmp_path / "disk", partitions=1)
    world.topic_configs = {"events": TIERED}
    world.run()
    Cutting(world).cut({}, is_exact=False, leaderless={world.replicas[0]: 0})
    _, plan = read(world, pool, CutChoice(allows_loose=True))
    assert any("come back empty: events-0" in note for note in plan.notes)
