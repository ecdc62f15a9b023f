"""A broker merges the small objects of the partitions that it leads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.inspect.fsck import fsck
from service.remote.catalog import RewriteKind
from service.remote.format.manifest import ManifestLimits
from service.remote.reading.object_reader import open_footer
from service.tiering.rewriting.rules import MergeRule
from service.tiering.steps import CommitStep
from service.tiering.tasks import Task
from tests.unit.tiering.merges import LIMITS, MergingWorld
from tests.unit.tiering.stepped import SteppedManager
from tests.unit.tiering.world import GRACE_MS, Fault, crash_at, once


class PagedWorld(MergingWorld):
    """A world with ten segments in a page, and two pages in one of the next level."""

    def _boot(self) -> SteppedManager:
        self.limits = ManifestLimits(entries=10, page_refs=2)
        return super()._boot()


@pytest.fixture
def world(tmp_path: Path) -> MergingWorld:
    return MergingWorld(tmp_path)


def filled(world: MergingWorld, segments: int) -> MergingWorld:
    world.fill(segments)
    world.settle()
    return world


def test_small_objects_become_one(world: MergingWorld) -> None:
    filled(world, 10)
    (replica,) = world.replicas
    before = world.entry(replica)
    assert before is not None
    assert before.segments == 10
    assert world.merge()
    after = world.entry(replica)
    assert after is not None
    assert (after.segments, after.version) == (1, before.version + 1)
    assert (after.start_offset, after.end_offset) == (before.start_offset, before.end_offset)
    assert world.generations(replica) == [1]
    assert world.catalog.intents == {}
    world.check()
    metrics = world.manager.metrics.rewrites
    assert metrics.runs[RewriteKind.MERGE] == 1
    assert metrics.objects_before[RewriteKind.MERGE] == 10
    assert metrics.objects_after[RewriteKind.MERGE] == 1
    assert metrics.running == 0


def test_the_old_objects_go_after_the_grace(world: MergingWorld) -> None:
    filled(world, 10)
    old = {segment.key for segment in world.live(world.replicas[0])}
    world.merge()
    world.run()
    assert old <= world.stored_keys()  # readers of the manifest before still find them
    world.clock.advance(GRACE_MS)
    world.run()
    assert not old & world.stored_keys()
    world.check_at_rest()


def test_the_object_says_what_it_was_made_of(world: MergingWorld) -> None:
    filled(world, 9)
    before = [open_footer(world.bucket, one.key) for one in world.live(world.replicas[0])]
    world.merge()
    (merged,) = world.live(world.replicas[0])
    footer = open_footer(world.bucket, merged.key)
    assert footer.rewrite is not None
    assert (footer.rewrite.kind, footer.rewrite.segments) == ("merge", 9)
    assert footer.rewrite.record_count == footer.record_count == sum(one.record_count for one in before)
    assert footer.max_timestamp_offset == before[0].max_timestamp_offset  # all are of one time
    assert footer.leader_epochs == before[0].leader_epochs
    assert footer.keyed_record_count == sum(one.keyed_record_count or 0 for one in before)


def test_local_bytes_are_not_downloaded(world: MergingWorld) -> None:
    filled(world, 10)
    behind_logs = sum(one.size - one.log_length for one in world.live(world.replicas[0]))
    world.merge()
    assert 0 < world.manager.metrics.rewrites.bytes_read <= behind_logs


def test_bytes_that_are_no_longer_local_are_read_from_the_bucket(world: MergingWorld) -> None:
    filled(world, 10)
    world.drop_local(world.replicas[0])
    sizes = sum(segment.log_length for segment in world.live(world.replicas[0]))
    world.merge()
    assert world.generations(world.replicas[0]) == [1]
    assert world.manager.metrics.rewrites.bytes_read > sizes
    world.check()


def test_a_damaged_object_is_merged_with_nothing(world: MergingWorld) -> None:
    filled(world, 10)
    replica = world.replicas[0]
    world.drop_local(replica)
    damaged = world.live(replica)[4]
    data = bytearray(world.bucket.get(damaged.key, max_size=1 << 20))
    data[70] ^= 1
    world.bucket.put(damaged.key, bytes(data))
    world.merge()
    assert world.generations(replica) == [0] * 10
    assert world.catalog.intents == {}
    assert world.manager.metrics.rewrites.failures == 1
    written = world.stored_keys() - world.live_keys()
    world.clock.advance(GRACE_MS)
    world.run()
    assert not written & world.stored_keys()


def test_a_topic_may_be_left_out(tmp_path: Path) -> None:
    world = filled(MergingWorld(tmp_path, merge_enable=False), 10)
    world.merge()
    assert world.generations(world.replicas[0]) == [0] * 10


def test_a_cluster_that_does_not_know_rewrites_merges_nothing(world: MergingWorld) -> None:
    filled(world, 10)
    world.merge_limits = None
    world.merge()
    assert world.generations(world.replicas[0]) == [0] * 10


def test_chains_in_pages_are_merged_page_by_page(tmp_path: Path) -> None:
    world = filled(PagedWorld(tmp_path), 45)
    world.merge()
    replica = world.replicas[0]
    # Four pages of ten each became pages of one; of the five in the manifest there are too few.
    assert world.generations(replica) == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    world.check()
    world.settle()
    world.sweep()
    world.check_at_rest()


def test_pages_of_merged_objects_are_not_read_after_a_start(tmp_path: Path) -> None:
    """A node that starts, or leads a partition anew, looks at its whole chain: that is small once merged."""
    world = filled(PagedWorld(tmp_path), 45)
    world.merge()
    world.fill(5)
    world.settle()
    world.reboot()
    world.run()
    read: list[str] = []

    def note(operation: str, key: str) -> Fault:
        if "/page/" in key and operation.startswith("get"):
            read.append(key)
        return Fault.PASS

    world.store.decide = note
    world.merge()
    (replica,) = world.replicas
    assert world.generations(replica) == [1, 1, 1, 1, 1]
    assert read == []


def test_a_chain_without_a_run_is_not_read_again_before_it_may_have_one(tmp_path: Path) -> None:
    world = filled(MergingWorld(tmp_path, LIMITS._replace(min_age_ms=600_000)), 10)
    world.merge()
    assert world.generations(world.replicas[0]) == [0] * 10
    world.manager.context.chains.forget(world.entry(world.replicas[0]).manifest_key)
    world.store.decide = once("get", Fault.FAIL, "manifest")
    world.merge()
    assert world.manager.metrics.rewrites.failures == 0
    world.clock.advance(700_000)
    world.store.decide = once("put", Fault.PASS)
    world.run()
    world.merge()
    assert 1 in world.generations(world.replicas[0])
    world.check()


def test_an_object_is_an_eighth_of_the_topic_s_retained_bytes_at_most(tmp_path: Path) -> None:
    """An object expires as a whole, so a larger one would keep much more than the topic retains."""
    every = filled(MergingWorld(tmp_path / "every"), 30)
    most = 12 * max(one.size for one in every.live(every.replicas[0]))
    every.merge()
    assert every.generations(every.replicas[0]) == [1]
    world = filled(MergingWorld(tmp_path / "some", retention_bytes=8 * most), 30)
    before = {one.last_offset: one.size for one in world.live(world.replicas[0])}
    world.merge()
    merged = [one for one in world.live(world.replicas[0]) if one.generation]
    assert len(merged) == 2
    for one in merged:
        parts = [size for last, size in before.items() if one.base_offset <= last <= one.last_offset]
        assert sum(parts) <= most


def test_an_idle_chain_is_never_read_again(world: MergingWorld) -> None:
    """A cluster that stands still costs nothing, whatever its number of partitions."""
    filled(world, 25)
    world.merge()
    filled(world, 7)
    world.merge()
    (replica,) = world.replicas
    entry = world.entry(replica)
    assert entry is not None
    assert entry.segments == 8  # the merged one has more than half of all their bytes
    reads: list[str] = []

    def note(operation: str, key: str) -> Fault:
        reads.append(key)
        return Fault.PASS

    for _ in range(3):
        world.manager.context.chains.forget(entry.manifest_key)
        world.clock.advance(30 * 86_400_000)
        world.store.decide = note
        world.merge()
        world.settle()
    assert [key for key in reads if "manifest" in key] == []
    world.fill(2)
    world.settle()
    world.merge()
    assert world.generations(replica) == [1, 1]


def test_copies_go_on_while_a_run_is_made(world: MergingWorld) -> None:
    """Objects are made outside of the partition's line of tasks: only the publication is in it."""
    filled(world, 10)
    replica = world.replicas[0]
    copied: list[int] = []
    put_stream = world.store.put_stream

    def slow(key: str, parts: object, size: int) -> None:
        if not copied and key.endswith(".seg") and world.catalog.intents:
            copied.append(1)
        put_stream(key, parts, size)  # type: ignore[arg-type]

    world.store.put_stream = slow  # type: ignore[method-assign]
    world.fill(2)
    world.merge()
    world.settle()
    entry = world.entry(replica)
    assert entry is not None
    assert entry.segments == 3
    world.check()


def test_a_run_that_expiry_has_changed_is_planned_again(world: MergingWorld) -> None:
    filled(world, 20)
    replica = world.replicas[0]
    run = world.run_of(replica, 0, 10)
    replica.log.deletion.advance_log_start(run.entries[3].base_offset)
    world.run()
    rewriter = world.manager.rewriting.rewriter
    outcome = world.during(
        rewriter.rewrite(
            replica.tip.topic_id, replica.tip.partition, run.base_offset, run.last_offset, MergeRule()
        )
    )
    assert outcome.name == "CHANGED"
    assert world.catalog.intents == {}
    world.merge()
    world.check()
    assert 1 in world.generations(replica)


@pytest.mark.parametrize(
    "step", [CommitStep.PROPOSED, CommitStep.COMMITTED, CommitStep.HEAD_WRITTEN, CommitStep.PUBLISHED]
)
def test_a_crash_at_any_step_loses_nothing(world: MergingWorld, step: CommitStep) -> None:
    filled(world, 10)
    world.probe = crash_at(step)
    assert not world.merge()
    world.check()
    world.settle()
    world.check()
    world.clock.advance(700_000)
    world.merge()  # hears of the intent that is left, if there is one
    world.clock.advance(700_000)
    world.merge()
    world.merge()
    world.settle()
    assert world.catalog.intents == {}
    assert world.generations(world.replicas[0]) == [1]
    world.sweep()
    world.settle()
    world.check_at_rest()


@pytest.mark.parametrize("operation", ["put_stream", "get_suffix", "get_range", "put", "get", "commit"])
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LIE, Fault.REFUSE])
def test_a_failure_anywhere_loses_nothing(world: MergingWorld, operation: str, fault: Fault) -> None:
    filled(world, 10)
    world.store.decide = once(operation, fault, "" if operation != "put" else "manifest")
    world.catalog.decide = once(operation, fault)
    world.merge()
    world.check()
    world.settle()
    for _ in range(3):
        world.clock.advance(700_000)
        world.merge()
        world.settle()
    assert world.generations(world.replicas[0]) == [1]
    assert world.catalog.intents == {}
    world.sweep()
    world.settle()
    world.check_at_rest()


def test_a_failing_publication_stops_no_copy(world: MergingWorld) -> None:
    filled(world, 10)
    replica = world.replicas[0]

    def refuse(operation: str, key: str) -> Fault:
        is_merged = operation == "get_suffix" and bool(world.catalog.intents)
        return Fault.REFUSE if is_merged and key in made else Fault.PASS

    made: set[str] = set()
    put_stream = world.store.put_stream

    def note(key: str, parts: object, size: int) -> None:
        put_stream(key, parts, size)  # type: ignore[arg-type]

    world.store.put_stream = note  # type: ignore[method-assign]
    world.store.decide = refuse

    async def story() -> None:
        merging = asyncio.ensure_future(world.manager.rewriting.merger.run_once())
        for _ in range(400):
            await world.manager.run_news()
            await asyncio.wait({merging}, timeout=0.002)
            made.update(one.key for one in world.bucket.list("data") if one.key.endswith(".seg"))
            if world.manager.metrics.failing.get((Task.REWRITE, replica.tip)):
                break
        assert world.manager.metrics.failing[Task.REWRITE, replica.tip]
        world.fill(2)
        await world.manager.run_once()
        entry = world.entry(replica)
        assert entry is not None
        assert entry.segments == 12  # copied beside it
        merging.cancel()

    world.do(story())
    world.check()


def test_a_deposed_leader_publishes_nothing(world: MergingWorld) -> None:
    filled(world, 10)
    replica = world.replicas[0]

    def depose(step: CommitStep, tip: object) -> None:
        if step is CommitStep.PROPOSED:
            world.fence(replica)

    world.probe = depose
    world.merge()
    assert world.generations(replica) == [0] * 10
    world.elect(replica)
    world.probe = lambda step, tip: None
    world.settle()
    world.check()
    world.clock.advance(700_000)
    world.merge()
    assert world.generations(replica) == [1]
    world.sweep()
    world.settle()
    world.check_at_rest()


def test_fsck_is_clean_after_merges_of_merges(tmp_path: Path) -> None:
    world = MergingWorld(tmp_path)
    for _ in range(9):
        filled(world, 9)
        world.merge()
        world.check()
    assert fsck(world.bucket).is_clean
    assert max(world.generations(world.replicas[0])) >= 2
