"""Merges that fail alone: a partition, a run, a worker that is gone holds up nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from service.base.types import Buffer
from service.remote.format.keys import ManifestKey, head_key, manifest_key
from service.remote.format.manifest_codec import encode_head
from service.remote.stores.errors import AccountRefused
from service.tiering.ports import TieredPartition
from service.tiering.rewriting import merging
from service.tiering.rewriting.silent_intents import SILENT_MS
from service.tiering.tasks import Task
from tests.unit.tiering.merges import LIMITS, MergingWorld, OutsideWorker
from tests.unit.tiering.test_merges import PagedWorld
from tests.unit.tiering.world import Decide, Fault

HOUR_MS = 3_600_000


def filled(world: MergingWorld, segments: int = 10) -> MergingWorld:
    world.fill(segments)
    world.settle()
    return world


def refusing(operation: str, *parts: str, fault: Fault = Fault.REFUSE) -> Decide:
    """The store never does this to keys with all of these parts."""

    def decide(called: str, key: str) -> Fault:
        return fault if called == operation and all(part in key for part in parts) else Fault.PASS

    return decide


def merging_until(world: MergingWorld, is_so: Callable[[], bool], turns: int = 600) -> None:
    """Have the node merge, and do all else, until it is so. Back-offs pass quickly."""

    async def story() -> None:
        merging = asyncio.ensure_future(world.manager.rewriting.merger.run_once())
        try:
            for turn in range(turns):
                await world.manager.run_news()
                if is_so():
                    return
                await asyncio.wait({merging}, timeout=0.001)
                if merging.done():
                    merging.result()
                    merging = asyncio.ensure_future(world.manager.rewriting.merger.run_once())
                if not turn % 5:
                    world.clock.advance(world.settings.backoff_max_ms)
                    world.manager.scheduler.wake()
            raise AssertionError("it does not come to be so")
        finally:
            merging.cancel()
            await asyncio.wait({merging})

    world.do(story())


def test_a_partition_that_cannot_publish_stops_no_other(tmp_path: Path) -> None:
    """Its manifests are refused for ever: the merge of the next partition does not wait for them."""
    world = filled(MergingWorld(tmp_path, partitions=2))
    first, second = world.replicas
    world.store.decide = refusing("put", "/0/", "manifest")
    merging_until(world, lambda: world.generations(second) == [1])
    assert world.generations(first) == [0] * 10
    merging_until(world, lambda: not world.catalog.intents)
    assert "the store said no" in world.manager.metrics.failing[Task.MERGE, first.tip]
    world.check()
    world.settle()
    world.clock.advance(HOUR_MS)
    merging_until(world, lambda: (Task.MERGE, first.tip) not in world.manager.metrics.failing)
    assert world.generations(first) == [1]
    world.sweep()
    world.settle()
    world.check_at_rest()


def test_no_object_is_made_of_a_partition_whose_head_went_its_own_way(tmp_path: Path) -> None:
    """While HEAD and metadata have diverged nothing of it is written."""
    world = filled(MergingWorld(tmp_path, partitions=2))
    first, second = world.replicas
    head = world.head(first)
    assert head is not None
    newer = ManifestKey(head.topic_id, 0, head.version + 1, 0, UUID(int=5))
    moved = head._replace(version=head.version + 1, manifest_key=manifest_key(newer))
    world.bucket.put(head_key(head.topic_id, 0), encode_head(moved))
    world.clock.advance(world.settings.heads_interval_ms)
    world.run()
    assert world.manager.metrics.stopped.keys() == {first.tip}
    before = world.stored_keys()
    merging_until(world, lambda: world.generations(second) == [1])
    assert not [
        key for key in world.stored_keys() - before if key.startswith(f"data/{first.tip.topic_id}/0/")
    ]


def test_a_damaged_object_stops_no_other_run_of_its_partition(tmp_path: Path) -> None:
    limits = LIMITS._replace(object_bytes=30_000)
    world = filled(MergingWorld(tmp_path, limits), 40)
    (replica,) = world.replicas
    world.drop_local(replica)
    damaged = world.live(replica)[4]
    data = bytearray(world.bucket.get(damaged.key, max_size=1 << 20))
    data[70] ^= 1
    world.bucket.put(damaged.key, bytes(data))
    merging_until(world, lambda: world.generations(replica).count(1) == 2)
    why = world.manager.metrics.unmerged[replica.tip]
    assert why.startswith("merge: ")
    assert damaged.key in why


def test_a_run_that_fails_is_tried_more_and_more_seldom(tmp_path: Path) -> None:
    """Each try reads the whole run, and puts an intent into the metadata."""
    world = filled(MergingWorld(tmp_path))
    (replica,) = world.replicas
    world.drop_local(replica)
    damaged = world.live(replica)[4]
    data = bytearray(world.bucket.get(damaged.key, max_size=1 << 20))
    data[70] ^= 1
    world.bucket.put(damaged.key, bytes(data))
    tries = []
    for minute in range(600):
        before = world.manager.metrics.rewrites.failures
        world.merge()
        if world.manager.metrics.rewrites.failures > before:
            tries.append(minute)
        world.clock.advance(60_000)
    assert 5 <= len(tries) <= 16
    assert tries[1] <= 3
    assert max(after - before for before, after in pairwise(tries)) <= 65


def test_a_store_that_refuses_everything_is_asked_once_for_each_partition(tmp_path: Path) -> None:
    """Keys that were revoked say nothing of one run: the others are not tried beside it."""
    world = filled(MergingWorld(tmp_path, LIMITS._replace(object_bytes=30_000)), 40)
    put_stream, tries = world.store.put_stream, []

    def refuse(key: str, parts: Iterable[Buffer], size: int) -> None:
        tries.append(key)
        raise AccountRefused("the access key was revoked")

    world.store.put_stream = refuse  # type: ignore[method-assign]
    world.merge()
    assert len(tries) == 1
    world.store.put_stream = put_stream  # type: ignore[method-assign]
    world.clock.advance(60_000)
    world.merge()
    assert 1 in world.generations(world.replicas[0])
    assert world.manager.metrics.unmerged == {}


def test_an_upload_ends_when_its_topic_is_deleted(tmp_path: Path) -> None:
    """It may take longer than the grace, by its quota: what arrived then nobody would ever delete."""
    world = filled(MergingWorld(tmp_path))
    put_stream, begun, is_gone = world.store.put_stream, threading.Event(), threading.Event()

    def slow(key: str, parts: Iterable[Buffer], size: int) -> None:
        begun.set()
        assert is_gone.wait(10)
        put_stream(key, parts, size)

    def find(topic_id: UUID, partition: int) -> TieredPartition | None:
        found = world._find(topic_id, partition)
        if found is None:
            asyncio.get_running_loop().call_soon(is_gone.set)
        return found

    world.store.put_stream = slow  # type: ignore[method-assign]
    rewriting = world.manager.rewriting
    rewriting.rewriter._find = find

    async def story() -> None:
        merging = asyncio.ensure_future(rewriting.merger.run_once())
        while not begun.is_set():
            await asyncio.sleep(0.001)
        world.delete_topic("events")
        await merging

    before = world.stored_keys()
    world.do(story())
    assert world.stored_keys() <= before
    assert rewriting.rewriter.running(UUID(int=7), 0) is None


def test_a_partition_with_many_runs_lets_the_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "MOST_RUNS", 2)
    world = PagedWorld(tmp_path, partitions=2)
    first, second = world.replicas
    world.fill(35, first)
    world.fill(10, second)
    world.settle()
    assert world.during(world.manager.rewriting.merger.run_once()), "there is more"
    assert world.generations(second) == [1]
    assert world.generations(first) == [1, 1, *[0] * 15]
    assert not world.during(world.manager.rewriting.merger.run_once())
    assert world.generations(first) == [1, 1, 1, *[0] * 5]
    world.check()


def test_silent_workers_lose_their_rewrites_while_a_merge_takes_long(tmp_path: Path) -> None:
    world = filled(MergingWorld(tmp_path, partitions=2))
    first, second = world.replicas
    worker = OutsideWorker(world, second)
    worker.begin(world.run_of(second))
    rewriting, place = world.manager.rewriting, (second.tip.topic_id, second.tip.partition)

    async def story() -> None:
        merging = asyncio.ensure_future(rewriting.merger.run_once())
        while not world.manager.metrics.rewrites.running:
            await asyncio.sleep(0.001)  # it is made, and nobody publishes it
        world.clock.advance(SILENT_MS - 1)
        await rewriting.silent.run_once()
        assert place in world.catalog.intents
        world.clock.advance(1)
        await rewriting.silent.run_once()
        assert place not in world.catalog.intents
        assert (first.tip.topic_id, first.tip.partition) in world.catalog.intents, "its worker is here"
        merging.cancel()
        await asyncio.wait({merging})

    world.do(story())
