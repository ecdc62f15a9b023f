"""Offload is driven by events: an event of one partition costs no other partition anything."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from service.base.clock import SystemClock
from service.base.slices import Slice
from service.hot.segment import Segment
from service.remote.format.keys import SegmentKey, segment_key
from service.tiering.manager import TieringManager
from service.tiering.partition_archiver import PartitionArchiver
from service.tiering.ports import ChooseUploads
from tests.support.waiting import until
from tests.unit.tiering.world import SETTINGS, Fault, World

NEVER_MS = 3_600_000
QUIET = SETTINGS._replace(copier_threads=2, interval_ms=NEVER_MS, grace_ms=NEVER_MS, topics_debounce_ms=1)
"""Nothing but an event makes the manager look."""


def live(world: World) -> World:
    world.clock = SystemClock()  # type: ignore[assignment]
    world.reboot()
    return world


def is_at_rest(manager: TieringManager) -> bool:
    """Return whether no partition is worked on or waits, after the assessment of a takeover."""
    return manager._has_compared_all() and not manager._busy and not manager._queue._dirty


@pytest.fixture
def assessed(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count the assessments of each partition."""
    counts: Counter[int] = Counter()
    assess = PartitionArchiver.assess

    def counted(self: PartitionArchiver):  # type: ignore[no-untyped-def]
        counts[self.partition.tip.partition] += 1
        return assess(self)

    monkeypatch.setattr(PartitionArchiver, "assess", counted)
    return counts


def test_sealing_a_segment_assesses_only_its_own_partition(tmp_path: Path, assessed: Counter[int]) -> None:
    world = live(World(tmp_path, partitions=20, settings=QUIET))

    async def scenario() -> None:
        world.manager.start()
        await until(lambda: world.manager._fence.is_ours and is_at_rest(world.manager))
        assessed.clear()
        replica = world.replicas[7]
        for _ in range(3):
            world.fill(2, replica)
            await until(lambda: world.lag(replica) == 0 and replica.remote == world.entry(replica))
        await world.manager.stop()

    world.do(scenario())
    assert set(assessed) == {7}, "no other partition was touched"
    world.check()


def test_heads_are_looked_at_again_where_there_are_any_and_not_all_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=30, settings=SETTINGS)
    for replica in world.replicas[:20]:
        world.fill(1, replica)
    world.run()
    looks: list[str] = []

    def noted(operation: str, key: str) -> Fault:
        if operation == "get" and key.endswith("HEAD"):
            looks.append(key)
        return Fault.PASS

    world.store.decide = noted
    most = 0
    for _ in range(8):
        before = len(looks)
        world.clock.advance(world.settings.heads_interval_ms // 8)
        world.run()
        most = max(most, len(looks) - before)
    assert len(set(looks)) == 20, "the others have none"
    assert most < 15


def test_the_manager_follows_partitions_that_are_added_and_removed(tmp_path: Path) -> None:
    world = live(World(tmp_path, partitions=2, settings=QUIET))

    async def scenario() -> None:
        manager = world.manager
        manager.start()
        await until(lambda: manager._fence.is_ours)
        tip = world.replicas[0].tip
        late = world.add(tip._replace(partition=5))
        world.fill(1, late)
        manager.changed(tip.topic_id, 5)
        await until(lambda: late.remote is not None)
        world.store.decide = lambda operation, key: Fault.FAIL if operation == "put_stream" else Fault.PASS
        world.fill(1, late)
        await until(lambda: manager.metrics.why(late.tip) is not None)
        world.replicas.remove(late)
        manager.changed(tip.topic_id, 5)
        await until(lambda: manager.metrics.lag_segments == 0)
        assert manager.metrics.why(late.tip) is None
        assert late.tip not in manager.metrics.waiting
        await manager.stop()

    world.do(scenario())


@pytest.mark.parametrize("partitions", [20, 80])
def test_a_store_that_denies_is_asked_by_one_partition_at_a_time(
    tmp_path: Path, assessed: Counter[int], partitions: int
) -> None:
    """Cost of an outage grows with its length, not with the partitions that wait."""
    world = World(tmp_path, partitions=partitions, settings=SETTINGS._replace(copier_threads=2))
    world.run()
    world.fill(3)
    calls: list[str] = []

    def denied(operation: str, key: str) -> Fault:
        calls.append(key)
        return Fault.FAIL

    world.store.decide = denied
    world.run()
    assert world.manager.metrics.store is not None
    assert all(world.manager.metrics.why(one.tip) for one in world.replicas), "each says why"
    calls.clear()
    for _ in range(20):  # ten minutes of it
        world.clock.advance(world.settings.backoff_max_ms)
        assessed.clear()
        world.do(tick(world))
        assert assessed.total() <= 12
    assert len(calls) <= 20 * 4
    world.settle()
    assert world.manager.metrics.store is None
    assert [world.manager.metrics.why(one.tip) for one in world.replicas] == [None] * partitions
    world.check()


async def tick(world: World) -> None:
    """Do the due work of the running manager, until nothing is under way."""
    manager = world.manager
    async with asyncio.TaskGroup() as tasks:
        manager._wake.set()
        while manager._wake.is_set() or manager._busy:
            await manager._wake.wait()
            manager._wake.clear()
            await manager._pass(tasks)


def test_a_plan_looks_at_no_file_however_many_segments_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.fill(40)
    [replica] = world.replicas
    looked: list[Segment] = []

    def at_files(self: Segment) -> int:
        looked.append(self)
        return 0

    monkeypatch.setattr(Segment, "_written_at_ms", at_files)
    monkeypatch.setattr(Segment, "_check_indexes", at_files)
    work = PartitionArchiver(replica, world.manager._context)
    for _ in range(5):
        work.assess()
    assert world.manager.metrics.lag_segments == 40
    assert world.manager.metrics.lag_bytes == sum(one.size for one in replica.log.sealed.describe_all())
    assert not looked


@pytest.mark.parametrize("of_uploads", [False, True])
def test_a_sweep_is_cut_into_slices_by_what_it_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_uploads: bool
) -> None:
    world = World(tmp_path)
    turns = [0]
    next_turn = Slice.next_turn

    async def counted(self: Slice) -> None:
        turns[0] += 1
        await next_turn(self)

    async def uploads(older_than_ms: int, choose: ChooseUploads) -> int:
        return len(await choose(keys)) if of_uploads else 0

    world.abandoned_uploads = uploads
    world.reboot()
    world.run()
    monkeypatch.setattr(Slice, "next_turn", counted)
    found = []
    for number in (400, 4000):
        topic = world.topic_ids["events"]
        keys = [segment_key(SegmentKey(topic, 1 + one, 0, 9, 0, UUID(int=one))) for one in range(number)]
        if not of_uploads:
            for key in keys:
                world.bucket.put(key, b"?")
        turns[0] = 0
        world.do(world.manager.sweep())
        found.append(turns[0])
    assert 5 <= found[1] <= 60
    assert found[0] <= found[1] // 5


def test_the_lag_is_what_the_segments_say_also_after_some_have_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(12)
    [replica] = world.replicas
    sealed = replica.log.sealed
    for gone in (0, 3, 8):
        if gone:
            replica.log.deletion.delete_segments(
                replica.log.sealed.describe_all()[gone - 1].last_offset, "a test"
            )
        ends = [(one.last_offset + 1, one.size) for one in replica.log.sealed.describe_all()]
        for offset in range(0, replica.log.log_end_offset + 2, 3):
            for end in range(0, replica.log.log_end_offset + 2, 5):
                sizes = [size for last, size in ends if offset < last <= end]
                assert sealed.totals(offset, end) == (len(sizes), sum(sizes))
            beyond = sum(size for last, size in ends if last > offset)
            assert sealed.bytes_beyond(offset) == beyond + replica.log.state.segments.active.size
        replica.log.truncation.truncate_to(replica.log.log_end_offset - 1)
        world.fill(1)
