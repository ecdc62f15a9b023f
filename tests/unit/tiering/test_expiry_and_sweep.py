"""Objects are deleted after a grace once the log does not need them, and no others are."""

from __future__ import annotations

import logging
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from service.base.types import TopicIdPartition
from service.remote.format.keys import TOPICS_KEY, SegmentKey, segment_key
from service.remote.format.manifest import ManifestLimits
from service.tiering.steps import CommitStep
from service.tiering.tasks import Task
from tests.unit.hot.logs import START_MS
from tests.unit.tiering.world import GRACE_MS, Fault, World, crash_at, once

DAY_MS = 86_400_000


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def segment_keys(world: World) -> set[str]:
    return {key for key in world.stored_keys() if key.endswith(".seg")}


def test_segments_older_than_the_total_retention_leave_the_chain_and_the_log_start_follows(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, retention_ms=DAY_MS)
    [replica] = world.replicas
    world.fill(3)
    world.clock.advance(DAY_MS // 2)
    world.fill(3)
    world.run()
    assert world.entry(replica).segments == 6
    world.clock.advance(DAY_MS // 2 + 10_000)
    world.run()
    entry = world.entry(replica)
    assert 0 < entry.segments < 6
    assert entry.start_offset == replica.log.log_start_offset > 0
    assert world.manager.metrics.segments_dropped == 6 - entry.segments
    world.check()


def test_dropped_objects_stay_for_the_grace_and_go_then(tmp_path: Path) -> None:
    world = World(tmp_path, retention_bytes=3000)
    world.fill(8)
    world.run()
    [replica] = world.replicas
    assert world.entry(replica).segments < 8
    assert len(segment_keys(world)) == 8
    world.clock.advance(GRACE_MS - 1)
    world.run()
    assert len(segment_keys(world)) == 8
    world.clock.advance(1)
    world.run()
    assert segment_keys(world) == {one.key for one in world.live(replica)}
    world.check_at_rest()


def test_retention_by_size_counts_what_is_only_local_too(tmp_path: Path) -> None:
    kept = []
    for number, extra in enumerate((0, 3)):
        world = World(tmp_path / str(number), retention_bytes=8000)
        world.fill(5)
        world.run()
        [replica] = world.replicas
        replica.held_back = 1 << 40  # nothing more is uploaded
        world.fill(extra)
        world.run()
        kept.append(world.entry(replica).segments)
    assert kept[1] < kept[0]


def test_the_whole_chain_may_expire_and_go_on_later(tmp_path: Path) -> None:
    world = World(tmp_path, retention_ms=DAY_MS)
    [replica] = world.replicas
    world.fill(3)
    world.run()
    world.clock.advance(2 * DAY_MS)
    world.run()
    entry = world.entry(replica)
    assert (entry.segments, entry.start_offset) == (0, entry.end_offset)
    world.check()
    world.fill(3)
    world.run()
    assert world.entry(replica).segments == 3
    assert world.entry(replica).start_offset == entry.end_offset
    world.settle()
    world.sweep()
    world.check_at_rest()


def test_an_archive_that_is_given_up_goes_and_its_offsets_may_come_again(tmp_path: Path) -> None:
    world = World(tmp_path, limits=ManifestLimits(2, 2))
    [replica] = world.replicas
    world.fill(9)
    world.run()
    world.check()
    old = world.entry(replica)
    world.switch(on=False)
    world.run()
    entry = world.entry(replica)
    assert (entry.version, entry.segments, entry.start_offset, entry.end_offset) == (old.version + 1, 0, 0, 0)
    assert len(segment_keys(world)) == old.segments, "readers of the old manifest have the grace"
    world.check()
    world.clock.advance(GRACE_MS)
    world.run()
    assert not segment_keys(world)
    assert not [key for key in world.stored_keys() if "/page/" in key]
    world.sweep()
    world.check_at_rest()
    world.switch(on=True)
    world.settle()
    assert (world.entry(replica).start_offset, world.entry(replica).end_offset) == (0, old.end_offset)
    world.sweep()
    world.check_at_rest()


@pytest.mark.parametrize(
    "step", [CommitStep.PROPOSED, CommitStep.COMMITTED, CommitStep.HEAD_WRITTEN, CommitStep.PUBLISHED]
)
def test_a_crash_while_an_archive_is_given_up_leaves_it_whole_or_none(world: World, step: CommitStep) -> None:
    world.fill(4)
    world.run()
    [replica] = world.replicas
    world.switch(on=False)
    world.probe = crash_at(step)
    assert not world.run()
    world.probe = lambda step, tip: None
    world.check()
    for _ in range(4):
        world.run()
        world.clock.advance(GRACE_MS)
        world.sweep()
    assert world.entry(replica).is_given_up
    world.check_at_rest()


def test_an_archive_is_not_given_up_once_tiering_is_on_again(world: World) -> None:
    world.fill(3)
    world.run()
    [replica] = world.replicas
    before = world.entry(replica)
    world.switch(on=False)
    world.catalog.off.clear()  # the image says on; this node has not heard of it
    world.run()
    assert world.entry(replica) == before
    replica.switch(on=True)
    for _ in range(3):
        world.clock.advance(GRACE_MS)
        world.run()
        world.sweep()
    assert world.entry(replica) == before
    world.check_at_rest()


def test_segments_below_the_log_start_offset_expire(world: World) -> None:
    world.fill(4)
    world.run()
    [replica] = world.replicas
    second = world.live(replica)[1]
    replica.log.deletion.advance_log_start(second.base_offset + 1)
    world.run()
    assert world.live(replica)[0] == second, "a segment goes as a whole"
    assert world.entry(replica).start_offset == second.base_offset + 1, "and the log begins within one"
    world.check()


@pytest.mark.parametrize(("timestamp", "left"), [(-1, 0), (START_MS + 10_000 * DAY_MS, 3)])
def test_records_without_a_time_age_from_their_upload_and_those_from_the_future_stay(
    tmp_path: Path, timestamp: int, left: int
) -> None:
    """As in Kafka: a segment without timestamps ages from its file's, one in the future not before then."""
    world = World(tmp_path, retention_ms=DAY_MS)
    [replica] = world.replicas
    while len(replica.log.sealed.describe_all()) < 3:
        replica.append(1, world.clock.now_ms(), timestamp)
    uploaded_ms = world.bucket.head("cluster.json").last_modified_ms
    world.clock.advance(uploaded_ms - world.clock.now_ms())
    world.run()
    world.run()
    assert world.entry(replica).segments == 3
    world.clock.advance(DAY_MS + 60_000)
    world.run()
    assert world.entry(replica).segments == left


def test_a_log_that_went_on_beyond_its_chain_starts_a_new_one_once_the_old_has_expired(world: World) -> None:
    world.fill(2)
    world.run()
    [replica] = world.replicas
    end = world.entry(replica).end_offset
    replica.held_back = 1 << 40
    world.fill(3)
    base = replica.log.sealed.describe_all()[3].base_offset
    replica.log.deletion.advance_log_start(base)
    replica.held_back = 0
    world.run()
    entry = world.entry(replica)
    assert entry.start_offset == base > end
    world.settle()
    world.check()


def test_a_hole_in_the_log_is_reported_and_never_papered_over(world: World) -> None:
    world.fill(2)
    world.run()
    [replica] = world.replicas
    before = world.entry(replica)
    world.fill(3)
    replica.log.deletion.delete_segments(replica.log.sealed.describe_all()[3].last_offset, "a disk was lost")
    world.run()
    assert world.entry(replica) == before
    assert "are in no tier" in world.manager.metrics.reasons[replica.tip]


@pytest.mark.parametrize(
    "step", [CommitStep.PROPOSED, CommitStep.COMMITTED, CommitStep.HEAD_WRITTEN, CommitStep.PUBLISHED]
)
def test_a_crash_while_segments_are_dropped_loses_and_leaks_nothing(tmp_path: Path, step: CommitStep) -> None:
    world = World(tmp_path)
    world.fill(6)
    world.run()
    [replica] = world.replicas
    replica.log.deletion.advance_log_start(world.live(replica)[3].base_offset)
    world.probe = crash_at(step)
    assert not world.run()
    world.check()
    world.settle()
    assert world.entry(replica).segments == 3
    world.sweep()
    world.check_at_rest()


def test_deletes_that_fail_are_tried_again(tmp_path: Path) -> None:
    world = World(tmp_path, retention_bytes=2000)
    world.fill(6)
    world.run()
    world.clock.advance(GRACE_MS)
    world.store.decide = once("delete", Fault.FAIL)
    world.run()
    assert world.manager.metrics.task_errors[Task.DELETE] == 1
    world.clock.advance(world.settings.backoff_max_ms)
    world.run()
    world.check_at_rest()


def test_a_failure_is_warned_of_once_it_lasts(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world.fill(2)
    world.run()
    world.fill(2)
    world.store.decide = lambda called, key: Fault.FAIL if called == "put_stream" else Fault.PASS
    levels = []
    for _ in range(3):
        world.run()
        world.clock.advance(world.settings.backoff_max_ms)
        levels.append([one.levelname for one in caplog.records if "tiering cannot copy" in one.message])
    assert levels == [["INFO"], ["INFO", "WARNING"], ["INFO", "WARNING"]]


def test_objects_of_a_deleted_topic_go_after_the_grace(world: World) -> None:
    for topic in ("gone", "stays"):
        replica = world.add(TopicIdPartition(uuid4(), topic, 0))
        world.fill(2, replica)
    world.run()
    gone = f"data/{world.topic_ids['gone']}"
    world.delete_topic("gone")
    world.run()
    assert any(key.startswith(gone) for key in world.stored_keys())
    world.clock.advance(GRACE_MS)
    world.run()
    assert not any(key.startswith(gone) for key in world.stored_keys())
    world.check_at_rest()


@pytest.mark.parametrize("operation", ["get", "put"])
def test_nothing_of_a_deleted_topic_goes_while_the_buckets_list_has_it(world: World, operation: str) -> None:
    """Whoever reads the bucket would find it in ruins, and whoever is restored from it have it back so."""
    world.fill(2, world.add(TopicIdPartition(uuid4(), "gone", 0)))
    world.run()
    gone = f"data/{world.topic_ids['gone']}"
    world.delete_topic("gone")
    world.store.decide = lambda called, key: (
        Fault.FAIL if called == operation and key == TOPICS_KEY else Fault.PASS
    )
    before = {key for key in world.stored_keys() if key.startswith(gone)}
    for is_new in (False, True):  # a process that has written it before, and one that has not
        if is_new:
            world.reboot()
        for _ in range(3):
            world.clock.advance(GRACE_MS)
            world.run()
            assert before == {key for key in world.stored_keys() if key.startswith(gone)}
            world.check()
    world.settle()
    assert not any(key.startswith(gone) for key in world.stored_keys())
    world.check_at_rest()


def test_a_topic_whose_deletion_was_cut_off_is_deleted_by_its_tombstone(world: World) -> None:
    world.fill(2, world.add(TopicIdPartition(uuid4(), "gone", 0)))
    world.run()
    gone = f"data/{world.topic_ids['gone']}"
    world.delete_topic("gone")
    world.reboot()
    world.run()
    world.clock.advance(GRACE_MS - 1)
    world.run()
    assert any(key.startswith(gone) for key in world.stored_keys()), "readers have a grace"
    world.clock.advance(1)
    world.store.decide = once("delete", Fault.CRASH_AFTER)
    assert not world.run()
    world.run()
    assert not any(key.startswith(gone) for key in world.stored_keys())
    assert not world.catalog.buried
    world.check_at_rest()


def test_an_upload_that_arrives_after_its_try_was_cleaned_up_is_swept(world: World) -> None:
    world.fill(1)
    late: list[tuple[str, bytes]] = []
    world.store.inner.put_stream = lambda key, parts, size: late.append((key, b"".join(parts)))  # type: ignore[method-assign]
    world.store.decide = once("put_stream", Fault.LIE)
    world.run()
    del world.store.inner.put_stream
    world.settle()
    [(key, data)] = late
    world.bucket.put(key, data)
    world.check()
    world.sweep()
    assert world.manager.metrics.orphans_swept == 1
    world.check_at_rest()


def test_the_sweeper_leaves_alone_what_it_cannot_judge(world: World) -> None:
    world.fill(2)
    world.run()
    events = world.topic_ids["events"]
    left = {
        "data/notes.txt",
        segment_key(SegmentKey(events, 5, 0, 9, 0, uuid4())),  # a partition that another node leads
        segment_key(SegmentKey(events, 0, 0, 9, 7, uuid4())),  # of a later leader
        segment_key(SegmentKey(uuid4(), 0, 0, 9, 7, uuid4())),  # of a topic that nobody knows
    }
    swept = {segment_key(SegmentKey(events, 0, 0, 9, 0, uuid4()))}
    for key in left | swept:
        world.bucket.put(key, b"?")
    world.sweep()
    assert left <= world.stored_keys()
    assert not swept & world.stored_keys()


def test_an_orphan_is_deleted_only_when_two_sweeps_a_grace_apart_have_seen_it(world: World) -> None:
    world.run()
    key = segment_key(SegmentKey(world.topic_ids["events"], 0, 0, 9, 0, uuid4()))
    world.bucket.put(key, b"?")
    for wait_ms, there in ((0, True), (GRACE_MS - 1, True), (1, False)):
        world.clock.advance(wait_ms)
        world.do(world.manager.maintenance.sweep())
        assert (key in world.stored_keys()) is there


def test_an_upload_under_way_is_not_swept(world: World) -> None:
    world.fill(1)
    swept: list[int] = []

    async def sweep_twice() -> None:
        await world.manager.maintenance.sweep()
        world.clock.advance(GRACE_MS)
        swept.append(await world.manager.maintenance.sweep())

    commit = world.view.commit

    async def slow_commit(commits):  # type: ignore[no-untyped-def]
        await sweep_twice()
        return await commit(commits)

    world.view.commit = slow_commit  # type: ignore[method-assign]
    world.run()
    assert swept == [0]
    world.check()
    assert world.entry(world.replicas[0]).segments == 1


def test_a_node_that_forgot_its_topics_deletes_none_of_them(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fill(2)
    world.metadata_offset = 500
    world.manager.maintenance.topics_changed()
    world.clock.advance(world.settings.topics_debounce_ms)
    world.run()
    before = segment_keys(world)
    world.topic_ids = {"other": UUID(int=9)}
    world.replicas = []
    world.metadata_offset = 3
    world.reboot()
    world.run()
    world.sweep()
    world.sweep()
    assert segment_keys(world) == before
    assert "topics.json is not overwritten" in caplog.text


def test_probe_objects_are_swept_after_the_grace(world: World) -> None:
    world.run()
    key = f"probe/{uuid4()}"
    world.bucket.put(key, b"one")
    assert world.do(world.manager.maintenance.sweep()) == 0
    world.clock.advance(GRACE_MS - 1)
    assert world.do(world.manager.maintenance.sweep()) == 0, "a node may be probing"
    world.clock.advance(1)
    assert world.do(world.manager.maintenance.sweep()) == 1
    assert key not in world.stored_keys()


def test_a_chain_that_spills_into_pages_grows_expires_and_sweeps_like_any_other(tmp_path: Path) -> None:
    world = World(tmp_path, limits=ManifestLimits(3, 3))
    [replica] = world.replicas
    world.fill(30)
    world.run()
    assert world.manifest(replica).pages[0].level > 0
    assert world.entry(replica).segments == 30
    world.check()
    for index in (5, 4, 9):
        replica.log.deletion.advance_log_start(world.live(replica)[index].base_offset)
        world.run()
        world.check()
    assert world.entry(replica).segments == 12
    world.reboot()
    world.settle()
    world.sweep()
    world.check_at_rest()
