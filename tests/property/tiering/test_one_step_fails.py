"""One object is lost, damaged or refused: every step that does not need it goes on, for all partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from service.base import turn_queues
from service.base.clock import ManualClock
from service.base.threads import SystemThreads
from service.remote.format.keys import SegmentKey, segment_key
from service.remote.format.manifest import ManifestLimits, PageRef
from service.remote.stores.memory_store import MemoryStore
from service.tiering.store_clock import MAX_SKEW_MS
from service.tiering.tasks import Task
from tests.property.tiering.failing import DAY_MS, refused, rounds, tier
from tests.unit.hot.logs import START_MS
from tests.unit.tiering.world import GRACE_MS, SETTINGS, Fault, Replica, World

# -- a topic that the store refuses ------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [None, "put_stream", "get", "put"])
@pytest.mark.parametrize("copier_threads", [1, 4])
def test_a_topic_that_is_refused_slows_no_other_down(
    tmp_path: Path, operation: str | None, copier_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve partitions of one topic answer 403: the other topic is never behind, nor waits for a trial."""
    monkeypatch.setattr(turn_queues, "SLICE_S", 60)  # all partitions are assessed before a task starts
    world = World(tmp_path, partitions=0, settings=SETTINGS._replace(copier_threads=copier_threads))
    denied_id = uuid4()
    denied = [tier(world, "denied", n, denied_id) for n in range(12)]
    fine = [tier(world, "fine", n, UUID(int=21)) for n in range(2)]
    calls: list[str] = []
    decide = refused(str(denied_id), operation=operation)

    def watched(called: str, key: str) -> Fault:
        fault = decide(called, key)
        calls.append("denied" if fault is Fault.REFUSE else "fine" if str(UUID(int=21)) in key else "other")
        return fault

    world.store.decide = watched
    for number in range(15):
        world.fill(1)
        calls.clear()
        world.clock.advance(1_000)
        world.run()
        for replica in fine:
            assert world.lag(replica) == 0, "up to date although the store refuses others"
        if number and copier_threads == 1 and operation in ("put", "put_stream"):
            trials_first = "".join(call[0] for call in calls if call != "other").lstrip("f")
            assert "f" not in trials_first, "a trial came before the turn of one that has not failed"
    assert world.manager.metrics.store is None, "an answer about objects is not one of the store"
    assert all(world.manager.metrics.why(one.tip) for one in denied), "each says why"
    world.settle()
    world.sweep()
    world.check_at_rest()


# -- each kind of object, lost, damaged or refused ---------------------------------------------------------


class Harm(Enum):
    LOST = "lost"
    DAMAGED = "damaged"
    REFUSED = "refused"


class Operation(Enum):
    COPY = "copy"
    DELETE_RECORDS = "DeleteRecords"
    DELETE_ALL = "DeleteRecords of all that is archived"
    EXPIRE = "expire"
    EXPIRE_BY_SIZE = "expire by size"
    GIVE_UP = "give up"


ALL = frozenset(Operation)
NONE: frozenset[Operation] = frozenset()


def oldest_page(world: World, replica: Replica) -> PageRef:
    """The page of the lowest level that lists the oldest segments."""
    manifest = world.manifest(replica)
    assert manifest is not None
    ref = manifest.pages[0]
    while ref.level:
        child = world.page(manifest)(ref).children[0]
        assert isinstance(child, PageRef)
        ref = child
    return ref


def outer_page(world: World, replica: Replica) -> PageRef:
    manifest = world.manifest(replica)
    assert manifest is not None
    assert manifest.pages[0].level > 0
    return manifest.pages[0]


KINDS: dict[str, Callable[[World, Replica], str]] = {
    "HEAD": lambda world, one: f"data/{one.tip.topic_id}/0/HEAD",
    "manifest": lambda world, one: world.entry(one).manifest_key,
    "page": lambda world, one: oldest_page(world, one).key,
    "outer page": lambda world, one: outer_page(world, one).key,
    "segment": lambda world, one: world.live(one)[0].key,
}
GOES_ON = {
    ("HEAD", Harm.LOST): ALL,
    ("HEAD", Harm.DAMAGED): ALL,
    # Nothing is written while HEAD may say something else, and no version keeps what one that is gone lists.
    ("HEAD", Harm.REFUSED): NONE,
    **{("manifest", harm): frozenset({Operation.DELETE_ALL, Operation.GIVE_UP}) for harm in Harm},
    **{(kind, harm): ALL for kind in ("page", "outer page", "segment") for harm in Harm},
}


def hurt(world: World, key: str, harm: Harm) -> None:
    if harm is Harm.REFUSED:
        world.store.decide = refused(key)
    elif harm is Harm.LOST:
        world.bucket.delete([key])
    else:
        data = bytearray(world.bucket.get(key, max_size=1 << 20))
        data[len(data) // 2] ^= 1
        world.bucket.put(key, bytes(data))


def archived(world: World, topic: str) -> Replica:
    """A partition with pages on two levels, their records a minute apart."""
    replica = tier(world, topic)
    for _ in range(12):
        world.fill(1, replica)
        world.clock.advance(60_000)
        world.run()
    assert world.lag(replica) == 0
    return replica


def configure(replica: Replica, **settings: Any) -> None:
    replica.log.config = replace(replica.log.config, **settings)


def do(world: World, operation: Operation, replica: Replica) -> Callable[[], bool]:
    """Ask for `operation`; what tells whether it was done."""
    before = world.entry(replica)
    assert before is not None
    beyond = outer_page(world, replica).last_offset + 1
    if operation is Operation.COPY:
        world.fill(2, replica)
        return lambda: world.lag(replica) == 0
    if operation is Operation.DELETE_RECORDS:
        replica.log.deletion.advance_log_start(beyond)
        return lambda: world.entry(replica).start_offset == beyond
    if operation is Operation.DELETE_ALL:
        replica.log.deletion.advance_log_start(before.end_offset)
        return lambda: world.entry(replica).segments == 0
    if operation is Operation.EXPIRE:
        newest = outer_page(world, replica).max_timestamp
        configure(replica, retention_ms=max(1, world.clock.now_ms() - newest - 1))
        return lambda: world.entry(replica).start_offset >= beyond
    if operation is Operation.EXPIRE_BY_SIZE:
        configure(replica, retention_bytes=1)
        return lambda: world.entry(replica).start_offset >= beyond
    world.catalog.off.add(replica.tip.topic_id)
    replica.switch(on=False)
    return lambda: world.entry(replica).is_given_up


@pytest.mark.parametrize("operation", list(Operation), ids=lambda one: one.name)
@pytest.mark.parametrize(("kind", "harm"), list(GOES_ON), ids=lambda one: getattr(one, "name", one))
def test_every_step_that_does_not_need_a_harmed_object_goes_on(
    tmp_path: Path, kind: str, harm: Harm, operation: Operation
) -> None:
    world = World(tmp_path, partitions=0, limits=ManifestLimits(2, 2))
    hit, other = archived(world, "hit"), archived(world, "other")
    key = KINDS[kind](world, hit)
    held = {one.key for one in world.live(hit)}
    checks = [(one, do(world, operation, one)) for one in (hit, other)]
    hurt(world, key, harm)
    world.reboot()  # nothing is remembered of what the bucket had
    rounds(world)
    for replica, is_done in checks:
        if replica is other or operation in GOES_ON[kind, harm]:
            assert is_done(), f"{operation.value} of {replica.tip}"
        else:
            assert not is_done()
            assert world.manager.metrics.why(hit.tip) is not None, "it says why"
    if operation in (Operation.GIVE_UP, Operation.DELETE_ALL) and operation in GOES_ON[kind, harm]:
        world.clock.advance(GRACE_MS)
        rounds(world, 2)
        left = held & world.stored_keys()
        assert left <= {key}, "what a document that cannot be read lists is known by its keys"
    assert world.entry(hit).end_offset >= 12 or operation is Operation.GIVE_UP


@pytest.mark.parametrize(("kind", "harm"), list(GOES_ON), ids=lambda one: getattr(one, "name", one))
def test_a_harmed_object_keeps_nothing_of_others_from_being_deleted_or_swept(
    tmp_path: Path, kind: str, harm: Harm
) -> None:
    world = World(tmp_path, partitions=0, limits=ManifestLimits(2, 2))
    hit, other, gone = archived(world, "a-hit"), archived(world, "other"), archived(world, "gone")
    key = KINDS[kind](world, hit)
    hurt(world, key, harm)
    world.reboot()
    world.run()
    orphan = segment_key(SegmentKey(other.tip.topic_id, 0, 500, 509, 0, uuid4()))
    world.bucket.put(orphan, b"?")
    dropped = world.live(other)[0].key
    other.log.deletion.advance_log_start(world.live(other)[1].base_offset)
    world.delete_topic("gone")
    rounds(world)
    world.sweep()
    stored = world.stored_keys()
    assert orphan not in stored
    assert dropped not in stored
    assert not any(str(gone.tip.topic_id) in one for one in stored)


def test_delete_records_into_a_page_that_cannot_be_read_goes_to_its_border_and_is_told(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, partitions=0, limits=ManifestLimits(2, 8))
    replica = archived(world, "hit")
    second = world.manifest(replica).pages[1]
    world.bucket.delete([second.key])
    world.reboot()
    replica.log.deletion.advance_log_start(second.last_offset)
    versions = world.entry(replica).version
    rounds(world)
    assert world.entry(replica).start_offset == second.base_offset
    assert world.entry(replica).version == versions + 1, "no version that changes nothing"
    why = world.manager.metrics.why(replica.tip) or ""
    assert why.startswith(f"{Task.EXPIRE.value}: ")
    assert second.key in why
    replica.log.deletion.advance_log_start(second.last_offset + 1)
    rounds(world, 2)
    assert world.entry(replica).start_offset == second.last_offset + 1
    assert world.manager.metrics.why(replica.tip) is None


# -- expiry that fails -------------------------------------------------------------------------------------


def test_copies_go_on_while_the_clock_is_doubted(tmp_path: Path) -> None:
    bucket = MemoryStore(SystemThreads(), ManualClock(START_MS))
    world = World(tmp_path, bucket, retention_ms=DAY_MS)
    [replica] = world.replicas
    world.fill(2)
    world.run()
    world.clock.advance(2 * DAY_MS + 2 * MAX_SKEW_MS)
    for _ in range(3):
        world.fill(2)
        rounds(world, 2)
        assert world.lag(replica) == 0
    assert world.entry(replica).start_offset == 0, "nothing expires by its age"
    metrics = world.manager.metrics
    assert metrics.task_errors[Task.EXPIRE] > 1
    assert metrics.task_errors[Task.COPY] == 0
    assert "disagree" in (metrics.why(replica.tip) or "")
    assert "disagree" in metrics.failing[Task.EXPIRE, replica.tip]


@pytest.mark.parametrize("timestamp", [-1, START_MS * 1000])
def test_copies_and_delete_records_go_on_where_the_oldest_object_is_gone(
    tmp_path: Path, timestamp: int
) -> None:
    world = World(tmp_path, retention_ms=DAY_MS)
    [replica] = world.replicas
    while len(replica.log.sealed.describe_all()) < 4:
        replica.append(1, world.clock.now_ms(), timestamp)
    world.run()
    world.bucket.delete([world.live(replica)[0].key])
    world.reboot()
    while len(replica.log.sealed.describe_all()) < 6:
        replica.append(1, world.clock.now_ms(), timestamp)
    rounds(world, 3)
    assert world.lag(replica) == 0
    assert world.entry(replica).segments == 6
    second = world.live(replica)[1].base_offset
    replica.log.deletion.advance_log_start(second)
    rounds(world, 3)
    assert world.entry(replica).start_offset == second
    assert world.manager.metrics.why(replica.tip) is None


# -- deletions that are refused ----------------------------------------------------------------------------


def test_an_object_that_cannot_be_deleted_delays_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, partitions=0)
    replicas = [tier(world, topic) for topic in ("one", "two")]
    world.fill(6)
    world.run()
    dead = [segment.key for one in replicas for segment in world.live(one)[:4]]
    world.store.decide = refused(dead[1], operation="delete")
    for one in replicas:
        one.log.deletion.advance_log_start(world.live(one)[4].base_offset)
    world.run()
    world.clock.advance(GRACE_MS)
    world.run()
    assert set(dead) & world.stored_keys() == {dead[1]}
    assert len(world.manager.metrics.failing) == 1
    said = [record.getMessage() for record in caplog.records if "are not deleted" in record.getMessage()]
    assert len(said) == 1
    assert "one-0" in said[0]
    world.store.decide = lambda operation, key: Fault.PASS
    rounds(world, 2)
    assert dead[1] not in world.stored_keys()
    assert not world.manager.metrics.failing
    world.check_at_rest()


def test_a_deleted_topic_goes_behind_one_that_is_locked_and_so_does_what_is_not_locked_of_that(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, partitions=0)
    replicas = {topic: tier(world, topic) for topic in ("locked", "gone", "stays")}
    world.fill(5)
    world.run()
    locked = world.live(replicas["locked"])[2].key
    world.store.decide = refused(locked, operation="delete")
    ids = dict(world.topic_ids)
    for topic in ("locked", "gone"):
        world.delete_topic(topic)
    world.clock.advance(GRACE_MS)
    world.run()
    stored = world.stored_keys()
    assert {key for key in stored if str(ids["locked"]) in key} == {locked}
    assert not any(str(ids["gone"]) in key for key in stored)
    assert set(world.catalog.buried) == {ids["locked"]}, "it is deleted in the end"
    world.store.decide = lambda operation, key: Fault.PASS
    rounds(world, 2)
    assert not world.catalog.buried
    world.check_at_rest()


def test_orphans_go_beside_one_that_cannot_be_deleted(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    world.run()
    events = world.topic_ids["events"]
    orphans = [segment_key(SegmentKey(events, n % 2, n, n, 0, UUID(int=n))) for n in range(6)]
    for key in orphans:
        world.bucket.put(key, b"?")
    world.store.decide = refused(orphans[3], operation="delete")
    world.sweep()
    assert set(orphans) & world.stored_keys() == {orphans[3]}
    assert world.manager.metrics.task_errors[Task.SWEEP] == 1


# -- what the keeper does for the prefix -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hit", "task"),
    [("topics.json", Task.WRITE_TOPICS), ("probe/", Task.EXPIRE)],
)
def test_a_shared_object_that_is_refused_ends_the_steps_that_need_it_alone(
    tmp_path: Path, hit: str, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, retention_ms=DAY_MS)
    [replica] = world.replicas
    world.fill(2)
    world.run()
    world.clock.advance(2 * DAY_MS)
    world.store.decide = refused(hit)
    world.manager.maintenance.topics_changed()
    orphan = segment_key(SegmentKey(replica.tip.topic_id, 0, 500, 509, 0, uuid4()))
    world.bucket.put(orphan, b"?")
    for _ in range(3):
        world.fill(1)
        rounds(world, 2)
        assert world.lag(replica) == 0
    world.sweep()
    assert orphan not in world.stored_keys()
    failing = {one for one, _ in world.manager.metrics.failing}
    assert failing == {task}
    assert (world.entry(replica).start_offset > 0) is (task is not Task.EXPIRE)
    assert f"cannot {task.value}" in caplog.text
    world.settle()
    assert not world.manager.metrics.failing


def test_a_node_that_starts_while_topics_json_is_refused_goes_on_tiering(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(2)
    world.settle()
    world.store.decide = refused("topics.json")
    world.reboot()
    for _ in range(3):
        world.fill(1)
        rounds(world, 2)
        assert world.lag(world.replicas[0]) == 0
    assert {one for one, _ in world.manager.metrics.failing} == {Task.WRITE_TOPICS}


def test_one_error_of_several_steps_of_the_keeper_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.run()
    world.store.decide = lambda operation, key: Fault.FAIL if "cluster.json" in key else Fault.PASS
    world.clock.advance(world.settings.sweep_interval_ms)
    world.manager.maintenance.topics_changed()
    world.clock.advance(world.settings.topics_debounce_ms)
    caplog.clear()
    with caplog.at_level(logging.INFO, "service.tiering"):
        world.run()
    said = [record.getMessage() for record in caplog.records if "get cluster.json" in record.getMessage()]
    assert len(said) == 1, said
