"""Sealed segments become objects of one chain, whatever fails on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.base.types import TopicIdPartition
from service.remote.format.segment_object import TRAILER
from service.remote.stores.obstore_store import open_store
from service.tiering.steps import CommitStep
from tests.support.world import WORLD
from tests.unit.tiering.world import GRACE_MS, Crash, Fault, World, crash_at, once


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_sealed_segments_are_copied_in_order_and_the_active_one_is_not(world: World) -> None:
    world.fill(5)
    assert world.run()
    [replica] = world.replicas
    live = world.live(replica)
    assert [one.base_offset for one in live] == [one.base_offset for one in replica.log.sealed.describe_all()]
    assert world.entry(replica).end_offset == replica.log.active_base_offset
    assert replica.remote == world.entry(replica)
    assert world.manager.metrics.segments_copied == 5
    assert world.manager.metrics.bytes_copied == sum(one.size for one in live)
    world.check()


def test_the_same_on_a_folder(tmp_path: Path) -> None:
    world = World(tmp_path / "disk", open_store((tmp_path / "bucket").as_uri(), world=WORLD), partitions=2)
    world.fill(4)
    assert world.run()
    world.settle()
    world.sweep()
    world.check_at_rest()


def test_nothing_at_or_above_the_high_watermark_is_copied(world: World) -> None:
    world.fill(4)
    [replica] = world.replicas
    third = replica.log.sealed.describe_all()[2]
    replica.held_back = replica.log.log_end_offset - third.last_offset
    world.run()
    assert world.entry(replica).end_offset == third.base_offset
    replica.held_back -= 1
    world.run()
    assert world.entry(replica).end_offset == third.last_offset + 1


def test_local_bytes_may_go_only_once_the_commit_is_published(world: World) -> None:
    world.fill(3)
    [replica] = world.replicas
    world.store.decide = lambda operation, key: (
        Fault.FAIL if operation == "put" and key.endswith("HEAD") else Fault.PASS
    )
    world.run()
    assert world.entry(replica).segments == 1
    assert replica.remote is None
    world.settle()
    assert replica.remote == world.entry(replica)
    world.drop_local(replica)
    assert replica.log.first_base_offset == world.entry(replica).end_offset
    world.check()


def test_a_topic_without_remote_storage_and_one_with_copying_disabled_stay_local(tmp_path: Path) -> None:
    configs: list[dict[str, Any]] = [{"remote_storage_enable": False}, {"remote_log_copy_disable": True}]
    for number, config in enumerate(configs):
        world = World(tmp_path / str(number), **config)
        world.fill(3)
        world.run()
        assert world.entry(world.replicas[0]) is None


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LIE])
@pytest.mark.parametrize("what", [".seg", "manifest", "HEAD"])
def test_a_write_that_fails_or_only_seems_to_is_tried_again(world: World, what: str, fault: Fault) -> None:
    world.fill(2)
    world.store.decide = once("put_stream" if what == ".seg" else "put", fault, what)
    assert world.run()
    # What was written over HEAD is read back, so there a lost answer is no failure.
    assert world.manager.metrics.task_errors.total() == (0 if (what, fault) == ("HEAD", Fault.LIE) else 1)
    world.check()
    world.settle()
    assert world.entry(world.replicas[0]).segments == 2
    world.sweep()
    world.check_at_rest()


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LIE])
def test_a_commit_without_an_answer_is_asked_again_and_not_repeated(world: World, fault: Fault) -> None:
    world.fill(2)
    world.catalog.decide = once("commit", fault)
    world.run()
    world.settle()
    assert [one.entry.version for one in world.catalog.history] == [1, 2]
    world.sweep()
    world.check_at_rest()


@pytest.mark.parametrize("step", list(CommitStep))
def test_a_crash_at_any_step_loses_nothing_and_leaks_nothing(tmp_path: Path, step: CommitStep) -> None:
    world = World(tmp_path, partitions=2)
    world.fill(3)
    world.probe = crash_at(step)
    assert not world.run()
    world.check()
    world.settle()
    assert [world.entry(one).segments for one in world.replicas] == [3, 3]
    world.sweep()
    world.check_at_rest()


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("operation", ["put_stream", "get_suffix", "put", "get"])
def test_a_crash_around_any_call_to_the_store_loses_nothing(
    tmp_path: Path, operation: str, fault: Fault
) -> None:
    world = World(tmp_path)
    world.fill(3)
    world.store.decide = once(operation, fault, "data/")
    world.run()
    if operation == "get":
        world.reboot()
        world.store.decide = once(operation, fault, "data/")
        world.run()
    assert world.crashes
    world.check()
    world.settle()
    world.sweep()
    world.check_at_rest()


def test_head_is_written_again_after_a_restart_when_it_lags(world: World) -> None:
    world.fill(1)
    world.probe = crash_at(CommitStep.COMMITTED)
    assert not world.run()
    [replica] = world.replicas
    assert world.head(replica) is None
    world.run()
    assert world.manager.metrics.heads_repaired == 1
    assert world.head(replica).manifest_key == world.entry(replica).manifest_key


def test_a_fenced_leader_cannot_commit_a_manifest(world: World) -> None:
    world.fill(2)
    [replica] = world.replicas
    fenced = replica.leader_epoch

    def probe(step: CommitStep, tip: TopicIdPartition) -> None:
        if step is CommitStep.UPLOADED and replica.leader_epoch == fenced:
            world.fence(replica)

    world.probe = probe
    world.run()
    assert world.entry(replica) is None
    assert world.manager.metrics.fenced_commits == 1
    assert any(key.endswith(".seg") for key in world.stored_keys()), "its object is an orphan"
    world.elect(replica)
    world.settle()
    assert {one.entry.leader_epoch for one in world.catalog.history} == {1}
    world.sweep()
    world.check_at_rest()


def test_a_new_leader_continues_the_archive_inside_a_local_segment(tmp_path: Path) -> None:
    """Two leaders roll at different offsets; the second goes on exactly where the first one's chain ends."""
    world = World(tmp_path)
    [replica] = world.replicas
    world.fill(2)
    world.run()
    chain_end = world.entry(replica).end_offset
    world.fence(replica)
    world.elect(replica)
    successor = World(tmp_path / "other", world.bucket, world.catalog, segment_bytes=1700)
    [other] = successor.replicas
    while other.log.log_end_offset < replica.log.log_end_offset:
        other.append(2, successor.clock.now_ms())
    other.leader_epoch = replica.leader_epoch
    successor.fill(2)
    bases = [one.base_offset for one in other.log.sealed.describe_all()]
    assert chain_end not in bases
    successor.settle()
    entry = successor.entry(other)
    assert entry.end_offset == other.log.active_base_offset
    assert chain_end in [one.base_offset for one in successor.live(other)]
    successor.check()


def test_a_refusal_does_not_undo_an_earlier_commit_whose_answer_was_lost(tmp_path: Path) -> None:
    """1. We commit; the answer is lost. 2. Another leads and builds on it. 3. We ask again and are refused.

    Our object is part of the log all the same, and nothing that we do about the refusal may touch it.
    """
    world = World(tmp_path / "one")
    [replica] = world.replicas
    world.fill(1)
    world.catalog.decide = once("commit", Fault.LIE)
    world.run()
    successor = World(tmp_path / "two", world.bucket, world.catalog)
    [other] = successor.replicas
    while other.log.log_end_offset < replica.log.log_end_offset:
        other.append(2, successor.clock.now_ms())
    world.fence(replica)
    successor.elect(other)
    successor.fill(2)
    successor.run()
    assert successor.entry(other).segments == 3
    for _ in range(4):
        world.clock.advance(GRACE_MS)
        world.run()
        world.do(world.manager.maintenance.sweep())
    assert world.manager.metrics.fenced_commits > 0
    successor.check()


def test_an_older_head_that_arrives_late_is_replaced_before_its_manifest_goes(world: World) -> None:
    world.fill(1)
    world.run()
    [replica] = world.replicas
    key = f"data/{replica.tip.topic_id}/0/HEAD"
    older = world.bucket.get(key, max_size=4096)
    world.fill(1)
    world.run()
    world.bucket.put(key, older)
    world.check()
    world.clock.advance(GRACE_MS // 2)
    world.run()
    world.run()
    assert world.head(replica).manifest_key == world.entry(replica).manifest_key
    world.clock.advance(GRACE_MS // 2)
    world.run()
    world.check_at_rest()


def test_a_node_whose_catalog_lags_behind_head_does_nothing_until_it_has_caught_up(world: World) -> None:
    world.fill(1)
    world.run()
    [replica] = world.replicas
    world.view.stale[replica.tip.topic_id, 0] = world.entry(replica)
    world.fill(1)
    world.run()
    newest = world.entry(replica)
    world.reboot()
    world.fill(1)
    world.run()
    assert replica.remote is None
    assert world.entry(replica) == newest
    assert world.head(replica).version == newest.version
    world.settle()
    assert world.entry(replica).segments == 3


def test_an_image_that_lags_behind_our_own_commits_does_no_harm(world: World) -> None:
    [replica] = world.replicas
    world.view.stale[replica.tip.topic_id, 0] = None
    world.fill(3)
    world.run()
    assert [one.entry.version for one in world.catalog.history] == [1, 2, 3]
    world.check()


def test_one_partition_that_fails_does_not_hold_up_the_others(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=3)
    world.fill(2)
    world.store.decide = lambda operation, key: (
        Fault.FAIL if f"{world.replicas[0].tip.topic_id}/1/" in key else Fault.PASS
    )
    world.run()
    assert [world.lag(one) for one in world.replicas] == [0, 2, 0]
    assert world.manager.metrics.lag_segments == 2
    world.settle()
    world.run()
    assert world.manager.metrics.lag_segments == 0


def test_failures_in_a_row_back_off_and_success_resets_them(world: World) -> None:
    world.fill(1)
    calls: list[str] = []

    def decide(operation: str, key: str) -> Fault:
        calls.append(operation)
        return Fault.FAIL if operation == "put_stream" else Fault.PASS

    world.store.decide = decide
    for _ in range(20):
        world.run()
    assert calls.count("put_stream") == 1, "the clock stands, so the back-off does not end"
    for _ in range(5):
        world.clock.advance(world.settings.backoff_max_ms)
        world.run()
    assert calls.count("put_stream") == 6
    assert world.manager.metrics.task_errors.total() == 6
    world.settle()
    world.check()


def test_a_local_segment_with_a_flipped_bit_is_never_uploaded(world: World) -> None:
    world.fill(2)
    [replica] = world.replicas
    path = replica.log.sealed.describe_all()[1].log_file.path
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    world.run()
    assert world.entry(replica).segments == 1
    assert world.manager.metrics.task_errors.total() == 1
    assert sum(key.endswith(".seg") for key in world.stored_keys()) == 1
    world.check()


def test_an_object_that_arrives_short_is_not_committed(world: World) -> None:
    world.fill(1)
    short = world.bucket.put_stream

    def put_short(key: str, parts: Any, size: int) -> None:
        data = b"".join(parts)
        world.bucket.put(key, data[: -TRAILER.size])

    world.store.inner.put_stream = put_short  # type: ignore[method-assign]
    world.run()
    assert world.entry(world.replicas[0]) is None
    world.store.inner.put_stream = short  # type: ignore[method-assign]
    world.settle()
    world.sweep()
    world.check_at_rest()


def test_a_crash_is_a_crash(world: World) -> None:
    """The harness itself: what escapes from a step ends the manager, it is not taken for a failed try."""
    world.fill(1)
    world.probe = crash_at(CommitStep.BEFORE_UPLOAD)
    once_more = world.manager.run_once()
    with pytest.raises(BaseExceptionGroup) as caught:
        world.do(once_more)
    assert caught.value.split(Crash)[1] is None


@pytest.mark.parametrize("is_urgent", [False, True])
def test_partitions_whose_disk_fills_up_are_copied_before_those_that_have_waited_longer(
    tmp_path: Path, is_urgent: bool
) -> None:
    world = World(tmp_path, partitions=3)
    for replica in world.replicas:
        world.clock.advance(1000)
        world.fill(3, replica)
    if is_urgent:
        world.hurried = {world.replicas[2].tip}
    world.run()
    committed = [one.tip.partition for one in world.catalog.history]
    first = [partition for at, partition in enumerate(committed) if partition not in committed[:at]]
    assert first == ([2, 0, 1] if is_urgent else [0, 1, 2])
    assert committed[:3] == ([2, 2, 2] if is_urgent else committed[:3])
